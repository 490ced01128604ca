"""Whether a run counts: valid, the server was what was measured; clean, nothing went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from loadgen.outcomes import Doubled, Outcomes
from loadgen.plan import Plan
from loadgen.results import ClientCheck, FaultCount, Server, Verdict

CPU_BAR: Final = 0.95
"""A client process that took more of a core than this had no time to spare."""

SERVER_BUSY: Final = 0.90
"""A server that took this much of a core was the limit itself, however busy the client was."""

STARVED_BAR: Final = 0.20
LATE_BAR: Final = 0.01
LAG_BAR_MS: Final = 250.0
"""For open loops. In a closed loop a late client only sends later, which its CPU tells."""

MACHINE_BAR: Final = 0.98

INVALID: Final = 3
FAILED: Final = 1


def validity(
    plan: Plan, client: ClientCheck, server: Server | None, stand_in_busy: float | None = None
) -> list[str]:
    """Why the client, the stand-in or the machine was the limit; empty where none was.

    stand_in_busy: share of a core that each of its processes used, where it is known.
    """
    reasons: list[str] = []
    busy = None if server is None else server.busy
    served = busy is not None and busy >= SERVER_BUSY
    busiest = max(client.cpu, default=0.0)
    if busiest > CPU_BAR and not served:
        said = "unknown" if busy is None else f"{busy:.0%}"
        reasons.append(
            f"the client was the limit: a process of it took {busiest:.0%} of a core "
            f"(the bar is {CPU_BAR:.0%}), the server {said}"
        )
    starved = max(client.starved, default=0.0)
    if starved > STARVED_BAR:
        reasons.append(
            f"the machine was the limit: a client process was kept from running for {starved:.0%} "
            f"of the time (the bar is {STARVED_BAR:.0%})"
        )
    if client.machine_busy is not None and client.machine_busy > MACHINE_BAR and not served:
        reasons.append(
            f"the machine was the limit: its cores were busy for {client.machine_busy:.0%} of the "
            f"time (the bar is {MACHINE_BAR:.0%})"
        )
    waited = 0.0 if server is None else (server.starved or 0.0) / max(len(server.pids), 1)
    if waited > STARVED_BAR and not served:
        reasons.append(
            f"the machine was the limit: the server was kept from running for {waited:.0%} of the "
            f"time (the bar is {STARVED_BAR:.0%})"
        )
    if stand_in_busy is not None and stand_in_busy > CPU_BAR and not served:
        reasons.append(
            f"the stand-in was the limit: it took {stand_in_busy:.0%} of a core (the bar is "
            f"{CPU_BAR:.0%}); give it more processes with --upstream-args"
        )
    if plan.arrivals != "closed":
        share = client.late / plan.samples
        if share > LATE_BAR:
            reasons.append(
                f"the client was late: {client.late:,} samples ({share:.1%}; the bar is "
                f"{LATE_BAR:.0%}) were due up to {client.late_max_ms:,.0f} ms before it sent them"
            )
        lag = max(client.lag_p99_ms, default=0.0)
        if lag > LAG_BAR_MS:
            reasons.append(
                f"the client was late: its loop lagged {lag:,.0f} ms at the 99th percentile "
                f"(the bar is {LAG_BAR_MS:.0f} ms)"
            )
    return reasons


def problems(
    plan: Plan,
    outcomes: Outcomes,
    doubled: Doubled,
    faults: Sequence[FaultCount],
) -> list[str]:
    """What went wrong, one line each. With faults injected, failures are what was asked for."""
    found = [f"{outcomes.lost:,} lost"] if outcomes.lost else []
    if not faults:
        found += [f"{n:,} failed, category {name}" for name, n in outcomes.failed.items()]
        found += [f"{n:,} refused with {name}" for name, n in outcomes.refused.items()]
    found += [f"{n:,} wrong by {name}" for name, n in outcomes.wrong.items()]
    for name, count in (
        ("given another sample's request id", doubled.request_ids),
        ("delivered again after their outcome", doubled.delivered),
        ("answered with another sample's result", doubled.results),
        ("asked for again upstream", doubled.upstream or 0),
    ):
        if count:
            found.append(f"doubled: {count:,} {name}")
    if outcomes.total != plan.samples:
        found.append(f"the ledger does not add up: {outcomes.total:,} of {plan.samples:,}")
    return found


def judge(reasons: list[str], wrong: list[str], notes: Sequence[str] = ()) -> Verdict:
    """Without thresholds, which `thresholds` adds."""
    status = INVALID if reasons else FAILED if wrong else 0
    return Verdict(
        valid=not reasons,
        reasons=reasons,
        clean=not wrong,
        problems=[*wrong, *notes],
        exit_status=status,
    )
