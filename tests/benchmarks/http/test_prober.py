import asyncio
import math

from benchmarks.http.prober import Probed, probe_for


def test_probes_count_from_the_attempt_and_what_is_no_200_has_failed() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status = statuses.pop()
        writer.write(b"HTTP/1.1 %d Any\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    async def test() -> list[Probed]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            return await probe_for([server.sockets[0].getsockname()[1]], 0.0, 0.3)

    statuses = [200, 503, 200]
    (found,) = asyncio.run(test())
    assert (len(found.seconds), found.failed) == (3, 1)
    assert all(0 < seconds < 10 for seconds in found.seconds)


def test_several_measurements_are_one() -> None:
    both = Probed.of([Probed([0.1, 0.2], 1), Probed([0.3], 1)])
    assert (both.percentile(50), both.failed) == (200, 2)
    assert math.isnan(Probed().percentile(99))
