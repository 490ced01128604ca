"""The fast half of `make faults`, and a judge that can tell: leaks and doctored results."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from loadgen.results import FaultCount, Result
from tests.faults.__main__ import told_of
from tests.faults.found import SMALL, Found, Row, Size, Told, full, table
from tests.faults.judge import (
    NOTHING,
    Record,
    asked,
    counts,
    cut_off,
    doubles,
    judged,
    together,
)
from tests.faults.load import loaded, until
from tests.faults.table import ROWS
from tests.loadgen.test_ledger_against_a_leaky_server import leaky
from tests.support.processes import serve, stand_in
from tests.support.wire import Remote

FAST = [row for row in ROWS if row.fast]


@pytest.mark.parametrize("row", FAST, ids=[row.name for row in FAST])
async def test_row(row: Row) -> None:
    told = await told_of(row, SMALL)
    assert told.ok, (told.problems, told.found)


def test_rows_are_told_apart_by_name() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


# --- the judge ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clean() -> tuple[Result, Record]:
    """A load without a fault."""

    async def run() -> tuple[Result, Record]:
        with stand_in() as vllm, serve(vllm) as gateway:
            result = await loaded(gateway.url, vllm, 20, "--style", "future")
            return result, asked([vllm])

    return asyncio.run(run())


def problems(found: Found) -> str:
    found.injected = found.injected or 1
    return "; ".join(found.all_problems())


def doctored(result: Result, **outcomes: object) -> Result:
    """The result with other outcomes."""
    changed = msgspec.structs.replace(result.outcomes, **outcomes)
    return msgspec.structs.replace(result, outcomes=changed)


def test_a_clean_load_is_passed(clean: tuple[Result, Record]) -> None:
    result, record = clean
    found = judged(result, record)
    assert (found.survived, found.lost, found.doubled) == (20, 0, 0)
    assert problems(found) == ""


def test_without_a_fault_nothing_is_tested(clean: tuple[Result, Record]) -> None:
    assert "nothing was injected" in "; ".join(judged(*clean).all_problems())


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        ({"succeeded": 19, "lost": 1}, "1 lost"),
        ({"succeeded": 19, "refused": {"404": 1}}, "1 refused: 404"),
        ({"succeeded": 19, "wrong": {"tokens": 1}}, "1 wrong: tokens"),
        ({"succeeded": 19, "failed": {"server": 1}}, "1 failed, category server"),
        ({"succeeded": 19}, "does not add up"),
    ],
)
def test_an_end_that_no_fault_explains_is_told(
    clean: tuple[Result, Record], outcomes: dict[str, object], told: str
) -> None:
    result, record = clean
    assert told in problems(judged(doctored(result, **outcomes), record))


def test_a_fault_explains_its_own_kind_of_end_only(clean: tuple[Result, Record]) -> None:
    result, record = clean
    result = doctored(result, succeeded=18, failed={"server": 2})

    def with_faults(*faults: FaultCount) -> str:
        return problems(judged(msgspec.structs.replace(result, faults=list(faults)), record))

    html = FaultCount(kind="html", injected=2, seen={"failed.server": 2})
    reset = FaultCount(kind="reset_body", injected=2, seen={"failed.server": 2})
    taken = FaultCount(kind="html", injected=3, seen={"failed.server": 2, "succeeded": 1})
    assert with_faults(html) == ""
    assert "reset_body: 2 failed.server, not succeeded" in with_faults(reset)
    assert "html: 1 succeeded, not failed.server" in with_faults(taken)


def test_a_result_of_another_sample_counts_as_doubled(clean: tuple[Result, Record]) -> None:
    result, record = clean
    twice = msgspec.structs.replace(result.doubled, results=1)
    assert "1 doubled" in problems(judged(msgspec.structs.replace(result, doubled=twice), record))


@pytest.mark.parametrize(
    ("count", "faults", "doubled"),
    [
        (1, [], 0),
        (2, [], 1),
        (3, ["UNAVAILABLE", "RATE_LIMITED"], 0),
        (2, ["SERVER_ERROR"], 0),
        (3, ["SERVER_ERROR", "SERVER_ERROR"], 1),
        (2, ["RESET_BODY"], 1),
        (2, ["RESET_BEFORE"], 0),
        (3, ["RESET_BEFORE", "RESET_BEFORE"], 1),
        (2, ["HTML"], 1),
    ],
)
def test_repetitions_upstream_by_the_table_of_outcomes(
    count: int, faults: list[str], doubled: int
) -> None:
    assert doubles(Record({"a": count, "b": 1}, {"a": faults})) == doubled


def test_a_life_begins_where_the_one_before_ended() -> None:
    first = Record({"a": 1, "b": 2}, {"b": ["HTML"]})
    both = Record({"a": 2, "b": 2, "c": 1}, {"a": ["UNAVAILABLE"], "b": ["HTML"]})
    second = both.since(first)
    assert second.requests == {"a": 1, "c": 1}
    assert second.faulted == {"a": ["UNAVAILABLE"], "b": []}
    assert both.since(NOTHING).requests == both.requests


def test_a_second_id_of_a_sample_is_doubled_unless_its_client_was_told_410(
    clean: tuple[Result, Record],
) -> None:
    result, record = clean
    assert len(record.sessions) == 20, "the gateway says which sample it is"
    first = next(iter(record.sessions))
    twice = Record(record.requests, record.faulted, {**record.sessions, first: 2})
    assert "1 samples ran under another id" in problems(judged(result, twice))
    assert twice.again == 1
    traffic = msgspec.structs.replace(result.traffic, resubmitted=1)
    told = msgspec.structs.replace(result, traffic=traffic)
    assert problems(judged(told, twice)) == ""
    # Over two lives of the gateway as well.
    second = Record({"z": 1}, {}, {first: 1})
    assert "1 samples ran under another id" in problems(judged(result, record, second))


def test_what_an_upstream_was_asked_for_before_it_was_killed_counts() -> None:
    before = Record({"a": 1, "b": 1}, {"a": ["CLOSE_BEFORE"]}, {"s:1": 1, "s:2": 1})
    after = Record({"a": 1, "b": 1}, {}, {"s:1": 1, "s:3": 1})
    both = together(before, after)
    assert both.requests == {"a": 2, "b": 2}
    assert both.sessions == {"s:1": 2, "s:2": 1, "s:3": 1}
    assert doubles(both) == 1, "a may be sent once more, b had its answer"


async def test_what_has_no_answer_yet_is_cut_off() -> None:
    with stand_in("--barrier") as vllm, serve(vllm) as gateway:
        remote = Remote(gateway.port)
        await remote.handshake()
        request_id = await remote.submit()
        await until(lambda: counts(vllm)["running"] == 1, "a sample upstream")
        seen = cut_off([vllm])
    assert seen.requests == {request_id: 1}
    assert seen.faulted == {request_id: ["CLOSE_BEFORE"]}
    assert list(seen.sessions.values()) == [1]


async def test_a_leaky_server_is_told() -> None:
    leaks = {"lose": 6, "swap": 7, "fail": 8, "refuse": 9}
    with stand_in() as vllm, leaky(leaks) as url:
        flags = ("--style", "future", "--within-s", "1.5")
        told = problems(judged(await loaded(url, vllm, 17, *flags)))
    assert "3 lost" in told  # two of them, and the one that was refused
    for each in ("2 wrong: identity", "2 failed, category user", "1 refused: 422"):
        assert each in told


# --- the table ----------------------------------------------------------------------------------


async def test_a_row_that_breaks_is_a_failed_row() -> None:
    async def breaks(_: Size) -> Found:
        raise AssertionError("it did not start")

    told = await told_of(Row("broken", "a fault", "a bar", breaks), SMALL)
    assert not told.ok
    assert told.problems[0] == "AssertionError: it did not start"


def test_the_table_tells_figures_and_problems() -> None:
    good = Found(injected=1_000, survived=1_000, recovery_s=0.5)
    bad = Found(injected=3, survived=2, lost=1)
    rows = [
        Told(
            name=name,
            fault=f"the fault {name}",
            bar="",
            found=found,
            seconds=1.0,
            ok=not found.all_problems(),
            problems=found.all_problems(),
        )
        for name, found in (("good", good), ("bad", bad))
    ]
    lines = table(rows)
    assert lines[2] == "| the fault good | 1,000 | 1,000 | 0 | 0 | 0.50 | ok |"
    assert lines[3] == "| the fault bad | 3 | 2 | 1 | 0 |  | FAILED |"
    assert "bad FAILED: 1 lost" in lines
    assert lines[-1] == "1 of 2 rows passed"


def test_sizes_grow_with_the_sockets() -> None:
    assert full(100).polls < full(1_000).polls
    assert full(1_000).polls >= 100_000
