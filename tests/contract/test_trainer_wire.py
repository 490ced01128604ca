"""What crosses the gateway to and from the trainer, request by request, on real sockets."""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest
import zstandard

from tests.contract.sdk import FUTURES, sdk_process
from tests.contract.test_trainer import gateway
from tests.support.asgi_client import Response
from tests.support.processes import Served, free_port, serve, stand_in
from tests.support.trainer import Served as ServedTrainer
from tests.support.trainer import trainer
from tests.support.waiting import until
from tests.support.wire import SDK_HEADERS, Remote, wire

API = "/api/v1"
HELD = ("--work-s", "0.3", "--hold-s", "0.1")


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    with stand_in("--model", "stand-in,org/other") as url:
        yield url


class Pair(NamedTuple):
    """The trainer as it is, and through the gateway."""

    behind: ServedTrainer
    direct: Remote
    through: Remote

    def sent(self, target: str) -> list[Any]:
        """What came to the trainer under this target."""
        return [one for one in self.behind.state()["requests"] if one["target"] == target]


def remote_of(url: str) -> Remote:
    return Remote(int(url.rpartition(":")[2]))


@pytest.fixture(scope="module", params=["url", "embedded"])
def pair(request: pytest.FixtureRequest, vllm: str) -> Iterator[Pair]:
    flags = (*HELD, "--compress", "--dynamic-config", "--model", "stand-in", "--model", "org/train")
    with trainer(*flags) as behind, gateway(request.param, vllm, behind) as served:
        yield Pair(behind, remote_of(behind.url), Remote(served.port))


async def run(remote: Remote) -> str:
    """A session of the trainer's and a run in it."""
    await remote.handshake()
    body = {"session_id": remote.session_id, "base_model": "stand-in", "model_seq_id": 0}
    model_id: str = (await remote.post(f"{API}/create_model", body)).json()["model_id"]
    return model_id


async def step(remote: Remote, model_id: str, seq_id: int = 1) -> Any:
    """The promise of an optimizer step."""
    return (await remote.post(f"{API}/optim_step", {"model_id": model_id, "seq_id": seq_id})).json()


# --- merged answers -------------------------------------------------------------------------------


async def test_flags_of_training_are_the_trainers_and_of_sampling_ours(pair: Pair) -> None:
    theirs = (await pair.direct.post(f"{API}/client/config", {})).json()
    merged = (await pair.through.post(f"{API}/client/config", {"sdk_version": "0.38.0"})).json()
    assert theirs["proto_compress_fwdbwd"] is True
    assert theirs.items() <= merged.items()
    assert merged["sample_max_concurrent_requests"] == 2000
    dynamic = (await pair.through.post(f"{API}/client/dynamic_config", {})).json()
    # Both have a word on how often it is asked; the one about sampling counts.
    assert dynamic == {
        "trainer_flag": True,
        "refresh_interval_sec": 300,
        "sample_cancel_enabled": True,
    }


async def test_capabilities_are_of_both(pair: Pair) -> None:
    told = (await pair.through.get(f"{API}/get_server_capabilities")).json()["supported_models"]
    assert {one["model_name"]: (one["trainable"], one["sampleable"]) for one in told} == {
        "stand-in": (True, True),
        "org/train": (True, False),
        "org/other": (False, True),
    }


# --- sessions -------------------------------------------------------------------------------------


async def test_sessions_are_the_trainers_and_hear_one_heartbeat_of_many(pair: Pair) -> None:
    remote = Remote(pair.through.port)
    await remote.handshake()
    body = {"session_id": remote.session_id, "type": "session_heartbeat"}
    for _ in range(20):
        answer = await remote.post(f"{API}/session_heartbeat", body)
        assert (answer.status, answer.json()) == (200, {"type": "session_heartbeat"})
    await asyncio.sleep(0.2)
    assert pair.behind.state()["sessions"][remote.session_id]["heartbeats"] == 1
    finish = {"reason": {"type": "interrupted"}, "detail": "a test"}
    for _ in range(2):
        path = f"{API}/sessions/{remote.session_id}/finish"
        assert (await remote.post(path, finish)).status == 200
    assert pair.behind.state()["sessions"][remote.session_id]["finished"] == "interrupted"
    assert (await remote.post(f"{API}/session_heartbeat", body)).status == 410
    assert (await remote.post(f"{API}/session_heartbeat", {"session_id": "x"})).status == 404


@pytest.mark.sdk
@pytest.mark.parametrize("pair", ["url"], indirect=True)
def test_heartbeats_of_the_sdk_reach_the_trainer(pair: Pair) -> None:
    """It would unload the runs of a session that it does not hear of."""
    with sdk_process(*FUTURES) as sdk:
        url = f"http://127.0.0.1:{pair.through.port}"
        carried = sdk.ask("carry_minted", base_url=url)
        session_id = pair.behind.state()["runs"][carried["run"]]["session_id"]
        # A clone beats too, in the same second.
        sdk.ask("sampled", form="pickle", data=carried["pickle"], cases=[])
        deadline = time.monotonic() + 20
        while not (beats := pair.behind.state()["sessions"][session_id]["heartbeats"]):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert beats == 1


# --- untouched ------------------------------------------------------------------------------------


async def test_targets_and_bodies_arrive_as_they_were_sent(pair: Pair) -> None:
    marks = ("a%2Fb", "a%2fb//c", "%E2%82%AC/%25", "x;y=1/~z")
    bodies = (b"", b"\x00\xff" * 5000, zstandard.compress(b"x" * 100_000), b'{"a": 1.50}')
    for number, (mark, body) in enumerate(zip(marks, bodies, strict=True)):
        target = f"{API}/unknown/{pair.through.port}/{mark}?q=%2F&q=+&n={number}"
        headers = {**SDK_HEADERS, "Content-Encoding": "zstd", "X-Case": "Kept"}
        answers = []
        for remote in (pair.direct, pair.through):
            async with wire(remote.port) as connection:
                answers.append(await connection.ask("PUT", target, body, headers))
        assert [one.status for one in answers] == [404, 404]
        assert answers[0].body == answers[1].body
        direct, through = pair.sent(target)
        assert direct["sha256"] == through["sha256"] == hashlib.sha256(body).hexdigest()
        assert through["method"] == "PUT"
        assert ["x-case", "Kept"] in [[k.lower(), v] for k, v in through["headers"]]


async def test_redirects_are_passed_on(pair: Pair) -> None:
    model_id = await run(pair.through)
    save = {"model_id": model_id, "path": "a", "seq_id": 1}
    await pair.through.post(f"{API}/save_weights", save)
    target = f"{API}/training_runs/{model_id}/checkpoints/weights%2Fa/archive"
    answer = await pair.through.get(target)
    assert answer.status == 302
    where = target.removesuffix("archive") + "download"
    assert answer.headers[b"location"].decode() == f"{pair.behind.url}{where}"
    downloads = [await remote.get(f"{where}?pieces=3&length=1") for remote in pair[1:]]
    assert downloads[0].body == downloads[1].body


async def test_polls_for_ids_of_the_trainers(pair: Pair) -> None:
    model_id = await run(pair.through)
    promise = await step(pair.through, model_id)
    body = {"request_id": promise["request_id"]}
    held = await pair.through.post(f"{API}/retrieve_future", body)
    assert (held.status, held.json()) == (408, {"detail": "Timeout waiting for result"})
    done = await until_done(pair.through, promise)
    assert done.body == (await pair.direct.post(f"{API}/retrieve_future", body)).body
    assert done.json() == {"metrics": {"steps:max": 1.0}}
    unknown = await pair.through.post(f"{API}/retrieve_future", {"request_id": "999"})
    assert (unknown.status, unknown.json()) == (404, {"detail": "Future not found"})
    # One of ours is never asked for there.
    ours = await pair.through.submit()
    assert (await pair.through.poll(ours)).status == 200
    assert ours not in str(pair.sent(f"{API}/retrieve_future"))


async def until_done(remote: Remote, promise: Any) -> Response:
    body = {"request_id": promise["request_id"]}
    while (answer := await remote.post(f"{API}/retrieve_future", body)).status == 408:
        pass
    return answer


async def test_cancels_of_ids_of_the_trainers_are_passed_on(pair: Pair) -> None:
    promise = await step(pair.through, await run(pair.through))
    body = {"request_id": promise["request_id"]}
    before = len(pair.sent(f"{API}/cancel_future"))
    answer = await pair.through.post(f"{API}/cancel_future", body)
    # The stand-in has no such route, and says so itself.
    assert (answer.status, answer.json()) == (404, {"detail": "Not Found"})
    assert len(pair.sent(f"{API}/cancel_future")) == before + 1
    assert (await until_done(pair.through, promise)).status == 200


# --- a trainer that is away -----------------------------------------------------------------------


@contextlib.asynccontextmanager
async def alone(vllm: str, port: int) -> AsyncIterator[Served]:
    """A gateway whose trainer will be at `port`, with holds of a second."""
    with serve(vllm, training__url=f"http://127.0.0.1:{port}", poll__hold_s=1) as served:
        yield served


async def test_what_answers_while_the_trainer_is_away(vllm: str) -> None:
    port = free_port()
    async with alone(vllm, port) as served:
        remote = Remote(served.port)
        with trainer(*HELD, port=port) as behind:
            model_id = await run(remote)
            ids = [(await step(remote, model_id))["request_id"]]
            save = {"model_id": model_id, "seq_id": 2, "sampling_session_seq_id": 1}
            saved = await remote.post(f"{API}/save_weights_for_sampler", save)
            ids.append(saved.json()["request_id"])
            behind.process.kill()
        body = {"session_id": remote.session_id}
        assert (await remote.post(f"{API}/session_heartbeat", body)).status == 200
        for request_id in ids:
            began = time.monotonic()
            answer = await remote.post(f"{API}/retrieve_future", {"request_id": request_id})
            assert answer.status == 503
            assert time.monotonic() - began > 0.9
        submitted = await remote.post(f"{API}/optim_step", {"model_id": model_id})
        assert (submitted.status, submitted.headers[b"retry-after"]) == (503, b"1")
        assert (await remote.poll(await remote.submit())).status == 200
        finish = f"{API}/sessions/{remote.session_id}/finish"
        assert (await remote.post(finish, {"reason": {"type": "success"}})).status == 503
        # Repeated, as the SDK does; this trainer has forgotten everything.
        with trainer(port=port) as behind:
            assert (await remote.post(finish, {"reason": {"type": "success"}})).status in (200, 404)
            assert f"POST {finish}" in behind.state()["counts"]


async def test_a_stopping_gateway_lets_go_of_what_the_trainer_holds(vllm: str) -> None:
    """SkyRL holds a poll for five minutes."""
    with trainer("--work-s", "60", "--hold-s", "60") as behind:
        async with alone(vllm, int(behind.url.rpartition(":")[2])) as served:
            remote = Remote(served.port)
            promise = await step(remote, await run(remote))
            async with wire(served.port) as connection:
                body = {"request_id": promise["request_id"]}
                connection.send("POST", f"{API}/retrieve_future", body, SDK_HEADERS)
                await until(lambda: behind.state()["promises"][promise["request_id"]])
                began = time.monotonic()
                served.process.terminate()
                held = await connection.read()
                assert (held.status, held.json()["type"]) == (408, "try_again")
                assert await connection.ended()
            assert await asyncio.to_thread(served.process.wait) == 0
            assert time.monotonic() - began < 3
        # It would wait for the operation itself.
        behind.process.kill()
