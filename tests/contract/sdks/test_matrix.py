"""Every listed SDK in every poll style that it knows, against a gateway on a socket.

The first line of each test is its row in docs/sdk-support.md.
"""

import random
from typing import Any

import pytest

from loadgen import answers
from loadgen.candidates import Candidate
from tests.contract.sdk import EOS, Traffic, Upstreamed
from tests.contract.sdks.matrix import Client

pytestmark = pytest.mark.matrix

PROTOBUF, JSON = "application/x-protobuf", "application/json"


def prompt_logprobs(prompt: list[int]) -> list[float | None]:
    return [None if row is None else row[0].logprob for row in answers.prompt_logprobs(prompt)]


def best(rows: list[list[Candidate] | None], k: int) -> list[Any]:
    """The k best of every position, as the SDK shows them."""
    return [
        row and [[one.token_id, one.logprob] for one in sorted(row, key=lambda c: c.rank)[:k]]
        for row in rows
    ]


# --- results --------------------------------------------------------------------------------------


def test_one_sample(client: Client) -> None:
    """Tokens, logprobs and stop reason of a sample."""
    answer = client.sample([5, 6, 7], params={"max_tokens": 40})
    client.assert_right(answer, [5, 6, 7], max_tokens=40)
    assert answer["prompt_logprobs"] is None
    assert answer["topk_prompt_logprobs"] is None


def test_chunks(client: Client) -> None:
    """A prompt in several chunks."""
    answer = client.sample([[1, 2], [3], [2_000, 150_000]], params={"max_tokens": 5})
    client.assert_right(answer, [1, 2, 3, 2_000, 150_000], max_tokens=5)


def test_eight_samples(client: Client) -> None:
    """Several samples of one prompt, with a seed."""
    answer = client.sample([5, 6, 8], n=8, params={"max_tokens": 20, "seed": 3})
    client.assert_right(answer, [5, 6, 8], n=8, max_tokens=20, seed=3)


def test_greedy(client: Client) -> None:
    """Greedy sampling."""
    answer = client.sample([5, 6, 9], n=2, params={"max_tokens": 12, "temperature": 0.0})
    client.assert_right(answer, [5, 6, 9], n=2, max_tokens=12, temperature=0.0)


def test_prompt_logprobs(client: Client) -> None:
    """Logprobs of the prompt, beside samples."""
    prompt = [17, 18, 17, 150_000, 17]
    answer = client.sample(prompt, n=2, params={"max_tokens": 2}, include_prompt_logprobs=True)
    client.assert_right(answer, prompt, n=2, max_tokens=2)
    assert answer["prompt_logprobs"] == prompt_logprobs(prompt)


def test_topk_prompt_logprobs(client: Client) -> None:
    """Top-k logprobs of the prompt."""
    prompt = [19, 20, 21, 22]
    answer = client.sample(prompt, topk_prompt_logprobs=5, params={"max_tokens": 1})
    assert answer["topk_prompt_logprobs"] == best(answers.prompt_logprobs(prompt, k=5), 5)


def test_topk_sample_logprobs(client: Client) -> None:
    """Top-k logprobs of the sample."""
    client.needs("top-k of the sample")
    answer = client.sample([25, 26], n=2, topk_sample_logprobs=5, params={"max_tokens": 16})
    client.assert_right(answer, [25, 26], n=2, max_tokens=16)
    for choice, sequence in enumerate(answer["sequences"]):
        rows = answers.top_logprobs([25, 26], count=16, k=5, choice=choice)
        assert sequence["topk"] == best(list(rows), 5)


def test_compute_logprobs(client: Client) -> None:
    """`compute_logprobs`."""
    prompt = list(range(100, 300))
    assert client.ask("compute_logprobs", prompt=prompt)["logprobs"] == prompt_logprobs(prompt)


def test_compute_last_logprobs(client: Client) -> None:
    """`prompt_logprobs_last_n`."""
    client.needs("last prompt logprobs")
    prompt = list(range(300, 320))
    answer = client.ask("compute_logprobs", prompt=prompt, prompt_logprobs_last_n=5)
    assert answer["logprobs"] == [None] * 15 + prompt_logprobs(prompt)[15:]


def test_stop_strings(client: Client) -> None:
    """Stop strings, one or several."""
    prompt = [11, 12, 13]
    text = answers.sample(prompt, max_tokens=32).text
    stop = text[len(text) // 2 :][:4]
    forms: list[Any] = [stop, ["never to be met", stop]]
    cases = [{"prompt": prompt, "n": 2, "params": {"max_tokens": 32, "stop": s}} for s in forms]
    for answer, form in zip(client.ask("samples", cases=cases), forms, strict=True):
        client.assert_right(answer, prompt, n=2, max_tokens=32, stop=form)
        assert answer["sequences"][0]["stop_reason"] == "stop"
        assert len(answer["sequences"][0]["tokens"]) < 32


def test_stop_tokens(client: Client) -> None:
    """Stop token ids."""
    stop = answers.tokens([14, 15], count=10)[6:7]
    answer = client.sample([14, 15], n=3, params={"max_tokens": 32, "stop": stop})
    client.assert_right(answer, [14, 15], n=3, max_tokens=32, stop_token_ids=stop)
    assert answer["sequences"][0]["tokens"][-1:] == stop


def test_empty_stop(client: Client) -> None:
    """An empty stop list: no stop at all from 0.38 on, the model's own before."""
    answer = client.sample([16, EOS], params={"max_tokens": 9, "stop": []})
    endless = client.made.at_least("0.38.0")
    client.assert_right(answer, [16, EOS], max_tokens=9, ignore_eos=endless)
    assert len(answer["sequences"][0]["tokens"]) == (9 if endless else 4)


def test_a_hundred_at_once(client: Client) -> None:
    """A hundred at once, each sampled once."""
    draw = random.Random(100)
    prompts = [[1000 + i, *draw.sample(range(50_000), draw.randint(1, 200))] for i in range(100)]
    shapes = [(draw.randint(1, 4), draw.randint(1, 30)) for _ in prompts]
    cases = [
        {"prompt": prompt, "n": n, "params": {"max_tokens": length}}
        for prompt, (n, length) in zip(prompts, shapes, strict=True)
    ]
    before = Upstreamed(client.upstream.url)
    found = client.ask("samples", cases=cases)
    for answer, prompt, (n, length) in zip(found, prompts, shapes, strict=True):
        client.assert_right(answer, prompt, n=n, max_tokens=length)
    assert before.counts() == [1] * 100


def test_large_result(client: Client) -> None:
    """A result of 8,192 tokens, announced before it is sent."""
    traffic = Traffic(client.gateway)
    answer = client.sample([31, 32], params={"max_tokens": 8192})
    client.assert_right(answer, [31, 32], max_tokens=8192)
    # Its size stands in the completion where polls are batched.
    assert traffic.statuses("retrieve_future")[200] == (1 if client.made.style == "batched" else 2)


def test_protobuf(client: Client) -> None:
    """Results as protobuf."""
    client.needs("protobuf")
    answer, reply = client.relayed_sample([33], n=2, params={"max_tokens": 9})
    client.assert_right(answer, [33], n=2, max_tokens=9)
    assert [one["dtypes"] for one in answer["sequences"]] == [["int32", "float32"]] * 2
    assert (PROTOBUF in reply.accept, reply.content_type) == (True, PROTOBUF)
    assert (JSON in reply.accept) != client.made.at_least("0.25.0")


def test_json(client: Client) -> None:
    """Results as JSON."""
    if client.made.at_least("0.25.0"):
        pytest.skip("this SDK release does not have the feature")
    # Those that take both get to see only this.
    client.relay.replace = (f"{PROTOBUF}, {JSON}".encode(), JSON.encode())
    answer, reply = client.relayed_sample(
        [34, 35],
        n=2,
        include_prompt_logprobs=True,
        topk_prompt_logprobs=3,
        params={"max_tokens": 9},
    )
    client.relay.replace = None
    client.assert_right(answer, [34, 35], n=2, max_tokens=9)
    assert answer["prompt_logprobs"] == prompt_logprobs([34, 35])
    assert answer["topk_prompt_logprobs"] == best(answers.prompt_logprobs([34, 35], k=3), 3)
    assert reply.content_type == JSON
