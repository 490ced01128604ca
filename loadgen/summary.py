"""A result in a few plain lines, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.results import Result, Stage


def lines(result: Result) -> Iterator[str]:
    """Without what was not measured."""
    outcomes, traffic, plan = result.outcomes, result.traffic, result.plan
    yield f"scenario {plan.scenario}, style {plan.style}, {plan.samples:,} samples"
    yield (
        f"  {result.seconds:,.1f} s, {result.samples_per_s:,.0f} samples/s, "
        f"{result.output_tokens_per_s:,.0f} tokens/s"
    )
    parts = [f"{outcomes.succeeded:,} succeeded", f"{outcomes.lost:,} lost"]
    parts.append(f"{result.doubled.total:,} doubled")
    for name in ("failed", "refused", "wrong"):
        group: dict[str, int] = getattr(outcomes, name)
        detail = f" ({', '.join(f'{n:,} {kind}' for kind, n in group.items())})" if group else ""
        parts.append(f"{sum(group.values()):,} {name}{detail}")
    yield "  " + ", ".join(parts)
    yield (
        f"  {traffic.polls:,} polls ({traffic.polls_abandoned:,} given up as planned, "
        f"{traffic.polls_overdue:,} at the client's limit), {traffic.reconnects:,} reconnects"
    )
    if traffic.retries:
        yield "  repeated: " + ", ".join(f"{n:,} {name}" for name, n in traffic.retries.items())
    for name, stage in result.stages.items():
        yield f"  {name:<9} {_stage(stage)}"
    if result.server is not None and result.server.cpu_ms_per_sample is not None:
        yield f"  server    {result.server.cpu_ms_per_sample:.3f} ms of CPU a sample"
    yield f"  client    {result.client.cpu_ms_per_sample:.3f} ms of CPU a sample"
    verdict = result.verdict
    for reason in verdict.reasons:
        yield f"INVALID: {reason}"
    for problem in verdict.problems:
        yield f"PROBLEM: {problem}"
    for threshold in verdict.thresholds:
        if not threshold.ok:
            yield f"FAILED: {threshold.expression} (it is {threshold.value})"
    if verdict.exit_status == 0:
        yield "valid, every sample delivered exactly once"


def _stage(stage: Stage) -> str:
    told = stage.corrected or stage.uncorrected
    shown = [f"{name} {ms:,.1f}" for name, ms in told.percentiles.items() if ms is not None]
    return f"ms {', '.join([*shown, f'max {told.max_ms:,.1f}'])}"
