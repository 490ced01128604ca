"""report, compare and validate as processes of their own: output, files and exit statuses."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen.report.alternate import order
from loadgen.results import Result, encode
from tests.loadgen.report.made import result

JITTER = (0.99, 1.01, 1.0, 1.005, 0.995)


def loadgen(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "loadgen", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str, Result], Path]:
    def save(name: str, made: Result) -> Path:
        path = tmp_path / name
        path.write_bytes(encode(made))
        return path

    return save


@pytest.fixture
def sides(saved: Callable[[str, Result], Path]) -> tuple[list[Path], list[Path]]:
    """Five results a side, B slower by a third."""
    pairs = [
        (
            saved(f"a{n}.json", result(samples=2_000, factor=jitter, seed=n)),
            saved(f"b{n}.json", result(samples=2_000, factor=1.33 * jitter, seed=n)),
        )
        for n, jitter in enumerate(JITTER)
    ]
    return [a for a, _ in pairs], [b for _, b in pairs]


# --- run ----------------------------------------------------------------------------------------


def test_a_run_whose_files_have_no_folder_does_not_begin(tmp_path: Path) -> None:
    place = tmp_path / "none" / "x.html"
    for flag in ("--json", "--html"):
        done = loadgen("run", "--start", "touch began {upstream}", flag, place)
        assert done.returncode == 2
        assert f"{place}: there is no folder {place.parent}" in done.stderr


# --- report -------------------------------------------------------------------------------------


def test_report_shows_a_result_and_writes_its_page(
    saved: Callable[[str, Result], Path], tmp_path: Path
) -> None:
    done = loadgen("report", saved("a.json", result()), "--html", tmp_path / "a.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "OK: valid, ledger clean"
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("expression", "status"),
    [("e2e.p99 < 2s", 0), ("e2e.p99 < 2us", 1), ("e2e.p99 < 2", 2), ("e2e.p99.99 < 2s", 2)],
)
def test_report_judges_thresholds(
    saved: Callable[[str, Result], Path], expression: str, status: int
) -> None:
    done = loadgen("report", saved("a.json", result()), "--threshold", expression)
    assert done.returncode == status
    assert ("loadgen report: threshold" in done.stderr) is (status == 2)


def test_report_of_an_invalid_run_is_3_whatever_the_thresholds(
    saved: Callable[[str, Result], Path], tmp_path: Path
) -> None:
    made = result()
    made.verdict.valid, made.verdict.exit_status = False, 3
    made.verdict.reasons = ["late"]
    bars = tmp_path / "bars.toml"
    bars.write_text('thresholds = ["failed == 1"]')
    path = saved("a.json", made)
    assert loadgen("report", path).returncode == 3
    assert loadgen("report", path, "--thresholds", bars).returncode == 3


def test_report_makes_one_markdown_table_of_many(saved: Callable[[str, Result], Path]) -> None:
    files = [saved(f"{n}.json", result(seed=n)) for n in range(2)]
    done = loadgen("report", "--markdown", *files)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 4)


def test_report_lists_figures(saved: Callable[[str, Result], Path]) -> None:
    done = loadgen("report", "--figures", saved("a.json", result()))
    assert "server_cpu_ms_per_sample = 0.4" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), (b"{}", "no field schema"), (b'{"schema":2}', "schema 2; this")],
)
def test_a_file_that_is_no_result(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    for command in (("report", path), ("compare", path, path)):
        done = loadgen(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{path}: " in done.stderr
        assert said in done.stderr


# --- validate -----------------------------------------------------------------------------------


def test_validate(saved: Callable[[str, Result], Path], tmp_path: Path) -> None:
    good = saved("good.json", result())
    broken = result()
    broken.outcomes.lost = 5
    bad = saved("bad.json", broken)
    assert loadgen("validate", good).returncode == 0
    done = loadgen("validate", good, bad, tmp_path / "none.json")
    assert done.returncode == 1
    assert f"{bad}: outcomes: 20,005 in all" in done.stderr
    assert "none.json: No such file" in done.stderr
    schema = json.loads(loadgen("validate", "--schema").stdout)
    assert "Result" in schema["$defs"]
    assert loadgen("validate").returncode == 2


# --- compare ------------------------------------------------------------------------------------


def test_compare_two_files(saved: Callable[[str, Result], Path]) -> None:
    before = saved("a.json", result(seconds=40))
    after = saved("b.json", result(seconds=40, factor=1.33, seed=2))
    done = loadgen("compare", before, after)
    assert done.returncode == 1
    assert "noise between runs is not seen" in done.stdout
    assert loadgen("compare", before, before).returncode == 0
    assert loadgen("compare", after, before).returncode == 0


def test_compare_many_in_either_form(sides: tuple[list[Path], list[Path]], tmp_path: Path) -> None:
    first, second = sides
    alternating = [path for pair in zip(first, second, strict=True) for path in pair]
    told = tmp_path / "told.json"
    summary = tmp_path / "summary.md"
    summary.write_text("# Before\n")
    done = loadgen("compare", *alternating, "--json", told, "--markdown", summary)
    named = loadgen("compare", "--a", *first, "--b", *second)
    assert done.returncode == named.returncode == 1
    assert done.stdout == named.stdout
    rows = {row["name"]: row for row in json.loads(told.read_bytes())["rows"]}
    assert rows["server_cpu_ms_per_sample"]["finding"] == "worse"
    assert rows["server_cpu_ms_per_sample"]["low"] == pytest.approx(0.33, abs=0.02)
    assert summary.read_text().startswith("# Before\n**FAILED**")
    lax = ("--bar", "50%", "--bar", "server_rss_peak=1%")
    assert loadgen("compare", *alternating, *lax).returncode == 0
    one = ("--figure", "server_rss_peak", "--bar", "server_cpu_ms_per_sample=50%")
    assert loadgen("compare", *alternating, *one).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give either results"),
        (("a.json",), "1 results; give pairs"),
        (("a.json", "b.json", "--a", "c.json"), "give either results"),
        (("--a", "a.json"), "A has 1 results, B has 0"),
        (("--command-a", "x {json}"), "go together"),
        (("--command-a", "x", "--command-b", "y {json}"), "command A: needs {json}"),
        (("--command-a", "'x", "--command-b", "y {json}"), "command A: No closing quotation"),
        (("a.json", "b.json", "--bar", "much"), "bar 'much': not a share"),
        (("a.json", "b.json", "--figure", "e2e.p999"), "near: e2e.p99.9"),
        (("a.json", "b.json", "--bar", "rps=5%"), "no figure is called 'rps'"),
        (("--command-a", "/none {json}", "--command-b", "y {json}"), "run A1: "),
        (("--command-a", "false {json}x", "--command-b", "true {json}"), "A1.jsonx"),
    ],
)
def test_compare_usage(
    saved: Callable[[str, Result], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    saved("a.json", result())
    saved("b.json", result())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    done = loadgen("compare", *arguments)
    assert done.returncode == 2
    if said == "A1.jsonx":  # `false` ends with 1 as a missed threshold does, and wrote nothing
        said = "A1.json: No such file"
    assert said in done.stderr, done.stderr


WRITES = textwrap.dedent(
    """
    import pathlib, shutil, sys
    source, factor, target, log = sys.argv[1:]
    with open(log, "a") as file:
        file.write(pathlib.Path(target).stem + " ")
    number = int(pathlib.Path(target).stem[1:]) - 1
    shutil.copy(f"{source}/{factor}{number}.json", target)
    print("the run's own output")
    sys.exit(int(factor == "b"))
    """
)


def test_compare_runs_both_by_turns(sides: tuple[list[Path], list[Path]], tmp_path: Path) -> None:
    """A stand-in for `loadgen run`, that hands out results made before and keeps the order."""
    program = tmp_path / "run.py"
    program.write_text(WRITES)
    log, kept = tmp_path / "log", tmp_path / "kept"
    commands = [
        f"{sys.executable} {program} {tmp_path} {side} {{json}} {log}" for side in ("a", "b")
    ]
    done = loadgen(
        *("compare", "--command-a", commands[0], "--command-b", commands[1]),
        *("--runs", "5", "--keep", kept),
    )
    assert done.returncode == 1, done.stderr
    assert log.read_text().split() == ["A1", "B1", "B2", "A2", "A3", "B3", "B4", "A4", "A5", "B5"]
    assert done.stdout.startswith("5 runs a side; paired runs")
    assert "the run's own output" in done.stderr
    assert sorted(path.name for path in kept.iterdir()) == sorted(
        f"{side}{n}.json" for side in "AB" for n in range(1, 6)
    )
    again = loadgen("compare", "--a", *sorted(kept.glob("A*")), "--b", *sorted(kept.glob("B*")))
    assert again.stdout == done.stdout


def test_a_run_that_hangs_or_breaks_ends_the_comparison(tmp_path: Path) -> None:
    sleeper = f"{sys.executable} -c 'import time; time.sleep(60)' {{json}}"
    done = loadgen(
        *("compare", "--command-a", sleeper, "--command-b", sleeper, "--timeout-s", "0.5")
    )
    assert done.returncode == 2
    assert "run A1: not done within 0.5 s" in done.stderr
    broken = f"{sys.executable} -c 'import sys; sys.exit(2)' {{json}}"
    done = loadgen("compare", "--command-a", broken, "--command-b", broken)
    assert done.returncode == 2
    assert "run A1: exit status 2" in done.stderr


def test_neither_side_always_comes_second() -> None:
    assert list(order(3)) == list("ABBAAB")


def test_the_extra_is_named_where_it_is_missing(saved: Callable[[str, Result], Path]) -> None:
    path = saved("a.json", result())
    program = (
        "import sys; sys.modules['hdrh.histogram'] = None\n"
        "from loadgen.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "report", str(path), "--threshold", "e2e.p99 < 1s"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "loadgen report: reading a histogram needs hdrh.histogram: "
        "pip install 'asgi-gateway[loadgen]'\n"
    )
