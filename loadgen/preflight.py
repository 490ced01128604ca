"""Whether a plan fits into a machine: counted before anything is started.

Everything here is a function of a plan and of limits. The memory figures are estimates, meant to
refuse what cannot work, not to predict; they hold for our client, our gateway and the stand-in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from loadgen.limits import Limits, ServerLimits
from loadgen.plan import Length, Plan
from loadgen.results import Check, Preflight
from loadgen.schedule import connections, in_flight, source_addresses

SPARE: Final = 64
"""Descriptors of a process besides its connections: libraries, pipes, files, the listener."""

PORTS_CAP: Final = 64_511
"""1024 to 65534, the widest range of ports that needs no privilege."""

PROCESSES_CAP: Final = 64

PROCESS_BYTES: Final = 80 << 20
CONNECTION_BYTES: Final = 24 << 10
SAMPLE_BYTES: Final = 2 << 10
TOKEN_BYTES: Final = 8
"""Of an answer that is held: an int32 and a float32. A token of a prompt in JSON takes six."""


class Setting(NamedTuple):
    """What the plan does not say: the server's processes and its connections upstream.

    local: whether the server, and a stand-in behind it, run on this machine.
    """

    server_processes: int = 1
    upstream_connections: int = 2048
    local: bool = True


ALONE: Final = Setting()


def preflight(plan: Plan, limits: Limits, setting: Setting = ALONE) -> Preflight:
    """What is needed of what there is, and a plan that fits where this one does not."""
    checks = list(_checks(plan, limits, setting))
    if all(check.ok for check in checks):
        return Preflight(ok=True, checks=checks)
    proposed = propose(plan, limits, setting)
    proposal = None if proposed is None else flags(plan, proposed)
    return Preflight(ok=False, checks=checks, proposal=proposal)


def _checks(plan: Plan, limits: Limits, setting: Setting) -> Iterator[Check]:
    total = connections(plan)
    each = -(-total // plan.processes) + SPARE
    yield _check("client", "descriptors", each, limits.nofile, _raise_own(each, limits))
    per_address = -(-total // max(1, len(plan.source_addresses)))
    yield _check("client", "ports", per_address, limits.ports, _widen(per_address))
    if limits.server is not None:
        yield from _server_checks(total, limits.server, limits, setting)
    if setting.local:
        at_once = min(total, plan.processes * (plan.submitters + plan.fetchers) + plan.sessions)
        remedy = f"sudo sysctl -w net.core.somaxconn={at_once}, then restart the server"
        yield _check("machine", "backlog", at_once, limits.somaxconn, remedy)
    needed = memory(plan, setting)
    yield _check("machine", "memory", needed, limits.memory, None)


def _server_checks(
    total: int, server: ServerLimits, limits: Limits, setting: Setting
) -> Iterator[Check]:
    needed = -(-total // setting.server_processes) + server.open_now + SPARE
    needed += -(-setting.upstream_connections // setting.server_processes)
    remedy = _prlimit(needed, server.hard, str(server.pid), limits)
    yield _check("server", "descriptors", needed, server.soft, remedy)
    upstream = setting.upstream_connections
    yield _check("server", "ports", upstream, limits.ports, _widen(upstream))


def _check(who: str, name: str, needed: int, available: int, remedy: str | None) -> Check:
    ok = needed <= available
    return Check(
        who=who,
        name=name,
        needed=needed,
        available=available,
        ok=ok,
        remedy=None if ok else remedy,
    )


def _raise_own(needed: int, limits: Limits) -> str | None:
    return _prlimit(needed, limits.nofile, "$$", limits)


def _prlimit(needed: int, hard: int, pid: str, limits: Limits) -> str | None:
    """The command that raises a process's limit; None where nobody may."""
    if needed <= hard:
        return f"prlimit --pid {pid} --nofile={needed}:{hard}"
    if not limits.can_raise:
        return None
    command = f"sudo prlimit --pid {pid} --nofile={needed}:{needed}"
    if needed > limits.nr_open:
        return f"sudo sysctl -w fs.nr_open={needed} && {command}"
    return command


def _widen(needed: int) -> str | None:
    if needed > PORTS_CAP:
        return None
    return 'sudo sysctl -w net.ipv4.ip_local_port_range="1024 65534"'


def memory(plan: Plan, setting: Setting) -> int:
    """Bytes of client, and of server and stand-in where they run here, at the worst moment.

    That is when all samples are in flight, of an open loop as many as `in_flight` counts, and the
    last of them are answered before the first one is fetched: the server holds every answer, the
    client those of its fetches under way.
    """
    total = connections(plan)
    at_once = in_flight(plan)
    needed = plan.processes * PROCESS_BYTES + total * CONNECTION_BYTES
    needed += plan.samples * SAMPLE_BYTES
    needed += plan.processes * plan.fetchers * _longest(plan.output_tokens) * TOKEN_BYTES
    if setting.local:
        held = SAMPLE_BYTES + _mean(plan.output_tokens) * TOKEN_BYTES
        held += _mean(plan.prompt_tokens) * TOKEN_BYTES
        needed += (setting.server_processes + 1) * PROCESS_BYTES
        needed += (total + 2 * setting.upstream_connections) * CONNECTION_BYTES
        needed += at_once * held
    return needed


def _mean(length: Length) -> int:
    return (length.low + length.high) // 2


def _longest(length: Length) -> int:
    return length.high


# --- a plan that fits ---------------------------------------------------------------------------


def propose(plan: Plan, limits: Limits, setting: Setting) -> Plan | None:
    """The plan changed as little as makes it fit; None where nothing does.

    More processes first, then batched polls, then both, and only then fewer samples.
    """
    styles = [plan.style] if plan.style == "futures" else [plan.style, "futures"]
    for style in styles:
        changed = _changed(plan, style=style)
        for processes in range(plan.processes, PROCESSES_CAP + 1):
            candidate = _changed(changed, processes=processes)
            if _fits(candidate, limits, setting):
                return candidate
    return _fewer(_changed(plan, style="futures"), limits, setting)


def _fewer(plan: Plan, limits: Limits, setting: Setting) -> Plan | None:
    """The most samples that fit, by halving the interval."""
    fits, too_many = 0, plan.samples
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if _fits(_changed(plan, samples=middle), limits, setting):
            fits = middle
        else:
            too_many = middle
    return _changed(plan, samples=fits) if fits else None


def _fits(plan: Plan, limits: Limits, setting: Setting) -> bool:
    return all(check.ok for check in _checks(plan, limits, setting))


def _changed(plan: Plan, **fields: object) -> Plan:
    changed: Plan = msgspec.structs.replace(plan, **fields)
    more: dict[str, object] = {}
    if changed.sessions < changed.processes:
        more["sessions"] = changed.processes
    if changed.concurrency > changed.samples:
        more["concurrency"] = changed.samples
    if plan.source_addresses:
        more["source_addresses"] = source_addresses(changed)
    return msgspec.structs.replace(changed, **more)


def flags(plan: Plan, proposed: Plan) -> str:
    """What to add to `loadgen run` to get the proposed plan."""
    words = []
    for name in ("style", "processes", "samples"):
        value = getattr(proposed, name)
        if value != getattr(plan, name):
            words.append(f"--{name} {value}")
    return " ".join(words)


def lines(found: Preflight) -> list[str]:
    """For the terminal: each check, what is missing, what helps."""
    text = []
    for check in found.checks:
        unit = " bytes" if check.name == "memory" else ""
        line = f"{check.who:<8} {check.name:<12} {check.needed:>16,.0f} of {check.available:,.0f}"
        if check.ok:
            text.append(f"ok    {line}{unit}")
            continue
        text.append(f"SHORT {line}{unit}: {check.needed - check.available:,.0f} missing")
        text.append(f"      {check.remedy or 'no command helps here: see the plan that fits'}")
    if found.proposal is not None:
        text.append(f"A plan that fits: add {found.proposal}")
    elif not found.ok:
        text.append("No plan of this kind fits here.")
    return text
