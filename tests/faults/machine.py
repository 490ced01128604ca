"""The machine runs out: descriptors, ports, memory, disk; and its clock jumps. Some need root."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import msgspec

from asgi_gateway import Gateway
from loadgen.procfs import descriptors, usage
from tests.faults.clients import rss
from tests.faults.found import Found, Size
from tests.faults.judge import asked, counts, judged
from tests.faults.load import loaded, passes
from tests.faults.several import met, url_of
from tests.faults.sockets import close_all, opened, raise_limit
from tests.support.clock import ManualClock
from tests.support.gateway import Driven, settings
from tests.support.processes import environment, process, serve, stand_in
from tests.support.wire import SDK_HEADERS, Remote, poll, wire

MEMORY_CGROUPS: Final = Path("/sys/fs/cgroup/memory")
JUMP_S: Final = 3600.0
CPU_BAR: Final = 0.2
INSIDE: Final = "ports-inside"
PORTS: Final = 40
ROOM_WITHIN_S: Final = 45.0
ELSEWHERE: Final = "127.0.0.9"


# --- descriptors and ports --------------------------------------------------------------------


async def descriptors_gone(size: Size) -> Found:
    """The limit is lowered to what is open, more clients come, and it is raised again."""
    raise_limit()
    found = Found()
    with stand_in("--delay-s", "0.05") as vllm, serve(vllm) as gateway:
        pid = gateway.process.pid
        remote = Remote(gateway.port)
        await remote.handshake()
        await passes(remote)
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, ((descriptors(pid) or 0) + 5, hard))
        limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
        peers = []
        with contextlib.suppress(OSError, TimeoutError):
            peers = await opened(gateway.port, 40, lambda _: b"GET /livez HTTP/1.1\r\nhost: x\r\n")
        found.injected = len(peers)
        before, began = usage(pid), time.monotonic()
        await asyncio.sleep(3.0)  # how busy it is meanwhile
        after = usage(pid)
        left = limit - (descriptors(pid) or 0)
        found.needs(left <= 0, f"{left} descriptors were left, so nothing was tested")
        if before is not None and after is not None:
            busy = (after.cpu_s - before.cpu_s) / (time.monotonic() - began)
            found.figures["CPU meanwhile"] = round(busy, 3)
            found.needs(busy < CPU_BAR, f"{busy:.0%} of a core; the bar is {CPU_BAR:.0%}")
        found.needs(gateway.process.status is None, f"it ended: {gateway.process.stderr[-500:]}")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        close_all(peers)
        found.recovery_s = await passes(remote)
        result = await loaded(gateway.url, vllm, size.samples, "--style", "future")
        judgement = judged(result, asked([vllm]))
        said = len(gateway.process.stderr.splitlines())
        judgement.needs(said < 100, f"{said} lines in the log")
        judgement.problems += found.problems
        judgement.injected, judgement.recovery_s = found.injected, found.recovery_s
        judgement.figures = found.figures
        return judgement


async def ports_gone(size: Size) -> Found:
    """In a network of its own with few ports: fewer than connections upstream are allowed."""
    script = (
        f'ip link set lo up && echo "40000 {40000 + PORTS - 1}" >'
        " /proc/sys/net/ipv4/ip_local_port_range && exec"
        f" {sys.executable} -m tests.faults --inside {INSIDE} --sockets {size.sockets}"
    )
    if size.small:
        script += " --small"
    child = await asyncio.create_subprocess_exec(
        *("unshare", "--net", "sh", "-c", script),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, errors = await child.communicate()
    if child.returncode:
        raise AssertionError(errors.decode()[-2000:])
    return msgspec.json.decode(said, type=Found)


async def ports_inside(size: Size) -> Found:
    """The part of `ports_gone` that runs in that network."""
    with (
        # Asked at another address than the gateway does, for which there are other ports.
        stand_in("--host", f"{ELSEWHERE},127.0.0.1", "--delay-s", "0.5") as vllm,
        serve(vllm, upstream__max_connections=500) as gateway,
    ):
        seen_at = vllm.replace("127.0.0.1", ELSEWHERE)
        remote = Remote(gateway.port)
        await remote.handshake()
        found, ids = Found(), []
        async with wire(gateway.port) as link:  # ours take ports as well
            for number in range(PORTS * 3):
                body = remote.sample([number + 1, 2, 2])
                path, refused = "/api/v1/asample", 0
                while (answer := await link.ask("POST", path, body, SDK_HEADERS)).status != 200:
                    refused += 1
                    if answer.status not in (429, 503) or refused > 60:  # what the SDK repeats
                        raise AssertionError(f"{answer.status} {answer.body[:200]!r}")
                    found.figures["submits put off"] = found.figures.get("submits put off", 0) + 1
                    await asyncio.sleep(1.0)  # as the SDK waits
                ids.append(answer.json()["request_id"])
            for request_id in ids:
                path = "/api/v1/retrieve_future"
                while (told := await link.ask("POST", path, *poll(request_id))).status == 408:
                    pass
                found.survived += told.status == 200
                found.lost += told.status != 200
        # Samples that were to be sent and found no port.
        found.injected = await met(gateway.port)
        found.doubled = asked([seen_at]).again
        most = counts(seen_at)["running_max"]
        found.figures["at once upstream"] = most
        found.needs(most <= PORTS, f"{most} at once upstream, there are {PORTS} ports")
        found.recovery_s = await passes(remote)
        return found


# --- memory and disk --------------------------------------------------------------------------


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A cgroup (version 1) with a limit."""
    folder = MEMORY_CGROUPS / f"faults-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


async def memory_capped(size: Size) -> Found:
    """Large results that nobody fetches, in a cgroup that holds a part of them."""
    limit, tokens = 256 << 20, 60_000
    count = 400 if size.small else 1_000
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(memory_cgroup(limit))
        vllm = stack.enter_context(stand_in("--bodies", "lean"))
        serving = f"{sys.executable} -m asgi_gateway serve --port 0 --upstream {vllm}"
        # The gateway sees the limit as a container does: at the place where its cgroup is mounted.
        script = (
            f"echo $$ > {group}/cgroup.procs && mount --bind {group} {MEMORY_CGROUPS}"
            f" && exec {serving}"
        )
        running = stack.enter_context(
            process(["unshare", "--mount", "sh", "-c", script], environment())
        )
        remote = Remote(int(url_of(running).rsplit(":", 1)[1]))
        await remote.handshake()
        found, ids, most, gone = Found(), [], 0, 0
        for number in range(count):
            body = remote.sample([number, 4, 4], sampling_params={"max_tokens": tokens})
            answer = await remote.post("/api/v1/asample", body)
            if answer.status == 200:
                ids.append(answer.json()["request_id"])
            else:
                found.injected += answer.status in (429, 503)
                found.needs(answer.status in (429, 503), f"a submit is answered {answer.status}")
            if not number % 10:
                most = max(most, rss(running.pid))
        for request_id in ids:
            while (told := await remote.poll(request_id)).status == 408:
                pass
            found.survived += told.status == 200
            gone += told.status == 410
            found.lost += told.status not in (200, 410)
        found.figures["answered 410"] = gone
        most = max(most, int((group / "memory.max_usage_in_bytes").read_text()))
        found.figures |= {"MB at most": round(most / 1e6), "MB allowed": round(limit / 1e6)}
        found.needs(running.status is None, f"it ended with {running.status}")
        killed = int((group / "memory.failcnt").read_text())
        found.figures["times at the limit"] = killed
        # Full of results that were fetched: they make room after 30 s.
        try:
            found.recovery_s = await passes(remote, ROOM_WITHIN_S)
        except AssertionError as error:
            found.problems.append(f"full of results that were fetched, and {error}")
        return found


@contextlib.asynccontextmanager
async def small_disk(kib: int) -> AsyncIterator[Path]:
    """A file system of that size. Needs root."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        await _run("mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", folder)
        try:
            yield Path(folder)
        finally:
            await _run("umount", "--lazy", folder)


async def _run(*command: str) -> None:
    child = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    _, said = await child.communicate()
    if child.returncode:
        raise OSError(said.decode())


async def disk_full(size: Size) -> Found:
    """Sample log and journal on a disk that is full after some samples."""
    async with small_disk(128) as disk:
        with stand_in("--delay-s", "0.02") as vllm:
            settings = {"log__samples": disk / "samples.jsonl", "state__dir": disk / "state"}
            with serve(vllm, **settings) as gateway:
                samples = max(size.samples, 300)
                flags = ("--concurrency", "50")
                remote = Remote(gateway.port)
                await remote.handshake()
                first = await loaded(gateway.url, vllm, samples, *flags)
                await asyncio.to_thread(_fill, disk)
                result = await loaded(gateway.url, vllm, samples, *flags)
                metrics = await remote.metrics()
                found = judged(result, asked([vllm]))
                found.needs(first.outcomes.succeeded == samples, "samples before it are missing")
                dropped, healthy = metrics["log_dropped_total"], metrics["journal_healthy"]
                found.injected = int(dropped) + int(not healthy)
                found.figures |= {"log lines dropped": dropped, "journal healthy": healthy}
                found.needs(dropped > 0, "no line of the log was counted as dropped")
                found.needs(not healthy, "the journal is said to be healthy")
                found.recovery_s = await passes(remote)
                said = len(gateway.process.stderr.splitlines())
                found.needs(said < 50, f"{said} lines of warnings")
                (disk / "filler").unlink()
                return found


def _fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        for _ in range(1 << 20):
            file.write(b"x" * 512)


# --- the clock --------------------------------------------------------------------------------


class Jumping(ManualClock):
    """The wall clock may jump; the monotonic one goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.off_s = 0.0

    def wall_time(self) -> float:
        return super().wall_time() + self.off_s


async def clock_jumps(size: Size) -> Found:
    """The wall clock an hour ahead, then an hour back, results being held. In this process."""
    found, clock = Found(), Jumping()
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as folder,
        stand_in() as vllm,
    ):
        gateway = Gateway(settings(vllm, state__dir=folder), clock=clock)
        async with gateway.running():
            driven = Driven(gateway, clock)
            await driven.handshake()
            ids = []
            for number in range(size.samples):
                answer = await driven.submit(number)
                ids.append(answer.json()["request_id"])
            for off_s in (JUMP_S, -JUMP_S, 0.0):
                clock.off_s = off_s
                await driven.advance(1.0)
                found.injected += 1
                for request_id in ids:
                    told = await driven.poll(request_id).response()
                    found.needs(told.status == 200, f"{off_s:+.0f} s: a poll says {told.status}")
            more = await driven.submit(size.samples)
            found.needs(more.status == 200, f"a submit after it says {more.status}")
            ids.append(more.json()["request_id"])
            for request_id in ids:
                told = await driven.poll(request_id).response()
                found.survived += told.status == 200
                found.lost += told.status != 200
    return found
