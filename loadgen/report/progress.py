"""From the processes' counts to what a watcher shows: rates and shares between two looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from loadgen.procfs import usage_of_tree
from loadgen.report.live import Snapshot, Watcher

LEAST_S: Final = 0.25
"""Between two looks: a rate over less is mostly the grain of the counts."""


class Counted(Protocol):
    """What loadgen.worker.Progress has. settled: with any outcome; failed: with a bad one."""

    accepted: int
    settled: int
    failed: int
    polls: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class _Look:
    seconds: float
    settled: int
    client_cpu_s: float
    server_cpu_s: float | None


class Following:
    """Called with the progress and the seconds since the start, as often as there is news.

    Times are of the caller's clock, so nothing here waits or measures by itself.
    """

    def __init__(
        self,
        watcher: Watcher,
        samples: int,
        server_cpu_s: Callable[[], float] | None = None,
        server_rss: Callable[[], float | None] | None = None,
    ) -> None:
        self._watcher = watcher
        self._samples = samples
        self._server_cpu_s = server_cpu_s
        self._server_rss = server_rss
        self._last = _Look(0.0, 0, 0.0, None if server_cpu_s is None else server_cpu_s())

    def __call__(self, progress: Counted, seconds: float) -> None:
        last = self._last
        passed = seconds - last.seconds
        done = progress.settled
        if passed < LEAST_S and done < self._samples:
            return
        cpu_s = None if self._server_cpu_s is None else self._server_cpu_s()
        self._last = _Look(seconds, done, progress.cpu_s, cpu_s)
        passed = max(passed, 1e-3)
        self._watcher.show(
            Snapshot(
                elapsed_s=seconds,
                samples=self._samples,
                accepted=progress.accepted,
                completed=done,
                in_flight=max(0, progress.accepted - done),
                rate=(done - last.settled) / passed,
                bad={"not succeeded": progress.failed},
                polls=progress.polls,
                server_cpu=(cpu_s - last.server_cpu_s) / passed
                if cpu_s is not None and last.server_cpu_s is not None
                else None,
                server_rss=None if self._server_rss is None else self._server_rss(),
                client_cpu=max(0.0, progress.cpu_s - last.client_cpu_s) / passed,
            )
        )


def rss_of(pid: int) -> float | None:
    """Resident bytes of a process and those that it started, None once they have ended."""
    used = usage_of_tree(pid)
    return None if used is None else float(used.rss_bytes)
