"""The page's sections about where and how a run was made: preflight, profiles, environment."""

from __future__ import annotations

from loadgen.report import table as final
from loadgen.report.markup import Markup, joined, mark, pairs, table, tag
from loadgen.report.text import duration, share, size
from loadgen.results import Result


def preflight(result: Result) -> Markup:
    found = result.preflight
    if found is None:
        return tag("p", "No preflight was made.")
    rows = [
        (
            f"{check.who}: {check.name}",
            f"{check.needed:,.6g}",
            f"{check.available:,.6g}",
            mark(check.ok, "enough", "missing"),
            tag("code", check.remedy) if check.remedy else "-",
        )
        for check in found.checks
    ]
    header = ("what", "needed", "available", "state", "remedy")
    return joined(
        (
            tag("p", "The plan fits." if found.ok else "The plan does not fit."),
            table("Preflight", header, rows),
            tag("p", "A plan that fits: ", tag("code", found.proposal)) if found.proposal else None,
        )
    )


def profiles(result: Result) -> Markup:
    if not result.profiles:
        return tag("p", "Not profiled; see --profile.")
    return joined(
        table(
            f"Top of the {profile.who}, {profile.tool}, {duration(profile.seconds * 1e3)}",
            ("function", "self", "total", "where"),
            [
                (row.function, share(row.self_share), share(row.total_share), row.where)
                for row in profile.rows
            ],
        )
        for profile in result.profiles
    )


def environment(result: Result) -> Markup:
    stamp, plan = result.environment, result.plan
    where = [
        ("started", stamp.started_at),
        ("command", stamp.command),
        ("loadgen", stamp.loadgen),
        ("git", stamp.git or "-"),
        ("python", stamp.python),
        ("kernel", stamp.kernel),
        ("machine", stamp.machine),
        ("CPU", f"{stamp.cpu}, {stamp.cores} cores"),
        ("memory", size(stamp.memory)),
        ("load before", f"{stamp.load_before:.2f}"),
        *sorted(stamp.limits.items()),
        *sorted(stamp.versions.items()),
    ]
    hidden = ("api_key", "prompt_tokens", "output_tokens")
    work = [
        (field.replace("_", " "), str(getattr(plan, field)))
        for field in plan.__struct_fields__
        if field not in hidden
    ]
    work.append(("output tokens", final.tokens(result)))
    phases = [
        (
            phase.name,
            f"{phase.began_s:.1f} s",
            f"{phase.seconds:.1f} s",
            ", ".join(f"{name} {seconds:.1f} s" for name, seconds in sorted(phase.cpu_s.items())),
        )
        for phase in result.phases
    ]
    moved = sorted(result.server.moved.items()) if result.server else []
    counters = [(name, f"{value:,.6g}") for name, value in moved]
    return joined(
        (
            tag("h3", "Machine"),
            pairs(where),
            tag("h3", "Plan"),
            pairs(work),
            table("Phases", ("phase", "began", "took", "CPU"), phases),
            tag(
                "details",
                tag("summary", "The server's own counters during the run"),
                table("Server counters", ("counter", "rose by"), counters),
            )
            if counters
            else None,
        )
    )
