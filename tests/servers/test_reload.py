"""SIGHUP to `asgi-gateway serve` while clients sample, as a process on real sockets."""

import asyncio
import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from tests.support.held import metric
from tests.support.processes import Served, process, stand_in
from tests.support.waiting import until
from tests.support.wire import SDK_HEADERS, Remote, wire

pytestmark = pytest.mark.servers

CLIENTS = 40


class Load:
    """Clients that each sample one after the other, on a kept connection, until told to stop."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._stop = False
        self._tasks = [asyncio.create_task(self._client()) for _ in range(CLIENTS)]
        self.accepted: list[str] = []
        self.delivered: list[str] = []
        self.seen: Counter[str] = Counter()

    async def _client(self) -> None:
        async with wire(self._remote.port) as connection:
            while not self._stop:
                body = self._remote.sample()
                submitted = await connection.ask("POST", "/api/v1/asample", body, SDK_HEADERS)
                self.seen[f"submit {submitted.status}"] += 1
                request_id = submitted.json()["request_id"]
                self.accepted.append(request_id)
                polled = 408
                while polled == 408:
                    self._remote.send_poll(connection, request_id)
                    polled = (await connection.read()).status
                self.seen[f"poll {polled}"] += 1
                self.delivered.append(request_id)

    async def more(self, count: int = CLIENTS) -> None:
        """Until so many more were delivered."""
        until_now = len(self.delivered)
        await until(lambda: len(self.delivered) >= until_now + count, 30)

    async def stop(self) -> None:
        self._stop = True
        async with asyncio.timeout(30):
            await asyncio.gather(*self._tasks)


class Configured:
    """`serve` with a file that changes."""

    def __init__(self, served: Served, file: Path) -> None:
        self.served = served
        self.file = file
        self.remote = Remote(served.port)

    def write(self, **settings: object) -> None:
        self.file.write_text(toml(settings))

    async def metrics(self) -> bytes:
        return (await self.remote.get("/metrics")).body

    async def reload(self, counter: str = "config_reloads_total") -> bytes:
        """SIGHUP, and the metrics once it has counted."""
        before = metric(await self.metrics(), counter)
        self.served.process.signal(signal.SIGHUP)
        async with asyncio.timeout(20):
            while metric(text := await self.metrics(), counter) == before:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return text

    async def said(self, text: str) -> None:
        process = self.served.process
        await asyncio.to_thread(process.wait_for, lambda: text in process.stderr, text)


def toml(settings: dict[str, object]) -> str:
    """By dotted path with __ for the dots; JSON's texts, numbers and lists are TOML's too."""
    return "".join(
        f"{name.replace('__', '.')} = {msgspec.json.encode(value).decode()}\n"
        for name, value in settings.items()
    )


@contextlib.asynccontextmanager
async def configured(folder: Path, *flags: str, **settings: object) -> AsyncIterator[Configured]:
    file = folder / "gateway.toml"
    file.write_text(toml(settings))
    command = [sys.executable, "-m", "asgi_gateway", "serve", "--config", str(file), *flags]
    with process([*command, "--port", "0"]) as started:
        line = await asyncio.to_thread(started.first_line)
        assert line.startswith("asgi-gateway listening"), started.story()
        yield Configured(Served("serve", int(line.rsplit(":", 1)[1]), started), file)
        assert "Traceback" not in started.stderr, started.story()


async def arrived(url: str) -> Counter[str]:
    """How often each request id came to a stand-in."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/requests") as answer:
        return Counter(await answer.json())


async def test_upstreams_come_and_go_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    slow = ("--gen-seconds", "0.3", "--jitter", "0.5")
    with stand_in(*slow) as one, stand_in(*slow) as two, stand_in(*slow) as three:
        async with configured(tmp_path, upstream__urls=[one, two]) as gateway:
            started_at = metric(await gateway.metrics(), "config_last_reload_timestamp_seconds")
            assert abs(started_at - time.time()) < 60
            await gateway.remote.handshake()
            load = Load(gateway.remote)
            await load.more()
            # One more, then one less that has samples, then both others.
            gateway.write(upstream__urls=[one, two, three])
            await gateway.reload()
            await until_some(three)
            gateway.write(upstream__urls=[two, three], poll__hold_s=20)
            text = await gateway.reload()
            name = one.removeprefix("http://")
            there = metric(text, "upstream_inflight", upstream=name)
            assert there, "samples ran where no new ones go"
            assert metric(text, "upstream_draining", upstream=name) == 1
            async with asyncio.timeout(20):
                while name.encode() in await gateway.metrics():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            at_one = (await arrived(one)).total()
            await load.more()
            assert (await arrived(one)).total() == at_one
            gateway.write(upstream__urls=[one])
            await gateway.reload()
            await load.more(2 * CLIENTS)
            assert (await arrived(one)).total() > at_one
            await load.stop()
            text = await gateway.metrics()
            assert metric(text, "config_reloads_total") == 3
            assert metric(text, "config_reload_failures_total") == 0
            assert metric(text, "config_last_reload_timestamp_seconds") > started_at
            assert metric(text, "samples_inflight") == 0
            assert f"upstream.urls from ('{one}', '{two}')" in gateway.served.process.stderr
            assert "poll.hold_s from 30.0 to 20.0" in gateway.served.process.stderr
            # All came, each was sent once, and no poll saw anything else.
            assert set(load.seen) == {"submit 200", "poll 200"}
            assert sorted(load.delivered) == sorted(load.accepted)
            times = await arrived(one) + await arrived(two) + await arrived(three)
            assert times == Counter(load.accepted)


async def until_some(url: str) -> None:
    async with asyncio.timeout(20):
        while not await arrived(url):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_bad_file_changes_nothing_and_says_all_at_once(tmp_path: Path) -> None:
    with stand_in("--gen-seconds", "0.1") as url:
        async with configured(tmp_path, upstream__urls=[url]) as gateway:
            await gateway.remote.handshake()
            load = Load(gateway.remote)
            failures = "config_reload_failures_total"
            gateway.write(
                upstream__urls=["ftp://h"], poll__hold_s=99, poll__holds=1, store__max_in_flight=1
            )
            text = await gateway.reload(failures)
            (line,) = stays(gateway)
            for what in (
                "file: poll.hold_s = 99",
                "unknown setting poll.holds; did you mean poll.hold_s?",
                "upstream.urls: 'ftp://h'",
            ):
                assert what in line
            # What only a restart changes, beside what might change.
            gateway.write(
                upstream__urls=[url],
                store__max_in_flight=1,
                state__fsync="interval",
                id_key="k" * 16,
            )
            await gateway.reload(failures)
            _, line = stays(gateway)
            assert "state.fsync: from 'none' to 'interval' needs a restart" in line
            assert "id_key: from None to (hidden) needs a restart" in line
            gateway.file.write_text("[upstream")
            await gateway.reload(failures)
            gateway.file.unlink()
            await gateway.reload(failures)
            assert len(stays(gateway)) == 4
            await load.more()
            await load.stop()
            assert set(load.seen) == {"submit 200", "poll 200"}
            text = await gateway.metrics()
            assert metric(text, "config_reloads_total") == 0
            assert metric(text, failures) == 4
            gateway.write(upstream__urls=[url], store__max_in_flight=7)
            assert metric(await gateway.reload(), "config_reloads_total") == 1


def stays(gateway: Configured) -> list[str]:
    lines = gateway.served.process.stderr.splitlines()
    return [line for line in lines if "the settings stay as they were" in line]


async def test_flags_and_environment_still_win(tmp_path: Path) -> None:
    with stand_in() as url:
        async with configured(
            tmp_path, "--upstream", url, upstream__urls=["http://127.0.0.1:9"]
        ) as gateway:
            gateway.write(upstream__urls=["http://127.0.0.1:8"])
            await gateway.reload()
            await gateway.said("read again: they are the same")
            gateway.write(upstream__urls=["ftp://what"], upstream__max_connections=10_000_000)
            await gateway.reload("config_reload_failures_total")
            (line,) = stays(gateway)
            assert "upstream.max_connections = 10000000 needs" in line


async def test_limits_of_the_front_door_and_connections_change(tmp_path: Path) -> None:
    with stand_in() as url:
        async with configured(tmp_path, upstream__urls=[url]) as gateway:
            gateway.write(
                upstream__urls=[url], limits__header_s=0.5, upstream__max_connections=1000
            )
            await gateway.reload()
            began = time.monotonic()
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.remote.port)
            async with asyncio.timeout(8):
                assert await reader.read(100) == b""
            assert time.monotonic() - began < 5
            writer.close()


async def test_many_signals_end_with_the_last_file(tmp_path: Path) -> None:
    with stand_in() as url:
        async with configured(tmp_path, upstream__urls=[url]) as gateway:
            for number in range(20):
                gateway.write(upstream__urls=[url], store__max_in_flight=number + 1)
                gateway.served.process.signal(signal.SIGHUP)
            await gateway.said("to 20")
            assert metric(await gateway.metrics(), "config_reload_failures_total") <= 19
