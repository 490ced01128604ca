"""Each status that the gateway sends steers the real SDK as the status table says.

| route | status | the SDK |
|---|---|---|
| retrieve_future | 408 | polls again |
| | 410 | submits the sample again |
| | 404 | raises, the run ends |
| | 200 with `error` | raises once, see test_sampling |
| asample | 429 | waits a second and repeats |
| | 400, 404, 413, 422 | raises at once, typed |
| create_sampling_session | 503 | repeats until the upstream is there |
"""

import time
from collections.abc import Iterator

import pytest

from loadgen.faults import Fault
from tests.contract.conftest import Start
from tests.contract.sdk import Sdk, Traffic, Upstreamed, assert_right, fault
from tests.support.processes import Served, free_port, stand_in

pytestmark = pytest.mark.sdk

DELAY_S = 1.4
BODY_CAP = 4000
# The counts below are of polls for one sample each.
SINGLE = {"client__sample_use_retrieve_futures": False}


@pytest.fixture(scope="module")
def slow() -> Iterator[str]:
    """Answers after 1.4 s; a fault happens once and then the right answer comes."""
    with stand_in("--delay-s", str(DELAY_S), "--faults", "--fault-times", "1") as url:
        yield url


@pytest.fixture(scope="module")
def gateway(start: Start, slow: str) -> Iterator[Served]:
    limits = {"limits__asample_body_bytes": BODY_CAP, "poll__hold_s": 1}
    with start(slow, **limits, **SINGLE) as served:
        yield served


def test_408_polls_again_and_410_submits_again(sdk: Sdk, gateway: Served, slow: str) -> None:
    """Held a second per poll; five samples are interrupted once and come back under a new id."""
    traffic, before = Traffic(gateway), Upstreamed(slow)
    prompts = [
        [1, 2],
        fault(Fault.CLOSE_BEFORE, 1),
        fault(Fault.CLOSE_MIDWAY, 2),
        fault(Fault.PLAIN_ERROR, 3),
        fault(Fault.ABORTED, 4),
        fault(Fault.CHOICE_MISSING, 5),
    ]
    cases = [{"prompt": prompt, "n": 2, "params": {"max_tokens": 6}} for prompt in prompts]
    began = time.monotonic()
    for answer, prompt in zip(sdk.samples(gateway, cases), prompts, strict=True):
        assert_right(answer, prompt, n=2, max_tokens=6)
    assert time.monotonic() - began < 10
    assert traffic.statuses("asample") == {200: 11}
    polls = traffic.statuses("retrieve_future")
    # One hold of a second and what is left of 1.4 s, eleven times.
    assert polls == {408: 11, 410: 5, 200: 6}
    # Every resubmission is a new sample; none was sent upstream twice.
    assert before.counts() == [1] * 11


def test_an_upstream_that_is_busy_once_is_not_seen_by_the_sdk(
    sdk: Sdk, gateway: Served, slow: str
) -> None:
    traffic, before = Traffic(gateway), Upstreamed(slow)
    prompts = [fault(Fault.UNAVAILABLE, 1), fault(Fault.RATE_LIMITED, 2)]
    prompts.append(fault(Fault.SERVER_ERROR, 3))
    cases = [{"prompt": prompt, "params": {"max_tokens": 6}} for prompt in prompts]
    for answer, prompt in zip(sdk.samples(gateway, cases), prompts, strict=True):
        assert_right(answer, prompt, max_tokens=6)
    assert traffic.statuses("asample") == {200: 3}
    assert set(traffic.statuses("retrieve_future")) == {200, 408}
    assert before.counts() == [2, 2, 2]


def test_the_queue_state_of_a_408_reaches_the_user(sdk: Sdk, start: Start, slow: str) -> None:
    settings = {"poll__hold_s": 1, "upstream__max_connections": 1}
    with start(slow, **settings, **SINGLE) as narrow:
        case = {"prompt": [3], "params": {"max_tokens": 1}}
        for answer in sdk.samples(narrow, [dict(case) for _ in range(3)]):
            assert_right(answer, [3], max_tokens=1)
    assert "Sampling is paused" in sdk.process.stderr
    assert "waiting for a free slot on the inference server" in sdk.process.stderr


def test_429_waits_and_repeats(sdk: Sdk, start: Start, slow: str) -> None:
    with start(slow, store__max_in_flight=2, **SINGLE) as full:
        traffic, before = Traffic(full), Upstreamed(slow)
        prompts = [[4, n] for n in range(5)]
        cases = [{"prompt": prompt, "params": {"max_tokens": 3}} for prompt in prompts]
        for answer, prompt in zip(sdk.samples(full, cases), prompts, strict=True):
            assert_right(answer, prompt, max_tokens=3)
        statuses = traffic.statuses("asample")
        assert statuses[200] == 5
        # A second apart, and not more often.
        assert 1 <= statuses[429] <= 15
        assert before.counts() == [1] * 5


@pytest.mark.parametrize(
    ("prompt", "status", "type_"),
    [([1] * BODY_CAP, 413, "APIStatusError"), ([2**31], 400, "BadRequestError")],
)
def test_refusals_on_submit_are_raised_at_once(
    sdk: Sdk, gateway: Served, prompt: list[int], status: int, type_: str
) -> None:
    traffic = Traffic(gateway)
    answer = sdk.sample(gateway, prompt, params={"max_tokens": 1})
    assert (answer["error"]["type"], answer["error"]["status_code"]) == (type_, status)
    assert answer["seconds"] < 1
    assert traffic.statuses("asample") == {status: 1}


def test_404_on_submit_is_raised_at_once(sdk: Sdk, gateway: Served) -> None:
    answer = sdk.ask("foreign", base_url=gateway.url)
    assert answer["error"]["type"] == "NotFoundError"
    assert answer["seconds"] < 1


def test_404_on_a_poll_is_final(sdk: Sdk, gateway: Served) -> None:
    traffic = Traffic(gateway)
    answer = sdk.ask("retrieve", base_url=gateway.url, request_id="never-issued")
    assert answer["error"]["type"] == "ValueError"
    assert "404" in answer["error"]["message"]
    assert traffic.statuses("retrieve_future") == {404: 1}


@pytest.mark.parametrize("way_to_run", ["one"], indirect=True)
def test_an_id_of_another_process_is_410(sdk: Sdk, gateway: Served) -> None:
    """As after a restart: the SDK would submit the sample again."""
    answer = sdk.ask("retrieve", base_url=gateway.url, request_id=f"0123456789-4-{'x' * 16}")
    assert answer["error"]["type"] == "RetryableException"


def test_503_until_the_upstream_is_there(sdk: Sdk, start: Start) -> None:
    port = free_port()
    with start(f"http://127.0.0.1:{port}") as waiting:
        sdk.send("create", base_url=waiting.url, base_model="stand-in")
        traffic = Traffic(waiting)
        waiting.process.wait_for(lambda: 503 in traffic.statuses("create_sampling_session"), "503")
        with stand_in(port=port):
            answer = sdk.answer()
        assert answer["base_model"] == "stand-in"
        assert answer["seconds"] < 8
        assert 1 <= traffic.statuses("create_sampling_session")[503] <= 5
