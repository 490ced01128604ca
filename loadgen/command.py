"""`loadgen run`: a run against a server, its result on the terminal and in files.

Exit status: 0 ok, 1 the ledger is not clean or a threshold failed, 2 usage, 3 the run is invalid.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

import msgspec
import uvloop

from loadgen import preflight
from loadgen.address import address
from loadgen.flags import plan_of
from loadgen.fleet import FleetError
from loadgen.limits import NoSuchProcess
from loadgen.preflight_command import found_here
from loadgen.processes import StartError, cpu_s_of, serving
from loadgen.report.ending import check_places, finish
from loadgen.report.live import Watcher, watching
from loadgen.report.progress import Following, rss_of
from loadgen.report.thresholds import ThresholdError, bounds
from loadgen.run import Parts, Show, run
from loadgen.scenarios import SCENARIOS
from loadgen.schedule import PlanError
from loadgen.session import Flags
from loadgen.standin import StandIn, StandInError

USAGE_ERROR: Final = 2
CONFIG_WITHIN_S: Final = 10.0


def command(arguments: argparse.Namespace) -> int:
    """Run it; the exit status."""
    shown = shlex.join(["loadgen", *sys.argv[1:]])
    try:
        check_places(arguments.json, arguments.html)
        with _served(arguments) as served:
            style = arguments.style or offered_style(served.url)
            plan = plan_of(arguments, served.url, style)
            wanted = bounds(arguments.threshold, arguments.thresholds, plan)
            checked = found_here(plan, served.pids.get("server"))
            if not (checked.ok or arguments.no_preflight):
                print("\n".join(preflight.lines(checked)), file=sys.stderr)
                return USAGE_ERROR
            title = f"loadgen {plan.scenario}, {plan.samples:,} samples"
            with watching(sys.stderr, title, arguments.quiet) as watcher:
                parts = served.parts(shown, served.following(watcher, plan.samples))
                parts = parts._replace(sdk_python=arguments.sdk_python, profile=arguments.profile)
                result = uvloop.run(run(plan, parts))
            result.preflight = checked
            if result.upstream is not None:
                result.upstream.mode = served.mode
    except (PlanError, ThresholdError, ValueError) as error:
        arguments.parser.error(str(error))
    except (FleetError, NoSuchProcess, StandInError, StartError, OSError) as error:
        print(f"loadgen run: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130
    try:
        return finish(result, wanted, sys.stdout, arguments.json, arguments.html)
    except OSError as error:
        print(f"loadgen run: {error}", file=sys.stderr)
        return USAGE_ERROR


def offered_style(url: str) -> str:
    """How the SDK would poll this server, by its client/config. Raises OSError, ValueError."""
    where = address(url)
    link = http.client.HTTPConnection(where.host, where.port, timeout=CONFIG_WITHIN_S)
    try:
        path = f"{where.prefix.decode()}/api/v1/client/config"
        link.request(
            "POST", path, b'{"sdk_version":"0.38.0"}', {"content-type": "application/json"}
        )
        answer = link.getresponse()
        body = answer.read()
    finally:
        link.close()
    if answer.status != 200:
        raise ValueError(f"client/config: {answer.status} {body[:200]!r}")
    flags = msgspec.json.decode(body, type=Flags)
    return "futures" if flags.sample_use_retrieve_futures else "future"


class Served(NamedTuple):
    """What the run is against. pids: of the server and the stand-in, where they are known.

    mode: the stand-in's flags, where this program starts it.
    """

    url: str
    stand_in: str | None
    pids: dict[str, int]
    mode: str | None = None

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
def _served(arguments: argparse.Namespace) -> Iterator[Served]:
    """The server of --url, or the two processes of --start for as long as the block runs."""
    if arguments.url:
        pids = {} if arguments.server_pid is None else {"server": arguments.server_pid}
        yield Served(arguments.url, arguments.stand_in, pids)
        return
    cores = sorted(os.sched_getaffinity(0))
    pinned = arguments.pin and len(cores) > 1
    if pinned:
        os.sched_setaffinity(0, cores[1:])  # what is started inherits it
    scenario = SCENARIOS[arguments.scenario]
    flags = scenario.stand_in
    if arguments.upstream_args is not None:
        flags = tuple(shlex.split(arguments.upstream_args))
    barrier = arguments.barrier
    if scenario.plan.get("barrier", False) if barrier is None else barrier:
        flags += ("--barrier",)
    upstream = [sys.executable, "-m", "loadgen", "upstream", "--port", "0", *flags]
    with serving(upstream) as stand_in:
        words = shlex.split(arguments.start)
        server = [word.replace("{upstream}", stand_in.url) for word in words]
        with serving(server, core=cores[0] if pinned else None) as child:
            pids = {"server": child.pid, "upstream": stand_in.pid}
            yield Served(child.url, stand_in.url, pids, shlex.join(flags))
