"""The bench itself: what a table says, which rows are taken, and one small run on sockets."""

import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.bench import __main__ as command
from tests.bench import codec, codec_rows, flood, groups, memory, per_sample
from tests.bench.codec import Ratio
from tests.bench.driver import Spec
from tests.bench.groups import GROUPS, Group, UnknownRow, select
from tests.bench.processes import Bench, BenchError, cpu_s
from tests.bench.requests import FETCH, post
from tests.bench.stamp import cpu_model, environment
from tests.bench.table import FORMAT_VERSION, Figure, Report, Row, text
from tests.support.flood.run import Plan
from tests.support.flood.run import run as run_flood

SLOWER = Figure("slower", "a figure with a floor", "us", 1.5)


# --- rows ----------------------------------------------------------------------------------------


def test_a_ratio_is_the_median_of_the_ratios_of_its_runs() -> None:
    row = SLOWER.paired([(10.0, 14.0), (20.0, 40.0), (30.0, 33.0)])
    assert (row.value, row.floor, row.ratio) == (33.0, 20.0, 1.4)
    assert row.ok is True
    assert row.target == "<= 1.5 x"
    assert SLOWER.paired([(10.0, 15.1)]).ok is False


def test_a_value_is_judged_by_itself_even_beside_a_floor() -> None:
    figure = Figure("poll", "a poll", "bytes", 16_384, "value")
    assert figure.single(16_384, floor=11_000).ok is True
    assert figure.single(16_385, floor=16_384).ok is False
    rate = Figure("rate", "a rate", "1/s", 4000, "value", at_least=True)
    assert [rate.single(n).ok for n in (3_999, 4_000)] == [False, True]
    assert rate.target == ">= 4,000 1/s"
    assert Figure("free", "no target", "MB").single(3.0).ok is None


def test_the_table_has_a_line_a_row_with_its_verdict() -> None:
    rows = [
        SLOWER.paired([(100.0, 142.0)], "the client was busy"),
        Figure("big", "memory", "MB", 300, "value").single(301),
        SLOWER.missing("there is no setting"),
        SLOWER.missing("it broke", failed=True),
    ]
    lines = text(rows).splitlines()
    assert len({line.index("a figure") for line in lines if "a figure" in line}) == 1
    assert re.search(r"142 +us +100 +1\.42 +<= 1\.5 x +yes$", lines[2])
    assert re.search(r"301 +MB +- +- +<= 300 MB +NO$", lines[3])
    assert [line.split()[-1] for line in lines[4:6]] == ["-", "FAILED"]
    assert "slower: the client was busy" in lines
    assert lines[-1] == "1 met, 1 missed, 1 without a verdict, 1 failed"


def test_a_report_survives_json() -> None:
    rows = [SLOWER.paired([(10.0, 14.0)], "a note"), SLOWER.missing("no")]
    report = Report(command="c", environment=environment(), seconds=1.5, rows=rows)
    encoded = msgspec.json.encode(report)
    assert msgspec.json.decode(encoded, type=Report) == report
    assert msgspec.json.decode(encoded)["version"] == FORMAT_VERSION
    assert {"cpu", "kernel", "python", "packages", "commit", "load"} <= environment().keys()


def test_the_cpu_is_named(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A CPU: fast\n")
    assert cpu_model(info) == "A CPU: fast"


# --- selection -----------------------------------------------------------------------------------


def test_rows_are_chosen_by_name_pattern_or_group() -> None:
    every = {group.name: {figure.name for figure in group.figures} for group in GROUPS}
    assert select([], quick=False) == every
    assert select(["memory", "redeliver-*"], quick=False) == {
        "memory": every["memory"],
        "delivery": every["delivery"] - {"server"},
    }
    assert select(["gc-pause"], quick=True) == {"flood": {"gc-pause"}}
    with pytest.raises(UnknownRow, match="redliver"):
        select(["memory", "redliver-16"], quick=False)


def test_a_quick_run_leaves_rows_out_unless_they_are_named() -> None:
    assert "sample-16384" not in select([], quick=True)["per-sample"]
    assert select(["sample-*"], quick=True)["per-sample"] == {
        "sample-64",
        "sample-2048",
        "sample-flat",
    }
    assert select(["sample-16384"], quick=True) == {"per-sample": {"sample-16384"}}


def test_every_row_has_a_name_of_its_own() -> None:
    names = [figure.name for group in GROUPS for figure in group.figures]
    assert len(set(names)) == len(names)


def test_what_breaks_costs_the_rest_of_its_group_only() -> None:
    first, second = SLOWER, Figure("other", "another one", "us", 1.0)

    def broken(_: Bench, wanted: frozenset[str]) -> Iterator[Row]:
        yield first.paired([(1.0, 1.0)])
        raise ExceptionGroup("tasks", [BenchError("no gateway\nstarted")])

    def fine(_: Bench, wanted: frozenset[str]) -> Iterator[Row]:
        yield Figure("third", "", "").single(3.0)

    pair = [Group("a", (first, second), broken), Group("b", (), fine)]
    chosen = {"a": frozenset({"slower", "other"}), "b": frozenset({"third"})}
    rows = list(groups.measure(Bench(), chosen, pair))
    assert [(row.name, row.failed) for row in rows] == [
        ("slower", False),
        ("other", True),
        ("third", False),
    ]
    assert rows[1].note == "not measured: BenchError: no gateway started"


def test_flatness_is_of_the_levels_that_were_measured() -> None:
    levels = [Figure(f"sample-{n}", "", "us", 1.5) for n in (1, 2, 3)]
    rows = [levels[0].paired([(50.0, 100.0)]), levels[1].missing("x"), levels[2].single(125.0)]
    row = per_sample.flatness(rows)
    assert (row.value, row.floor, row.ratio, row.ok) == (125.0, 100.0, 1.25, False)
    assert per_sample.flatness(rows[:2]).value is None


def test_codec_rows_are_what_the_codec_says() -> None:
    found = [
        Ratio(16, "full", 2_000, 6.5, 2.2, None),
        Ratio(8192, "full", 690_000, 290.0, 500.0, 0.7),
        Ratio(8192, "names", 200_000, 350.0, 500.0, 1.2),
    ]
    rows = list(codec_rows.rows(found))
    assert [(row.name, row.ratio, row.ok) for row in rows] == [
        ("codec-full-16", pytest.approx(2.95, abs=0.01), None),
        ("codec-full-8192", 0.58, True),
        ("codec-memory-full-8192", None, True),
        ("codec-names-8192", 0.7, False),
        ("codec-memory-names-8192", None, False),
    ]


def test_codec_rows_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a run: one that was asked for alone once ended in an error."""
    monkeypatch.setattr(codec, "LENGTHS", (16,))
    wanted = frozenset({"codec-full-16"})
    (row,) = codec_rows.measure(Bench(pinned=False), wanted)
    assert row.name == "codec-full-16"
    assert row.value is not None
    assert row.value > 0


# --- on sockets ----------------------------------------------------------------------------------


def test_cpu_time_of_another_process_is_its_own() -> None:
    spent = cpu_s(os.getpid())
    while cpu_s(os.getpid()) < spent + 0.01:
        pass
    assert math.isclose(cpu_s(os.getpid()), sum(os.times()[:2]), abs_tol=0.05)


def test_a_gateway_that_does_not_start_is_told_with_its_words_and_leaves_nobody() -> None:
    bench = Bench(quick=True, settings={"upstream.no_such_setting": "1"}, pinned=False)
    before = children()  # other files' fixtures may have some in the same process
    (row,) = groups.measure(bench, select(["queued-sample"], quick=True))
    assert row.failed
    assert "unknown setting upstream.no_such_setting" in row.note
    assert children() <= before


def test_an_answer_that_is_none_ends_the_run() -> None:
    bench = Bench(pinned=False)
    with bench.stand_in() as upstream:
        requests: list[tuple[bytes, int | None]] = [(post(FETCH, b"{}"), None)]
        spec = Spec(kind="fixed", port=upstream.port, in_flight=2, requests=requests)
        with bench.driver(spec) as driver, pytest.raises(BenchError, match="404 with"):
            driver.run(10)


def test_a_run_ends_by_its_time_where_its_count_is_far() -> None:
    bench = Bench(pinned=False)
    with bench.stand_in() as upstream:
        request: list[tuple[bytes, int | None]] = [(post(b"/nothing", b""), None)]
        spec = Spec(kind="fixed", port=upstream.port, in_flight=1, requests=request)
        spec.requests = [(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n", None)]
        with bench.driver(spec) as driver:
            done = driver.run(10**9, start_for_s=0.2)
    assert 0 < done.count < 10**6


@pytest.mark.parametrize("kind", ["sample", "batched"])
def test_a_small_run_delivers_all_with_that_many_in_flight(kind: str) -> None:
    load = per_sample.Load("sample" if kind == "sample" else "batched", 40, 0.3)
    with per_sample.loaded(Bench(pinned=False), load) as gateway:
        seen = gateway.run(200)
        assert gateway.gauges()["samples_inflight"] == 0
        assert gateway.gauges()['samples_total{outcome="succeeded"}'] == 200
    assert 20 <= seen.in_flight <= 40
    assert seen.us_a_sample > 10


def test_the_command_measures_prints_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "QUICK_SAMPLES", 400)
    monkeypatch.setattr(memory, "FIRST_SAMPLES", 64)
    monkeypatch.setattr(memory, "QUICK_POLLS", 200)
    monkeypatch.setattr(memory, "FIRST_CONNECTIONS", 16)
    file = tmp_path / "bench.json"
    status = command.main(["--quick", "--no-pin", "--only", "memory", "--json", str(file)])
    report = msgspec.json.decode(file.read_bytes(), type=Report)
    assert [row.name for row in report.rows] == ["queued-sample", "parked-poll"]
    assert status == 0
    assert all(row.value is not None and row.value > 0 for row in report.rows), report.rows
    assert "parked-poll" in capsys.readouterr().out


async def test_a_flood_fills_its_rows() -> None:
    report = await run_flood(Plan(samples=300, sessions=2, cycles=flood.CYCLES, hold_s=0.3))
    rows = {row.name: row for row in flood.rows(report)}
    assert rows.keys() == {figure.name for figure in flood.FIGURES}
    assert rows["flood-faults"].value == 0
    assert not any(row.failed for row in rows.values())
    assert rows["rss-in-flight"].value == max(c.rss_in_flight_mb for c in report.cycles[1:])


def children() -> set[str]:
    """Command lines of this process's own children that are still there."""
    found = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        for pid in (task / "children").read_text().split():
            found.add(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
    return {line for line in found if sys.executable in line}
