"""One self-contained HTML file of a result: it asks for nothing, needs no server, and prints."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from importlib import resources
from typing import Final

from loadgen.report import circumstances
from loadgen.report import table as final
from loadgen.report.charts import charts
from loadgen.report.figures import kind_of, traffic_of
from loadgen.report.markup import Child, Markup, data, joined, mark, pairs, table, tag
from loadgen.report.text import count, plain, share, size
from loadgen.results import Result

UPLOT: Final = "1.6.32"
"""Version of the chart library in assets/; MIT, its licence text is in the page."""

ABOUT_UPLOT: Final = f"Charts: uPlot {UPLOT}, MIT licence"


def page(result: Result) -> str:
    """The document. Raises MissingExtra, and SchemaError where a histogram cannot be read."""
    script, style = _script(), _style()
    plan = result.plan
    title = f"loadgen: {plan.scenario}, {count(plan.samples)} samples"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    drawn = charts(result)
    phases = [{"name": phase.name, "at": phase.began_s} for phase in result.phases]
    head = joined(
        (
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            Markup('<link rel="icon" href="data:,">'),
            tag("title", title),
            Markup(f"<style>{style}</style>"),
        )
    )
    body = joined(
        (
            tag("a", "Skip to the results", class_="skip", href="#results"),
            tag("header", tag("h1", title), _verdict(result), _links(result)),
            tag("main", *_sections(result, bool(drawn)), id="results", tabindex="-1"),
            tag("footer", *_footer(result)),
            data({"charts": drawn, "phases": phases}, "result"),
            Markup(f"<script>{script}</script>"),
        )
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _asset(name: str) -> str:
    return (resources.files("loadgen.report") / "assets" / name).read_text(encoding="utf-8")


def _script() -> str:
    return f"{_asset('uPlot.iife.min.js')}\n{_asset('page.js')}"


def _style() -> str:
    return f"{_asset('uPlot.min.css')}\n{_asset('page.css')}"


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _verdict(result: Result) -> Markup:
    """Said in words; the colour only repeats it."""
    found = result.verdict
    state = "invalid" if not found.valid else "ok" if found.exit_status == 0 else "failed"
    return tag("p", final.verdict(result), class_=f"verdict {state}", role="status", id="verdict")


def _links(result: Result) -> Markup:
    names = [name for name, _ in _named(result, drawn=True)]
    links = [tag("li", tag("a", name, href=f"#{_id(name)}")) for name in names]
    return tag("nav", tag("ul", *links), aria_label="Sections")


def _id(name: str) -> str:
    return name.lower().replace(" ", "-")


def _sections(result: Result, drawn: bool) -> Iterator[Markup]:
    for name, content in _named(result, drawn):
        heading = f"h-{_id(name)}"
        yield tag(
            "section", tag("h2", name, id=heading), content, id=_id(name), aria_labelledby=heading
        )


def _named(result: Result, drawn: bool) -> Iterator[tuple[str, Markup]]:
    yield "Summary", _summary(result)
    yield "Thresholds", _thresholds(result)
    yield "Charts", _charts(drawn)
    yield "Latency", _latency(result)
    yield "Outcomes", _outcomes(result)
    yield "Faults", _faults(result)
    yield "Preflight", circumstances.preflight(result)
    yield "Profiles", circumstances.profiles(result)
    yield "Environment", circumstances.environment(result)


def _summary(result: Result) -> Markup:
    cards: list[Child] = [
        tag("div", tag("h3", heading), pairs(rows), class_="card")
        for heading, rows in final.sections(result)
    ]
    notes = [tag("li", note) for note in result.notes]
    return joined((tag("div", *cards, class_="cards"), tag("ul", *notes) if notes else None))


def _thresholds(result: Result) -> Markup:
    found = result.verdict.thresholds
    if not found:
        return tag("p", "No thresholds were set.")
    rows = []
    for threshold in found:
        name = final.name_in(threshold.expression)
        value = plain(name, kind_of(name).unit, threshold.value)
        rows.append((threshold.expression, value, mark(threshold.ok, "met", "missed")))
    return table("Thresholds", ("expression", "value", "state"), rows)


def _charts(drawn: bool) -> Markup:
    if not drawn:
        return tag("p", "The run was too short for charts, or nothing was measured.")
    how = (
        "Focus a chart and move with the left and right arrow keys, Home and End; "
        "drag to zoom, double-click or Escape to see all."
    )
    return joined(
        (
            tag("p", how, class_="hint", id="how"),
            tag("noscript", tag("p", "Charts need JavaScript; the tables do not.")),
            tag("div", id="plots"),
        )
    )


def _latency(result: Result) -> Markup:
    rows = [(name, *cells) for name, cells in final.latencies(result)]
    if not rows:
        return tag("p", "No sample succeeded, so there are no latencies.")
    header = ("stage", *final.LATENCY_COLUMNS, "max", "count")
    return joined(
        (
            table("Latency by stage", header, rows),
            tag("p", "A dash: fewer than ten samples above the percentile.", class_="hint"),
        )
    )


def _outcomes(result: Result) -> Markup:
    outcomes, doubled = result.outcomes, result.doubled
    total = max(1, outcomes.total)
    rows = [("succeeded", outcomes.succeeded), ("lost", outcomes.lost)]
    for name in ("failed", "refused", "wrong"):
        parts: dict[str, int] = getattr(outcomes, name)
        rows += [(f"{name}: {kind}", number) for kind, number in sorted(parts.items())]
        rows += [] if parts else [(name, 0)]
    ended = [(name, count(number), share(number / total)) for name, number in rows]
    twice = [
        ("request ids given twice", count(doubled.request_ids)),
        ("results delivered twice", count(doubled.delivered)),
        ("results of two samples alike", count(doubled.results)),
        ("asked twice upstream", count(doubled.upstream)),
    ]
    return joined(
        (
            table("How each sample ended", ("outcome", "samples", "share"), ended),
            table("What happened twice", ("what", "times"), twice),
            _traffic(result),
        )
    )


def _traffic(result: Result) -> Markup:
    traffic = traffic_of(result)
    if traffic is None:
        return tag("p", "Polls and retries were the tinker package's own: not measured.")
    sent = [
        (field.replace("_", " "), count(getattr(traffic, field)))
        for field in traffic.__struct_fields__
        if field not in ("retries", "bytes_sent", "bytes_received")
    ]
    sent += [("sent", size(traffic.bytes_sent)), ("received", size(traffic.bytes_received))]
    retries = [(name, count(number)) for name, number in sorted(traffic.retries.items())]
    return joined(
        (
            table("Traffic", ("what", "times"), sent),
            table("Retries by class", ("class", "times"), retries) if retries else None,
        )
    )


def _faults(result: Result) -> Markup:
    if not result.faults:
        return tag("p", "No faults were injected.")
    rows = [
        (
            fault.kind,
            count(fault.injected),
            ", ".join(f"{name} {number:,}" for name, number in sorted(fault.seen.items())) or "-",
        )
        for fault in result.faults
    ]
    return table("Injected faults", ("kind", "injected", "seen by the client"), rows)


def _footer(result: Result) -> Iterator[Markup]:
    yield tag("p", f"Schema {result.schema}. {result.environment.started_at}.")
    licence = tag("pre", _asset("uPlot.LICENSE"), tabindex="0")
    yield tag("details", tag("summary", ABOUT_UPLOT), licence)
