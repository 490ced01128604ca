"""An exchange that keeps what its transport told it."""

import asyncio

from asgi_gateway.upstream.exchange import Answer, Exchange


class Told(Exchange):
    """`story` has every call in its order, answers as tuples; `outcome` waits for the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.story: list[object] = []
        self._over = asyncio.Event()

    def answering(self) -> None:
        self.story.append("answering")

    def answered(self, answer: Answer) -> None:
        self.story.append((answer.status, answer.body(), answer.retry_after))
        self._over.set()

    def failed(self, error: Exception) -> None:
        self.story.append(error)
        self._over.set()

    async def outcome(self, within_s: float = 5.0) -> object:
        async with asyncio.timeout(within_s):
            await self._over.wait()
        return self.story[-1]
