"""Drawn token counts: the distribution asked for, and the answers that follow from it."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from loadgen import answers, lengths
from loadgen.settings import Settings
from loadgen.upstream import running
from tests.loadgen.test_main import failure
from tests.loadgen.test_upstream import PROMPT, Client, ids_of


def drawn(spec: str, count: int = 4_000, seed: int = 0) -> list[int]:
    found = lengths.parse(spec, seed=seed)
    return [found.draw(b"%d" % i) for i in range(count)]


def test_uniform_reaches_both_ends_and_all_between_alike() -> None:
    counts = statistics.multimode(drawn("uniform:3:6"))
    values = drawn("uniform:3:6")
    assert set(values) == {3, 4, 5, 6}
    assert all(abs(values.count(n) / len(values) - 0.25) < 0.03 for n in range(3, 7)), counts


def test_lognormal_has_its_median_and_sigma() -> None:
    logs = [math.log(n) for n in drawn("lognormal:500:0.7")]
    assert statistics.median(logs) == pytest.approx(math.log(500), abs=0.05)
    assert statistics.stdev(logs) == pytest.approx(0.7, rel=0.05)


def test_geometric_has_its_mean_and_no_memory() -> None:
    values = drawn("geometric:20", 20_000)
    assert statistics.fmean(values) == pytest.approx(20, rel=0.05)
    later = [n - 10 for n in values if n > 10]
    assert statistics.fmean(later) == pytest.approx(20, rel=0.07)
    assert min(values) == 1
    assert set(drawn("geometric:1", 50)) == {1}


def test_a_draw_follows_from_seed_and_key_alone() -> None:
    assert drawn("uniform:1:1000", 50) == drawn("uniform:1:1000", 50)
    assert drawn("uniform:1:1000", 50, seed=1) != drawn("uniform:1:1000", 50)
    assert set(drawn("fixed:7", 5)) == {7}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("normal:3", "normal"),
        ("uniform:3", "takes 2"),
        ("uniform:9:3", "A <= B"),
        ("uniform:1.5:3", "whole"),
        ("uniform:0:3", "from 1"),
        ("lognormal:100:-1", "SIGMA"),
        ("lognormal:nan:1", "from 1"),
        ("geometric:x", "not a number"),
        ("fixed:inf", "from 1"),
    ],
)
def test_wrong_specs_are_named(spec: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        lengths.parse(spec)
    assert "--tokens-dist" in failure("upstream", "--tokens-dist", spec)


@pytest.mark.parametrize("fields", [{}, {"logprobs": 0}, {"logprobs": 2}, {"stop": [" t5"]}])
async def test_answers_have_the_length_that_was_drawn(fields: dict[str, Any]) -> None:
    dist = "uniform:2:40"
    stop = (" t5",) if "stop" in fields else ()
    async with (
        running(Settings(port=0, tokens_dist=dist, seed=3)) as server,
        Client(server) as client,
    ):
        reasons = set()
        for seed in range(30):
            got = await client.ask(max_tokens=20, n=2, seed=seed, **fields)
            for choice, shown in enumerate(got.json["choices"]):
                right = answers.sample(
                    PROMPT,
                    max_tokens=20,
                    seed=seed,
                    choice=choice,
                    stop=stop,
                    lengths=lengths.parse(dist, seed=3),
                )
                assert shown["token_ids"] == right.token_ids
                assert shown["finish_reason"] == right.finish_reason
                assert shown["text"] == right.text
                if "logprobs" in fields:
                    assert shown["logprobs"]["token_logprobs"] == right.logprobs
                reasons.add(right.finish_reason)
        assert reasons == {"stop", "length"}


async def test_min_tokens_and_ignore_eos_are_kept() -> None:
    async with (
        running(Settings(port=0, tokens_dist="fixed:2")) as server,
        Client(server) as client,
    ):
        assert [len(ids) for ids in ids_of(await client.ask(max_tokens=9))] == [2]
        assert [len(ids) for ids in ids_of(await client.ask(max_tokens=9, min_tokens=5))] == [5]
        assert [len(ids) for ids in ids_of(await client.ask(max_tokens=9, ignore_eos=True))] == [9]


async def test_lean_bodies_hold_ids_and_logprobs_and_little_else() -> None:
    async with (
        running(Settings(port=0, lean=True)) as lean,
        running(Settings(port=0)) as full,
        Client(lean) as client,
        Client(full) as other,
    ):
        fields = {"max_tokens": 600, "logprobs": 0}
        short, long = await client.ask("r", **fields), await other.ask("r", **fields)
        (choice,), (right,) = short.json["choices"], long.json["choices"]
        assert choice["token_ids"] == right["token_ids"]
        logprobs = choice["logprobs"]
        assert logprobs["token_logprobs"] == right["logprobs"]["token_logprobs"]
        assert (logprobs["tokens"], logprobs["top_logprobs"], logprobs["text_offset"]) == ([],) * 3
        assert (choice["text"], choice["prompt_token_ids"]) == ("", None)
        assert list(choice) == list(right)
        assert len(short.body) < 0.4 * len(long.body)
        alternatives = await client.ask("r", max_tokens=3, logprobs=2)
        assert len(alternatives.json["choices"][0]["logprobs"]["top_logprobs"]) == 3
