"""The page as text; what a browser makes of it is tested in test_page_in_browser.py."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
from importlib import resources

import pytest

from loadgen.report import page as module
from loadgen.report.charts import charts
from loadgen.report.markup import Markup, data, joined, table, tag
from loadgen.report.page import UPLOT, page
from loadgen.results import Check, FaultCount, Preflight, Profile, ProfileRow, Result, Threshold
from tests.loadgen.report.made import result

EVIL = "</script><img src=x onerror=alert(1)>'\"&\x1b[31m\x00\ud800"


class Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((name, dict(attributes)))
        if name not in ("meta", "link"):
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    return tags


def evil() -> Result:
    """A result whose every text is hostile."""
    made = result(scenario=EVIL[:-1])
    stamp = made.environment
    for field in ("started_at", "command", "loadgen", "python", "kernel", "machine", "cpu", "git"):
        setattr(stamp, field, EVIL)
    stamp.limits = stamp.versions = {EVIL: EVIL}
    made.outcomes.failed = {EVIL: 1}
    made.outcomes.refused = {EVIL: 1}
    made.traffic.retries = {EVIL: 1}
    made.stages = {name: stage for name, stage in made.stages.items() if name == "e2e"}
    made.notes = [EVIL]
    made.verdict.valid = False
    made.verdict.reasons = [EVIL]
    made.verdict.thresholds = [Threshold(expression="failed == 0 " + EVIL, value=1, ok=False)]
    made.preflight = Preflight(
        ok=False,
        checks=[Check(who=EVIL, name=EVIL, needed=1, available=0, ok=False, remedy=EVIL)],
        proposal=EVIL,
    )
    made.faults = [FaultCount(kind=EVIL, injected=1, seen={EVIL: 1})]
    row = ProfileRow(function=EVIL, where=EVIL, self_share=0.5, total_share=0.5)
    made.profiles = [Profile(who=EVIL, tool=EVIL, seconds=1, rows=[row])]
    made.phases[0].name = EVIL
    assert made.server is not None
    made.server.moved = {EVIL: 1.0}
    return made


def test_no_inserted_value_is_markup() -> None:
    text = page(evil())
    tags = parsed(text)
    assert not [name for name, _ in tags.seen if name == "img"]
    assert len([name for name, _ in tags.seen if name == "script"]) == 2
    assert not [key for _, attributes in tags.seen for key in attributes if key.startswith("on")]
    assert text.count("&lt;/script&gt;&lt;img") > 30, "the hostile values are all shown, as text"
    text.encode()  # no half of a character is left
    assert "\x1b" not in text
    assert "\x00" not in text


def test_the_page_holds_all_it_needs() -> None:
    text = page(result())
    tags = parsed(text)
    for name, attributes in tags.seen:
        for key in ("src", "href"):
            address = attributes.get(key)
            assert address is None or address.startswith(("#", "data:")), (name, address)
    style = text.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    targets = {attributes["id"] for _, attributes in tags.seen if attributes.get("id")}
    links = {attributes["href"] for name, attributes in tags.seen if name == "a"}
    assert {str(link).removeprefix("#") for link in links} <= targets


def test_the_policy_allows_just_the_two_inline_parts() -> None:
    text = page(result())
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)[0]
    assert policy.startswith("default-src 'none'; ")
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        inline = text.split(f"<{element}>")[1].split(f"</{element}>")[0]
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert "unsafe" not in policy


def test_every_part_of_a_run_is_there() -> None:
    text = page(result())
    for said in (
        *("Throughput", "In flight", "Latency over time", "Server memory", "CPU", "Event loop lag"),
        *("Percentile spectrum", "How each sample ended", "Injected faults", "retry.410 3"),
        *("sysctl -w net.core.somaxconn=50000", "--style futures --processes 4", "codec/parse.py"),
        *("Test CPU", "OK: valid, ledger clean", "asgi_gateway_samples_total", "Schema 1."),
    ):
        assert said in text, said
    assert "tml-loadgen" not in text, "keys are not shown"


def test_uplot_is_the_stated_version_with_its_licence() -> None:
    assets = resources.files(module.__package__ or "") / "assets"
    script = (assets / "uPlot.iife.min.js").read_text()
    assert script.startswith(f"/*! https://github.com/leeoniya/uPlot (v{UPLOT}) */")
    licence = (assets / "uPlot.LICENSE").read_text()
    assert "The MIT License" in licence
    assert "Leon Sorokin" in page(result())


def test_charts_hold_what_was_measured_only() -> None:
    made = result(seconds=20)
    made.series.server_rss = [None] * 20
    made.series.server_lag_ms = []
    drawn = {chart["key"]: chart for chart in charts(made)}
    assert "rss" not in drawn
    assert [line["label"] for line in drawn["lag"]["lines"]] == ["client"]
    assert drawn["descriptors"]["lines"][0]["y"][:3] == [220.0, None, 220.0]
    for chart in drawn.values():
        assert {len(line["y"]) for line in chart["lines"]} == {len(chart["x"])}
    assert drawn["in-flight"]["x"] == made.series.t


def test_the_spectrum_ends_where_samples_get_few() -> None:
    drawn = {chart["key"]: chart for chart in charts(result(samples=2_000))}
    spectrum = drawn["spectrum"]
    longest = {}
    for line in spectrum["lines"]:
        known = [x for x, y in zip(spectrum["x"], line["y"], strict=True) if y is not None]
        values = [y for y in line["y"] if y is not None]
        longest[line["label"]] = max(known)
        assert values == sorted(values)
        assert known[0] == 1.0
    # 2,000 samples: ten are above 99.5 %, 1 in 200.
    assert all(150 < distance <= 200 for distance in longest.values()), longest


def test_an_axis_of_a_whole_run_stays_small() -> None:
    size = len(page(result(seconds=14_400)))
    assert size < 4_000_000


@pytest.mark.parametrize("value", ["<b>", "a&b", '"', "'", "</td>"])
def test_markup_escapes_what_is_not_markup(value: str) -> None:
    for made in (
        tag("td", value),
        tag("td", "x", title=value),
        joined([tag("p", joined([value]))]),
        table(value, [value], [[value]]),
    ):
        tags = parsed(made)
        known = {"td", "p", "div", "table", "caption", "thead", "tbody", "tr", "th"}
        assert {name for name, _ in tags.seen} <= known
        titles = [attributes["title"] for _, attributes in tags.seen if "title" in attributes]
        assert value in (*tags.texts, *titles)
    assert tag("p", Markup("<b>x</b>")) == "<p><b>x</b></p>"


def test_columns_of_figures_are_set_as_such() -> None:
    made = table("t", ["a", "b", "c", "d"], [["x", "1 ms", "words that go on for long", tag("b")]])
    tags = parsed(made)
    kinds = [attributes.get("class") for name, attributes in tags.seen if name in ("th", "td")]
    assert kinds == [None, "number", None, None] * 2


def test_data_cannot_leave_its_element() -> None:
    value = {"a": "</script><!--<script>&\u2028", "b": [None, 1.5]}
    made = data(value, "x")
    inner = made.removeprefix('<script type="application/json" id="x">').removesuffix("</script>")
    assert not set("<>&\u2028") & set(inner)
    assert json.loads(inner) == value
    with pytest.raises(ValueError, match=r"not JSON compliant|Out of range"):
        data(float("nan"), "x")
