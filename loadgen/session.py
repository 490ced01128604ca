"""Sessions as the SDK makes them: the handshake, sampling clients and their clones, heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from loadgen.address import Address, headers
from loadgen.outcomes import Traffic
from loadgen.plan import Plan
from loadgen.schedule import clone_id
from loadgen.secret import Secret
from loadgen.wire import JSON, Done, Pool

VERSION: Final = "0.38.0"
HEARTBEAT_S: Final = 10.0
PER_CLONE: Final = 1_000_000_000
_MIB: Final = 1 << 20


class HandshakeError(Exception):
    """The server cannot be used by this plan; says which call failed and how."""


class Flags(msgspec.Struct):
    """What client/config says about sampling, with the SDK's defaults."""

    sample_use_retrieve_futures: bool = False
    sample_join_sampling_session: bool = False
    sample_max_concurrent_requests: int = 2000
    sample_dispatch_bytes_semaphore_size: int = 10 * _MIB
    inflight_response_bytes_semaphore_size: int = 50 * _MIB


class Sampler:
    """One sampling client: a sampling session and one of its clones.

    index: its number in the whole run, which seeds what the plan draws for it.
    """

    def __init__(self, index: int, session_id: str, target: str, clone: int) -> None:
        self.index = index
        self.session_id = session_id
        self.target = target
        self.clone = clone
        self.in_flight = 0
        self.target_bytes = target.encode()
        self.next_seq_id = clone * PER_CLONE

    def __repr__(self) -> str:
        return f"<Sampler {self.index} {self.target}/{self.clone} in_flight={self.in_flight}>"


class Api:
    """The server's routes: writes requests, and awaits the answers of the rare ones."""

    def __init__(self, where: Address, api_key: str, traffic: Traffic) -> None:
        self.secret = Secret(api_key)
        self._headers = headers(where, api_key, VERSION)
        self._prefix = where.prefix + b"/api/v1/"
        self.traffic = traffic

    def head(self, route: bytes, accept: bytes = JSON, extra: bytes = b"") -> bytes:
        """A request up to its content-length. extra: header lines, the last may go on."""
        return b"POST %b%b%bcontent-type: application/json\r\naccept: %b\r\n%b" % (
            self._prefix,
            route,
            self._headers,
            accept,
            extra,
        )

    def post(self, route: bytes, body: bytes) -> bytes:
        """A whole request."""
        return whole(self.head(route), body)

    async def call(self, pool: Pool, route: str, body: object) -> dict[str, Any]:
        """The answer's JSON. Raises HandshakeError for anything but a 200 with an object."""
        answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        request = self.post(route.encode(), msgspec.json.encode(body))
        pool.ask(request, _teller(answer))
        status, data = await answer
        shown = self.secret.excerpt(data) or "no answer"
        if status != 200:
            raise HandshakeError(f"{route}: {status} {shown}")
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise HandshakeError(f"{route}: no JSON object: {shown}") from error


def whole(head: bytes, body: bytes) -> bytes:
    """A request from its `head` and body."""
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def _teller(answer: asyncio.Future[tuple[int, bytes]]) -> Done:
    def tell(status: int, _: bytes, body: bytes) -> None:
        if not answer.done():
            answer.set_result((status, body))

    return tell


async def handshake(api: Api, pool: Pool, plan: Plan, process: int) -> tuple[Flags, list[Sampler]]:
    """As the SDK begins. Sessions s, s + P, ... belong to process s of P, each with its clones.

    Raises HandshakeError where the server does not play its part.
    """
    hello = {"sdk_version": VERSION}
    try:
        flags = msgspec.convert(await api.call(pool, "client/config", hello), Flags)
    except msgspec.ValidationError as error:
        raise HandshakeError(f"client/config: {error}") from error
    samplers: list[Sampler] = []
    for session in range(process, plan.sessions, plan.processes):
        body: dict[str, object] = {"tags": [], "user_metadata": {}, "sdk_version": VERSION}
        made = await api.call(pool, "create_session", body | {"type": "create_session"})
        session_id = _text(made, "create_session", "session_id")
        body = {"session_id": session_id, "sampling_session_seq_id": 0, "base_model": plan.model}
        body["type"] = "create_sampling_session"
        made = await api.call(pool, "create_sampling_session", body)
        target = _text(made, "create_sampling_session", "sampling_session_id")
        for clone in range(plan.clones):
            index = session * plan.clones + clone
            number = 0
            if clone and flags.sample_join_sampling_session:
                body = {"sampling_session_id": target, "type": "join_sampling_session"}
                made = await api.call(pool, "join_sampling_session", body)
                number = int(made["client_counter"])
            elif clone:
                number = clone_id(plan, index)
            samplers.append(Sampler(index, session_id, target, number))
    return flags, samplers


async def finish(api: Api, pool: Pool, samplers: list[Sampler]) -> None:
    """As the SDK ends; a server without the route is none the worse."""
    for session_id in dict.fromkeys(sampler.session_id for sampler in samplers):
        body = {"reason": {"type": "success"}, "detail": None}
        try:
            await api.call(pool, f"sessions/{session_id}/finish", body)
        except HandshakeError:
            return


async def beat(api: Api, pool: Pool, samplers: list[Sampler], ended: Callable[[], bool]) -> None:
    """A heartbeat of each session every 10 s, until `ended`; failures are counted, no more."""
    sessions = list(dict.fromkeys(sampler.session_id for sampler in samplers))
    due = time.monotonic()
    while not ended():
        due += HEARTBEAT_S
        await asyncio.sleep(due - time.monotonic())
        for session_id in sessions:
            api.traffic.heartbeats += 1
            body = {"session_id": session_id, "type": "session_heartbeat"}
            request = api.post(b"session_heartbeat", msgspec.json.encode(body))
            pool.ask(request, _counter(api.traffic))


def _counter(traffic: Traffic) -> Done:
    def count(status: int, _: bytes, __: bytes) -> None:
        traffic.heartbeats_failed += status != 200

    return count


def _text(answer: dict[str, Any], route: str, field: str) -> str:
    value = answer.get(field)
    if not isinstance(value, str) or not value:
        raise HandshakeError(f"{route}: {field} is {value!r}, not a text")
    return value
