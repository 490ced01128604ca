"""Result files: read back as written, refused where they are something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from loadgen.report.validation import problems
from loadgen.results import SCHEMA, Result, SchemaError, decode, encode
from tests.loadgen.report.made import result


def test_a_result_is_read_back_as_it_was_written() -> None:
    made = result()
    data = encode(made)
    assert decode(data) == made
    assert encode(decode(data)) == data
    assert list(problems(made)) == []


@pytest.mark.parametrize("version", [0, SCHEMA + 1, "1", None])
def test_another_version_is_refused(version: object) -> None:
    loose = json.loads(encode(result()))
    loose["schema"] = version
    with pytest.raises(SchemaError, match=f"schema {version}; this program reads {SCHEMA}"):
        decode(json.dumps(loose).encode())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no result of loadgen"),
        (b"{", "no result of loadgen"),
        (b"[]", "no field schema"),
        (b"{}", "no field schema"),
        (b'{"schema": 1}', "missing required field"),
    ],
)
def test_other_files_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        decode(data)


def test_a_wrong_type_is_named_by_its_path() -> None:
    loose = json.loads(encode(result()))
    loose["outcomes"]["lost"] = "none"
    with pytest.raises(SchemaError, match=r"\$\.outcomes\.lost"):
        decode(json.dumps(loose).encode())


def test_fields_of_a_later_minor_are_read_over() -> None:
    loose = json.loads(encode(result()))
    loose["outcomes"]["new"] = 1
    assert decode(json.dumps(loose).encode()) == result()


def altered(change: Callable[[Any], object]) -> Result:
    made = result(samples=2_000)
    change(made)
    return made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: setattr(r.outcomes, "lost", 1), "outcomes: 2,001 in all, the plan has 2,000"),
        (lambda r: setattr(r.outcomes, "wrong", {"odd": 0}), "outcomes.wrong: unknown kind 'odd'"),
        (lambda r: r.traffic.retries.update(x=1), "traffic.retries: unknown class 'x'"),
        (lambda r: r.stages.update(x=r.stages["e2e"]), "stages: unknown stage 'x'"),
        (lambda r: setattr(r.traffic, "polls", -1), "traffic.polls: -1 is below 0"),
        (lambda r: r.series.polls.pop(), "series.polls: 19 rows, t has 20"),
        (lambda r: r.series.t.reverse(), "series.t: not ascending"),
        (lambda r: setattr(r.stages["queue"].uncorrected, "count", 1_999), "count says 1,999"),
        (lambda r: setattr(r.stages["queue"].uncorrected, "hdr", "xx"), "hdr is no histogram"),
        (
            lambda r: r.stages["queue"].uncorrected.percentiles.update({"p99.9": 1.0}),
            "queue: p99.9 is given with 2 samples above it, fewer than 10",
        ),
        (lambda r: setattr(r.stages["queue"].uncorrected, "max_ms", 0.0), "not in order"),
        (lambda r: setattr(r.verdict, "exit_status", 2), "verdict.exit_status: 2 is none of"),
        (
            lambda r: setattr(r.verdict, "clean", False),
            "exit_status: 0, the rest of the verdict says 1",
        ),
        (lambda r: setattr(r.verdict, "valid", False), "an invalid run without a reason"),
    ],
)
def test_contradictions_are_told(change: Callable[[Any], object], said: str) -> None:
    assert any(said in problem for problem in problems(altered(change)))


def test_the_schema_can_be_printed_and_names_every_field() -> None:
    schema = msgspec.json.schema(Result)
    properties = schema["$defs"]["Result"]["properties"]
    assert set(properties) == set(Result.__struct_fields__)
