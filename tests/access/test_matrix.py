"""Two callers over every route of the document: what one has is to the other as if never issued.

A makes everything. B then asks every route for A's ids, and must be answered exactly as for ids
that nobody has: the same status, headers and bytes. A must not notice.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.asgi_client import Response
from tests.support.gateway import driven
from tests.support.held import Held
from tests.support.keyed import API, As, Keyed, keyed, sample
from tests.support.upstream import FakeUpstream
from tests.support.waiting import until

MODELS: dict[str, Any] = {
    "object": "list",
    "data": [
        {"id": "stand-in", "max_model_len": 4096, "parent": None},
        {"id": "run_1", "parent": "stand-in"},
    ],
}


class Had(msgspec.Struct):
    """The ids of one caller, or of nobody."""

    session: str
    finished: str
    sampler: str
    finished_sampler: str
    requests: dict[str, str]

    def all(self) -> list[str]:
        return [
            self.session,
            self.finished,
            self.sampler,
            self.finished_sampler,
            *self.requests.values(),
        ]


# Bodies of every route that takes ids; a list where a caller can name several kinds of them.
Ask = Callable[[Had], list[tuple[str, object]]]


def bodies(path: str, make: Callable[[str], object], *ids: Callable[[Had], str]) -> Ask:
    return lambda had: [(path, make(of(had))) for of in ids]


def in_path(path: str, body: object, *ids: Callable[[Had], str]) -> Ask:
    return lambda had: [(path.format(id=of(had)), body) for of in ids]


def requests(path: str) -> Ask:
    return lambda had: [(path, {"request_id": one}) for one in had.requests.values()]


def batched(had: Had) -> list[tuple[str, object]]:
    return [
        (f"{API}/retrieve_futures", {"target": target, "timeout": 0, **more})
        for sampler in (had.sampler, had.finished_sampler)
        for target in [{"type": "sampling_session", "sampling_session_id": sampler}]
        for more in ({}, {"retrieved_request_ids": list(had.requests.values())})
    ]


def session(had: Had) -> str:
    return had.session


def finished(had: Had) -> str:
    return had.finished


def sampler(had: Had) -> str:
    return had.sampler


def finished_sampler(had: Had) -> str:
    return had.finished_sampler


_SUCCESS = {"reason": {"type": "success"}}
ASKED: dict[str, Ask] = {
    f"POST {API}/asample": bodies(
        f"{API}/asample", lambda of: sample(of, 0), sampler, finished_sampler
    ),
    f"POST {API}/retrieve_future": requests(f"{API}/retrieve_future"),
    f"POST {API}/retrieve_futures": batched,
    f"POST {API}/cancel_future": requests(f"{API}/cancel_future"),
    f"POST {API}/join_sampling_session": bodies(
        f"{API}/join_sampling_session",
        lambda of: {"sampling_session_id": of},
        sampler,
        finished_sampler,
    ),
    f"POST {API}/session_heartbeat": bodies(
        f"{API}/session_heartbeat", lambda of: {"session_id": of}, session, finished
    ),
    f"POST {API}/create_sampling_session": bodies(
        f"{API}/create_sampling_session",
        lambda of: {
            "session_id": of,
            "sampling_session_seq_id": 0,
            "base_model": "stand-in",
        },
        session,
        finished,
    ),
    f"POST {API}/sessions/{{id}}/finish": in_path(
        f"{API}/sessions/{{id}}/finish", _SUCCESS, session, finished
    ),
    f"GET {API}/sessions/{{id}}": in_path(f"{API}/sessions/{{id}}", b"", session, finished),
    f"GET {API}/samplers/{{id}}": in_path(f"{API}/samplers/{{id}}", b"", sampler, finished_sampler),
    # The upstreams' runs, which are no caller's; a session's id is no run of anybody's.
    f"GET {API}/training_runs/{{id}}": in_path(f"{API}/training_runs/{{id}}", b"", session),
    f"GET {API}/training_runs/{{id}}/checkpoints": in_path(
        f"{API}/training_runs/{{id}}/checkpoints", b"", session
    ),
}
# Routes that take no id. Their answers hold none of another caller's.
WITHOUT_IDS: dict[str, object] = {
    f"POST {API}/create_session": {"tags": []},
    f"POST {API}/client/config": {},
    f"POST {API}/client/dynamic_config": {},
    f"POST {API}/telemetry": {},
    f"POST {API}/weights_info": {"tinker_path": "tinker://run/sampler_weights/1"},
    f"GET {API}/get_server_capabilities": b"",
    f"GET {API}/training_runs": b"",
    f"GET {API}/checkpoints": b"",
    f"GET {API}/sessions": b"",
    f"GET {API}/healthz": b"",
    "GET /livez": b"",
    "GET /readyz": b"",
    "GET /metrics": b"",
    "GET /openapi.json": b"",
    # The page, and what is refused to a key of another scope.
    "GET /admin": b"",
    "GET /admin/state": b"",
    "POST /admin/drain": {},
    "POST /admin/upstream": {"upstream": "none", "draining": True},
}
BOTH = {"scopes": ["sample", "metrics"]}


class Stage(msgspec.Struct):
    gateway: Keyed
    a: As
    b: As
    had: Had
    held: Held

    async def ask(self, route: str, path: str, body: object) -> Response:
        """B's request; nothing of A's may hold it."""
        async with asyncio.timeout(5):
            return await self.b.start(route.split(" ")[0], path, body).response()

    def state(self) -> object:
        """What A has, signs of life included."""
        gateway = self.gateway.gateway.gateway
        store, sessions = gateway._store, gateway._sessions
        return (
            [
                (one.session_id, one.finished, one.alive_at, len(one.sampling))
                for one in sessions
                if one.caller == "a"
            ],
            [s.clones for one in sessions if one.caller == "a" for s in one.sampling.values()],
            [(r.request_id, r.state, r.settled_at) for r in store.records() if r.caller == "a"],
            [note.request_id for note in store.targets.open_notes()],
            store.undelivered,
            store.parked,
            self.gateway.quota.in_flight("a"),
        )


@contextlib.asynccontextmanager
async def stage(upstream: FakeUpstream, folder: Path) -> AsyncIterator[Stage]:
    """A has one of everything: samples in line, running, delivered, undelivered, failed, lost."""
    upstream.models = MODELS
    flags = {"id_key": "of all processes here", "upstream__max_connections": 2}
    async with keyed(upstream.url, folder, {"a": BOTH, "b": BOTH}, **flags) as gateway:
        a, b = gateway.caller("a"), gateway.caller("b")
        await b.handshake()
        await a.handshake()
        done = a.session_id, a.sampler
        await a.post(f"sessions/{a.session_id}/finish", _SUCCESS)
        a.session_id = ""
        await a.handshake()
        ids: dict[str, str] = {}
        store = gateway.gateway.gateway._store
        ids["delivered"] = await a.accepted(0)
        assert (await a.poll(ids["delivered"]).response()).status == 200
        ids["undelivered"] = await a.accepted(1)
        await until(lambda: store.undelivered == 1)
        held = Held(upstream)
        for number, name in enumerate(("running", "second", "queued", "cancelled", "lost"), 2):
            ids[name] = await a.accepted(number)
        await held.running(4)
        await a.post("cancel_future", {"request_id": ids["cancelled"]})
        lost = store.find(ids["lost"])
        assert lost is not None
        gateway.gateway.gateway._sampling._end(lost, told=False)
        had = Had(a.session_id, done[0], a.sampler, done[1], ids)
        yield Stage(gateway, a, b, had, held)


def unknown(had: Had, like: Callable[[str], str]) -> Had:
    named = {name: like(one) for name, one in had.requests.items()}
    session, finished, sampler, done = map(like, had.all()[:4])
    return Had(session, finished, sampler, done, named)


def other_mac(identifier: str) -> str:
    """An id of this process that it never gave out."""
    return identifier[:-16] + identifier[-16:].swapcase()[::-1]


def never(identifier: str) -> str:
    """Nothing that ever looked like one."""
    return "x" * len(identifier)


@pytest.mark.parametrize("like", [other_mac, never])
async def test_anothers_ids_are_like_unknown_ones(
    upstream: FakeUpstream, tmp_path: Path, like: Callable[[str], str]
) -> None:
    async with stage(upstream, tmp_path) as on:
        document = (await on.a.get("/openapi.json")).json()
        routes = {
            f"{method.upper()} {path}"
            for path, methods in document["paths"].items()
            for method in methods
        }
        assert routes == {*ASKED, *WITHOUT_IDS}, "give a new route its row"
        parked = on.a.poll(on.had.requests["running"])
        await until(lambda: on.gateway.gateway.gateway._store.parked == 1)
        on.gateway.gateway.clock.advance(20)  # a sign of life would show
        nobody = unknown(on.had, like)
        before = on.state()
        for route, asks in ASKED.items():
            for (path, body), (other, theirs) in zip(asks(nobody), asks(on.had), strict=True):
                expected = await on.ask(route, path, body)
                answer = await on.ask(route, other, theirs)
                assert told(answer, on.had) == told(expected, nobody), (route, other)
                assert answer.status == 404, (route, answer.body)
                assert on.state() == before, (route, other)
        for route, body in WITHOUT_IDS.items():
            answer = await on.ask(route, route.split(" ")[1], body)
            assert answer.status == (403 if "/admin/" in route else 200), route
            assert not [one for one in on.had.all() if one.encode() in answer.body], route
            assert on.state() == before, route
        await a_goes_on(on)
        assert (await parked.response()).status == 200


def told(answer: Response, had: Had) -> tuple[int, dict[bytes, bytes], bytes]:
    """What can be told from an answer: all of it but an id that it repeats."""
    body = answer.body
    for one in had.all():
        body = body.replace(one.encode(), b"ID")
    return answer.status, answer.headers, body


async def a_goes_on(on: Stage) -> None:
    on.held.release()
    for name in ("delivered", "undelivered", "running", "second", "queued"):
        answer = await on.a.poll(on.had.requests[name]).response()
        assert (answer.status, answer.headers[b"content-type"]) == (200, b"application/x-protobuf")
    assert (await on.a.poll(on.had.requests["lost"]).response()).status == 410
    cancelled = await on.a.poll(on.had.requests["cancelled"]).response()
    assert cancelled.json()["error"] == "the sample was cancelled"
    listed = (await on.a.get(f"{API}/sessions")).json()["sessions"]
    assert listed == [on.had.session, on.had.finished]


async def test_b_in_its_own_session_frees_nothing_of_a(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    """The one route that takes ids beside a session of the caller's own."""
    async with stage(upstream, tmp_path) as on:
        before = on.state()
        target = {"type": "sampling_session", "sampling_session_id": on.b.sampler}
        ids = list(on.had.requests.values())
        answers = [
            await on.b.post(
                "retrieve_futures",
                {"target": target, "timeout": 0, "retrieved_request_ids": some},
            )
            for some in (ids, ["never-issued"])
        ]
        assert answers[0].status == 200
        assert answers[0].body == answers[1].body
        assert on.state() == before
        await a_goes_on(on)


async def test_the_routes_of_a_are_those_of_the_table(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    """That A's own requests of the matrix are good: it compares more than refusals of bad ones."""
    async with stage(upstream, tmp_path) as on:
        seen = set()
        for route, asks in ASKED.items():
            if re.search(r"finish|cancel|training_runs", route):
                continue
            path, body = asks(on.had)[0]
            answer = await on.a.start(route.split(" ")[0], path, body).response()
            seen.add(answer.status)
            assert answer.status in (200, 422), (route, answer.body)
        assert 200 in seen


async def test_a_journal_of_the_time_without_keys(upstream: FakeUpstream, tmp_path: Path) -> None:
    """Its ids are not another caller's. A key that is called `default` goes on with them."""
    state = {"state__dir": str(tmp_path / "state")}
    Held(upstream)
    async with driven(upstream.url, **state) as before:
        await before.handshake()
        request_id = (await before.submit()).json()["request_id"]
    keys: dict[str, dict[str, object]] = {"alice": {}, "default": {}}
    async with keyed(upstream.url, tmp_path, keys, **state) as gateway:
        alice, default = gateway.caller("alice"), gateway.caller("default")
        assert (await alice.poll(request_id).response()).status == 404
        heartbeat = {"session_id": before.session_id}
        assert (await alice.post("session_heartbeat", heartbeat)).status == 404
        assert (await default.poll(request_id).response()).status == 410
        assert (await default.post("session_heartbeat", heartbeat)).status == 200
