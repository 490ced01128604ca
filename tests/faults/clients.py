"""Clients that are slow, that leave, that all come at once, that say things twice or no more."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final
from urllib.request import Request, urlopen

from loadgen.procfs import usage
from tests.faults.found import Found, Size
from tests.faults.judge import asked, counts
from tests.faults.load import passes, until
from tests.faults.sockets import close_all, opened, poll_of, raise_limit, settled
from tests.support.processes import serve, stand_in
from tests.support.wire import Remote, wire

WRITE_S: Final = 3
PER_READER_BYTES: Final = 256 << 10
SLOW_S: Final = 0.2


def rss(pid: int) -> int:
    seen = usage(pid)
    assert seen is not None
    return seen.rss_bytes


async def slow_readers(size: Size) -> Found:
    """Polls of a large result that nobody reads."""
    raise_limit()
    tokens, count = 300_000, min(size.sockets // 2, 200)
    found = Found()
    with (
        stand_in("--max-model-len", "400000", "--bodies", "lean") as vllm,
        serve(vllm, limits__write_s=WRITE_S) as gateway,
    ):
        remote = Remote(gateway.port)
        await remote.handshake()
        big = await remote.submit(sampling_params={"max_tokens": tokens})
        whole = await remote.poll(big)
        assert whole.status == 200, whole.body[:200]
        before = rss(gateway.process.pid)
        data = poll_of(big)
        peers = await opened(gateway.port, count, lambda _: data, reads=False, buffer=4096)
        found.injected = len(peers)
        most = before
        for _ in range(5):
            await passes(remote)
            most = max(most, rss(gateway.process.pid))
        grown = most - before
        found.figures["MB more"] = round(grown / 1e6, 1)
        bound = count * PER_READER_BYTES + len(whole.body) * 8
        found.needs(
            grown < bound,
            f"{grown / 1e6:.0f} MB more for {count} readers of one result of"
            f" {len(whole.body) / 1e6:.1f} MB; the bound is {bound / 1e6:.0f} MB",
        )
        await asyncio.sleep(WRITE_S + 2)  # whether it was closed shows only where one reads
        for peer in peers:
            peer.transport.resume_reading()
        await settled(lambda: all(peer.gone or peer.got >= len(whole.body) for peer in peers), 20)
        begun = sum(peer.status == 200 for peer in peers)
        found.needs(begun == count, f"{count - begun} of {count} polls were never answered")
        served = sum(peer.got >= len(whole.body) for peer in peers)
        found.needs(not served, f"{served} of {count} connections stayed open without reading")
        close_all(peers)
        again = await remote.poll(big)
        found.survived = int(again.status == 200 and again.body == whole.body)
        return found


async def abandoned(size: Size) -> Found:
    """Polls whose clients leave at once, after a while, or with a reset."""
    raise_limit()
    waves, pick = 20, random.Random(1)
    found = Found()
    with stand_in("--barrier") as vllm, serve(vllm) as gateway:
        remote = Remote(gateway.port)
        await remote.handshake()
        ids = [await remote.submit([n, 1, 2]) for n in range(20)]
        polls = [poll_of(request_id) for request_id in ids]
        sizes = []
        for _ in range(waves):
            peers = await opened(gateway.port, size.polls // waves, lambda n: polls[n % len(polls)])
            await asyncio.sleep(pick.uniform(0, 0.05))
            for peer in peers:
                if pick.random() < 0.5:
                    peer.leave()
                else:
                    peer.transport.close()
            found.injected += len(peers)
            sizes.append(rss(gateway.process.pid))
        began = time.monotonic()
        await remote.polls_parked(0, 60)
        met = int((await remote.metrics())['polls_total{result="abandoned"}'])
        found.figures["polls seen to leave"] = met
        found.needs(met > found.injected // 2, f"{met} of {found.injected} polls were polls")
        found.recovery_s = round(time.monotonic() - began, 3)
        grown = rss(gateway.process.pid) - sizes[waves // 4]
        found.figures["MB more after a quarter"] = round(grown / 1e6, 2)
        found.needs(grown < 12e6, f"{grown / 1e6:.1f} MB more than after a quarter of the polls")
        await asyncio.to_thread(_release, vllm)
        for request_id in ids:
            told = await remote.poll(request_id)
            found.survived += told.status == 200
            found.lost += told.status != 200
        found.doubled = asked([vllm]).again
        return found


def _release(vllm: str) -> None:
    with urlopen(Request(f"{vllm}/release", method="POST"), timeout=30):
        pass


async def storm(size: Size) -> Found:
    """Every open poll breaks off, and all clients ask again at once."""
    raise_limit()
    found = Found()
    with stand_in("--barrier") as vllm, serve(vllm, upstream__max_connections=100) as gateway:
        remote = Remote(gateway.port)
        await remote.handshake()
        async with wire(gateway.port) as link:
            ids = []
            for number in range(size.sockets):
                body = remote.sample([number, 3, 4])
                answer = await link.ask("POST", "/api/v1/asample", body)
                ids.append(answer.json()["request_id"])
        polls = [poll_of(request_id) for request_id in ids]
        first = await opened(gateway.port, len(polls), lambda n: polls[n])
        await remote.polls_parked(len(polls), 60)
        stop = asyncio.Event()
        slow = asyncio.create_task(_last_slow(remote, stop))
        began = time.monotonic()
        close_all(first)
        second = await opened(gateway.port, len(polls), lambda n: polls[n])
        found.injected = len(second)
        await remote.polls_parked(len(polls), 60)
        early = sum(peer.status != 0 for peer in second)
        found.needs(not early, f"{early} polls were answered before there was anything to tell")
        await asyncio.to_thread(_release, vllm)
        done = await settled(lambda: all(peer.status for peer in second), 60)
        stop.set()
        last = await slow
        found.recovery_s = round(max(0.0, last - began), 3)
        found.needs(found.recovery_s < 30, "health checks were slow for longer than a hold")
        found.survived = sum(peer.status == 200 for peer in second)
        found.lost = len(second) - found.survived if done is None else 0
        others = {peer.status for peer in second} - {200}
        found.needs(not others, f"answers other than 200: {others}")
        close_all(second)
        found.doubled = asked([vllm]).again
        return found


async def _last_slow(remote: Remote, stop: asyncio.Event) -> float:
    """When the last health check ended that took more than SLOW_S."""
    last = 0.0
    while not stop.is_set():
        began = time.monotonic()
        answer = await remote.get("/api/v1/healthz")
        ended = time.monotonic()
        if answer.status != 200 or ended - began > SLOW_S:
            last = ended
        await asyncio.sleep(0.05)
    return last


async def duplicates(size: Size) -> Found:
    """Each submit five times: at once over several connections, and again after its result."""
    times = 4
    found = Found()
    with stand_in("--delay-s", "0.1") as vllm, serve(vllm) as gateway:
        remote = Remote(gateway.port)
        await remote.handshake()
        bodies = [remote.sample([n, 9, 9]) for n in range(size.samples)]
        ids: list[set[str]] = []
        for begin in range(0, len(bodies), 25):
            some = bodies[begin : begin + 25]
            answers = await asyncio.gather(
                *(remote.post("/api/v1/asample", body) for body in some for _ in range(times))
            )
            for place in range(len(some)):
                own = answers[place * times : (place + 1) * times]
                found.injected += times - 1
                found.needs(all(a.status == 200 for a in own), "a repeated submit was refused")
                ids.append({a.json()["request_id"] for a in own})
        for (request_id, *others), body in zip(map(sorted, ids), bodies, strict=True):
            found.doubled += len(others)
            told = await remote.poll(request_id)
            found.survived += told.status == 200
            found.lost += told.status != 200
            again = (await remote.post("/api/v1/asample", body)).json()["request_id"]
            found.injected += 1
            found.doubled += again != request_id
        other = {**bodies[0], "num_samples": 2}
        refused = await remote.post("/api/v1/asample", other)
        found.needs(refused.status == 422, f"another body under the same key: {refused.status}")
        record = asked([vllm])
        found.doubled += record.total - len(bodies)
        return found


async def sessions_end(size: Size) -> Found:
    """One session is finished, one falls silent, with samples upstream and results held."""
    lapse_s = 2.0
    found = Found()
    with stand_in("--barrier") as vllm, serve(vllm, session__timeout_s=lapse_s) as gateway:
        for finished in (True, False):
            remote = Remote(gateway.port)
            await remote.handshake()
            ids = [await remote.submit([n, 8, 8]) for n in range(50)]
            await until(lambda: counts(vllm)["running"] == 50, "samples upstream")
            began = time.monotonic()
            if finished:
                path = f"/api/v1/sessions/{remote.session_id}/finish"
                answer = await remote.post(path, {"reason": {"type": "success"}})
                found.needs(answer.status == 200, f"finish: {answer.status}")
            await until(lambda: counts(vllm)["running"] == 0, "end of the samples upstream")
            ended_s = time.monotonic() - began - (0.0 if finished else lapse_s)
            found.injected += 1
            found.recovery_s = round(max(found.recovery_s or 0.0, ended_s), 3)
            found.needs(ended_s < 2.0, f"slots were free after {ended_s:.1f} s")
            for request_id in ids:
                told = await remote.poll(request_id)
                found.survived += told.status == 410
                found.needs(told.status == 410, f"a poll after the end says {told.status}")
        await remote.until(
            lambda now: now["samples_inflight"] == 0 and now["charged_bytes"] == 0, 10
        )
        return found
