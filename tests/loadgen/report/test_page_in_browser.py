"""The page in a real browser: it draws, asks for nothing, and can be used by everybody."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from loadgen.report import thresholds
from loadgen.report.page import page
from tests.loadgen.report.made import result
from tests.support.browser import CONTRASTS, Tab, browser, complaints, media, requested, size

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

CHARTS = (
    *("throughput", "in-flight", "latency", "healthz", "rss", "cpu", "lag", "descriptors"),
    "spectrum",
)

INK = """
(() => Object.fromEntries([...document.querySelectorAll("figure")].map(figure => {
  const canvas = figure.querySelector("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Map();
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] < 255) continue;
    const key = `${data[i]},${data[i + 1]},${data[i + 2]}`;
    seen.set(key, (seen.get(key) || 0) + 1);
  }
  return [figure.id.replace("figure-", ""), Object.fromEntries(seen)];
})))()
"""
"""How many opaque pixels of each colour every chart has."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tab]:
    async with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def url(tmp_path: Path) -> str:
    return written(tmp_path)


def written(folder: Path, scenario: str = "burst") -> str:
    made = result(scenario=scenario)
    thresholds.apply(made, thresholds.bounds(["e2e.p99 < 2s", "failed == 0"]))
    path = folder / "result.html"
    path.write_text(page(made), encoding="utf-8")
    return path.as_uri()


async def test_every_chart_draws_each_of_its_lines(tab: Tab, url: str) -> None:
    await size(tab, 1200, 900)
    await media(tab, "light")
    await tab.open(url)
    ink = await tab.value(INK)
    assert tuple(ink) == CHARTS
    lines = await tab.value(
        "JSON.parse(document.getElementById('result').textContent)"
        ".charts.map(chart => [chart.key, chart.lines.length])"
    )
    for key, number in lines:
        for index in range(number):
            name = f"--line-{index % 8 + 1}"
            colour = await tab.value(
                f"getComputedStyle(document.documentElement).getPropertyValue('{name}').trim()"
            )
            channels = ",".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))
            # A line across 400 pixels, dotted at worst.
            assert ink[key].get(channels, 0) > 40, (key, index, colour)


async def test_nothing_is_asked_for_and_nothing_complains(tab: Tab, url: str) -> None:
    await tab.open(url)
    assert requested(tab) == [url]
    assert complaints(tab) == []


async def test_the_watch_on_requests_and_errors_works(tab: Tab, tmp_path: Path) -> None:
    """Else the test above proves nothing."""
    path = tmp_path / "bad.html"
    path.write_text("<img src=http://127.0.0.1:9/x.png><script>console.error(1); throw 2</script>")
    await tab.open(path.as_uri())
    await tab.until(lambda: len(tab.named("Network.loadingFailed")) > 0)
    assert requested(tab) == [path.as_uri(), "http://127.0.0.1:9/x.png"]
    assert len(complaints(tab)) >= 2


async def test_the_policy_of_the_page_stops_what_is_not_its_own(tab: Tab, url: str) -> None:
    await tab.open(url)
    await tab.value(
        "(() => { const made = document.createElement('script');"
        " made.textContent = 'window.bad = 1'; document.body.append(made);"
        " const image = new Image(); image.src = 'http://127.0.0.1:9/';"
        " document.body.append(image); })()"
    )
    await tab.settle()
    assert await tab.value("window.bad === undefined")
    blocked = [event["entry"]["text"] for event in tab.named("Log.entryAdded")]
    assert len([text for text in blocked if "Content Security Policy" in text]) == 2
    await tab.until(lambda: len(tab.named("Network.loadingFailed")) > 0)
    reasons = [event.get("blockedReason") for event in tab.named("Network.loadingFailed")]
    assert reasons == ["csp"]


async def test_dark_and_light_both_have_contrast(tab: Tab, url: str) -> None:
    await size(tab, 1200, 900)
    await media(tab, "light")
    await tab.open(url)
    backs = []
    for scheme in ("light", "dark"):
        await media(tab, scheme)
        backs.append(await tab.value("getComputedStyle(document.body).backgroundColor"))
        found = await tab.value(CONTRASTS)
        assert len(found) > 100
        assert found[0][0] >= 4.5, (scheme, found[:5])
    assert backs == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]
    ink = await tab.value(INK)
    assert ink["cpu"].get("109,184,245", 0) > 40, "the charts follow the scheme"
    await media(tab, "light")


async def test_a_phone_scrolls_down_only(tab: Tab, url: str) -> None:
    await size(tab, 360, 740)
    await tab.open(url)
    assert await tab.value("document.documentElement.scrollWidth") <= 360
    widths = await tab.value(
        "[...document.querySelectorAll('canvas')].map(canvas => canvas.clientWidth)"
    )
    assert len(widths) == len(CHARTS)
    assert all(250 < width <= 360 for width in widths), widths
    await size(tab, 1200, 900)
    grown = await tab.value("document.querySelector('canvas').clientWidth")
    assert grown > 400, "charts follow the window"


async def test_keys_read_a_chart_out(tab: Tab, url: str) -> None:
    await size(tab, 1200, 900)
    await tab.open(url)
    await tab.value("document.querySelector('#figure-in-flight .plot').focus()")
    read = "document.querySelector('#figure-in-flight output').textContent"
    said = []
    for key in ("Home", "ArrowRight", "End", "ArrowLeft"):
        await tab.press(key)
        said.append(await tab.value(read))
    flight = result().series.in_flight
    assert said == [
        f"{at} s: samples {flight[at]:,}" for at in (0, 1, len(flight) - 1, len(flight) - 2)
    ]


async def test_tab_reaches_every_control_in_order(tab: Tab, url: str) -> None:
    await tab.open(url)
    await tab.press("Tab")
    assert await tab.value("document.activeElement.className") == "skip"
    await tab.press("Enter")
    assert await tab.value("document.activeElement.id") == "results"
    reachable = "button, a[href], summary, .scroll, .plot"
    hidden = f"[...document.querySelectorAll('{reachable}')].filter(e => e.tabIndex < 0).length"
    assert await tab.value(hidden) == 0


async def test_a_line_can_be_switched_off_by_key(tab: Tab, url: str) -> None:
    await media(tab, "light")
    await tab.open(url)
    button = "document.querySelector('#figure-cpu button')"
    await tab.value(f"{button}.focus()")
    before = (await tab.value(INK))["cpu"].get("11,98,168", 0)
    await tab.press("Enter")
    assert await tab.value(f"{button}.getAttribute('aria-pressed')") == "false"
    assert before > 40 > (await tab.value(INK))["cpu"].get("11,98,168", 0)


async def test_a_screen_reader_is_told_what_the_charts_show(tab: Tab, url: str) -> None:
    await tab.open(url)
    nodes = (await tab.send("Accessibility.getFullAXTree"))["nodes"]
    named = {
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node.get("ignored")
    }
    described = {
        node["name"]["value"]: node["description"]["value"]
        for node in nodes
        if node.get("description", {}).get("value") and node.get("name")
    }
    assert ("main", "") in named
    assert ("navigation", "Sections") in named
    assert ("button", "samples planned") in named
    assert "server: 180 MB to 199 MB, last 199 MB" in described["Server memory (RSS)"]
    assert ("status", "") in named
    nameless = [role for role, name in named if role in ("button", "link", "table") and not name]
    assert nameless == []
    levels = await tab.value("[...document.querySelectorAll('h1, h2, h3')].map(e => +e.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


async def test_values_can_be_read_as_a_table(tab: Tab, url: str) -> None:
    await tab.open(url)
    await tab.value("document.querySelector('#figure-rss details').open = true")
    await tab.settle()
    rows = await tab.value(
        "[...document.querySelectorAll('#figure-rss tbody tr')].map(row => row.innerText)"
    )
    assert len(rows) == len(result().series.t)
    assert rows[0].split() == ["0", "s", "180", "MB"]


async def test_hostile_names_stay_text(tab: Tab, tmp_path: Path) -> None:
    evil = "</script><script>window.bad=1</script><img src=x onerror='window.bad=1'>\"'&\u2028\x00"
    await tab.open(written(tmp_path, evil))
    assert await tab.value("window.bad === undefined && document.images.length === 0")
    shown = await tab.value("document.querySelector('h1').textContent")
    assert shown.startswith("loadgen: </script><script>window.bad=1</script><img src=x onerror='")
    assert complaints(tab) == []


async def test_a_run_without_a_course_says_so(tab: Tab, tmp_path: Path) -> None:
    made = result(seconds=1)
    made.series = type(made.series)()
    made.stages = {}
    made.server = made.preflight = made.upstream = None
    made.faults, made.profiles, made.notes, made.phases = [], [], [], []
    path = tmp_path / "empty.html"
    path.write_text(page(made), encoding="utf-8")
    await tab.open(path.as_uri())
    text = json.dumps(await tab.value("document.body.innerText"))
    for said in ("too short for charts", "No sample succeeded", "No preflight", "Not profiled"):
        assert said in text
    assert complaints(tab) == []
