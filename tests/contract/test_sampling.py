"""The real SDK 0.38 against the gateway on a socket, the stand-in vLLM behind it.

Tokens and logprobs are compared bit for bit with what the stand-in must have answered.
"""

import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from loadgen import answers
from loadgen.candidates import Candidate
from loadgen.faults import Fault
from tests.contract.conftest import Start
from tests.contract.sdk import (
    EOS,
    Sdk,
    Traffic,
    Upstreamed,
    assert_right,
    fault,
    sdk_process,
    wait_until,
)
from tests.support.processes import Served, stand_in

pytestmark = pytest.mark.sdk

CONTEXT = 2048
ADAPTER = "run-1_ckpt-9"


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    arguments = ["--faults", "--max-model-len", str(CONTEXT), "--model", "stand-in,org/other"]
    with stand_in(*arguments, "--lora", ADAPTER) as url:
        yield url


@pytest.fixture(scope="module")
def gateway(start: Start, vllm: str) -> Iterator[Served]:
    with start(vllm, client__sample_join_sampling_session=False) as served:
        yield served


# --- what comes back ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 8])
def test_tokens_and_logprobs_are_the_upstreams(sdk: Sdk, gateway: Served, n: int) -> None:
    prompt = [5, 6, 7, n]
    answer = sdk.sample(gateway, prompt, n=n, params={"max_tokens": 40})
    assert_right(answer, prompt, n=n, max_tokens=40)
    assert answer["prompt_logprobs"] is None
    assert answer["topk_prompt_logprobs"] is None


def test_one_token(sdk: Sdk, gateway: Served) -> None:
    answer = sdk.sample(gateway, [9], params={"max_tokens": 1})
    assert_right(answer, [9], max_tokens=1)


def test_chunks_are_one_prompt(sdk: Sdk, gateway: Served) -> None:
    parts: Any = [[1, 2], [3], [2_000, 150_000]]
    answer = sdk.sample(gateway, parts, params={"max_tokens": 5})
    assert_right(answer, [1, 2, 3, 2_000, 150_000], max_tokens=5)


def test_seeds(sdk: Sdk, gateway: Served) -> None:
    prompt = [3, 1, 4]
    seeds = [7, 7, 8, 0, None]
    cases = [
        {
            "prompt": prompt,
            "n": 4,
            "params": {"max_tokens": 8} | ({} if seed is None else {"seed": seed}),
        }
        for seed in seeds
    ]
    found = sdk.samples(gateway, cases)
    for seed, answer in zip(seeds, found, strict=True):
        assert_right(answer, prompt, n=4, max_tokens=8, seed=seed)
    tokens = [[one["tokens"] for one in answer["sequences"]] for answer in found]
    assert tokens[0] == tokens[1] != tokens[2]
    assert len({tuple(one) for one in tokens[0]}) == 4


@pytest.mark.parametrize("n", [1, 3])
def test_greedy(sdk: Sdk, gateway: Served, n: int) -> None:
    prompt = [2, 7, 1, 8]
    answer = sdk.sample(gateway, prompt, n=n, params={"max_tokens": 12, "temperature": 0.0})
    assert_right(answer, prompt, n=n, max_tokens=12, temperature=0.0)
    assert len({tuple(one["tokens"]) for one in answer["sequences"]}) == 1


def test_no_max_tokens_is_the_rest_of_the_context(sdk: Sdk, gateway: Served) -> None:
    prompt = list(range(100))
    answer = sdk.sample(gateway, prompt)
    assert_right(answer, prompt, max_tokens=CONTEXT - 100)
    assert len(answer["sequences"][0]["tokens"]) == CONTEXT - 100


# --- stops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["string", "list"])
def test_stop_strings(sdk: Sdk, gateway: Served, form: str) -> None:
    prompt = [11, 12, 13]
    text = answers.sample(prompt, max_tokens=32).text
    stop = text[len(text) // 2 :][:4]
    asked: Any = stop if form == "string" else ["never to be met", stop]
    answer = sdk.sample(gateway, prompt, n=2, params={"max_tokens": 32, "stop": asked})
    assert_right(answer, prompt, n=2, max_tokens=32, stop=asked)
    assert answer["sequences"][0]["stop_reason"] == "stop"
    assert len(answer["sequences"][0]["tokens"]) < 32


def test_stop_tokens(sdk: Sdk, gateway: Served) -> None:
    prompt = [14, 15]
    stop = answers.tokens(prompt, count=10)[6:7]
    answer = sdk.sample(gateway, prompt, n=3, params={"max_tokens": 32, "stop": stop})
    assert_right(answer, prompt, n=3, max_tokens=32, stop_token_ids=stop)
    first = answer["sequences"][0]
    assert (first["tokens"][-1:], first["stop_reason"]) == (stop, "stop")


def test_eos_ends_a_sample_and_an_empty_stop_ends_nothing(sdk: Sdk, gateway: Served) -> None:
    prompt = [16, EOS]
    ended, unending = sdk.samples(
        gateway,
        [
            {"prompt": prompt, "params": {"max_tokens": 9}},
            {"prompt": prompt, "params": {"max_tokens": 9, "stop": []}},
        ],
    )
    assert_right(ended, prompt, max_tokens=9)
    assert ended["sequences"][0]["tokens"][3:] == [EOS]
    assert_right(unending, prompt, max_tokens=9, ignore_eos=True)
    assert len(unending["sequences"][0]["tokens"]) == 9


# --- logprobs of the prompt and alternatives ------------------------------------------------------


def prompt_logprobs(prompt: list[int]) -> list[float | None]:
    return [None if row is None else row[0].logprob for row in answers.prompt_logprobs(prompt)]


def test_prompt_logprobs(sdk: Sdk, gateway: Served) -> None:
    prompt = [17, 18, 17, 150_000, 17]
    case = {"prompt": prompt, "params": {"max_tokens": 2}, "include_prompt_logprobs": True}
    one, four = sdk.samples(gateway, [case, {**case, "n": 4}])
    assert one["prompt_logprobs"] == four["prompt_logprobs"] == prompt_logprobs(prompt)
    assert one["prompt_logprobs"][0] is None
    assert_right(one, prompt, max_tokens=2)
    assert_right(four, prompt, n=4, max_tokens=2)


def test_compute_logprobs(sdk: Sdk, gateway: Served) -> None:
    prompt = list(range(100, 300))
    answer = sdk.ask("compute_logprobs", base_url=gateway.url, prompt=prompt)
    assert answer["logprobs"] == prompt_logprobs(prompt)


def test_compute_logprobs_of_the_last(sdk: Sdk, gateway: Served) -> None:
    prompt = list(range(300, 320))
    answer = sdk.ask("compute_logprobs", base_url=gateway.url, prompt=prompt, last_n=5)
    assert answer["logprobs"] == [None] * 15 + prompt_logprobs(prompt)[15:]


def best(rows: list[list[Candidate] | None], k: int) -> list[Any]:
    """The k best of every position, as the SDK shows them."""
    return [
        None
        if row is None
        else [[one.token_id, one.logprob] for one in sorted(row, key=lambda c: c.rank)[:k]]
        for row in rows
    ]


@pytest.mark.parametrize("k", [1, 5])
def test_topk_of_the_prompt(sdk: Sdk, gateway: Served, k: int) -> None:
    prompt = [19, 20, 21, 22, 23, 24]
    answer = sdk.sample(gateway, prompt, topk_prompt_logprobs=k, params={"max_tokens": 1})
    assert answer["topk_prompt_logprobs"] == best(answers.prompt_logprobs(prompt, k=k), k)


@pytest.mark.parametrize("k", [1, 5])
def test_topk_of_the_sample(sdk: Sdk, gateway: Served, k: int) -> None:
    prompt = [25, 26]
    answer = sdk.sample(gateway, prompt, n=2, topk_sample_logprobs=k, params={"max_tokens": 16})
    assert_right(answer, prompt, n=2, max_tokens=16)
    for choice, sequence in enumerate(answer["sequences"]):
        rows = answers.top_logprobs(prompt, count=16, k=k, choice=choice)
        assert sequence["topk"] == best(list(rows), k)


# --- many -----------------------------------------------------------------------------------------


def test_two_hundred_at_once(sdk: Sdk, gateway: Served, vllm: str) -> None:
    draw = random.Random(38)
    shapes = [(draw.randint(1, 4), draw.randint(1, 30), draw.randint(0, 9)) for _ in range(200)]
    prompts = [[1000 + i, *draw.sample(range(50_000), draw.randint(1, 200))] for i in range(200)]
    cases = [
        {"prompt": prompt, "n": n, "params": {"max_tokens": length, "seed": seed}}
        for prompt, (n, length, seed) in zip(prompts, shapes, strict=True)
    ]
    before = Upstreamed(vllm)
    found = sdk.samples(gateway, cases)
    for answer, prompt, (n, length, seed) in zip(found, prompts, shapes, strict=True):
        assert_right(answer, prompt, n=n, max_tokens=length, seed=seed)
    assert before.counts() == [1] * 200


# --- what is refused, and how it reads ------------------------------------------------------------


def test_unsupported_fields_are_named(sdk: Sdk, gateway: Served) -> None:
    answers_ = sdk.ask("unsupported", base_url=gateway.url)
    for name, answer in answers_.items():
        assert answer["error"]["type"] == "UnprocessableEntityError", answer
        assert name in answer["error"]["message"]
        assert answer["seconds"] < 5


@pytest.mark.parametrize(
    ("case", "texts"),
    [
        (
            {"prompt": list(range(CONTEXT + 1)), "params": {"max_tokens": 7}},
            ["2049", "max_tokens 7", "2048"],
        ),
        ({"prompt": list(range(CONTEXT))}, ["2048 tokens", "context"]),
        ({"prompt": [], "params": {"max_tokens": 1}}, ["prompt"]),
        ({"prompt": [1], "params": {"max_tokens": 0}}, ["max_tokens", "0"]),
        ({"prompt": [1], "params": {"max_tokens": 1, "temperature": 3.0}}, ["temperature", "3"]),
        ({"prompt": [1], "params": {"max_tokens": 1, "top_p": 0.0}}, ["top_p"]),
        ({"prompt": [1], "params": {"max_tokens": 1}, "n": 0}, ["num_samples", "0"]),
        ({"prompt": [-1], "params": {"max_tokens": 1}}, ["tokens", "2147483647"]),
    ],
)
def test_a_bad_request_says_what_is_wrong(
    sdk: Sdk, gateway: Served, vllm: str, case: dict[str, Any], texts: list[str]
) -> None:
    before = Upstreamed(vllm)
    (answer,) = sdk.samples(gateway, [case])
    assert answer["error"]["type"] in ("BadRequestError", "UnprocessableEntityError"), answer
    for text in texts:
        assert text in answer["error"]["message"]
    assert answer["seconds"] < 5
    assert before.counts() == []


def test_a_model_that_is_not_served_is_refused_with_the_names(sdk: Sdk, gateway: Served) -> None:
    answer = sdk.ask("create", base_url=gateway.url, base_model="org/unknown")
    assert answer["error"]["type"] == "BadRequestError", answer
    for name in ("org/unknown", "stand-in", "org/other"):
        assert name in answer["error"]["message"]
    assert ADAPTER not in answer["error"]["message"]


# --- what the upstream refuses, breaks or loses ---------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "category", "text", "tries"),
    [
        (Fault.BAD_REQUEST, "user", "The stand-in refuses this prompt.", [1]),
        (Fault.NAN_LOGPROBS, "server", "Out of range float values", [1]),
        (Fault.SERVER_ERROR, "server", "EngineCore encountered an issue", [2]),
        (Fault.HTML, "server", "parse", [1]),
        (Fault.NULL_LOGPROB, "server", "null", [1]),
        (Fault.NO_LOGPROBS, "server", "logprobs", [1]),
        (Fault.LOGPROB_MISSING, "server", "logprobs", [1]),
    ],
)
def test_a_failure_is_raised_once_with_its_category(
    sdk: Sdk, gateway: Served, vllm: str, kind: Fault, category: str, text: str, tries: list[int]
) -> None:
    before, traffic = Upstreamed(vllm), Traffic(gateway)
    answer = sdk.sample(gateway, fault(kind, 1), params={"max_tokens": 4})
    assert answer["error"]["type"] == "RequestFailedError", answer
    assert answer["error"]["category"] == category
    assert text in answer["error"]["message"]
    assert before.counts() == tries
    assert traffic.statuses("asample") == {200: 1}


# --- the rest of the client's surface -------------------------------------------------------------


def test_capabilities(sdk: Sdk, gateway: Served) -> None:
    models = sdk.ask("capabilities", base_url=gateway.url)["models"]
    assert [(model["model_name"], model["max_context_length"]) for model in models] == [
        ("org/other", CONTEXT),
        ("stand-in", CONTEXT),
    ]
    assert all(model["sampleable"] and not model["trainable"] for model in models)


def test_another_model(sdk: Sdk, gateway: Served) -> None:
    (answer,) = sdk.samples(
        gateway, [{"prompt": [1, 2], "params": {"max_tokens": 6}}], base_model="org/other"
    )
    assert_right(answer, [1, 2], max_tokens=6, model="org/other")


def test_saved_weights_by_their_path(sdk: Sdk, gateway: Served) -> None:
    (answer,) = sdk.samples(
        gateway,
        [{"prompt": [1, 2], "params": {"max_tokens": 6}}],
        base_model=None,
        model_path="tinker://run-1/sampler_weights/ckpt-9",
    )
    assert_right(answer, [1, 2], max_tokens=6, model=ADAPTER)


def test_weights_that_are_not_loaded_are_named(sdk: Sdk, gateway: Served) -> None:
    answer = sdk.ask(
        "create", base_url=gateway.url, model_path="tinker://run-1/sampler_weights/ckpt-10"
    )
    assert answer["error"]["type"] == "BadRequestError", answer
    assert "run-1_ckpt-10" in answer["error"]["message"]


def test_a_clone_of_a_client(sdk: Sdk, gateway: Served) -> None:
    """Its numbers begin at a billion times its own id."""
    traffic = Traffic(gateway)
    answer = sdk.ask("clone", base_url=gateway.url, prompt=[27, 28], max_tokens=5)
    assert answer["number"] > 10**9
    assert_right(answer, [27, 28], max_tokens=5)
    assert traffic.statuses("asample") == {200: 1}


def test_with_and_close_finish_the_session(sdk: Sdk, gateway: Served) -> None:
    traffic = Traffic(gateway)
    answer = sdk.ask("lifetime", base_url=gateway.url)
    assert_right(answer["inside"], [1, 2], max_tokens=2)
    assert traffic.statuses(f"sessions/{answer['session_id']}/finish") == {200: 1}


def test_with_telemetry_on(gateway: Served) -> None:
    """Events are taken in quickly: a failure reaches the user without a wait for their flush."""
    traffic = Traffic(gateway)
    with sdk_process(TINKER_TELEMETRY="1", TINKER_BASE_URL=gateway.url) as loud:
        case = {"prompt": [1, 2], "params": {"max_tokens": 3}}
        (answer,) = loud.ask("samples", cases=[dict(case)])
        assert_right(answer, [1, 2], max_tokens=3)
        (failed,) = loud.ask("samples", cases=[{**case, "prompt": fault(Fault.BAD_REQUEST, 2)}])
        assert failed["error"]["type"] == "RequestFailedError"
        assert failed["seconds"] < 3
        loud.process.stdin.close()
        began = time.monotonic()
        # The SDK's native transport may abort at the very end of a process.
        assert loud.process.wait() in (0, -signal.SIGABRT)
        assert time.monotonic() - began < 5
    wait_until(lambda: traffic.statuses("telemetry"))
    assert set(traffic.statuses("telemetry")) == {200}


def test_nothing_but_expected_lines_in_the_gateways_log(gateway: Served) -> None:
    """The last test of the module: failures were logged once each, and nothing was a bug."""
    assert "Traceback" not in gateway.process.stderr
    assert "bug" not in gateway.process.stderr
