"""Where sessions are in the shared store, and what is written of each.

    {prefix:gg}:e:<session>           hash: ca caller, fi finished, dn um what its client says of
                                      it, q<seq_id> -> sampling session
    {prefix:gg}:t:<session>           wall clock, ms, of its last sign of life as far as it was told
    {prefix:gg}:a:<sampling session>  hash: ca caller, se session, sq seq_id, mo model as JSON,
                                      cl clones that were given a number
    {prefix:gg}:u:<caller>            sorted set, wall clock, ms -> session, of a caller

gg is the group of the id, or the caller's name, in the key.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from asgi_gateway.errors import Unready
from asgi_gateway.sessions import SamplingSession, Session
from asgi_gateway.shared.errors import SharedStoreError
from asgi_gateway.shared.groups import group_of_session, tags
from asgi_gateway.shared.link import Link

Pairs = dict[bytes, bytes]


class SessionKeys:
    def __init__(self, link: Link, prefix: str) -> None:
        self._link = link
        self._tags = tags(prefix)

    def _key(self, kind: str, identifier: str) -> bytes:
        return b"%b:%b:%b" % (
            self._tags[group_of_session(identifier)],
            kind.encode(),
            identifier.encode(),
        )

    async def _hash(self, identifier: str, kind: str) -> Pairs:
        reply = await self._ask(identifier, "HGETALL", self._key(kind, identifier))
        if isinstance(reply, dict):
            return reply
        return dict(zip(reply[::2], reply[1::2], strict=True))

    def _send(self, identifier: str, *args: bytes | str | int) -> None:
        self._link.call(group_of_session(identifier), args, ignored)

    def _keep(self, identifier: str, kind: str, keep_ms: int, lost: Callable[[], None]) -> None:
        """Begin its time anew. lost: called where the shared store does not have it."""

        def done(reply: object) -> None:
            if reply == 0:
                lost()

        command = ("PEXPIRE", self._key(kind, identifier), keep_ms)
        self._link.call(group_of_session(identifier), command, done)

    async def _ask(self, identifier: str, *args: bytes | str | int) -> Any:
        try:
            return await self._link.ask(group_of_session(identifier), args)
        except SharedStoreError as error:
            raise Unready(f"the shared store: {error}", "store") from error


def fields_of(session: Session) -> list[bytes | str]:
    fields: list[bytes | str] = ["ca", session.caller]
    if session.display_name is not None:
        fields += ["dn", session.display_name]
    if session.user_metadata is not None:
        fields += ["um", session.user_metadata]
    return fields


def sampling_fields_of(made: SamplingSession, seq_id: int) -> list[bytes | str | int]:
    session = made.session
    model = msgspec.json.encode(made.model)
    return ["ca", session.caller, "se", session.session_id, "sq", seq_id, "mo", model]


def ignored(_: object) -> None:
    """The next sign of life tells it again."""
