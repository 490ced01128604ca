"""What is right about a result, and every way in which one is seen to be wrong."""

from array import array

import msgspec
import pytest

from loadgen import answers
from loadgen.plan import Length, Plan
from loadgen.samples import Samples
from loadgen.sampling_pb2 import (
    STOP_REASON_LENGTH,
    STOP_REASON_STOP,
    SampledSequence,
    SampleResponse,
    StopReason,
)

PLAN = Plan(
    scenario="test",
    url="http://127.0.0.1:1",
    samples=50_000,
    prompt_tokens=Length(low=3, high=40),
    output_tokens=Length(low=1, high=900, kind="log"),
)
SAMPLES = Samples(PLAN)
FOREIGN = Samples(msgspec.structs.replace(PLAN, oracle=False))
NUMBER = next(n for n in range(20_007, 50_000) if SAMPLES.output_tokens[n] > 40)
SHORT = next(n for n in range(50_000) if SAMPLES.output_tokens[n] < 8)


def asked(number: int) -> dict[str, object]:
    head = b"POST /asample HTTP/1.1\r\n"
    whole = SAMPLES.request(number, head, b"target", 5)
    assert whole.startswith(head + b"content-length: ")
    head, _, body = whole.partition(b"\r\n\r\n")
    assert int(head.rpartition(b" ")[2]) == len(body)
    return msgspec.json.decode(body, type=dict[str, object])


def right(number: int) -> tuple[bytes, bytes]:
    prompt = msgspec.json.decode(SAMPLES.prompt(number))
    count = SAMPLES.output_tokens[number]
    return (
        array("i", answers.tokens(prompt, count=count)).tobytes(),
        array("f", answers.logprobs(prompt, count=count)).tobytes(),
    )


def result(tokens: bytes, logprobs: bytes, reason: StopReason = STOP_REASON_LENGTH) -> bytes:
    sequence = SampledSequence(stop_reason=reason, tokens=tokens, logprobs=logprobs)
    return SampleResponse(sequences=[sequence]).SerializeToString()


def test_a_request_says_what_the_sdk_says() -> None:
    body = asked(NUMBER)
    assert body["sampling_session_id"] == "target"
    assert body["seq_id"] == 5
    prompt = body["prompt"]
    assert isinstance(prompt, dict)
    tokens = prompt["chunks"][0]["tokens"]
    assert len(tokens) == SAMPLES.prompt_tokens[NUMBER]
    assert tokens[:3] == [1_000 + NUMBER - 20_000, 1_001, 1_001]
    assert tokens == msgspec.json.decode(SAMPLES.prompt(NUMBER))
    params = body["sampling_params"]
    assert isinstance(params, dict)
    assert params["max_tokens"] == SAMPLES.output_tokens[NUMBER]


def test_prompts_are_all_different() -> None:
    assert len({SAMPLES.prompt(number) for number in range(0, 50_000, 7)}) == 7_143


def test_expected_bodies_are_protobufs_own() -> None:
    numbers = range(0, 50_000, 997)
    expected = SAMPLES.expect(numbers)
    assert expected is not None
    assert expected == [result(*right(number)) for number in numbers]
    assert FOREIGN.expect(numbers) is None


def test_a_right_result() -> None:
    found = SAMPLES.check(NUMBER, result(*right(NUMBER)))
    assert found == (None, SAMPLES.output_tokens[NUMBER], 0)
    assert FOREIGN.check(NUMBER, result(*right(NUMBER))).wrong is None


@pytest.mark.parametrize("samples", [SAMPLES, FOREIGN], ids=["oracle", "foreign"])
def test_wrong_results_whatever_is_known(samples: Samples) -> None:
    tokens, logprobs = right(NUMBER)
    wrong = {
        "unreadable": b"\xff",
        "sequences": b"",
        "dtype": result(tokens[1:], logprobs),
        "tokens": result(tokens[4:], logprobs[4:]),
        "logprobs": result(tokens, logprobs[4:]),
    }
    found = {name: samples.check(NUMBER, body).wrong for name, body in wrong.items()}
    assert found == {name: name for name in wrong}


def test_wrong_results_that_only_an_oracle_sees() -> None:
    tokens, logprobs = right(NUMBER)
    others = result(tokens[-4:] + tokens[4:], logprobs)
    assert SAMPLES.check(NUMBER, others).wrong == "identity"
    assert SAMPLES.check(NUMBER, others).digest != 0
    assert FOREIGN.check(NUMBER, others).wrong is None
    assert SAMPLES.check(NUMBER, result(tokens, tokens)).wrong == "logprobs"
    stopped = result(tokens, logprobs, STOP_REASON_STOP)
    assert SAMPLES.check(NUMBER, stopped).wrong == "stop_reason"
    assert FOREIGN.check(NUMBER, stopped).wrong is None


def test_equal_results_have_equal_digests() -> None:
    body = result(*right(NUMBER))
    assert FOREIGN.check(NUMBER, body).digest == SAMPLES.digest(NUMBER) != 0
    assert FOREIGN.check(NUMBER, body).digest != FOREIGN.check(0, result(*right(0))).digest


def test_results_of_few_tokens_tell_nothing_apart() -> None:
    assert FOREIGN.check(SHORT, result(*right(SHORT))).digest == SAMPLES.digest(SHORT) == 0


def test_shorter_answers_where_they_are_allowed() -> None:
    shorter = Samples(msgspec.structs.replace(PLAN, shorter=True))
    tokens, logprobs = right(NUMBER)
    body = result(tokens[:20], logprobs[:20], STOP_REASON_STOP)
    assert SAMPLES.check(NUMBER, body).wrong == "tokens"
    assert shorter.check(NUMBER, body) == (None, 5, 0)
    assert shorter.expect(range(5)) is None
