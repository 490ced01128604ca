"""Questions that may block, asked in a thread of their own.

Not in the event loop's pool of threads: its end waits for every one of them, and a file on a server
that is away, or a driver that is looking for one, may hold its thread for minutes.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final

from asgi_gateway.sources import SourceError

NAME: Final = "asgi-gateway-source"


class Aside:
    """One question at a time; one that hangs keeps the next from being asked, and nothing else.

    read: blocks; what it raises is the source's failure. answer_s: nobody waits longer.
    """

    def __init__(self, read: Callable[[], object], answer_s: float) -> None:
        self._read = read
        self._answer_s = answer_s
        self._busy = False

    async def ask(self) -> object:
        """What `read` returns.

        Raises:
            SourceError: it failed, or has not returned in time or since the last question.
        """
        if self._busy:
            raise SourceError("the question before this one is not answered yet")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[object] = loop.create_future()

        def told(value: object, error: SourceError | None) -> None:
            self._busy = False
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)

        def run() -> None:
            value: object = None
            failure: SourceError | None = None
            try:
                value = self._read()
            except SourceError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - a thread that ends silently tells nobody
                failure = SourceError(f"{type(error).__name__}: {error}")
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(told, value, failure)

        self._busy = True
        try:
            threading.Thread(target=run, name=NAME, daemon=True).start()
        except RuntimeError as error:
            self._busy = False
            raise SourceError(f"no thread for it: {error}") from error
        try:
            async with asyncio.timeout(self._answer_s):
                return await answer
        except TimeoutError:
            raise SourceError(f"no answer within {self._answer_s:g} s") from None
