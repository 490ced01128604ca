"""examples/embed/reloading.py: SIGHUP changes the settings of an embedded gateway."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.examples.sampled import answering
from tests.support.held import metric
from tests.support.programs import programs, stopped
from tests.support.wire import Remote

pytestmark = pytest.mark.servers


async def test_sighup_takes_other_settings_or_says_why_not(tmp_path: Path) -> None:
    async with answering(21).running() as one, answering(22).running() as two:
        file = tmp_path / "gateway.toml"
        file.write_text(f'upstream.urls = ["{one.url}"]')
        environ = {"ASGI_GATEWAY_CONFIG": str(file)}
        with programs("uvicorn", {"reloading": environ}) as started:
            served = started["reloading"]
            process, remote = served.process, Remote(served.port)
            await remote.handshake()

            async def told(text: str) -> None:
                process.signal(signal.SIGHUP)
                await asyncio.to_thread(process.wait_for, lambda: text in process.stderr, text)

            file.write_text(f'upstream.urls = ["{two.url}"]')
            await told("changed: upstream.urls")
            file.write_text(f'upstream.urls = ["{one.url}"]\nid_key = "{"k" * 16}"')
            await told("unchanged:\nid_key: from None to (hidden) needs a restart")
            text = (await remote.get("/metrics")).body
            assert metric(text, "config_reloads_total") == 1
            assert metric(text, "config_reload_failures_total") == 1
            name = two.url.removeprefix("http://")
            assert metric(text, "upstream_up", upstream=name) == 1
            await asyncio.to_thread(stopped, process)
