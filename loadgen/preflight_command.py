"""`loadgen preflight`: whether a plan fits, without running it. Exit status 0, 2 if it does not."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from loadgen.arguments import whole

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


def run(arguments: argparse.Namespace) -> int:
    import msgspec

    from loadgen.flags import plan_of
    from loadgen.limits import NoSuchProcess, read_limits
    from loadgen.preflight import Setting, lines, preflight
    from loadgen.schedule import PlanError
    from loadgen.wire import address

    arguments.stand_in = arguments.url  # plans with a barrier need one; nothing is asked here
    try:
        plan = plan_of(arguments, arguments.url, arguments.style)
        local = address(arguments.url).host.startswith(LOCAL)
        limits = read_limits(arguments.server_pid)
    except (PlanError, ValueError, NoSuchProcess) as error:
        arguments.parser.error(str(error))
    except OSError as error:
        print(f"loadgen preflight: {error}", file=sys.stderr)
        return DOES_NOT_FIT
    setting = Setting(arguments.server_processes, arguments.upstream_connections, local)
    found = preflight(plan, limits, setting)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        print("\n".join(lines(found)))
    return 0 if found.ok else DOES_NOT_FIT
