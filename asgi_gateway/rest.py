"""Without a trainer: what scripts look up before they sample, and a plain word for the rest.

Looking up is read-only and costs no trainer: the training runs and checkpoints whose adapters the
upstreams list, and the sessions of this gateway. Every other call of the SDK is refused by name,
with a status at which the SDK raises at once. With a trainer, or embedded in front of another
application, none of these routes is ours (see `app`).
"""

from itertools import islice
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

import msgspec

from asgi_gateway import checkpoints, protocol
from asgi_gateway.access.models import require, usable
from asgi_gateway.asgi import Call, Reply, Scope, json_reply
from asgi_gateway.errors import Malformed, NotFound, Unsupported
from asgi_gateway.operations import MAX_LIMIT, MAX_OFFSET
from asgi_gateway.protocol import reader
from asgi_gateway.sessions import Session, Sessions
from asgi_gateway.upstream.catalog import Catalog
from asgi_gateway.upstream.naming import Adapter, parse

RUNS_LIMIT: Final = 20
CHECKPOINTS_LIMIT: Final = 100
SESSIONS_LIMIT: Final = 20
_MAX_QUERY_FIELDS: Final = 32


class Elsewhere(Protocol):
    """The sessions of all gateways that share a store."""

    async def session(self, session_id: str, caller: str) -> Session:
        """Raises NotFound."""

    async def samplers(self, session: Session) -> list[str]: ...

    async def newest(self, caller: str, limit: int, offset: int) -> list[str]: ...


class RestHandlers:
    def __init__(
        self, *, sessions: Sessions, catalog: Catalog, elsewhere: Elsewhere | None = None
    ) -> None:
        self._sessions = sessions
        self._catalog = catalog
        self._elsewhere = elsewhere

    async def training_runs(self, call: Call) -> Reply:
        limit, offset = _range(call.scope, RUNS_LIMIT)
        adapters = usable(call.caller, await self._catalog.adapters())
        runs = checkpoints.training_runs(adapters, call.caller.name)
        part, cursor = checkpoints.page(runs, limit, offset)
        return json_reply(protocol.TrainingRunList(part, cursor))

    async def training_run(self, call: Call) -> Reply:
        [run] = checkpoints.training_runs(await self._adapters_of(call), call.caller.name)
        return json_reply(run)

    async def run_checkpoints(self, call: Call) -> Reply:
        """All of one run; the SDK asks for no part of it."""
        listed = checkpoints.checkpoints(await self._adapters_of(call))
        return json_reply(protocol.CheckpointList(listed))

    async def checkpoints(self, call: Call) -> Reply:
        limit, offset = _range(call.scope, CHECKPOINTS_LIMIT)
        listed = checkpoints.checkpoints(usable(call.caller, await self._catalog.adapters()))
        part, cursor = checkpoints.page(listed, limit, offset)
        return json_reply(protocol.CheckpointList(part, cursor))

    async def weights_info(self, call: Call) -> Reply:
        text = _WEIGHTS_INFO(call.body).tinker_path
        path = parse(text, "tinker_path")
        require(call.caller, None, text)
        adapter = await self._catalog.adapter(path)
        return json_reply(protocol.WeightsInfo(adapter.base_model, adapter.is_lora))

    async def sessions(self, call: Call) -> Reply:
        limit, offset = _range(call.scope, SESSIONS_LIMIT)
        caller = call.caller.name
        if self._elsewhere is not None:
            return json_reply(
                protocol.SessionList(await self._elsewhere.newest(caller, limit, offset))
            )
        part = islice(self._sessions.newest(caller), offset, offset + limit)
        return json_reply(protocol.SessionList([session.session_id for session in part]))

    async def session(self, call: Call) -> Reply:
        """Nothing is trained in a session here, so it has no training runs."""
        if self._elsewhere is not None:
            session = await self._elsewhere.session(call.tail, call.caller.name)
            samplers = await self._elsewhere.samplers(session)
        else:
            session = self._sessions.read(call.tail, call.caller.name)
            samplers = [made.sampling_session_id for made in session.sampling.values()]
        metadata = _as_text(session.user_metadata)
        return json_reply(protocol.SessionInfo([], samplers, metadata, session.display_name))

    async def _adapters_of(self, call: Call) -> list[Adapter]:
        run = call.tail
        adapters = usable(call.caller, await self._catalog.adapters(run))
        if not adapters:
            raise NotFound(f"training run {run!r:.200}: no upstream lists an adapter of it")
        return adapters


class Refusal(msgspec.Struct, frozen=True):
    """The handler of a call that only a trainer, or the hosted service, can answer."""

    text: str

    async def __call__(self, _: Call) -> Reply:
        raise Unsupported(self.text)


def refusals() -> dict[str, Refusal]:
    """Paths below /api/v1, ids as `*`, and what is said there, whatever the method."""
    said = {path: f"{what} needs a trainer (training.url)" for path, what in _TRAINERS.items()}
    said |= {path: f"{what} is not offered" for path, what in _NOT_OFFERED.items()}
    return {path: Refusal(f"this gateway samples only; {text}") for path, text in said.items()}


_TRAINERS: Final = {
    **{
        name: name
        for name in (
            "create_model",
            "get_info",
            "forward",
            "forward_backward",
            "optim_step",
            "create_custom_loss",
            "load_weights",
            "save_weights",
            "save_weights_for_sampler",
            "save_weights_external",
            "copy_weights",
            "unload_model",
        )
    },
    "training_runs/*/checkpoints/*/*": "deleting a checkpoint",
    "training_runs/*/checkpoints/*/*/archive": "the archive of a checkpoint",
    "training_runs/*/checkpoints/*/*/external_weights_urls": "downloading external weights",
    "training_runs/*/checkpoints/*/*/publish": "publishing a checkpoint",
    "training_runs/*/checkpoints/*/*/ttl": "the ttl of a checkpoint",
}
_NOT_OFFERED: Final = {
    "sessions/*/project": "moving a session to a project",
    "sessions/*/trace_export": "exporting a session's trace",
    "sessions/search": "searching sessions",
    "audit": "the audit log",
    "billing/usage/events": "billing",
    "billing/usage/checkpoints/current": "the billing of checkpoints",
    "auth/apikey/me": "managing API keys",
}


def _range(scope: Scope, default_limit: int) -> tuple[int, int]:
    """`limit` and `offset` of a listing.

    `access_scope` needs no look: with callers kept apart, what is accessible is what is owned.
    """
    try:
        query = parse_qs(
            scope["query_string"].decode("latin-1"),
            keep_blank_values=True,
            max_num_fields=_MAX_QUERY_FIELDS,
        )
    except ValueError as error:
        raise Malformed(f"the query cannot be read: {error}") from None
    if "project_id" in query:
        raise Unsupported("project_id: this gateway keeps no projects; leave it out")
    return (
        _whole(query, "limit", default_limit, MAX_LIMIT),
        _whole(query, "offset", 0, MAX_OFFSET),
    )


def _whole(query: dict[str, list[str]], name: str, default: int, largest: int) -> int:
    text = query.get(name, [str(default)])[-1]
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= largest):
        raise Malformed(f"{name} is {text!r:.40}, must be a whole number of 0 to {largest}")
    return int(text)


def _as_text(encoded: bytes | None) -> dict[str, str] | None:
    """The SDK reads text only; anything else is shown as the JSON that it came as."""
    if encoded is None:
        return None
    metadata: dict[str, Any] = msgspec.json.decode(encoded)
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in metadata.items()
    }


_WEIGHTS_INFO: Final = reader(protocol.WeightsInfoRequest)
