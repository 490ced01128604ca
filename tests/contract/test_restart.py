"""A gateway that is killed or stopped while the real SDK samples, and comes back.

Every sample is right and none is run twice in one life of the gateway, however it ends; what the
SDK's user sees of it is a pause.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest

from tests.contract.sdk import FUTURES, Sdk, assert_right, metrics, sdk_process, wait_until
from tests.support.processes import free_port, stand_in
from tests.support.supervised import Supervised, supervised
from tests.support.trainer import trainer
from tests.support.wire import Remote

pytestmark = pytest.mark.sdk

SAMPLES: Final = 500
SLOTS: Final = 100
DELAY_S: Final = 0.4
# Samples that have reached the upstream when a life ends: some delivered, some running, some not.
SOME: Final = 150
STYLES: Final = {"batched": True, "single": False}


@pytest.fixture(scope="module")
def sdk() -> Iterator[Sdk]:
    with sdk_process(*FUTURES) as running:
        yield running


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    with stand_in("--any-adapter", "--delay-s", str(DELAY_S)) as url:
        yield url


class Ledger:
    """Which request ids the stand-in saw in one life of the gateway, and how often each."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._before = self._all()

    def _all(self) -> dict[str, int]:
        with urlopen(f"{self._url}/requests", timeout=5) as answer:
            ids: dict[str, int] = json.load(answer)
            return ids

    def of_this_life(self) -> dict[str, int]:
        """So far."""
        now = self._all()
        more = {id_: count - self._before.get(id_, 0) for id_, count in now.items()}
        return {id_: count for id_, count in more.items() if count}

    def close_life(self) -> dict[str, int]:
        """After its end; what was on its way when it ended has arrived, or never will."""
        wait_until(lambda: metrics(self._url)["loadgen_upstream_running"] == 0)
        told = self.of_this_life()
        self._before = self._all()
        return told


def cases() -> list[dict[str, Any]]:
    return [{"prompt": [n, 7], "params": {"max_tokens": 3, "seed": n}} for n in range(SAMPLES)]


def assert_all_right(found: list[dict[str, Any]]) -> None:
    assert len(found) == SAMPLES
    for answer, case in zip(found, cases(), strict=True):
        assert_right(answer, case["prompt"], **case["params"])


@contextlib.contextmanager
def gateway(vllm: str, state: Path | None, **settings: object) -> Iterator[Supervised]:
    with supervised(vllm, state, upstream__max_connections=SLOTS, **settings) as running:
        try:
            yield running
        except BaseException:
            print(running.stories())
            raise
        assert "bug" not in running.warnings()
        assert "Traceback" not in running.warnings()


def style(name: str) -> dict[str, object]:
    return {"client__sample_use_retrieve_futures": STYLES[name]}


def interrupted(running: Supervised, ledger: Ledger, end: Callable[[], None]) -> None:
    """End the present life in the middle of the samples, and begin the next."""
    running.process.wait_for(lambda: len(ledger.of_this_life()) >= SOME, "samples under way", 60)
    end()
    assert set(ledger.close_life().values()) == {1}, "one gateway request id, one run in one life"
    running.start()
    running.process.wait_for(lambda: "open samples" in running.process.stderr, "recovery")


@pytest.mark.parametrize("polls", STYLES)
def test_killed_and_then_stopped(sdk: Sdk, vllm: str, tmp_path: Path, polls: str) -> None:
    with gateway(vllm, tmp_path, **style(polls)) as running:
        ledger = Ledger(vllm)
        sdk.send("samples", base_url=running.url, cases=cases())
        for end in (running.kill, running.stop):
            interrupted(running, ledger, end)
        assert_all_right(sdk.answer())
        assert set(ledger.of_this_life().values()) == {1}
        assert metrics(running.url)["asgi_gateway_samples_inflight"] == 0
        if STYLES[polls]:
            # Every result was acknowledged, those of earlier lives included.
            wait_until(lambda: metrics(running.url)["asgi_gateway_samples_held"] == 0)


def test_killed_twice_with_a_trainer_behind(sdk: Sdk, vllm: str, tmp_path: Path) -> None:
    """A whole RL run: steps and saves go on, each round samples from its own save."""
    rounds, count = 5, SAMPLES // 5
    with (
        trainer("--work-s", "0.25", "--hold-s", "0.1") as behind,
        gateway(vllm, tmp_path, training__url=behind.url) as running,
    ):
        ledger = Ledger(vllm)
        arguments = {"base_url": running.url, "rounds": rounds, "count": count}
        sdk.send("train_and_sample", **arguments)
        interrupted(running, ledger, running.kill)
        running.kill()
        running.start()
        told = sdk.answer()
        assert set(ledger.of_this_life().values()) == {1}
        state = behind.state()
    (run,) = state["runs"].values()
    assert (run["passes"], run["steps"], run["saves"]) == (rounds, rounds, rounds)
    for number, one in enumerate(told):
        path = state["samplers"][one["sampler"]]["model_path"]
        weights = "_".join(path.removeprefix("tinker://").split("/sampler_weights/"))
        assert len(one["answers"]) == count
        for n, answer in enumerate(one["answers"]):
            assert_right(answer, [number, n], max_tokens=3, seed=n, model=weights)


def test_a_gateway_that_keeps_nothing_ends_the_samples_of_its_old_sessions(
    sdk: Sdk, vllm: str
) -> None:
    """Why `serve` keeps a state directory by default: the sampler's weights are forgotten.

    Each open sample answers 410 (a key of the process alone cannot tell), the SDK submits it again
    and meets 404: its sampling session is unknown.
    """
    with gateway(vllm, None) as running:
        ledger = Ledger(vllm)
        sdk.send("samples", base_url=running.url, cases=cases()[:SLOTS])
        running.process.wait_for(lambda: len(ledger.of_this_life()) == SLOTS, "samples")
        running.kill()
        ledger.close_life()
        running.start()
        for answer in sdk.answer():
            assert answer["error"]["type"] == "NotFoundError", answer
            assert "unknown sampling_session_id" in answer["error"]["message"]
        assert ledger.of_this_life() == {}
        # So does a new sampler of the old ServiceClient; a new ServiceClient samples on.
        old = sdk.ask("samples", base_url=running.url, cases=cases()[:1], retry_config=None)
        assert old["error"]["type"] == "NotFoundError", old
        made = sdk.ask("create", base_url=running.url, base_model="stand-in")
        assert made["base_model"] == "stand-in"


def test_a_second_owner_of_the_state_is_refused(vllm: str, tmp_path: Path) -> None:
    with gateway(vllm, tmp_path) as running:
        second = Supervised.begun(vllm, free_port(), {"state__dir": tmp_path})
        try:
            assert second.wait() == 2, second.story()
            assert second.stdout == ""
            assert second.stderr == (
                f"asgi-gateway: {tmp_path} is in use by another gateway (process"
                f" {running.process.pid}): stop it, or set state.dir to another directory\n"
            )
        finally:
            second.close()
        assert urlopen(f"{running.url}/api/v1/healthz", timeout=5).status == 200
        # A killed owner leaves no lock behind.
        running.kill()
        running.start()


async def test_what_old_ids_and_sessions_answer_after_a_restart(vllm: str, tmp_path: Path) -> None:
    """Each as often as it is asked: an answer may be lost on its way."""
    with gateway(vllm, tmp_path) as running:
        lives, ends = Remote(running.port), Remote(running.port)
        for remote in (lives, ends):
            await remote.handshake()
        lost = [await lives.submit(), await ends.submit()]
        finish = {"reason": {"type": "success"}}
        await ends.post(f"/api/v1/sessions/{ends.session_id}/finish", finish)
        clones = [await joined(lives) for _ in range(2)]
        cursor = 0
        for _ in range(2):
            running.kill()
            running.start()
            for _ in range(2):
                assert [(await lives.poll(id_)).status for id_ in lost] == [410, 410]
            statuses = [await beaten(remote) for remote in (lives, ends)]
            assert statuses == [200, 410]
            assert (await ends.post("/api/v1/asample", ends.sample())).status == 404
            clones.append(await joined(lives))
            # The 410 told of it, so the log need not; its cursors are above all earlier ones.
            page = await completions(lives, cursor)
            assert page["completions"] == []
            assert page["cursor"] > cursor
            lost[0], cursor = await lives.submit(), page["cursor"]
            waiting = await completions(lives, cursor, held=True)
            assert [one["request_id"] for one in waiting["completions"]] == lost[:1]
            assert (await completions(ends, cursor))["completions"] == []
        assert len(set(clones)) == len(clones) == 4


async def joined(remote: Remote) -> int:
    body = {"sampling_session_id": remote.sampling_session_id}
    number: int = (await remote.post("/api/v1/join_sampling_session", body)).json()[
        "client_counter"
    ]
    return number


async def beaten(remote: Remote) -> int:
    body = {"session_id": remote.session_id}
    return (await remote.post("/api/v1/session_heartbeat", body)).status


async def completions(remote: Remote, cursor: int, *, held: bool = False) -> Any:
    target = {"type": "sampling_session", "sampling_session_id": remote.sampling_session_id}
    body: dict[str, Any] = {"target": {**target, "cloned_sampler_id": 0}, "prev_cursor": cursor}
    if not held:
        body["timeout"] = 0
    return (await remote.post("/api/v1/retrieve_futures", body)).json()
