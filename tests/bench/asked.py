"""What the shared store's server is asked for a sample, on each way that it can go.

    python -m tests.bench.asked

Two gateways share a real server; a sample of 64 prompt and 16 output tokens is submitted to the one
and polled for at it or at the other. Calls are read off MONITOR, so they are exact; bytes are of
the commands as they go over the wire, without replies. What is asked whatever the load is (leases,
sweeps, signs of life) is left out. Then many go each way at once: CPU time of the server and of
both gateways, and what the server received and sent, over their number, less what it is without
load. At last many samples are held, and the server's own count of its memory and the growth of its
append-only file are divided by their number.
"""

import argparse
import asyncio
import contextlib
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from asgi_gateway.shared.library import VERB_PREFIX
from asgi_gateway.shared.outbox import TELL_DELIVERY_AFTER_S, TELL_START_AFTER_S
from loadgen.procfs import usage
from loadgen.standin import StandIn
from tests.support.processes import Process, stand_in
from tests.support.supervised import Supervised
from tests.support.valkey import Valkey, valkey
from tests.support.wire import SDK_HEADERS, Remote, Wire, poll, wire

PROMPT = [100_000 + n for n in range(64)]
OUTPUT = {"sampling_params": {"max_tokens": 16}}
EACH = 20
HELD = 10_000
MANY = 4_000
AT_ONCE = 400
FETCHERS = 50
HOLD_S = 1.0
# Polls that are held and come again.
PARKED, AGAIN_S = 400, 12.0
# Longer than what is told late waits to be told.
LATER_S = max(TELL_DELIVERY_AFTER_S, TELL_START_AFTER_S) + 0.7
SHORT_S, LONG_S = 0.3, 2.0
LINE = re.compile(r'^\S+ \[\d+ (?!lua)\S+\] (".*)$')
ARGUMENT = re.compile(r'"((?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(r"\\(?:x..|.)")
# Whatever the load is.
REST = re.compile("sweep|SET|SADD|SMEMBERS|EXISTS|HEXISTS|PEXPIRE|ECHO|MONITOR|PING|INFO")


class Asked(msgspec.Struct):
    """Of one way, for each sample. calls: by function or command. nbytes: of the commands."""

    way: str
    calls: dict[str, float]
    nbytes: float

    def __str__(self) -> str:
        calls = ", ".join(f"{name} {count:g}" for name, count in sorted(self.calls.items()))
        return f"{self.way}: {sum(self.calls.values()):g} calls, {self.nbytes:.0f} B: {calls}"


class Cost(msgspec.Struct):
    """Of each of many samples, or of polls that come again. Microseconds; bytes of the server."""

    way: str
    server_us: float
    gateways_us: float
    received: float
    sent: float

    def __str__(self) -> str:
        return (
            f"{self.way}: server {self.server_us:.0f} us, gateways {self.gateways_us:.0f} us; "
            f"it received {self.received:.0f} B and sent {self.sent:.0f} B"
        )


class Held(msgspec.Struct):
    """Bytes of each of many samples. memory: of the server; file: that it appends to."""

    unfinished_memory: float
    settled_memory: float
    unfinished_file: float
    settled_file: float


class Monitor:
    """What a server executes for its clients, while this is open."""

    def __init__(self, server: Valkey, process: Process) -> None:
        self._server = server
        self._process = process
        self._marks = 0
        self._begun = 0

    def start(self) -> None:
        self._begun = self._mark()

    def _mark(self) -> int:
        """How much was printed, when all was that was executed until now."""
        self._marks += 1
        mark = f"mark-{self._marks}-"
        self._server.run("ECHO", mark)
        self._process.wait_for(lambda: mark in self._process.stdout, mark)
        return self._process.stdout.index(mark)

    def read(self) -> tuple[Counter[str], int]:
        """Commands and their bytes since `start`, without what is asked whatever the load is."""
        calls: Counter[str] = Counter()
        nbytes = 0
        end = self._mark()
        for line in self._process.stdout[self._begun : end].splitlines():
            match = LINE.match(line)
            if match is None:
                continue
            arguments = [ESCAPE.sub("x", text) for text in ARGUMENT.findall(match[1])]
            name = arguments[0]
            if name == "FCALL":
                name = arguments[1].removeprefix(VERB_PREFIX)
            if not REST.fullmatch(name):
                calls[name] += 1
                lengths = [len(argument) for argument in arguments]
                nbytes += len(f"*{len(lengths)}\r\n")
                nbytes += sum(len(f"${length}\r\n") + length + 2 for length in lengths)
        return calls, nbytes


@contextlib.contextmanager
def monitored(server: Valkey) -> Iterator[Monitor]:
    with contextlib.closing(Process(["redis-cli", "-p", str(server.port), "MONITOR"])) as process:
        process.wait_for(lambda: process.stdout.startswith("OK"), "OK")
        yield Monitor(server, process)


class Pair:
    """One client at two gateways; the session was made at the first. vllm: the stand-in's URL."""

    def __init__(self, vllm: str, pids: list[int], owner: Remote, other: Remote) -> None:
        self.vllm = vllm
        self.pids = pids
        self.owner = owner
        self.other = other
        other.session_id = owner.session_id
        other.sampling_session_id = owner.sampling_session_id

    async def single(self, at: Remote, *, parked: bool) -> None:
        """Submit, and one poll that is parked, or comes when all is settled."""
        request_id = await self.owner.submit(PROMPT, **OUTPUT)
        if not parked:
            await self.owner.until(lambda now: now["samples_inflight"] == 0)
        answer = await at.poll(request_id)
        assert answer.status == 200, answer.body

    async def batch(self, at: Remote, number: int) -> None:
        """So many at a time, found by batched polls, fetched one by one, acknowledged together."""
        own = {await self.owner.submit(PROMPT, **OUTPUT) for _ in range(number)}
        cursor, left = 0, set(own)
        while left:
            page = await self.page(at, cursor, [], 5)
            cursor = page["cursor"]
            for entry in page["completions"]:
                left.discard(entry["request_id"])
        async with wire(at.port) as connection:
            for request_id in own:
                connection.send("POST", "/api/v1/retrieve_future", *poll(request_id))
                assert (await connection.read()).status == 200
        await self.page(at, cursor, sorted(own))

    def paged(self, cursor: int, acknowledged: list[str], timeout_s: float) -> dict[str, Any]:
        """The body of a batched poll."""
        return {
            "target": {
                "type": "sampling_session",
                "sampling_session_id": self.owner.sampling_session_id,
                "cloned_sampler_id": 0,
            },
            "prev_cursor": cursor,
            "retrieved_request_ids": acknowledged,
            "timeout": timeout_s,
        }

    async def page(
        self, at: Remote, cursor: int, acknowledged: list[str], timeout_s: float = 0
    ) -> dict[str, Any]:
        asked = self.paged(cursor, acknowledged, timeout_s)
        answer = await at.post("/api/v1/retrieve_futures", asked)
        assert answer.status == 200, answer.body
        page: dict[str, Any] = answer.json()
        return page


@contextlib.asynccontextmanager
async def pair(
    server: Valkey, generation_s: float, *flags: str, hold_s: float = 30.0
) -> AsyncIterator[Pair]:
    with contextlib.ExitStack() as stack:
        vllm = stack.enter_context(stand_in("--delay-s", str(generation_s), *flags))
        remotes, pids = [], []
        for _ in range(2):
            given = {"store__url": server.url, "store__lease_s": 60.0, "poll__hold_s": hold_s}
            gateway = Supervised(vllm, None, given)
            stack.callback(gateway.close)
            remotes.append(Remote(gateway.port))
            pids.append(gateway.process.pid)
        for remote in remotes:
            await remote.until(lambda now: now["upstreams_available"] == 1)
        await remotes[0].handshake()
        made = Pair(vllm, pids, *remotes)
        for remote in remotes:  # what each asks once of the session
            await made.page(remote, 0, [])
        yield made


async def ways(server: Valkey) -> list[Asked]:
    """Each, in a table's order."""
    found = []
    with monitored(server) as monitor:

        async def measured(way: str, run: Callable[[], Awaitable[None]], samples: int) -> None:
            monitor.start()
            await run()
            await asyncio.sleep(LATER_S)
            calls, nbytes = monitor.read()
            each = {name: count / samples for name, count in calls.items()}
            found.append(Asked(way, each, nbytes / samples))

        async with pair(server, SHORT_S) as it:
            await measured("a poll at the owner", lambda: it.single(it.owner, parked=True), 1)
            await measured("a poll at another", lambda: it.single(it.other, parked=True), 1)
            way = "a poll at another, later"
            await measured(way, lambda: it.single(it.other, parked=False), 1)
            way = f"batched at the owner, {EACH} at a time"
            await measured(way, lambda: it.batch(it.owner, EACH), EACH)
            way = f"batched at another, {EACH} at a time"
            await measured(way, lambda: it.batch(it.other, EACH), EACH)
        async with pair(server, LONG_S) as it:
            way = f"a run of over {TELL_START_AFTER_S:g} s, a poll at the owner"
            await measured(way, lambda: it.single(it.owner, parked=True), 1)
    return found


async def costs(server: Valkey) -> list[Cost]:
    found = []
    # Runs that last, as most do, so that their start is told.
    for batched, run in (("a poll", _singles), ("batched", _batches)):
        async with pair(server, LONG_S) as it:
            idle = await _rest(server, it)
            for where, at in (("the owner", it.owner), ("another", it.other)):
                before = _spent(server, it)
                await run(it, at, MANY)
                await asyncio.sleep(LATER_S)
                way = f"{batched} at {where}"
                found.append(_cost(way, before, _spent(server, it), idle, MANY))
    async with pair(server, 3600.0, hold_s=HOLD_S) as it:
        ids = [await it.owner.submit(PROMPT, **OUTPUT) for _ in range(PARKED)]
        await asyncio.sleep(LATER_S)
        idle = await _rest(server, it)
        again = (("again at the owner", it.owner), ("again at another", it.other))
        for way, at in again:
            before = _spent(server, it)
            polls = await _held_polls(at, ids)
            found.append(_cost(way, before, _spent(server, it), idle, polls))
    return found


async def _submitted(it: Pair, at: Remote, count: int, then: Callable[[Wire, str], Any]) -> None:
    """Over connections that are kept, one to each of the two for each that is at work."""
    bodies = iter([it.owner.sample(PROMPT, **OUTPUT) for _ in range(count)])

    async def one_after_the_other() -> None:
        async with wire(it.owner.port) as submits, wire(at.port) as polls:
            for body in bodies:
                accepted = await submits.ask("POST", "/api/v1/asample", body, SDK_HEADERS)
                await then(polls, accepted.json()["request_id"])

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))


async def _fetched(connection: Wire, request_id: str) -> None:
    answer = await connection.ask("POST", "/api/v1/retrieve_future", *poll(request_id))
    assert answer.status == 200, answer.body


async def _singles(it: Pair, at: Remote, count: int) -> None:
    await _submitted(it, at, count, _fetched)


async def _batches(it: Pair, at: Remote, count: int) -> None:
    """One poller; what it finds is fetched over one connection for each that submits."""
    submitted: set[str] = set()

    async def noted(connection: Wire, request_id: str) -> None:
        submitted.add(request_id)

    submits = asyncio.create_task(_submitted(it, at, count, noted))
    async with contextlib.AsyncExitStack() as stack:
        polls = await stack.enter_async_context(wire(at.port))
        pool = [await stack.enter_async_context(wire(at.port)) for _ in range(FETCHERS)]

        async def fetch(connection: Wire, left: list[str]) -> None:
            while left:
                await _fetched(connection, left.pop())

        acknowledged: list[str] = []
        fetched, cursor = 0, (await it.page(at, 0, []))["cursor"]
        while fetched < count:
            asked = it.paged(cursor, acknowledged, 5)
            page = (await polls.ask("POST", "/api/v1/retrieve_futures", asked, SDK_HEADERS)).json()
            cursor = page["cursor"]
            acknowledged = [entry["request_id"] for entry in page["completions"]]
            left = list(acknowledged)
            await asyncio.gather(*(fetch(connection, left) for connection in pool))
            fetched += len(acknowledged)
        asked = it.paged(cursor, acknowledged, 0)
        await polls.ask("POST", "/api/v1/retrieve_futures", asked, SDK_HEADERS)
    await submits


async def _held_polls(at: Remote, ids: list[str]) -> int:
    """How many polls were held, for a while, one for each."""
    loop = asyncio.get_running_loop()
    until = loop.time() + AGAIN_S

    async def again(request_id: str) -> int:
        polls = 0
        async with wire(at.port) as connection:
            while loop.time() < until:
                answer = await connection.ask("POST", "/api/v1/retrieve_future", *poll(request_id))
                assert answer.status == 408, answer.body
                polls += 1
        return polls

    return sum(await asyncio.gather(*(again(request_id) for request_id in ids)))


class Spent(msgspec.Struct):
    """Until now: CPU seconds, bytes."""

    at: float
    server_s: float
    gateways_s: float
    received: int
    sent: int


def _spent(server: Valkey, it: Pair) -> Spent:
    info = _info(server)
    return Spent(
        asyncio.get_running_loop().time(),
        float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
        sum(used.cpu_s for pid in it.pids if (used := usage(pid)) is not None),
        int(info["total_net_input_bytes"]),
        int(info["total_net_output_bytes"]),
    )


async def _rest(server: Valkey, it: Pair) -> Cost:
    """A second without load."""
    before = _spent(server, it)
    await asyncio.sleep(5.0)
    after = _spent(server, it)
    nothing = Cost("", 0.0, 0.0, 0.0, 0.0)
    return _cost("a second", before, after, nothing, after.at - before.at)


def _cost(way: str, before: Spent, after: Spent, idle: Cost, count: float) -> Cost:
    seconds = after.at - before.at
    return Cost(
        way,
        ((after.server_s - before.server_s) * 1e6 - idle.server_us * seconds) / count,
        ((after.gateways_s - before.gateways_s) * 1e6 - idle.gateways_us * seconds) / count,
        (after.received - before.received - idle.received * seconds) / count,
        (after.sent - before.sent - idle.sent * seconds) / count,
    )


async def held(server: Valkey, count: int) -> Held:
    """With an append-only file; the samples are of one session, and nobody polls for them."""
    server.run("CONFIG", "SET", "appendonly", "yes")
    async with pair(server, 0.0, "--barrier") as it:
        figures = [_sizes(server)]
        left = iter([it.owner.sample(PROMPT, **OUTPUT) for _ in range(count)])

        async def submit() -> None:
            async with wire(it.owner.port) as connection:
                for body in left:
                    answer = await connection.ask("POST", "/api/v1/asample", body, SDK_HEADERS)
                    assert answer.status == 200, answer.body

        await asyncio.gather(*(submit() for _ in range(AT_ONCE)))
        figures.append(_sizes(server))
        await StandIn(it.vllm).release()
        await it.owner.until(lambda now: now["samples_inflight"] == 0, within_s=60)
        await it.owner.until(lambda now: now["store_unwritten"] == 0, within_s=60)
        figures.append(_sizes(server))
    before, unfinished, settled = figures
    return Held(
        unfinished_memory=(unfinished[0] - before[0]) / count,
        settled_memory=(settled[0] - before[0]) / count,
        unfinished_file=(unfinished[1] - before[1]) / count,
        settled_file=(settled[1] - before[1]) / count,
    )


def _sizes(server: Valkey) -> tuple[int, int]:
    info = _info(server)
    return int(info["used_memory"]), int(info["aof_current_size"])


def _info(server: Valkey) -> dict[str, str]:
    lines = server.run("INFO").splitlines()
    return dict(line.strip().split(":", 1) for line in lines if ":" in line)


async def main() -> None:
    parser = argparse.ArgumentParser(description="What a sample asks of the shared store.")
    parser.add_argument(
        "--held", type=int, default=HELD, help="samples held (default: %(default)s)"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with valkey(Path(folder)) as server:
            for asked in await ways(server):
                print(asked, flush=True)
        with valkey(Path(folder)) as server:
            for cost in await costs(server):
                print(cost, flush=True)
        with valkey(Path(folder)) as server:
            print(await held(server, arguments.held))


if __name__ == "__main__":
    asyncio.run(main())
