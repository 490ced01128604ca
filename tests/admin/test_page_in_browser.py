"""The status page in a real browser, in front of a real gateway that is at work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from tests.support.browser import CONTRASTS, Tab, browser, complaints, media, requested, size
from tests.support.keyed import entries, secret_of
from tests.support.processes import Served, serve, stand_in

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]
KEYS: dict[str, dict[str, object]] = {"ops": {"scopes": ["admin", "sample"]}, "user": {}}
# Too low for a text of usual size, says the Web's accessibility guideline.
LEAST_CONTRAST = 4.5


class Site(msgspec.Struct):
    tab: Tab
    gateway: Served

    async def text(self, selector: str) -> str:
        found = await self.tab.value(f"document.querySelector({selector!r}).innerText")
        assert isinstance(found, str)
        return found

    async def shows(self, selector: str, text: str, *, there: bool = True) -> None:
        """Wait until an element has a text, or has it no more; the page looks every 2 s."""
        found = f"document.querySelector({selector!r}).innerText.includes({text!r})"
        await self.tab.value(
            f"""new Promise(done => {{
              const look = () => {found} === {str(there).lower()} ? done() : setTimeout(look, 50);
              look();
            }})"""
        )

    async def type_key(self, key: str) -> None:
        await self.tab.value("document.getElementById('key').focus()")
        await self.tab.send("Input.insertText", text=key)
        await self.tab.press("Enter")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """A gateway with keys in front of two stand-ins, with 40 samples in flight; the page open."""
    folder = tmp_path_factory.mktemp("admin")
    file = folder / "keys.toml"
    file.write_text(entries(KEYS))
    async with contextlib.AsyncExitStack() as stack:
        slow = stack.enter_context(stand_in("--gen-seconds", "30"))
        other = stack.enter_context(stand_in("--gen-seconds", "30"))
        gateway = stack.enter_context(
            serve(slow, "--upstream", other, access__keys_file=str(file), drain__grace_s=60)
        )
        tab = await stack.enter_async_context(browser(folder / "profile"))
        await submit(gateway, 40)
        await size(tab, 1200, 900)
        await media(tab, "light")
        await tab.open(f"{gateway.url}/admin")
        yield Site(tab, gateway)


async def submit(gateway: Served, count: int) -> None:
    """Samples that are in flight for half a minute, and one that fails."""
    headers = {"X-API-Key": secret_of("ops")}
    async with aiohttp.ClientSession(
        gateway.url, headers=headers, trust_env=False, raise_for_status=True
    ) as session:

        async def post(path: str, **body: object) -> dict[str, Any]:
            async with session.post(f"/api/v1/{path}", json=body) as answer:
                told: dict[str, Any] = await answer.json()
                return told

        made = await post("create_session", tags=[])
        sampler = await post(
            "create_sampling_session",
            session_id=made["session_id"],
            sampling_session_seq_id=0,
            base_model="stand-in",
        )
        for number in range(count):
            await post(
                "asample",
                sampling_session_id=sampler["sampling_session_id"],
                seq_id=number,
                num_samples=1,
                prompt={"chunks": [{"type": "encoded_text", "tokens": [number + 1, 2, 3]}]},
                sampling_params={"max_tokens": 16},
            )
        cancelled = await post(
            "asample",
            sampling_session_id=sampler["sampling_session_id"],
            seq_id=count,
            prompt={"chunks": [{"type": "encoded_text", "tokens": [9]}]},
            sampling_params={"max_tokens": 16},
        )
        await post("cancel_future", request_id=cancelled["request_id"])


async def test_it_asks_for_a_key_and_takes_the_right_one(site: Site) -> None:
    await site.shows("#status", "a key is needed")
    for wrong in ("wrong", secret_of("user")):
        await site.type_key(wrong)
        await site.shows("#refused", "not taken")
    await site.type_key(secret_of("ops"))
    await site.shows("#status", "ready")
    assert not await site.tab.value("document.getElementById('login').checkVisibility()")


async def test_it_shows_what_is_in_flight_where_and_for_whom(site: Site) -> None:
    await site.shows("#flight", "40")
    await site.shows("#holders", "ops")
    await site.shows("#recent", "the sample was cancelled")
    rows = await site.tab.value(
        "[...document.querySelectorAll('#upstreams tbody tr')].map(row => row.innerText)"
    )
    assert len(rows) == 2
    assert all("up" in row for row in rows)
    await site.tab.value("document.querySelector('details').open = true")
    settings = await site.text("#settings")
    assert "upstream.max_connections" in settings
    assert secret_of("ops") not in await site.tab.value("document.documentElement.outerHTML")


async def test_it_asks_its_own_gateway_only_and_complains_of_nothing(site: Site) -> None:
    asked = requested(site.tab)
    assert asked
    assert {url.rsplit("/admin", 1)[0] for url in asked} == {site.gateway.url}
    # The browser notes the two refusals of wrong keys, and the first look without one.
    notes = [note["entry"]["text"] for note in complaints(site.tab) if "entry" in note]
    assert len(notes) == len(complaints(site.tab))
    assert all("401" in note or "403" in note for note in notes), notes


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
async def test_it_can_be_read_on_a_phone_and_in_the_dark(
    site: Site, scheme: str, width: int
) -> None:
    await size(site.tab, width, 900)
    await media(site.tab, scheme)
    found = await site.tab.value(CONTRASTS)
    assert len(found) > 40
    assert found[0][0] >= LEAST_CONTRAST, found[:3]
    overflow = await site.tab.value(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    assert overflow <= 0


async def test_what_can_be_pressed_has_a_name_and_a_size(site: Site) -> None:
    await size(site.tab, 360, 900)
    found = await site.tab.value(
        """[...document.querySelectorAll("button, input, summary")]
          .filter(one => one.checkVisibility())
          .map(one => [
            one.getAttribute("aria-label") || one.innerText || one.labels?.[0]?.innerText,
            one.getBoundingClientRect().height])"""
    )
    assert len(found) >= 4
    for name, height in found:
        assert name
        assert height >= 20, name
    tables = await site.tab.value(
        "[...document.querySelectorAll('table')].every(one => one.querySelector('th[scope=col]'))"
    )
    assert tables


async def test_an_upstream_is_drained_by_keyboard_after_a_question(site: Site) -> None:
    press = site.tab.press
    await site.tab.value("document.querySelector('#upstreams button').focus()")
    await press("Enter")
    await site.shows("#question", "no new samples")
    focused = await site.tab.value("document.activeElement.innerText")
    assert focused == "Cancel"  # a second Enter by mistake does nothing
    await press("Enter")
    assert "draining" not in await site.text("#upstreams")
    await site.tab.value("document.querySelector('#upstreams button').focus()")
    await press("Enter")
    await press("Tab")
    await press("Enter")
    await site.shows("#upstreams", "draining")
    await site.tab.value("document.querySelector('#upstreams button').click()")
    await press("Tab")
    await press("Enter")
    await site.shows("#upstreams", "draining", there=False)


async def test_why_an_action_is_refused_stays_until_the_next(site: Site) -> None:
    async def act_on(upstream: str) -> None:
        await site.tab.value(
            "void act('Take it back?', 'admin/upstream',"
            f" {{upstream: {upstream}, draining: false}})"
        )
        await site.tab.press("Tab")
        await site.tab.press("Enter")

    await act_on("'nobody'")
    await site.shows("#problem", "Not done")
    await site.tab.value("look()")
    await site.tab.value("look()")
    assert "Not done" in await site.text("#problem")
    assert await site.tab.value("document.getElementById('problem').role") == "alert"
    await act_on("shots.at(-1).upstreams[0].name")
    await site.shows("#problem", "Not done", there=False)


async def test_a_page_that_is_hidden_during_a_look_asks_no_more(site: Site) -> None:
    """The timer that a look sets at its end: one where the page is visible, else none."""
    for hidden, timers in (("false", 1), ("true", 0)):
        set_ = await site.tab.value(
            f"""(async () => {{
              const real = setTimeout;
              clearTimeout(timer);
              await look();  // so that none of before is under way
              clearTimeout(timer);
              let count = 0;
              window.setTimeout = (...given) => {{ count += 1; return real(...given); }};
              Object.defineProperty(document, "hidden", {{ value: {hidden}, configurable: true }});
              await look();
              window.setTimeout = real;
              delete document.hidden;
              return count;
            }})()"""
        )
        assert set_ == timers
    await site.tab.value("look()")


async def test_counts_of_before_a_restart_are_dropped(site: Site) -> None:
    await site.tab.value("look()")
    await site.tab.value("shots.forEach(shot => { shot.up_s += 1e6; })")
    await site.tab.value("look()")
    ups = await site.tab.value("shots.map(shot => shot.up_s)")
    assert ups
    assert max(ups) < 1e6


async def test_the_gateway_is_drained_and_ends(site: Site) -> None:
    await size(site.tab, 1200, 900)
    await site.tab.value("document.getElementById('drain').click()")
    await site.shows("#question", "does not come back")
    await site.tab.press("Tab")
    await site.tab.press("Enter")
    await site.shows("#status", "draining")
    site.gateway.process.terminate()  # a second signal: now
    assert await asyncio.to_thread(site.gateway.process.wait) == 0
    await site.shows("#status", "no answer")
