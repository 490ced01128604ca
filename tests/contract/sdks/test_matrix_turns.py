"""The same SDKs where a sample waits, fails, is lost, cancelled or handed on."""

import time
from typing import Any

import pytest

from loadgen.faults import Fault
from tests.contract.sdk import Traffic, Upstreamed, wait_until
from tests.contract.sdks.matrix import ADAPTER, HOLD_S, Client
from tests.support.processes import Served

pytestmark = pytest.mark.matrix

SHORT = {"max_tokens": 6}


# --- waiting and failing --------------------------------------------------------------------------


def test_held_polls(client: Client) -> None:
    """A poll that ends before the result is repeated."""
    traffic, status = Traffic(client.gateway), 408 if client.made.style == "single" else 200
    began = time.monotonic()
    with client.upstream.holding():
        cases = [{"prompt": [41, 42], "params": SHORT}]
        client.sdk.send("samples", base_url=client.gateway.url, cases=cases)
        # In batches the sample before may be acknowledged meanwhile.
        enough = 2 if client.made.style == "single" else 4
        wait_until(lambda: traffic.statuses(client.polls)[status] >= enough)
    assert time.monotonic() - began > 1.9 * HOLD_S
    [answer] = client.sdk.answer()
    client.assert_right(answer, [41, 42], max_tokens=6)


def test_lost_upstream(client: Client) -> None:
    """A sample that the upstream lost is submitted again (410)."""
    traffic, before = Traffic(client.gateway), Upstreamed(client.upstream.url)
    prompt = client.fault(Fault.CLOSE_MIDWAY)
    client.assert_right(client.sample(prompt, n=2, params=SHORT), prompt, n=2, max_tokens=6)
    # The fault is given twice.
    assert traffic.statuses("asample") == {200: 3}
    assert traffic.statuses("retrieve_future")[410] == 2
    assert before.counts() == [1, 1, 1]


def test_upstream_400(client: Client) -> None:
    """A refusal by the upstream is raised once, category user."""
    traffic = Traffic(client.gateway)
    answer = client.sample(client.fault(Fault.BAD_REQUEST), params=SHORT)
    assert answer["error"]["type"] == "RequestFailedError", answer
    assert answer["error"]["category"] == "user"
    assert "The stand-in refuses this prompt." in answer["error"]["message"]
    assert traffic.statuses("asample") == {200: 1}


def test_upstream_500(client: Client) -> None:
    """An error of the upstream is tried twice and raised once, category server."""
    traffic, before = Traffic(client.gateway), Upstreamed(client.upstream.url)
    answer = client.sample(client.fault(Fault.SERVER_ERROR), params=SHORT)
    assert answer["error"]["type"] == "RequestFailedError", answer
    assert answer["error"]["category"] == "server"
    assert traffic.statuses("asample") == {200: 1}
    assert before.counts() == [2]


def test_refused_submit(client: Client) -> None:
    """A bad request is raised at once, with what is wrong."""
    answer = client.sample([1], params={"max_tokens": 1, "temperature": 3.0})
    assert answer["error"]["type"] in ("BadRequestError", "UnprocessableEntityError"), answer
    assert "temperature" in answer["error"]["message"]
    assert answer["seconds"] < 5


def lose_a_reply(client: Client, prompt: list[int]) -> list[int]:
    """How often each id reached the upstream where the reply to a submit never arrives."""
    traffic, before = Traffic(client.gateway), Upstreamed(client.upstream.url)
    client.relay.lose, lost = "/api/v1/asample", client.relay.lost
    answer = client.sample(prompt, relayed=True, params=SHORT)
    client.assert_right(answer, prompt, max_tokens=6)
    assert client.relay.lost == lost + 1
    assert traffic.statuses("asample") == {200: 2}
    return before.counts()


def test_lost_submit(client: Client) -> None:
    """A submit whose reply is lost is repeated."""
    assert len(lose_a_reply(client, [43, 1])) <= 2


def test_lost_submit_once(client: Client) -> None:
    """The same, and runs once."""
    client.needs("resubmits under its seq_id")
    assert lose_a_reply(client, [43, 2]) == [1]


def test_backpressure(client: Client, narrow: Served) -> None:
    """A full gateway (429) is waited for and nothing is lost."""
    traffic, before = Traffic(narrow), Upstreamed(client.upstream.url)
    prompts = [[50, n] for n in range(5)]
    with client.upstream.holding():
        cases = [{"prompt": prompt, "params": SHORT} for prompt in prompts]
        client.sdk.send("samples", base_url=narrow.url, cases=cases)
        wait_until(lambda: traffic.statuses("asample")[429] >= 3)
    for answer, prompt in zip(client.sdk.answer(), prompts, strict=True):
        client.assert_right(answer, prompt, max_tokens=6)
    # A second apart, and not more often.
    assert traffic.statuses("asample")[429] <= 15
    assert before.counts() == [1] * 5


def test_cancel(client: Client) -> None:
    """`future.cancel()` frees the upstream's slot within a second."""
    client.needs("cancels")
    traffic = Traffic(client.gateway)
    with client.upstream.holding():
        client.ask("start", case={"prompt": [44], "params": SHORT})
        wait_until(lambda: client.upstream.running() == 1)
        # An SDK that has not read the submit's reply yet has nothing to cancel: let it poll first.
        polled = Traffic(client.gateway)
        wait_until(lambda: polled.statuses(client.polls))
        assert client.sdk.ask("cancel") is True
        wait_until(lambda: client.upstream.running() == 0, within_s=1.0)
    wait_until(lambda: traffic.statuses("cancel_future") == {200: 1})
    client.assert_right(client.sample([45], params=SHORT), [45], max_tokens=6)


# --- clients --------------------------------------------------------------------------------------


def test_saved_weights(client: Client) -> None:
    """Saved weights by their tinker:// path."""
    weights: dict[str, Any] = {"model_path": "tinker://run-1/sampler_weights/ckpt-9"}
    [answer] = client.ask("samples", cases=[{"prompt": [46], "params": SHORT}], **weights)
    client.assert_right(answer, [46], max_tokens=6, model=ADAPTER)
    assert client.ask("base_model", **weights)["base_model"] == "stand-in"


def test_unknown_model(client: Client) -> None:
    """A model that is not served is refused with the names of those that are."""
    answer = client.ask("base_model", base_model="org/unknown")
    assert answer["error"]["type"] == "BadRequestError", answer
    assert "stand-in" in answer["error"]["message"]


def test_process_pool(client: Client) -> None:
    """Pickled clients in a pool of processes."""
    prompts = [[47, 0], [47, 1]]
    before = Upstreamed(client.upstream.url)
    found = client.ask("pool", cases=[{"prompt": prompt, "params": SHORT} for prompt in prompts])
    for answer, prompt in zip(found, prompts, strict=True):
        client.assert_right(answer, prompt, max_tokens=6)
    assert len({answer["clone"] for answer in found} | {0}) == 3
    assert before.counts() == [1, 1]


def test_sampler_handle(client: Client) -> None:
    """A client from `get_sampler_handle()`."""
    client.needs("handles")
    answer = client.ask("handle", case={"prompt": [48], "params": SHORT})
    client.assert_right(answer, [48], max_tokens=6)
    assert answer["clone"] > 0


def test_close(client: Client) -> None:
    """`close()` and `with` finish the session."""
    client.needs("closes")
    traffic = Traffic(client.gateway)
    answer = client.ask("lifetime", case={"prompt": [49], "params": SHORT})
    client.assert_right(answer["inside"], [49], max_tokens=6)
    first, second = answer["sessions"]
    assert traffic.statuses(f"sessions/{first}/finish") == {200: 1}
    assert traffic.statuses(f"sessions/{second}/finish") == {200: 1}


def test_heartbeat(client: Client) -> None:
    """Heartbeats and telemetry."""
    traffic = client.since_start
    began = time.monotonic()
    for path in ("session_heartbeat", "telemetry"):
        wait_until(lambda path=path: traffic.statuses(path), within_s=25.0)
        assert set(traffic.statuses(path)) == {200}
    assert time.monotonic() - began < 25
