"""The flags of `loadgen run`, and the plan that they and a scenario make.

Light to import: `--help` needs nothing of what a run needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from loadgen.report.commands import add_thresholds
from loadgen.scenarios import SCENARIOS

if TYPE_CHECKING:
    from loadgen.plan import Length, Plan

STYLES: Final = ("futures", "future", "sdk")


def add_run(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    run: Callable[[argparse.Namespace], int],
) -> None:
    """Names are the plan's fields; what is not given is the scenario's."""
    parser = commands.add_parser(
        "run",
        help="drive a server as the SDK does, and keep a ledger of every sample",
        description="Scenarios: "
        + "; ".join(f"{name}: {scenario.text}" for name, scenario in SCENARIOS.items()),
    )
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="the server, http://host:port")
    where.add_argument(
        "--start",
        metavar="COMMAND",
        help="start a stand-in vLLM and this server, which says where it listens on its first "
        "line; {upstream} stands for the stand-in's URL",
    )
    add("--scenario", choices=SCENARIOS, default="smoke", help="(default: %(default)s)")
    add("-n", "--samples", type=int, help="how many in all")
    add(
        "--style",
        choices=STYLES,
        help="futures: batched polls; future: one poll a sample; sdk: the tinker package itself "
        "(default: as the server offers)",
    )
    add("--sdk-python", metavar="PATH", help="an interpreter with tinker, for --style sdk")
    add("--arrivals", choices=("closed", "constant", "poisson"), help="poisson needs --rate")
    add("--rate", type=float, metavar="N", help="samples a second")
    add("--concurrency", type=int, metavar="N", help="samples at a time, 0 for all; closed loop")
    add("--processes", type=int, metavar="N", help="client processes")
    add("--sessions", type=int, metavar="N", help="sessions, spread over the processes")
    add("--clones", type=int, metavar="N", help="sampling clients of each session")
    add("--prompt-tokens", type=length, metavar="A[:B[:log]]", help="fixed, or drawn between")
    add("--output-tokens", type=length, metavar="A[:B[:log]]", help="the same")
    add("--abandon", type=float, metavar="SHARE", help="share of polls that are given up")
    add("--abandon-within-s", type=float, metavar="S")
    add("--submitters", type=int, metavar="N", help="submits at a time, per process (the SDK: 400)")
    add("--fetchers", type=int, metavar="N", help="fetches at a time, per process")
    add("--poll-timeout-s", type=float, metavar="S", help="after which a poll is repeated (45)")
    add("--warmup-s", type=float, metavar="S", help="not in the histograms")
    add("--barrier", action=argparse.BooleanOptionalAction, default=None)
    add("--hold-s", type=float, metavar="S", help="how long the barrier holds all of them")
    add("--within-s", type=float, metavar="S", help="what has no outcome by then is lost")
    add("--model", help="base model to sample from")
    add(
        "--api-key", help="shown nowhere; LOADGEN_API_KEY keeps it out of ps (default: tml-loadgen)"
    )
    add(
        "--time",
        type=above_zero,
        default=1.0,
        metavar="FACTOR",
        help="generations and the hold last so much as long, and an open loop goes "
        "on for so much as long (default: 1)",
    )
    add("--seed", type=int, help="of arrivals, lengths and abandoned polls")
    add("--oracle", action=argparse.BooleanOptionalAction, default=None, help="stand-in upstream")
    add("--shorter", action=argparse.BooleanOptionalAction, default=None, help="may end early")
    add("--stand-in", metavar="URL", help="the stand-in vLLM behind --url, to release and to ask")
    add("--upstream-args", metavar="ARGS", help="flags of the stand-in that --start starts")
    add("--server-pid", type=int, metavar="PID", help="the process behind --url, to measure")
    add("--pin", action="store_true", help="with --start: server on core 0, all else on the others")
    add("--json", type=Path, metavar="FILE", help="write the result there")
    add("--html", type=Path, metavar="FILE", help="write it as one page that works offline")
    add("--profile", action="store_true", help="record the server and a client process by py-spy")
    add("--no-preflight", action="store_true", help="run although the machine is too small")
    add("--quiet", action="store_true", help="no progress")
    add_thresholds(parser)
    parser.set_defaults(run=run, parser=parser)


def plan_of(arguments: argparse.Namespace, url: str, style: str) -> Plan:
    """The scenario's plan with what the flags say. Raises PlanError, ValueError for a bad URL."""
    import msgspec

    from loadgen.address import address
    from loadgen.plan import Plan
    from loadgen.schedule import PlanError, check, source_addresses

    host = address(url).host
    fields: dict[str, Any] = {"scenario": arguments.scenario, "url": url, "style": style}
    fields |= SCENARIOS[arguments.scenario].plan
    for name in Plan.__struct_fields__:
        value = getattr(arguments, name, None)
        if value is not None and name not in ("scenario", "url", "style"):
            fields[name] = value
    if arguments.url and not arguments.stand_in:
        fields.setdefault("oracle", False)
        if fields.get("barrier"):
            raise PlanError("barrier=True: needs --stand-in or --start, which can be released")
    _scale(fields, getattr(arguments, "time", 1.0), fixed=arguments.samples is not None)
    plan = msgspec.convert(fields, Plan)
    if plan.sessions < plan.processes and arguments.sessions is None:
        plan = msgspec.structs.replace(plan, sessions=plan.processes)
    check(plan)
    if host == "localhost" or host.startswith("127."):
        plan = msgspec.structs.replace(plan, source_addresses=source_addresses(plan))
    return plan


def _scale(fields: dict[str, Any], time: float, *, fixed: bool) -> None:
    """--time. fixed: whether the count of samples was asked for."""
    if time == 1.0:
        return
    for name in ("hold_s", "warmup_s"):
        fields[name] = fields.get(name, 0.0) * time
    if not fixed and fields.get("arrivals", "closed") != "closed":
        fields["samples"] = max(1, round(fields["samples"] * time))


def above_zero(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value


def length(text: str) -> Length:
    """A, A:B or A:B:log."""
    from loadgen.plan import Length

    low, *rest = text.split(":")
    try:
        if rest[1:] not in ([], ["log"], ["uniform"]):
            raise ValueError
        high = int(rest[0]) if rest else int(low)
        return Length(low=int(low), high=high, kind=rest[1] if rest[1:] else "uniform")
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: A, A:B or A:B:log in tokens") from None
