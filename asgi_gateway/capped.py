"""Bodies of answers to the gateway's own questions, of which none may fill the memory."""

from collections.abc import Callable

import aiohttp


async def read_capped(
    response: aiohttp.ClientResponse, cap_bytes: int, too_large: Callable[[], Exception]
) -> bytes:
    """The whole body. Raises what `too_large` makes as soon as it has more bytes, and what aiohttp
    raises."""
    pieces, nbytes = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        nbytes += len(piece)
        if nbytes > cap_bytes:
            raise too_large()
    return b"".join(pieces)
