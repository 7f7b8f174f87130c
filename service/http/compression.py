"""gzip for the one kind of answer where it pays: attention weights as JSON numbers.

`python -m benchmarks.http gzip` measures it. Level 1 makes numbers 2.2 to 2.4 times smaller; level 6 takes six times
as long for a tenth more. Base64 is as small as compressed numbers and costs nothing, so embeddings are left to it:
nearly every client says that it takes gzip, and next to the server it would only cost throughput.
"""

import asyncio
import zlib
from collections.abc import Sequence

from service.http.media import accepts_gzip
from service.wire import Piece

LEVEL = 1
SMALLEST_BYTES = 64 * 1024  # below, an answer is a few round trips at most
_GZIP = 16 + zlib.MAX_WBITS  # zlib's way to ask for a gzip header

HEADERS = {"content-encoding": "gzip", "vary": "accept-encoding"}


async def compress(pieces: Sequence[Piece], accept_encoding: bytes | None) -> tuple[Sequence[Piece], dict[str, str]]:
    """A body and its headers, compressed on a thread if it is large and the caller accepts gzip."""
    if sum(map(len, pieces)) < SMALLEST_BYTES or not accepts_gzip(accept_encoding):
        return pieces, {}
    return await asyncio.to_thread(_compress, pieces), HEADERS


def _compress(pieces: Sequence[Piece]) -> list[bytes]:
    compressor = zlib.compressobj(LEVEL, wbits=_GZIP)
    return [*map(compressor.compress, pieces), compressor.flush()]
