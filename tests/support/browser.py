"""A headless Chromium, driven by the DevTools protocol over its own websocket."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
)
START_S: Final = 60.0
ANSWER_S: Final = 60.0

CONTRASTS: Final = """
(() => {
  const curve = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const part = value => curve(value / 255);
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const back = element => {
    for (; element; element = element.parentElement) {
      const found = numbers(getComputedStyle(element).backgroundColor);
      if (found.length < 4 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    const code = ["SCRIPT", "STYLE"].includes(element.tagName);
    if (!own || code || !element.checkVisibility()) continue;
    const [a, b] = [light(numbers(getComputedStyle(element).color)), light(back(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([Math.round(ratio * 100) / 100, element.tagName, element.textContent.slice(0, 30)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
})()
"""
"""Contrast of every element with text of its own, the worst first."""


class Tab:
    """One tab. `events` are all that came, oldest first."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._news = asyncio.Condition()
        self.events: list[dict[str, Any]] = []

    async def read(self) -> None:
        async for message in self._socket:
            content = message.json()
            if "id" in content:
                self._waiting.pop(content["id"]).set_result(content)
                continue
            async with self._news:
                self.events.append(content)
                self._news.notify_all()

    async def send(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method; an error of the browser's is raised."""
        self._number += 1
        answer = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = answer
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        content = await asyncio.wait_for(answer, ANSWER_S)
        assert "error" not in content, (method, content["error"])
        result: dict[str, Any] = content["result"]
        return result

    def named(self, *methods: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event["method"] in methods]

    async def until(self, ready: Callable[[], bool]) -> None:
        async with asyncio.timeout(ANSWER_S), self._news:
            await self._news.wait_for(ready)

    async def open(self, url: str) -> None:
        """Load a page, and wait until it has been painted once."""
        self.events.clear()
        await self.send("Page.navigate", url=url)
        await self.until(lambda: bool(self.named("Page.loadEventFired")))
        await self.settle()

    async def settle(self) -> None:
        """Two frames: what observers and media queries ask for is drawn by then."""
        await self.value(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, awaited; a thrown error fails the test."""
        answer = await self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def press(self, key: str) -> None:
        code = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, "Tab": 9, "Enter": 13}
        extra = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code[key],
                **(extra if kind == "keyDown" else {}),
            )
        await self.settle()

    async def picture(self) -> bytes:
        answer = await self.send("Page.captureScreenshot", format="png")
        return base64.b64decode(answer["data"])


async def media(tab: Tab, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    await tab.send("Emulation.setEmulatedMedia", features=features)
    await tab.settle()


async def size(tab: Tab, width: int, height: int) -> None:
    metrics: dict[str, Any] = {"width": width, "height": height, "deviceScaleFactor": 1}
    await tab.send("Emulation.setDeviceMetricsOverride", mobile=width < 600, **metrics)
    await tab.settle()


def complaints(tab: Tab) -> list[dict[str, Any]]:
    """What went to the console, was thrown, or was blocked."""
    return tab.named("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


def requested(tab: Tab) -> list[str]:
    urls = [event["request"]["url"] for event in tab.named("Network.requestWillBeSent")]
    return [url for url in urls if not url.startswith("data:")]


def installed() -> str | None:
    """The program, or None where the Debian package chromium is missing."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Tab]:
    """A browser with an empty profile in `folder`; it and its children have ended afterwards."""
    program = installed()
    assert program, "the Debian package chromium is missing"
    process = await asyncio.create_subprocess_exec(
        program,
        *FLAGS,
        f"--user-data-dir={folder}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START_S):
            port = await _port(process.stderr)
        drained = asyncio.ensure_future(process.stderr.read())
        async with aiohttp.ClientSession(trust_env=False) as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [page for page in await answer.json() if page["type"] == "page"]
            url = pages[0]["webSocketDebuggerUrl"]
            async with session.ws_connect(url, max_msg_size=0) as socket:
                tab = Tab(socket)
                reading = asyncio.ensure_future(tab.read())
                for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
                    await tab.send(f"{domain}.enable")
                yield tab
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    await reading
    finally:
        # The whole session: a killed browser leaves its renderers otherwise.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    await drained


async def _port(stream: asyncio.StreamReader) -> int:
    """The browser picks a free port and says which."""
    said = b""
    while line := await stream.readline():
        said += line
        if line.startswith(b"DevTools listening on ws://"):
            return int(line.split(b":")[2].split(b"/")[0])
    raise AssertionError(f"the browser ended: {said.decode(errors='replace')}")
