"""What a run is against: a server that runs already, or one that is started with a stand-in."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from loadgen import ceiling, profiling
from loadgen.counts import REQUEST_IDS_CAP
from loadgen.flags import plan_of
from loadgen.plan import Plan
from loadgen.processes import cpu_s_of, serving
from loadgen.report.live import Watcher
from loadgen.report.progress import Following, rss_of
from loadgen.results import Profile, Result
from loadgen.run import Parts, Show
from loadgen.scenarios import SCENARIOS, scaled
from loadgen.serving import ListenError
from loadgen.standin import StandIn
from loadgen.upstream_command import settings_from

CEILING_S: Final = 0.4
CEILING_CONNECTIONS: Final = 16
ANYWHERE: Final = "http://127.0.0.1"


class Served(NamedTuple):
    """pids: of the server and the stand-in, where they are known.

    flags: the stand-in's, where this program starts it. fallback: whether the server runs under
    cProfile; then `profiles` has what it wrote once it has ended, or `notes` why there is nothing.
    """

    url: str
    stand_in: str | None
    pids: dict[str, int]
    flags: tuple[str, ...] | None = None
    fallback: bool = False
    profiles: Sequence[Profile] = ()
    notes: Sequence[str] = ()

    @property
    def mode(self) -> str | None:
        return None if self.flags is None else shlex.join(self.flags)

    @property
    def recorded(self) -> tuple[str, ...]:
        """The processes that are for py-spy."""
        return ("client",) if self.fallback else ("server", "client")

    def parts(self, command: str, show: Show | None) -> Parts:
        return Parts(
            command=command,
            stand_in=None if self.stand_in is None else StandIn(self.stand_in),
            servers={name: partial(cpu_s_of, pid) for name, pid in self.pids.items()},
            server_pid=self.pids.get("server"),
            show=show,
        )

    def following(self, watcher: Watcher, samples: int) -> Following:
        pid = self.pids.get("server")
        if pid is None:
            return Following(watcher, samples)
        return Following(watcher, samples, partial(cpu_s_of, pid), partial(rss_of, pid))


@contextlib.contextmanager
def served_by(arguments: argparse.Namespace) -> Iterator[Served]:
    """The server of --url, or the two processes of --start for as long as the block runs.

    Raises StartError, and ProfileError where cProfile would have to run what is no Python program.
    """
    if arguments.url:
        pids = {} if arguments.server_pid is None else {"server": arguments.server_pid}
        yield Served(arguments.url, arguments.stand_in, pids)
        return
    cores = sorted(os.sched_getaffinity(0))
    pinned = arguments.pin and len(cores) > 1
    if pinned:
        os.sched_setaffinity(0, cores[1:])  # what is started inherits it
    flags = stand_in_flags(arguments)
    upstream = [sys.executable, "-m", "loadgen", "upstream", "--port", "0", *flags]
    with tempfile.TemporaryDirectory(prefix="loadgen-") as folder, serving(upstream) as stand_in:
        words = shlex.split(arguments.start)
        server = [word.replace("{upstream}", stand_in.url) for word in words]
        fallback = arguments.profile and not profiling.allowed(stand_in.pid)
        file = Path(folder, "profile")
        if fallback:
            server = profiling.profiled_command(server, file)
        profiles: list[Profile] = []
        notes: list[str] = []
        began = time.monotonic()
        with serving(server, core=cores[0] if pinned else None) as child:
            pids = {"server": child.pid, "upstream": stand_in.pid}
            yield Served(child.url, stand_in.url, pids, flags, fallback, profiles, notes)
        if fallback:
            try:
                seconds = round(time.monotonic() - began, 3)
                profiles.append(profiling.profile_of(file, "server", seconds))
            except profiling.ProfileError as error:
                notes.append(f"no profile: {error}")


def stand_in_flags(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The scenario's or those of --upstream-args, with the plan's barrier and in its time.

    It remembers half as many request ids again as there are samples: some are submitted anew.
    Raises PlanError.
    """
    scenario = SCENARIOS[arguments.scenario]
    flags = scenario.stand_in
    if arguments.upstream_args is not None:
        flags = tuple(shlex.split(arguments.upstream_args))
    barrier = arguments.barrier
    if scenario.plan.get("barrier", False) if barrier is None else barrier:
        flags += ("--barrier",)
    plan = plan_of(arguments, ANYWHERE, arguments.style or "futures")
    if (kept := plan.samples + plan.samples // 2) > REQUEST_IDS_CAP:
        flags += ("--ids-kept", str(kept))
    return scaled(flags, arguments.time)


def ceiling_per_s(served: Served, plan: Plan) -> float | None:
    """What a stand-in with these flags answers on cores of its own, with samples of mean size.

    By the CPU of one that is measured now, before the run; None where none is started, or where it
    cannot be measured.
    """
    if served.flags is None:
        return None
    settings, processes = settings_from(served.flags)
    lengths = (plan.prompt_tokens, plan.output_tokens)
    prompt, output = ((length.low + length.high) // 2 for length in lengths)
    sizes = ((prompt, output),)
    try:
        for found in ceiling.ceilings(
            settings, sizes=sizes, connections=CEILING_CONNECTIONS, seconds=CEILING_S
        ):
            return round(found.per_core_s * min(processes, os.cpu_count() or 1), 1)
    except (ListenError, OSError):
        pass
    return None


def add_profile(result: Result, served: Served) -> None:
    """What cProfile wrote of the server; after the block of `served_by`, which ends it."""
    result.profiles.extend(served.profiles)
    result.notes.extend(served.notes)
