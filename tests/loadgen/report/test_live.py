"""What is shown during a run: on a real pseudo-terminal, and on streams that are none."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, replace

import pytest

from loadgen.report.live import Lines, Quiet, Snapshot, left_s, line, watching
from loadgen.report.progress import Following, rss_of

EARLY = Snapshot(
    elapsed_s=10,
    samples=4_000,
    accepted=1_500,
    completed=1_000,
    in_flight=500,
    rate=100.0,
    bad={"failed": 3, "lost": 0},
    phase="submit",
    p50_ms=20.0,
    p99_ms=1_500.0,
    server_rss=241e6,
)

PROGRAM = textwrap.dedent(
    """
    import sys
    from dataclasses import replace
    from loadgen.report.live import watching
    from tests.loadgen.report.test_live import EARLY

    with watching(sys.stderr, "burst [red]", quiet="--quiet" in sys.argv) as watcher:
        for second in range(11, 16):
            watcher.show(replace(EARLY, elapsed_s=second, completed=100 * second, rate=second))
        watcher.say("a note [bold]")
        if "--fail" in sys.argv:
            raise SystemExit(5)
    print("after", file=sys.stderr)
    """
)


def on_terminal(*arguments: str, term: str = "xterm", hide: str = "") -> tuple[int, str]:
    """Exit status and all that a terminal of 80 columns was sent. hide: a package not to find."""
    program = f"import sys; sys.modules[{hide!r}] = None\n" if hide else ""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program + PROGRAM, *arguments],
        stderr=follower,
        env={**os.environ, "TERM": term, "COLUMNS": "80", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    os.close(follower)
    sent = b""
    # A pseudo-terminal whose other side is closed reads as an error on Linux.
    try:
        while part := os.read(leader, 65_536):
            sent += part
    except OSError:
        pass
    os.close(leader)
    return process.wait(60), sent.decode()


def test_a_terminal_is_shown_a_panel_that_goes_away() -> None:
    status, sent = on_terminal()
    assert status == 0
    assert sent.count("╭") == sent.count("╰") >= 5, "a frame for every look"
    assert "burst [red]" in sent, "names are no markup"
    assert "1,500 of 4,000" in re.sub(r"\x1b\[[0-9;]*m", "", sent)
    assert "3 failed" in sent
    assert "▁" in sent or "█" in sent, "the course of the rate"
    assert sent.count("\x1b[?25l") == sent.count("\x1b[?25h") == 1, "the cursor is back"
    assert "\x1b[1A" in sent, "drawn over itself"
    last = sent[sent.rindex("╰") :]
    assert "\x1b[2K" in last, "and removed"
    assert sent.rstrip().endswith("after")
    assert "a note [bold]" in sent


def test_the_terminal_is_put_back_when_the_run_fails() -> None:
    status, sent = on_terminal("--fail")
    assert status == 5
    assert sent.count("\x1b[?25l") == sent.count("\x1b[?25h") == 1


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(term: str) -> None:
    _, sent = on_terminal(term=term)
    assert "\x1b" not in sent
    assert "11 s submit; 1,100 of 4,000 done" in sent


def test_without_rich_it_says_how_to_get_it_and_goes_on() -> None:
    status, sent = on_terminal(hide="rich.console")
    assert status == 0
    assert "no live panel: the live panel needs rich" in sent
    assert "pip install 'asgi-gateway[loadgen]'" in sent
    assert "1,100 of 4,000 done" in sent


def test_quiet_shows_only_what_must_not_be_missed() -> None:
    _, sent = on_terminal("--quiet")
    assert sent.split("\r\n") == ["a note [bold]", "after", ""]


def test_elsewhere_it_is_lines() -> None:
    stream = io.StringIO()
    with watching(stream, "burst") as watcher:
        assert type(watcher) is Lines
        watcher.show(EARLY)
    assert stream.getvalue() == (
        "10 s submit; 1,000 of 4,000 done; 500 in flight; 100/s; 3 failed; "
        "p50 20 ms, p99 1.5 s; server 241 MB\n"
    )
    with watching(stream, "burst", quiet=True) as watcher:
        assert type(watcher) is Quiet


def test_lines_come_now_and_then_at_each_phase_and_once_at_the_end() -> None:
    stream = io.StringIO()
    lines = Lines(stream, every_s=5)
    for second in range(20):
        phase = "submit" if second < 8 else "deliver"
        done = 4_000 if second >= 18 else 10 * second
        lines.show(replace(EARLY, elapsed_s=second, phase=phase, completed=done))
    told = [int(text.split(" s ")[0]) for text in stream.getvalue().splitlines()]
    assert told == [0, 5, 8, 13, 18]


def test_what_is_left_is_told_by_the_mean_rate() -> None:
    assert left_s(EARLY) == pytest.approx(30)
    assert left_s(replace(EARLY, completed=0)) is None
    assert "none bad" in line(replace(EARLY, bad={"failed": 0}))


@dataclass
class Counts:
    accepted: int
    settled: int
    failed: int
    polls: int
    cpu_s: float


class Kept(Quiet):
    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.shown: list[Snapshot] = []

    def show(self, snapshot: Snapshot) -> None:
        self.shown.append(snapshot)


def test_rates_are_of_the_stretch_since_the_last_look() -> None:
    kept = Kept()
    used = iter((10.0, 10.5, 12.5))
    follow = Following(kept, 1_000, lambda: next(used), lambda: 5e6)
    follow(Counts(400, 100, 0, 7, 1.0), 1.0)
    follow(Counts(400, 150, 0, 8, 1.1), 1.1)  # too soon
    follow(Counts(900, 500, 4, 20, 2.0), 3.0)
    assert [round(each.rate, 6) for each in kept.shown] == [100, 200]
    assert [each.server_cpu for each in kept.shown] == [0.5, 1.0]
    assert [each.client_cpu for each in kept.shown] == [1.0, 0.5]
    last = kept.shown[-1]
    assert (last.in_flight, last.bad, last.polls) == (400, {"not succeeded": 4}, 20)
    assert last.server_rss == 5e6


def test_memory_of_a_process() -> None:
    mine = rss_of(os.getpid())
    assert mine is not None
    assert 1e6 < mine < 1e11
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert rss_of(gone.pid) is None
