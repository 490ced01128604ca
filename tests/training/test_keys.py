"""Keys with a trainer behind: who gets through to it, and that callers are kept apart here although
the stand-in trainer asks nobody for a key."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.support.asgi_client import Response
from tests.support.keyed import API, As, Keyed, keyed, sample, secret_of
from tests.support.trainer import Trainer
from tests.support.trainer_state import Options
from tests.support.upstream import FakeUpstream

KEYS: dict[str, dict[str, object]] = {
    "a": {},
    "b": {},
    "probe": {"scopes": ["metrics"]},
    "narrow": {"models": ["stand-in"]},
}


class Both:
    def __init__(self, gateway: Keyed, trainer: Trainer) -> None:
        self.gateway = gateway
        self.trainer = trainer
        self.a, self.b = gateway.caller("a"), gateway.caller("b")

    @property
    def asked(self) -> int:
        """Requests that came to the trainer."""
        return len(self.trainer.seen.requests)

    async def minted(self, caller: As) -> str:
        """A sampler that the trainer made for a caller, who has not used it yet."""
        run = {"session_id": caller.session_id, "base_model": "stand-in", "model_seq_id": 0}
        model_id = (await caller.post("create_model", run)).json()["model_id"]
        save = {"model_id": model_id, "seq_id": 1, "sampling_session_seq_id": 1}
        promise = (await caller.post("save_weights_for_sampler", save)).json()
        answer = await caller.post("retrieve_future", {"request_id": promise["request_id"]})
        sampler: str = answer.json()["sampling_session_id"]
        return sampler


@contextlib.asynccontextmanager
async def both(upstream: FakeUpstream, folder: Path) -> AsyncIterator[Both]:
    async with Trainer(Options(work_s=0.0)).running() as trainer:
        flags: dict[str, Any] = {"training__url": trainer.url, "id_key": "x" * 16}
        async with keyed(upstream.url, folder, KEYS, **flags) as gateway:
            yield Both(gateway, trainer)


async def test_only_keys_get_through_to_the_trainer(upstream: FakeUpstream, tmp_path: Path) -> None:
    async with both(upstream, tmp_path) as one:
        one.gateway.door.penalty._hold_s = 0.0
        client = one.gateway.gateway.client
        for path in ("/debug/echo", f"{API}/create_model", "/nowhere", f"{API}/forward_backward"):
            for method in ("GET", "POST", "DELETE"):
                assert (await client.start(method, path, b"{}").response()).status == 401
                refused = await one.gateway.caller("probe").start(method, path).response()
                assert refused.status == 403
        assert one.asked == 0
        echoed = (await one.a.start("POST", "/debug/echo/x", b"body").response()).json()
        headers = {name.lower(): value for name, value in echoed["headers"]}
        assert headers["x-api-key"] == secret_of("a"), "as it came"
        unknown = await one.a.post("retrieve_future", {"request_id": "123"})
        assert unknown.status == 404, "the trainer's own"


async def refused(one: Both, caller: As, session: str, sampler: str) -> list[Response]:
    """What a caller is told of these ids on every route of ours that takes them."""
    target = {"type": "sampling_session", "sampling_session_id": sampler}
    made = {"session_id": session, "sampling_session_seq_id": 7, "base_model": "stand-in"}
    return [
        await caller.post("asample", sample(sampler, 0)),
        await caller.post("join_sampling_session", {"sampling_session_id": sampler}),
        await caller.post("retrieve_futures", {"target": target, "timeout": 0}),
        await caller.post("create_sampling_session", made),
        await caller.post("session_heartbeat", {"session_id": session}),
    ]


async def test_anothers_session_and_samplers_are_like_unknown_ones(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    async with both(upstream, tmp_path) as one:
        await one.a.handshake()
        await one.b.handshake()
        fresh, used = await one.minted(one.a), await one.minted(one.a)
        assert (await one.a.post("asample", sample(used, 0))).status == 200
        nobodys = await refused(one, one.b, "session_x", "sampler_x")
        assert {answer.status for answer in nobodys} == {404}
        asked = one.asked
        for sampler in (fresh, used, one.a.sampler):
            answers = await refused(one, one.b, one.a.session_id, sampler)
            assert [a.body for a in answers] == [a.body for a in nobodys]
            assert [a.status for a in answers] == [a.status for a in nobodys]
        finish = await one.b.post(f"sessions/{one.a.session_id}/finish", {"reason": {"type": "x"}})
        assert finish.status == 404
        for sampler in (used, one.a.sampler):
            assert (await one.b.get(f"{API}/samplers/{sampler}")).status == 404
        assert one.asked == asked, "nothing of it comes to the trainer"
        for number, sampler in enumerate((fresh, used, one.a.sampler), 1):
            assert (await one.a.post("asample", sample(sampler, number))).status == 200
        beat = await one.a.post("session_heartbeat", {"session_id": one.a.session_id})
        assert beat.status == 200


async def test_anothers_ids_look_unknown_where_the_trainer_tells_of_unknown_ones(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    """Both routes ask the trainer about ids that nobody has used here, which has its own words."""
    async with both(upstream, tmp_path) as one:
        await one.a.handshake()
        await one.b.handshake()
        used = await one.minted(one.a)
        assert (await one.a.post("asample", sample(used, 0))).status == 200
        unknown = "0" * 8 + "-unknown"
        asked = one.asked
        looked = [await one.b.get(f"{API}/samplers/{each}") for each in (unknown, used)]
        reason = {"reason": {"type": "x"}}
        finished = [
            await one.b.post(f"sessions/{each}/finish", reason)
            for each in (unknown, one.a.session_id)
        ]
        assert one.asked == asked + 2, "of the unknown ones alone"
        for nobodys, anothers in (looked, finished):
            assert (nobodys.status, anothers.status) == (404, 404)
            assert nobodys.body == anothers.body
            assert nobodys.headers == anothers.headers
        # What the trainer does know goes through as it is.
        mine = await one.minted(one.b)
        assert "model_path" in (await one.b.get(f"{API}/samplers/{mine}")).json()


async def test_a_minted_sampler_of_a_model_that_the_key_may_not_use(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    async with both(upstream, tmp_path) as one:
        narrow = one.gateway.caller("narrow")
        await narrow.handshake()
        answer = await narrow.post("asample", sample(await one.minted(narrow), 0))
        assert answer.status == 403
        assert "model_path" in answer.json()["detail"]
