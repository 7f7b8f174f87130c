import asyncio

from service.batching.room import Room


def test_room_is_given_back_by_who_is_let_in_and_then_cancelled() -> None:
    async def taken_twice() -> None:
        room = Room(10)
        await room.take(10)
        second, third = asyncio.create_task(room.take(10)), asyncio.create_task(room.take(10))
        await asyncio.sleep(0)
        room.give_back(10)
        second.cancel()
        await asyncio.wait_for(third, 1)

    asyncio.run(taken_twice())
