"""Faults of one upstream: what it answers, how slowly, and whether at all."""

from __future__ import annotations

from collections import Counter
from typing import Final

from loadgen.faults import Fault
from loadgen.script import name_of
from tests.faults.found import Found, Size
from tests.faults.judge import FAILS, Record, asked, counts, hits, judged
from tests.faults.load import load, loaded, passes, rate, until
from tests.support.processes import serve, stand_in
from tests.support.wire import Remote

ONCE: Final = ("--fault-times", "1")
READ_TIMEOUT_S: Final = 1.5
EVERY: Final = 0.04
"""The share of each kind where all are given in one load."""

UPSTREAM_LOAD_BAR: Final = 1.2
RATE: Final = 100.0


async def single(script: str, size: Size) -> Found:
    """A load in which some samples meet a fault, each at most once."""
    with (
        stand_in("--faults", script, *ONCE) as vllm,
        serve(vllm, upstream__read_timeout_s=READ_TIMEOUT_S) as gateway,
    ):
        result = await loaded(gateway.url, vllm, size.samples, "--style", "future")
        return judged(result, asked([vllm]))


async def every_kind(size: Size) -> Found:
    """All 22 kinds in one load; half of the samples meet none."""
    script = ",".join(f"{name_of(kind)}:{EVERY}" for kind in Fault if kind is not Fault.REFUSE)
    script = f"refuse=0.3:#50,{script}".replace("drip:", "drip=0.5:")
    with (
        stand_in("--faults", script, *ONCE) as vllm,
        serve(vllm, upstream__read_timeout_s=READ_TIMEOUT_S) as gateway,
    ):
        samples = max(size.samples, 300)  # so that the rarest kind comes
        result = await loaded(gateway.url, vllm, samples, "--style", "future")
        found = judged(result, asked([vllm]))
        met = {fault.kind for fault in result.faults}
        never = sorted({name_of(kind) for kind in Fault} - met)
        found.needs(not never, f"never given: {', '.join(never)}")
        return found


async def bad_answers(size: Size) -> Found:
    """Bodies that are no result: failed, category server, an excerpt in the log."""
    script = ",".join(f"{kind}:0.06" for kind in FAILS)
    with stand_in("--faults", script, *ONCE) as vllm, serve(vllm) as gateway:
        result = await loaded(gateway.url, vllm, size.samples, "--style", "future")
        found = judged(result, asked([vllm]))
        said = gateway.process.stderr
        found.needs("it begins b'<!doctype html>" in said, "no excerpt of the page in the log")
        found.needs(
            all(line.isprintable() for line in said.splitlines()), "control characters in the log"
        )
        found.needs(max(map(len, said.splitlines())) < 1_500, "a line of the log is too long")
        return found


async def burst(kind: str, seconds: float, size: Size) -> Found:
    """Every answer is bad for a while, under a steady load."""
    begin_s, whole_s = 1.0, 4 if size.small else 8
    with (
        stand_in("--faults", f"{kind}:{begin_s:g}s-{begin_s + seconds:g}s") as vllm,
        serve(vllm) as gateway,
    ):
        samples = int(whole_s * RATE)
        result = await loaded(gateway.url, vllm, samples, *rate(RATE), "--style", "future")
        found = judged(result, asked([vllm]))
        if found.recovery_s is not None:  # the first of them waited for the whole of it
            found.recovery_s = round(max(0.0, found.recovery_s - seconds), 3)
        due = RATE * seconds
        factor = found.injected / due
        found.figures["upstream load"] = round(factor, 3)
        found.needs(
            factor <= UPSTREAM_LOAD_BAR,
            f"{found.injected} upstream requests meanwhile, {due:g} samples were due: a factor of"
            f" {factor:.2f}; the bar is {UPSTREAM_LOAD_BAR}",
        )
        return found


async def retry_after(size: Size) -> Found:
    """429 and 503 that say when to come back."""
    wait_s = 1.0
    script = f"429={wait_s:g}:#1-#20,503={wait_s:g}:#21-#40"
    with (
        stand_in("--faults", script) as vllm,
        serve(vllm, poll__hold_s=0.3) as gateway,
    ):
        async with load(gateway.url, vllm, size.samples, "--style", "future") as running:
            remote = Remote(gateway.port)
            await remote.handshake()
            await until(lambda: counts(vllm)["faults"].get("RATE_LIMITED", 0) > 0, "429", 20)
            result = await running.result()
        record = asked([vllm])
        found = judged(result, record)
        again = spans_s(vllm, record)
        found.figures["sent again after, s"] = min(again, default=0.0)
        found.needs(bool(again), "no sample was sent again under its id")
        early = [span_s for span_s in again if span_s < wait_s]
        found.needs(
            not early,
            f"{len(early)} of {len(again)} were sent again before their time, the first after"
            f" {min(early, default=0):.2f} s",
        )
        return found


def spans_s(vllm: str, record: Record) -> list[float]:
    """Of the samples that were sent twice and met one fault: from the first request to the answer
    to the second, the stand-in answering at once."""
    times = hits(vllm)
    return [
        times[name][2] - times[name][1]
        for name, count in record.requests.items()
        if count == 2 and len(record.faulted.get(name, ())) == 1
    ]


async def paused(size: Size) -> Found:
    """An upstream that is full for a while: polls say so."""
    found = Found(injected=1)
    with (
        stand_in("--faults", "503=1:#1") as vllm,
        serve(vllm, poll__hold_s=0.2) as gateway,
    ):
        remote = Remote(gateway.port)
        await remote.handshake()
        request_id = await remote.submit()
        told = await remote.poll(request_id)
        said = told.json() if told.status == 408 else {}
        found.needs(
            (said.get("type"), said.get("queue_state")) == ("try_again", "paused_capacity"),
            f"a poll meanwhile said {told.status} {told.body[:200]!r}",
        )
        while (told := await remote.poll(request_id)).status == 408:
            pass
        found.survived = int(told.status == 200)
        found.doubled = max(0, sum(asked([vllm]).requests.values()) - 2)
    return found


async def drip_beyond_the_work_clock(size: Size) -> Found:
    """A body so slow that the work clock ends: an error result, and the connection is closed."""
    found = Found()
    with (
        stand_in("--faults", "drip=60:#1-#5") as vllm,
        serve(vllm, upstream__read_timeout_s=READ_TIMEOUT_S, poll__hold_s=20) as gateway,
    ):
        remote = Remote(gateway.port)
        await remote.handshake()
        ids = [
            await remote.submit([n, 5, 6], sampling_params={"max_tokens": 200}) for n in range(10)
        ]
        ends: Counter[str] = Counter()
        for request_id in ids:
            told = await remote.poll(request_id)
            failed = told.status == 200 and b'"category":"server"' in told.body
            right = told.status == 200 and b"error" not in told.body[:20]
            ends["by the clock" if failed else "right" if right else str(told.status)] += 1
            found.survived += failed or right
            found.lost += not (failed or right)
        found.needs(ends == {"by the clock": 5, "right": 5}, f"they ended so: {dict(ends)}")
        found.injected = counts(vllm)["faults"].get("DRIP", 0)
        found.recovery_s = await until(
            lambda: counts(vllm)["running"] == 0, "end of the slow answers upstream"
        )
        found.doubled = asked([vllm]).again
    return found


async def hang(size: Size) -> Found:
    """Some requests are never answered: their slots are freed, the others do not wait."""
    slots = 20
    with (
        stand_in("--faults", "hang:0.2", *ONCE, "--delay-s", "0.05") as vllm,
        serve(
            vllm, upstream__read_timeout_s=READ_TIMEOUT_S, upstream__max_connections=slots
        ) as gateway,
    ):
        result = await loaded(gateway.url, vllm, size.samples, "--style", "future")
        found = judged(result, asked([vllm]))
        await until(lambda: counts(vllm)["running"] == 0, "end of what hung")
        remote = Remote(gateway.port)
        await remote.handshake()
        await passes(remote)
        return found
