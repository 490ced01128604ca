"""The final table, and the table beside the public figures."""

from __future__ import annotations

import re

import msgspec
import pytest

from loadgen.plan import Length, Plan
from loadgen.report import thresholds
from loadgen.report.page import page
from loadgen.report.table import PUBLIC, lines, markdown, public_of, verdict
from loadgen.report.text import count, duration, rate, share, size, words
from loadgen.results import Result
from tests.loadgen.report.made import histogram, result


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "not measured"),
        (0, "0 ms"),
        (0.0123, "12.3 us"),
        (0.4, "400 us"),
        (1, "1 ms"),
        (999.4, "999 ms"),
        (999.9, "1 s"),
        (2_000, "2 s"),
        (119_000, "119 s"),
        (150_000, "2 min 30 s"),
        (3_600_000, "1 h 0 min"),
        (7_265_000, "2 h 1 min"),
    ],
)
def test_durations(ms: float | None, text: str) -> None:
    assert duration(ms) == text


def test_other_figures() -> None:
    assert [size(x) for x in (None, 12, 1_234, 241e6, 1.2e9)] == [
        *("not measured", "12 B", "1.23 kB", "241 MB", "1.2 GB")
    ]
    assert [rate(x) for x in (None, 0, 0.5, 17, 99.94, 568, 4_200.4)] == [
        *("not measured", "0.00", "0.500", "17.0", "99.9", "568", "4,200")
    ]
    assert [share(x) for x in (None, 0.125)] == ["not measured", "12.5%"]
    assert count(131_072) == "131,072"
    assert words({"user": 3, "server": 12, "none": 0}) == "12 server, 3 user"


def test_what_the_tinker_package_sent_is_not_told_as_none() -> None:
    made = result(samples=20_000)
    made.plan = msgspec.structs.replace(made.plan, style="sdk")
    text = "\n".join(lines(made))
    assert re.search("^  polls and retries +not measured$", text, re.MULTILINE)
    assert "reconnects" not in text
    thresholds.apply(made, thresholds.bounds(["retries == 0", "retries.5xx == 0", "polls < 9"]))
    assert [(bar.value, bar.ok) for bar in made.verdict.thresholds] == [(None, False)] * 3
    assert "tinker package&#x27;s own: not measured" in page(made)
    assert "| not measured |" in "\n".join(markdown([made]))


def test_too_few_probes_for_a_p99_tell_their_maximum() -> None:
    made = result(samples=20_000)
    assert made.server is not None
    made.server.healthz = histogram([2.0] * 400 + [640.0])
    label, said = "^  healthz p99 +", "at most 641 ms (401 probes)"
    assert re.search(label + re.escape(said), "\n".join(lines(made)), re.MULTILINE)
    assert f"| {said} |" in "\n".join(markdown([made]))
    made.server.healthz = None
    assert re.search(label + "not measured$", "\n".join(lines(made)), re.MULTILINE)


def test_the_final_table_tells_the_whole_run() -> None:
    made = result(samples=20_000)
    made.outcomes.failed = {"user": 3, "server": 12}
    wanted = thresholds.bounds(["server_cpu_ms_per_sample < 0.3", "e2e.p99 < 2s"])
    thresholds.apply(made, wanted)
    shown = list(lines(made))
    text = "\n".join(shown)
    for said in (
        "burst: 20,000 samples",
        "15 (12 server, 3 user)",
        "7 (4 5xx, 3 410)",
        "241 MB",
        "MISSED  server_cpu_ms_per_sample < 0.3  (0.4)",
        "met     e2e.p99 < 2s",
        "note: made for a test",
    ):
        assert said in text, said
    assert shown[-1] == "FAILED: 1 of 2 thresholds missed"
    header = next(line for line in shown if line.startswith("Latency"))
    rows = [line for line in shown if line.startswith(("e2e", "healthz"))]
    assert {len(row) for row in rows} == {len(header)}, "columns are aligned"
    assert max(map(len, shown)) <= 100


def test_an_unmeasured_part_is_said_to_be_so() -> None:
    made = result()
    assert made.server is not None
    made.server.rss_peak = None
    assert any("memory at most" in line and "not measured" in line for line in lines(made))
    made.server = None
    assert list(lines(made))


def test_the_verdict_in_words() -> None:
    made = result()
    assert verdict(made) == "OK: valid, ledger clean"
    made.verdict.clean = False
    made.verdict.problems = ["3 lost"]
    assert verdict(made) == "FAILED: the ledger is not clean (3 lost)"
    made.verdict.valid = False
    made.verdict.reasons = ["client at 99 %"]
    assert verdict(made) == "INVALID: the server was not the limit (client at 99 %)"


def planned(samples: int, low: int, barrier: bool = False, mode: str | None = "") -> Result:
    made = result()
    made.plan = Plan(
        scenario="x",
        url="x",
        samples=samples,
        output_tokens=Length(low=low, high=low),
        barrier=barrier,
    )
    assert made.upstream is not None
    made.upstream.mode = mode
    return made


@pytest.mark.parametrize(
    ("made", "load"),
    [
        (planned(2_048, 16), "2,048 short"),
        (planned(131_072, 16, barrier=True), "131,072 short, barrier"),
        (
            planned(131_072, 16, mode="--lean --gen-seconds 5.0 --max-num-seqs 2048"),
            "131,072 short, 2,048 of 5 s at a time",
        ),
        (planned(512, 32_768), "512 of 32k tokens"),
        (planned(131_072, 8_192, barrier=True), "131,072 of 8k tokens"),
        # Not the same load: no figure is put beside it.
        (planned(131_072, 16), None),
        (planned(131_072, 16, mode=None), None),
        (planned(131_072, 16, mode="--gen-seconds 0.5 --max-num-seqs 2048"), None),
        (planned(131_072, 16, mode="--gen-seconds 5"), None),
        (planned(2_047, 16), None),
        (planned(131_072, 4_096), None),
        (planned(512, 16), None),
    ],
    ids=str,
)
def test_the_public_figure_of_the_same_load(made: Result, load: str | None) -> None:
    found = public_of(made)
    assert (found and found.load) == load


def test_public_figures_are_those_of_the_record() -> None:
    assert [public.samples_per_s for public in PUBLIC] == [17, 568, 306, 167, 267]


def test_the_markdown_table() -> None:
    invalid = planned(2_048, 16)
    invalid.verdict.valid = False
    table = list(markdown([planned(131_072, 16, barrier=True), invalid, result()]))
    assert len(table) == 5
    assert {row.count("|") for row in table} == {9}
    assert "568 (131,072 short, barrier; 1.2 GB, healthz p99 0.8 s)" in table[2]
    assert "(INVALID RUN)" in table[3]
    assert "none published" in table[4]
    assert "0 / 0 / 0" in table[2]
