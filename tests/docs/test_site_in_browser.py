"""The built site in a real browser: it asks nobody but its own server, and its search finds."""

import contextlib
import functools
import http.server
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.browser import Tab, browser, complaints, media, requested, size

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    with served(site) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tab]:
    async with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("page", ["index", "how-it-works", "settings", "observability"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_page_asks_nobody_else_and_says_nothing(
    tab: Tab, url: str, page: str, scheme: str
) -> None:
    await media(tab, scheme)
    await tab.open(f"{url}/{page}.html")
    asked = requested(tab)
    assert len(asked) > 3
    assert [each for each in asked if not each.startswith(f"{url}/")] == []
    assert complaints(tab) == []
    colour = await tab.value("document.body.getAttribute('data-md-color-scheme')")
    assert colour == {"light": "default", "dark": "slate"}[scheme]


async def test_a_page_opens_from_the_file_system(tab: Tab, site: Path) -> None:
    await tab.open((site / "how-it-works.html").as_uri())
    assert [each for each in requested(tab) if not each.startswith(site.as_uri())] == []
    assert complaints(tab) == []
    drawn = await tab.value("document.querySelector('img[src$=svg]').naturalWidth")
    assert drawn > 100


async def test_the_search_finds(tab: Tab, url: str) -> None:
    await tab.open(f"{url}/index.html")
    await tab.value("""(() => {
      document.querySelector("label[for=__search]").click();
      const field = document.querySelector("[data-md-component=search-query]");
      field.focus();
      field.value = "retrieved_ttl_s";
      field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
    })()""")
    found = await tab.value("""new Promise(done => {
      const look = () => {
        const links = [...document.querySelectorAll(".md-search-result__link")];
        links.length ? done(links.map(link => link.getAttribute("href"))) : setTimeout(look, 100);
      };
      look();
    })""")
    assert any("settings.html" in link for link in found)
    assert [each for each in requested(tab) if not each.startswith(f"{url}/")] == []


async def test_a_phone_has_no_page_wider_than_itself(tab: Tab, url: str) -> None:
    await size(tab, 400, 800)
    try:
        for page in ("index", "how-it-works", "guide-vllm", "limits", "settings", "http"):
            await tab.open(f"{url}/{page}.html")
            wide = await tab.value("document.documentElement.scrollWidth")
            assert wide <= 400, page
    finally:
        await size(tab, 1280, 900)
