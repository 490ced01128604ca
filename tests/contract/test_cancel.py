"""What ends a sample before its answer, and what does not; both styles of polling.

The stand-in holds every answer until it is told to release them, and counts the completions whose
connection was closed before.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.contract.conftest import Start
from tests.contract.sdk import FUTURES, Sdk, Traffic, assert_right, metrics, sdk_process, wait_until
from tests.support.processes import Served, stand_in
from tests.support.wire import Remote, wire

pytestmark = pytest.mark.sdk

# From the SDK's cancel to the end of the upstream connection.
WITHIN_S = 1.0
LAPSE_S = 1.5


class Held:
    """The stand-in's barrier."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._aborted = self._count("aborted_total")

    def _count(self, name: str) -> int:
        return int(metrics(self.url)[f"loadgen_upstream_{name}"])

    @property
    def running(self) -> int:
        return self._count("running")

    @property
    def aborted(self) -> int:
        """Since this was made."""
        return self._count("aborted_total") - self._aborted

    def wait_running(self, count: int) -> None:
        wait_until(lambda: self.running == count)

    def post(self, path: str) -> None:
        urlopen(Request(f"{self.url}/{path}", method="POST"), timeout=5).close()


def wait_promised(gateway: Served, held: Held, count: int) -> None:
    """Until the SDK has read what its submits were answered: before, it has no id to cancel.

    A poll for each sample tells where samples are polled one by one; nothing does where one poll
    serves all, so that one gets a moment.
    """
    held.wait_running(count)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        if metrics(gateway.url)["asgi_gateway_polls_inflight"] >= count:
            return
        time.sleep(0.02)


@pytest.fixture(scope="module")
def sdk() -> Iterator[Sdk]:
    with sdk_process(*FUTURES) as running:
        yield running


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    with stand_in("--barrier") as url:
        yield url


@pytest.fixture
def held(vllm: str) -> Iterator[Held]:
    barrier = Held(vllm)
    barrier.post("hold")
    yield barrier
    barrier.post("release")


@pytest.fixture(scope="module", params=["batched", "single"])
def gateway(
    request: pytest.FixtureRequest,
    start: Start,
    vllm: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    settings = {"client__sample_use_retrieve_futures": request.param == "batched"}
    state = tmp_path_factory.mktemp("state")
    with start(vllm, state__dir=state, **settings) as served:
        traffic = Traffic(served)
        yield served
        assert bool(traffic.statuses("retrieve_futures")) == (request.param == "batched")
        assert "Traceback" not in served.process.stderr


def cases(count: int) -> list[dict[str, Any]]:
    return [{"prompt": [n, 5], "params": {"max_tokens": 4}} for n in range(count)]


def assert_answered(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for answer, case in zip(found, expected, strict=True):
        assert_right(answer, case["prompt"], **case["params"])


# --- the client says so ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "give_up"])
def test_a_future_that_is_given_up_ends_its_sample(
    sdk: Sdk, gateway: Served, held: Held, how: str
) -> None:
    """By cancel(), or awaited with a timeout; the other samples go on."""
    sdk.ask("start", name="a", base_url=gateway.url, cases=cases(6))
    wait_promised(gateway, held, 6)
    began = time.monotonic()
    if how == "cancel":
        assert sdk.ask("cancel", name="a", count=4) == {"cancelled": [True] * 4}
    else:
        told = sdk.ask("give_up", name="a", count=4, timeout_s=0.3)
        assert told == {"raised": ["TimeoutError"] * 4}
    wait_until(lambda: held.aborted == 4)
    assert time.monotonic() - began < WITHIN_S + (0.3 if how == "give_up" else 0)
    assert held.running == 2
    held.post("release")
    assert_answered(sdk.ask("collect", name="a"), cases(6)[4:])
    assert held.aborted == 4


def test_finish_ends_every_sample_of_the_session(vllm: str, gateway: Served, held: Held) -> None:
    with sdk_process(*FUTURES) as leaving:
        leaving.ask("start", name="a", base_url=gateway.url, cases=cases(3))
        held.wait_running(3)
        began = time.monotonic()
        leaving.ask("close", base_url=gateway.url)
        wait_until(lambda: held.aborted == 3)
        assert time.monotonic() - began < WITHIN_S + 1


# --- and what only looks like it ------------------------------------------------------------------


def test_a_client_that_dies_cancels_nothing(gateway: Served, held: Held) -> None:
    """Its polls drop, and until its session lapses another process of it may ask again."""
    with sdk_process(*FUTURES) as dying:
        dying.ask("start", name="a", base_url=gateway.url, cases=cases(3))
        held.wait_running(3)
        wait_until(lambda: metrics(gateway.url)["asgi_gateway_polls_inflight"] > 0)
        dying.process.kill()
    wait_until(lambda: metrics(gateway.url)["asgi_gateway_polls_inflight"] == 0)
    time.sleep(WITHIN_S)
    assert (held.aborted, held.running) == (0, 3)
    held.post("release")
    wait_until(lambda: held.running == 0)
    assert held.aborted == 0


async def test_a_dropped_poll_cancels_nothing(gateway: Served, held: Held) -> None:
    remote = Remote(gateway.port)
    await remote.handshake()
    request_id = await remote.submit()
    await asyncio.to_thread(held.wait_running, 1)
    for reset in (False, True):
        async with wire(gateway.port) as connection:
            remote.send_poll(connection, request_id)
            await remote.polls_parked(1)
            connection.hang_up(reset=reset)
            await remote.polls_parked(0)
    assert (held.aborted, held.running) == (0, 1)
    held.post("release")
    assert (await remote.poll(request_id)).status == 200


# --- silence --------------------------------------------------------------------------------------


@pytest.mark.parametrize("polls", ["batched", "single"])
def test_a_silent_session_ends_its_samples_and_is_revived_by_the_next(
    start: Start, vllm: str, held: Held, tmp_path: Any, polls: str
) -> None:
    """A laptop that sleeps: nothing of the client runs, its connections stand."""
    settings = {"client__sample_use_retrieve_futures": polls == "batched"}
    with (
        start(vllm, state__dir=tmp_path, session__timeout_s=LAPSE_S, **settings) as served,
        sdk_process(*FUTURES) as sleeping,
    ):
        sleeping.ask("start", name="a", base_url=served.url, cases=cases(5))
        held.wait_running(5)
        with sleeping.process.frozen():
            wait_until(lambda: held.aborted == 5, LAPSE_S + 2)
            held.post("release")
        # Interrupted samples come again under the old session.
        assert_answered(sleeping.ask("collect", name="a"), cases(5))
        assert_answered(sleeping.ask("samples", base_url=served.url, cases=cases(2)), cases(2))
        assert metrics(served.url)["asgi_gateway_sessions"] == served.gateways
        assert held.aborted == 5
