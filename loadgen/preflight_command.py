"""`loadgen preflight`: whether a plan fits, without running it. Exit status 0, 2 if it does not."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from loadgen.arguments import whole

if TYPE_CHECKING:
    from loadgen.plan import Plan
    from loadgen.results import Preflight

DOES_NOT_FIT: Final = 2
LOCAL: Final = ("localhost", "127.", "[::1]", "::1")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from loadgen.flags import STYLES, length
    from loadgen.scenarios import SCENARIOS

    parser = commands.add_parser(
        "preflight",
        help="count descriptors, ports, backlog and memory against a plan",
        description="What a run needs of what there is, the command that helps, and a plan that "
        "fits. The plan's flags are those of `loadgen run`.",
    )
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    add("--scenario", choices=SCENARIOS, default="full", help="(default: %(default)s)")
    add("-n", "--samples", type=whole(1), help="how many in all")
    add("--style", choices=STYLES, default="futures", help="(default: %(default)s)")
    add("--concurrency", type=whole(0), metavar="N", help="samples at a time, 0 for all")
    add("--processes", type=whole(1), metavar="N", help="client processes")
    add("--sessions", type=whole(1), metavar="N")
    add("--clones", type=whole(1), metavar="N")
    add("--prompt-tokens", type=length, metavar="A[:B[:log]]")
    add("--output-tokens", type=length, metavar="A[:B[:log]]")
    add("--submitters", type=whole(1), metavar="N")
    add("--fetchers", type=whole(1), metavar="N")
    add("--server-pid", type=whole(1), metavar="PID", help="whose limits count, too")
    add("--server-processes", type=whole(1), default=1, metavar="N", help="(default: %(default)s)")
    add(
        "--upstream-connections",
        type=whole(0),
        default=2048,
        metavar="N",
        help="of the server to what is behind it (default: %(default)s)",
    )
    add("--json", action="store_true", help="print JSON, as in a result")
    parser.set_defaults(run=run, parser=parser)


def found_here(
    plan: Plan,
    server_pid: int | None = None,
    *,
    server_processes: int = 1,
    upstream_connections: int = 2048,
) -> Preflight:
    """The plan against this machine as it is. Raises NoSuchProcess, and OSError without /proc."""
    from loadgen.address import address
    from loadgen.limits import read_limits
    from loadgen.preflight import Setting, preflight

    local = address(plan.url).host.startswith(LOCAL)
    setting = Setting(server_processes, upstream_connections, local)
    return preflight(plan, read_limits(server_pid), setting)


def run(arguments: argparse.Namespace) -> int:
    import msgspec

    from loadgen.flags import plan_of
    from loadgen.limits import NoSuchProcess
    from loadgen.preflight import lines
    from loadgen.schedule import PlanError

    arguments.stand_in = arguments.url  # plans with a barrier need one; nothing is asked here
    try:
        plan = plan_of(arguments, arguments.url, arguments.style)
        found = found_here(
            plan,
            arguments.server_pid,
            server_processes=arguments.server_processes,
            upstream_connections=arguments.upstream_connections,
        )
    except (PlanError, ValueError, NoSuchProcess) as error:
        arguments.parser.error(str(error))
    except OSError as error:
        print(f"loadgen preflight: {error}", file=sys.stderr)
        return DOES_NOT_FIT
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        print("\n".join(lines(found)))
    return 0 if found.ok else DOES_NOT_FIT
