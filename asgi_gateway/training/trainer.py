"""The server that owns sessions, runs and checkpoints, as the sampling side needs it.

It is reached over HTTP (`training.url`) or, embedded, as the inner ASGI application. Everything
that is not the gateway's goes there untouched; this module makes the few calls that the gateway
must make itself, and remembers which weights belong to a sampler that the trainer minted.
"""

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from asgi_gateway.asgi import Message, Scope, Send
from asgi_gateway.clock import Clock
from asgi_gateway.errors import Interrupted, Unavailable, Unreadable, Unready
from asgi_gateway.training.headers import HOP_BY_HOP
from asgi_gateway.training.proxy import Answer, Proxy

log = logging.getLogger(__name__)

API: Final = "/api/v1"
# The SDK beats every 10 s per process; clones of one session beat too.
BEAT_EVERY_S: Final = 5.0
# Sessions with a heartbeat, saves whose outcome nobody has fetched yet, and samplers that nobody
# has sampled from yet.
MAX_REMEMBERED: Final = 10_000
# The result of a save is a few short strings.
RESULT_CAP_BYTES: Final = 64 << 10
# Besides what belongs to one connection: the call has a body, host and framing of its own, and its
# answer is read here, so the client's word for how it may be compressed does not go with it.
_SAID_ANEW: Final = frozenset({b"host", b"content-length", b"accept-encoding", b"expect"})

# A sampler's id goes into a header of its every sample, and where the trainer is asked for it into
# a URL. `isalnum` would let the letters of all alphabets pass.
_IN_HEADER: Final = re.compile(r"[!-~]{1,256}")
_IN_URL: Final = re.compile(r"[A-Za-z0-9_-]+")

K = TypeVar("K")
V = TypeVar("V")
# Method, path, body, and the scope of the client in whose name it is asked.
Ask = Callable[[str, str, object, Scope], Awaitable[Answer]]


class Minted(msgspec.Struct, frozen=True):
    """What is known of a sampler that the trainer made: the path of its weights, its base model."""

    model_path: str | None
    base_model: str | None


class Trainer:
    """Calls to the trainer. Every method raises Unready where it cannot be reached."""

    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._beats: OrderedDict[str, float] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        # What one caller did is never told another, whatever the trainer makes of their keys: who
        # saves under a request id; who minted a sampler, with which weights.
        self._saves: OrderedDict[str, str] = OrderedDict()
        self._paths: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._answers: OrderedDict[tuple[str, str], Answer] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Trainer {len(self._saves)} saves under way, {len(self._paths)} samplers minted>"

    async def post(self, path: str, body: object, scope: Scope) -> Answer:
        """Make the client's own call: its headers, its body, the trainer's answer."""
        return await self._asked("POST", f"{API}/{path}", body, scope)

    # --- sessions --------------------------------------------------------------------------------

    def beat(self, session_id: str, scope: Scope) -> None:
        """Pass a sign of life on, in the background and not more often than every BEAT_EVERY_S."""
        now = self._clock.now()
        if now - self._beats.get(session_id, float("-inf")) < BEAT_EVERY_S:
            return
        _remember(self._beats, session_id, now)
        task = asyncio.create_task(self._beat(session_id, scope))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _beat(self, session_id: str, scope: Scope) -> None:
        try:
            body = {"session_id": session_id, "type": "session_heartbeat"}
            answer = await self.post("session_heartbeat", body, scope)
        except Unready as error:
            log.warning("heartbeat of %s did not reach the trainer: %s", session_id, error)
        else:
            if answer.status >= 400:
                log.warning("the trainer answered %d to a heartbeat", answer.status)

    async def knows_session(self, session_id: str, scope: Scope) -> bool:
        """Whether the trainer made a session that the gateway has not seen."""
        body = {"session_id": session_id, "type": "session_heartbeat"}
        answer = await self.post("session_heartbeat", body, scope)
        return answer.status < 300

    async def samplers_of(self, session_id: str, scope: Scope) -> list[str]:
        """The samplers of a session that it made; empty where it does not say."""
        path = f"{API}/sessions/{quote(session_id, safe='')}"
        value = _json(await self._asked("GET", path, None, scope))
        listed = value.get("sampler_ids") if isinstance(value, dict) else None
        return [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []

    def forget_session(self, session_id: str) -> None:
        self._beats.pop(session_id, None)

    # --- what it offers --------------------------------------------------------------------------

    async def config(self, route: str, body: object, scope: Scope) -> dict[str, Any]:
        """Its `client/config` or `client/dynamic_config`; empty where it has none."""
        answer = await self.post(route, body, scope)
        value = _json(answer)
        return value if answer.status == 200 and isinstance(value, dict) else {}

    async def models(self, scope: Scope) -> list[dict[str, Any]]:
        """Its `supported_models`; empty where it lists none."""
        path = f"{API}/get_server_capabilities"
        answer = await self._asked("GET", path, None, scope)
        value = _json(answer)
        listed = value.get("supported_models") if isinstance(value, dict) else None
        if answer.status != 200 or not isinstance(listed, list):
            return []
        return [model for model in listed if isinstance(model, dict)]

    # --- samplers that it minted -----------------------------------------------------------------

    async def save_weights(self, body: bytes, scope: Scope, caller: str) -> Answer:
        """Pass `save_weights_for_sampler` on and remember the promise that it gives.

        The SDK repeats one whose reply it lost with the same seq_id and another number for the
        sampler, which a trainer refuses as a conflict until the SDK gives up: so the first answer
        is given again.
        """
        save = _save_key(body)
        key = (caller, save) if save is not None else None
        repeated = self._answers.get(key) if key is not None else None
        if repeated is not None:
            return repeated
        answer = await self.post("save_weights_for_sampler", msgspec.Raw(body), scope)
        if key is not None and answer.status == 200:
            _remember(self._answers, key, answer)
        promise = _json(answer)
        if answer.status == 200 and isinstance(promise, dict):
            request_id = promise.get("request_id")
            if isinstance(request_id, str):
                _remember(self._saves, request_id, caller)
        return answer

    def overheard(self, poll: bytes, send: Send, caller: str) -> Send:
        """The `send` for the answer to a poll: it learns which sampler a save has minted.

        The answer itself goes on as it comes.
        """
        asked = _decoded(poll)
        request_id = asked.get("request_id") if isinstance(asked, dict) else None
        if not isinstance(request_id, str) or self._saves.get(request_id) != caller:
            return send
        status, heard = 0, b""

        async def send_and_learn(message: Message) -> None:
            nonlocal status, heard
            if message["type"] == "http.response.start":
                status = message["status"]
            elif len(heard) <= RESULT_CAP_BYTES:
                heard += message.get("body", b"")
                # Before its client can know the sampler.
                if status == 200 and not message.get("more_body", False):
                    self._learn(caller, request_id, _decoded(heard))
            await send(message)

        return send_and_learn

    def _learn(self, caller: str, request_id: str, result: Any) -> None:
        if isinstance(result, dict) and result.get("type") != "try_again":
            self._saves.pop(request_id, None)
            sampler, path = result.get("sampling_session_id"), result.get("path")
            if isinstance(sampler, str) and isinstance(path, str):
                _remember(self._paths, sampler, (caller, path))

    async def sampler(self, sampling_session_id: str, scope: Scope, caller: str) -> Minted | None:
        """What is known of a sampler, from its save or else from the trainer; None if nothing."""
        if _IN_HEADER.fullmatch(sampling_session_id) is None:
            return None
        minter, path = self._paths.get(sampling_session_id, (caller, None))
        if minter != caller:
            return None
        if path is not None:
            return Minted(path, None)
        if _IN_URL.fullmatch(sampling_session_id) is None:
            return None
        route = f"{API}/samplers/{sampling_session_id}"
        answer = await self._asked("GET", route, None, scope)
        value = _json(answer)
        if answer.status != 200 or not isinstance(value, dict):
            return None
        model_path, base_model = value.get("model_path"), value.get("base_model")
        return Minted(
            model_path if isinstance(model_path, str) else None,
            base_model if isinstance(base_model, str) else None,
        )

    async def base_of(self, path: str, scope: Scope) -> str | None:
        """The base model of saved weights; None where the trainer has none at this path."""
        answer = await self.post("weights_info", {"tinker_path": path}, scope)
        value = _json(answer)
        base_model = value.get("base_model") if isinstance(value, dict) else None
        return base_model if answer.status == 200 and isinstance(base_model, str) else None

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _asked(self, method: str, path: str, body: object, scope: Scope) -> Answer:
        try:
            return await self._ask(method, path, body, scope)
        except (Unavailable, Interrupted, Unreadable) as error:
            raise Unready(str(error)) from error


def over(proxy: Proxy) -> Ask:
    """Asks over HTTP."""

    async def ask(method: str, path: str, body: object, scope: Scope) -> Answer:
        return await proxy.request_json(method, path, body, headers_of(scope))

    return ask


def headers_of(scope: Scope) -> dict[str, str]:
    """The client's headers for a call in its name."""
    return {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in scope["headers"]
        if name not in HOP_BY_HOP and name not in _SAID_ANEW
    }


def _json(answer: Answer) -> Any:
    return _decoded(answer.body)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _save_key(body: bytes) -> str | None:
    """Which save a request is about: its run and its number there."""
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(request, dict) or request.get("seq_id") is None:
        return None
    return f"{request.get('model_id')}\0{request['seq_id']}"


def _remember(kept: OrderedDict[K, V], key: K, value: V) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > MAX_REMEMBERED:
        kept.popitem(last=False)
