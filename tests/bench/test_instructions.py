"""The stored instruction counts: their rules, that they are complete, and that nothing rose."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.instructions import stored
from tests.bench.instructions.__main__ import PAGE, with_table
from tests.bench.instructions.cases import CASES
from tests.bench.instructions.measure import ROOT, WORKER, CannotMeasure, _count, _totals, measure
from tests.bench.instructions.stored import Count, Entry, Key, Unexplained, problems, recorded

KEY = Key("3.11.7 (a build)", "l" * 64, "a host")


def entry(**counts: int) -> Entry:
    return Entry(KEY, {name: Count(count) for name, count in counts.items()})


# --- the check ------------------------------------------------------------------------------------


def test_a_rise_of_five_percent_passes_and_above_fails() -> None:
    assert problems(entry(f=1000), {"f": 1050}) == []
    assert problems(entry(f=1000), {"f": 1051}) == ["f rose by 5.1%, from 1,000 to 1,051"]
    assert problems(entry(f=1000), {"f": 10}) == []


def test_a_case_without_a_count_and_a_count_without_a_case_fail() -> None:
    assert problems(entry(f=1), {"g": 1}) == [
        "f has a stored count and is not measured any more",
        "g has no stored count",
    ]


# --- recording ------------------------------------------------------------------------------------


def test_a_rise_is_stored_with_its_reason_only() -> None:
    before = [entry(f=1000, g=1000)]
    with pytest.raises(Unexplained, match=r"^f rose by 6.0%, from 1,000 to 1,060$"):
        recorded(before, KEY, {"f": 1060, "g": 1000}, "  ")
    (after,) = recorded(before, KEY, {"f": 1060, "g": 1000}, "it checks more ")
    assert after.counts == {"f": Count(1060, 1000, "it checks more"), "g": Count(1000)}
    assert problems(after, {"f": 1060, "g": 1000}) == []


def test_small_rises_do_not_add_up() -> None:
    entries = [entry(f=1000)]
    entries = recorded(entries, KEY, {"f": 1040}, "")
    with pytest.raises(Unexplained):
        recorded(entries, KEY, {"f": 1080}, "")
    entries = recorded(entries, KEY, {"f": 900}, "")
    assert entries == [entry(f=900)]


def test_a_new_lock_takes_the_place_of_the_old_and_is_compared_with_it() -> None:
    newer = Key(KEY.python, "m" * 64, KEY.host)
    with pytest.raises(Unexplained):
        recorded([entry(f=1000)], newer, {"f": 2000}, "")
    assert recorded([entry(f=1000)], newer, {"f": 990}, "") == [Entry(newer, {"f": Count(990)})]


def test_other_interpreters_and_hosts_stand_beside() -> None:
    python = Key("3.12.1 (a build)", KEY.lock, KEY.host)
    host = Key(KEY.python, KEY.lock, "another host")
    entries = [entry(f=1000)]
    for key in (python, host):
        entries = recorded(entries, key, {"f": 3000}, "")
    assert {e.key: e.counts["f"].instructions for e in entries} == {
        KEY: 1000,
        python: 3000,
        host: 3000,
    }


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    assert stored.read(path) == []
    entries = recorded([entry(f=1000)], KEY, {"f": 1060, "g": 5}, "a reason")
    stored.write(entries, path)
    assert stored.read(path) == entries
    assert stored.find(entries, KEY) is entries[0]
    assert stored.find(entries, Key("other", KEY.lock, KEY.host)) is None


# --- what is stored -------------------------------------------------------------------------------


def test_the_lock_of_this_commit_has_counts_of_every_case() -> None:
    """A change of the lock comes with new counts: `make instructions-record`."""
    of_lock = [e for e in stored.read() if e.key.lock == stored.lock_hash()]
    assert any(e.key.python.startswith("3.11.") for e in of_lock)
    for e in of_lock:
        assert e.counts.keys() == CASES.keys()
        assert all((c.was is None) == (not c.reason) for c in e.counts.values())


def test_the_docs_show_what_is_stored() -> None:
    page = PAGE.read_text()
    assert page.count("<!-- counts -->") == 1
    assert any(with_table(page, e) == page for e in stored.read())


# --- measuring ------------------------------------------------------------------------------------


def test_every_case_runs() -> None:
    """Without valgrind: a count would come too late to say that a case does not work any more."""
    done = subprocess.run(
        [sys.executable, "-m", WORKER], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.system
@pytest.mark.timeout(900)
def test_no_count_rose() -> None:
    key = stored.here()
    found = stored.find(stored.read(), key)
    if found is None:
        pytest.skip(f"no counts are stored for {key}")
    assert problems(found, measure()) == []


def test_dumps_are_read_in_the_order_of_their_marks(tmp_path: Path) -> None:
    for name, total in (("7.10", 30), ("7.9", 20), ("7.2", 10), ("7", 99), ("8.1", 5)):
        (tmp_path / f"callgrind.{name}").write_text(f"events: Ir\n\ntotals: {total}\n")
    (tmp_path / "children").write_text("7 a\n8 b\n")
    assert _totals(tmp_path) == {7: [10, 20, 30], 8: [5]}
    assert _count([10, 2_000, 5_000], 100, "a") == 15.0
    with pytest.raises(CannotMeasure, match="1 counts of b"):
        _count([5], 100, "b")


@pytest.mark.system
def test_a_failing_worker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotMeasure, match="KeyError: 'no such case'"):
        measure(["no such case"])
