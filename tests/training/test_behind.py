"""The gateway with the stand-in trainer behind it, both in the test's loop: what each asks whom.

The real SDK's side of it is in `tests/contract/test_trainer.py`.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.asgi_client import Response
from tests.support.gateway import SDK_HEADERS, Driven, driven
from tests.support.held import Held, metric
from tests.support.processes import free_port
from tests.support.trainer import Trainer
from tests.support.trainer_state import Options
from tests.support.upstream import FakeUpstream
from tests.support.waiting import event
from tests.training.conftest import opened

API = "/api/v1"
both = pytest.mark.parametrize("how", ["url", "embedded"])


class Behind:
    """A gateway, its trainer, and one run there."""

    def __init__(self, gateway: Driven, trainer: Trainer) -> None:
        self.gateway = gateway
        self.trainer = trainer
        self.model_id = ""

    async def post(self, path: str, body: bytes | object) -> Response:
        return await self.gateway.client.post(f"{API}/{path}", body, SDK_HEADERS)

    async def get(self, path: str) -> Response:
        return await self.gateway.client.start("GET", f"{API}/{path}", b"", SDK_HEADERS).response()

    def asked(self, path: str) -> int:
        """How often the trainer was asked for one path."""
        counts = self.trainer.seen.counts
        return sum(n for key, n in counts.items() if key.partition(" ")[2] == f"{API}/{path}")

    def bodies(self, path: str) -> list[str]:
        """The digests of the bodies that came to one path."""
        target = f"{API}/{path}"
        return [one["sha256"] for one in self.trainer.seen.requests if one["target"] == target]

    async def run(self) -> None:
        """A session with one run, made through the gateway."""
        await self.gateway.handshake()
        body = {"session_id": self.gateway.session_id, "base_model": "stand-in", "model_seq_id": 0}
        self.model_id = (await self.post("create_model", body)).json()["model_id"]

    async def saved(self, seq_id: int = 1) -> str:
        """The request id of a save that mints a sampler."""
        body = {"model_id": self.model_id, "seq_id": seq_id, "sampling_session_seq_id": seq_id}
        request_id: str = (await self.post("save_weights_for_sampler", body)).json()["request_id"]
        return request_id

    async def minted(self, seq_id: int = 1) -> str:
        """A sampler of the trainer's."""
        answer = await self.post("retrieve_future", {"request_id": await self.saved(seq_id)})
        sampler: str = answer.json()["sampling_session_id"]
        return sampler


@contextlib.asynccontextmanager
async def behind(upstream: FakeUpstream, how: str, **settings: Any) -> AsyncIterator[Behind]:
    """how: the trainer is at a `url`, or `embedded` as the inner application."""
    async with contextlib.AsyncExitStack() as stack:
        trainer = await stack.enter_async_context(Trainer(Options(work_s=0.0)).running())
        where: dict[str, Any] = {"training__url": trainer.url}
        if how == "embedded":
            inner = await stack.enter_async_context(opened(trainer.url))
            where = {"training__embedded": True, "inner": inner}
        gateway = await stack.enter_async_context(driven(upstream.url, **where, **settings))
        yield Behind(gateway, trainer)


def sample(sampler: str, seq_id: int) -> dict[str, Any]:
    return {
        "sampling_session_id": sampler,
        "seq_id": seq_id,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 2},
    }


# --- samplers -------------------------------------------------------------------------------------


@both
async def test_many_samples_at_once_ask_for_a_minted_sampler_once(
    upstream: FakeUpstream, how: str
) -> None:
    async with behind(upstream, how) as one:
        await one.run()
        sampler = await one.minted()
        asked = [one.post("asample", sample(sampler, n)) for n in range(50)]
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        assert one.asked(f"samplers/{sampler}") == 1


@both
async def test_a_minted_sampler_is_shown_before_its_first_sample(
    upstream: FakeUpstream, how: str
) -> None:
    async with behind(upstream, how) as one:
        await one.run()
        sampler = await one.minted()
        path = f"tinker://{one.model_id}/sampler_weights/ss1_seq1"
        told = {"sampler_id": sampler, "base_model": "stand-in", "model_path": path}
        assert (await one.get(f"samplers/{sampler}")).json() == told
        assert (await one.post("asample", sample(sampler, 0))).status == 200
        assert (await one.get(f"samplers/{sampler}")).json() == told
        assert (await one.get("samplers/sampling_unknown")).status == 404


# --- sessions -------------------------------------------------------------------------------------


@both
async def test_a_session_that_several_requests_hear_of_at_once_is_one(
    upstream: FakeUpstream, how: str
) -> None:
    """As after a restart that kept nothing."""
    async with behind(upstream, how, session__retention_s=100) as one:
        session_id = one.trainer.state.create_session({}).session_id
        create = {"session_id": session_id, "base_model": "stand-in"}
        answers = await asyncio.gather(
            one.post("session_heartbeat", {"session_id": session_id}),
            one.post("create_sampling_session", {**create, "sampling_session_seq_id": 0}),
            one.post("create_sampling_session", {**create, "sampling_session_seq_id": 1}),
        )
        assert [answer.status for answer in answers] == [200] * 3
        metrics = (await one.gateway.client.get("/metrics")).body
        assert metric(metrics, "sessions") == 1
        await one.gateway.advance(101)
        metrics = (await one.gateway.client.get("/metrics")).body
        assert (metric(metrics, "sessions"), metric(metrics, "bugs_total")) == (0, 0)


@both
async def test_finish_reaches_the_trainer_also_for_a_session_that_only_it_knows(
    upstream: FakeUpstream, how: str
) -> None:
    async with behind(upstream, how) as one:
        session_id = one.trainer.state.create_session({}).session_id
        body = {"reason": {"type": "errored"}}
        assert (await one.post(f"sessions/{session_id}/finish", body)).status == 200
        assert one.trainer.state.sessions[session_id].finished == "errored"
        assert (await one.post("sessions/nobodys/finish", body)).status == 404


@both
async def test_finish_ends_the_samples_of_minted_samplers(upstream: FakeUpstream, how: str) -> None:
    held = Held(upstream)
    async with behind(upstream, how) as one:
        await one.run()
        sampler = await one.minted()
        request_id = (await one.post("asample", sample(sampler, 0))).json()["request_id"]
        await held.running()
        body = {"reason": {"type": "success"}}
        finish = f"sessions/{one.gateway.session_id}/finish"
        assert (await one.post(finish, body)).status == 200
        await event(upstream.requests[0].hung_up)
        assert (await one.post("retrieve_future", {"request_id": request_id})).status == 410
        assert (await one.post("asample", sample(sampler, 1))).status == 404
        assert (await one.post(finish, body)).status == 200


# --- a trainer that is away -----------------------------------------------------------------------


@pytest.mark.parametrize("of", ["save", "step"])
async def test_polls_wait_for_a_trainer_that_is_away(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """A 5xx at once would be repeated at once, hundreds of times a second."""
    monkeypatch.setattr("asgi_gateway.training.proxy.PATIENCE_STEP_S", 0.02)
    port = free_port()
    trainer = Trainer(Options(work_s=0.0))
    async with driven(upstream.url, training__url=f"http://127.0.0.1:{port}") as gateway:
        one = Behind(gateway, trainer)
        async with trainer.running(port=port):
            await one.run()
            step = {"model_id": one.model_id, "seq_id": 1}
            request_id = (
                await one.saved()
                if of == "save"
                else (await one.post("optim_step", step)).json()["request_id"]
            )
        poll = asyncio.ensure_future(one.post("retrieve_future", {"request_id": request_id}))
        await asyncio.sleep(0.3)
        assert not poll.done()
        async with trainer.running(port=port):
            assert (await asyncio.wait_for(poll, 5)).status == 200


async def test_polls_end_as_a_hold_does(upstream: FakeUpstream) -> None:
    port = free_port()
    settings: dict[str, Any] = {"training__url": f"http://127.0.0.1:{port}", "poll__hold_s": 0.1}
    async with driven(upstream.url, **settings) as gateway:
        one = Behind(gateway, Trainer(Options(work_s=0.0)))
        async with one.trainer.running(port=port):
            await one.run()
            request_id = await one.saved()
        began = asyncio.get_running_loop().time()
        assert (await one.post("retrieve_future", {"request_id": request_id})).status == 503
        assert asyncio.get_running_loop().time() - began >= 0.1


# --- bodies and encodings -------------------------------------------------------------------------


@both
async def test_bodies_that_the_gateway_reads_go_on_as_they_came(
    upstream: FakeUpstream, how: str
) -> None:
    async with behind(upstream, how) as one:
        created = b'{ "tags": [ ],\n "user_metadata": {"a": "\\u00e9"}, "unknown": 1.50 }'
        session_id = (await one.post("create_session", created)).json()["session_id"]
        run = {"session_id": session_id, "base_model": "stand-in", "model_seq_id": 0}
        model_id = (await one.post("create_model", run)).json()["model_id"]
        save = b'{"model_id" : "%s", "path":"a", "seq_id": 1,\t"x":[]}' % model_id.encode()
        promise = await one.post("save_weights_for_sampler", save)
        poll = b'{"request_id"  :"%s"}' % promise.json()["request_id"].encode()
        assert (await one.post("retrieve_future", poll)).status == 200
        finish = b'{"reason":  {"type":"success"}, "detail": null}'
        assert (await one.post(f"sessions/{session_id}/finish", finish)).status == 200
        for path, body in (
            ("create_session", created),
            ("save_weights_for_sampler", save),
            ("retrieve_future", poll),
            (f"sessions/{session_id}/finish", finish),
        ):
            assert one.bodies(path) == [hashlib.sha256(body).hexdigest()], path


@both
async def test_answers_that_the_gateway_reads_are_asked_for_uncompressed(
    upstream: FakeUpstream, how: str
) -> None:
    async with behind(upstream, how) as one:
        headers = {**SDK_HEADERS, "Accept-Encoding": "gzip, zstd"}
        await one.gateway.client.post(f"{API}/create_session", b"{}", headers)
        (request,) = one.trainer.seen.requests
        sent = [value for name, value in request["headers"] if name.lower() == "accept-encoding"]
        assert sent == (["identity"] if how == "url" else [])
