"""The handshake where sessions may have been made by other processes."""

from typing import Any, Final

from asgi_gateway.asgi import Call, Reply
from asgi_gateway.errors import NotFound
from asgi_gateway.handshake import HandshakeHandlers
from asgi_gateway.sessions import SamplingSession, Session
from asgi_gateway.shared.whole import Shared


class SharedHandshake(HandshakeHandlers):
    def __init__(self, shared: Shared, **parts: Any) -> None:
        """parts: as of HandshakeHandlers."""
        self._shared: Final = shared
        super().__init__(**parts)

    async def _known(self, session_id: str, call: Call) -> Session:
        try:
            return await super()._known(session_id, call)
        except NotFound:
            await self._shared.sessions.find(session_id, call.caller.name)
            return await super()._known(session_id, call)

    async def _session_made(self, session: Session) -> None:
        await self._shared.sessions.made(session)

    async def _sampling_made(self, made: SamplingSession, seq_id: int) -> SamplingSession:
        return await self._shared.sessions.made_sampling(made, seq_id)

    async def _end(self, session: Session) -> None:
        await self._shared.finish(session)
        await super()._end(session)

    async def sampler(self, call: Call) -> Reply:
        try:
            return await super().sampler(call)
        except NotFound:
            await self._shared.sessions.sampler(call.tail, call.caller.name)
            return await super().sampler(call)
