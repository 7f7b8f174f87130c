import asyncio

from service.batching.token_semaphore import TokenSemaphore


def test_a_caller_that_is_cancelled_when_it_is_its_turn_gives_the_tokens_back() -> None:
    async def taken_twice() -> None:
        semaphore = TokenSemaphore(10)
        await semaphore.acquire(10)
        second, third = asyncio.create_task(semaphore.acquire(10)), asyncio.create_task(semaphore.acquire(10))
        await asyncio.sleep(0)
        semaphore.release(10)
        second.cancel()
        await asyncio.wait_for(third, 1)

    asyncio.run(taken_twice())
