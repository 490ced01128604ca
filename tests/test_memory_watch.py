"""Which control group limits the process, and what is done as its memory fills up."""

import os
from pathlib import Path

import pytest

from asgi_gateway.admission import Admission
from asgi_gateway.errors import Exhausted, Overloaded
from asgi_gateway.kernel import memory_files, memory_limit_bytes
from asgi_gateway.memory_watch import (
    BEGINS,
    HYSTERESIS,
    Level,
    MemoryWatch,
    Meter,
    Reading,
    level_at,
    process_meter,
)
from asgi_gateway.metrics import Metrics
from tests.support.gateway import driven
from tests.support.held import metric
from tests.support.upstream import FakeUpstream

PHYSICAL = 4_096_000
V2_LINE = "0::/a/b\n"
V1_LINES = "5:cpu:/elsewhere\n4:memory,hugetlb:/a/b\n0::/\n"


class Machine:
    """Folders that look like /proc/self and mounted control groups."""

    def __init__(self, folder: Path, cgroup: str, kind: str, root: str = "/") -> None:
        self.proc, self.mount, self.kind = folder / "proc", folder / "groups", kind
        self.proc.mkdir()
        self.mount.mkdir()
        (self.proc / "cgroup").write_text(cgroup)
        options = "rw,memory,hugetlb" if kind == "cgroup" else "rw"
        (self.proc / "mountinfo").write_text(
            "20 1 0:1 / / rw - ext4 /dev/root rw\n"
            f"31 20 0:2 {root} {self.mount} rw,relatime shared:9 - {kind} cgroup {options}\n"
        )

    def limit(self, group: str, limit: str, used: int = 0, statistics: str = "") -> None:
        here = self.mount / group
        here.mkdir(parents=True, exist_ok=True)
        names = ("memory.max", "memory.current")
        if self.kind == "cgroup":
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        (here / names[0]).write_text(f"{limit}\n")
        (here / names[1]).write_text(f"{used}\n")
        (here / "memory.stat").write_text(statistics)


@pytest.fixture(autouse=True)
def physical(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"SC_PHYS_PAGES": PHYSICAL // 4096, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", values.__getitem__)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"a/b": "1000"}, 1000),
        ({"a/b": "max", "a": "2000"}, 2000),
        ({"a/b": "3000", "a": "2000"}, 2000),
        ({"a/b": "2000", "a": "3000"}, 2000),
        ({"a/b": "3000", "": "2000"}, 2000),
        ({"a/b": "max"}, PHYSICAL),
        ({"a/b": "9223372036854771712"}, PHYSICAL),
        ({"other": "1000", "a/b": "max"}, PHYSICAL),
        ({"": "1000"}, 1000),
        ({}, PHYSICAL),
    ],
)
@pytest.mark.parametrize("kind", ["cgroup", "cgroup2"])
def test_the_lowest_limit_on_the_way_up_counts(
    tmp_path: Path, kind: str, limits: dict[str, str], expected: int
) -> None:
    machine = Machine(tmp_path, V2_LINE if kind == "cgroup2" else V1_LINES, kind)
    for group, limit in limits.items():
        machine.limit(group, limit)
    assert memory_limit_bytes(machine.proc) == expected


@pytest.mark.parametrize("inside", ["", "b"])
def test_a_container_that_sees_its_group_as_the_root(tmp_path: Path, inside: str) -> None:
    machine = Machine(tmp_path, V1_LINES, "cgroup", root="/a" if inside else "/a/b")
    machine.limit(inside, "1000")
    assert memory_limit_bytes(machine.proc) == 1000


def test_without_proc_it_is_the_machines(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path / "nothing") == PHYSICAL


@pytest.mark.parametrize(
    ("kind", "statistics"),
    [
        ("cgroup2", "anon 5\ninactive_file 150\nactive_file 9\n"),
        ("cgroup", "inactive_file 1\ntotal_cache 7\ntotal_inactive_file 150\n"),
    ],
)
def test_file_cache_that_can_be_taken_back_is_not_used(
    tmp_path: Path, kind: str, statistics: str
) -> None:
    machine = Machine(tmp_path, V2_LINE if kind == "cgroup2" else V1_LINES, kind)
    machine.limit("a/b", "1000", 950, statistics)
    assert Meter(memory_files(machine.proc))() == Reading(800, 1000)


def test_this_process() -> None:
    reading = process_meter()()
    assert reading.used > 1 << 20
    assert reading.limit > 0


# --- levels -------------------------------------------------------------------------------------


def test_levels_begin_and_end() -> None:
    at = level_at
    assert [at(share, Level.FINE) for share in (0.849, 0.85, 0.919, 0.92, 0.949, 0.95)] == [
        *(Level.FINE, Level.FULL, Level.FULL),
        *(Level.SHEDDING, Level.SHEDDING, Level.CLOSED),
    ]
    for level, begins in BEGINS.items():
        assert at(begins - HYSTERESIS, level) is level
        assert at(begins - HYSTERESIS - 0.001, level) < level
    assert at(0.5, Level.CLOSED) is Level.FINE
    assert at(1.2, Level.FINE) is Level.CLOSED


class Watched:
    def __init__(self) -> None:
        self.share = 0.5
        self.asked: list[tuple[int, bool]] = []
        self.gives = 10_000
        self.admission, self.metrics = Admission(), Metrics()
        self.watch = MemoryWatch(self.admission, self.metrics, self.drop, self.read)
        self.now = 0.0

    def read(self) -> Reading:
        return Reading(int(self.share * 1_000_000), 1_000_000)

    def drop(self, nbytes: int, undelivered: bool) -> int:
        self.asked.append((nbytes, undelivered))
        return min(nbytes, self.gives)

    def look(self, share: float) -> Level:
        self.share = share
        self.now += 1.0
        self.watch.tick(self.now)
        return self.watch.level


def test_what_is_refused_at_each_level() -> None:
    watched = Watched()
    assert watched.look(0.5) is Level.FINE
    watched.admission.check()
    assert watched.look(0.86) is Level.FULL
    with pytest.raises(Overloaded, match="860000 bytes of memory are in use") as full:
        watched.admission.check()
    assert full.value.headers == ()
    assert watched.asked == []
    assert watched.look(0.93) is Level.SHEDDING
    with pytest.raises(Exhausted) as shedding:
        watched.admission.check()
    assert shedding.value.headers == ((b"connection", b"close"),)
    watched.watch.tick(watched.now)
    assert watched.look(0.96) is Level.CLOSED
    assert watched.watch.closed is True
    with pytest.raises(Exhausted):
        watched.watch.refuse()
    assert watched.look(0.8) is Level.FINE
    watched.admission.check()
    assert watched.admission.reasons == []
    assert watched.metrics.refusals["memory"] == 1


def test_so_much_is_dropped_as_was_too_much() -> None:
    """A turn's work at a time, and not again before the next look."""
    watched = Watched()
    watched.look(0.92)
    for _ in range(5):
        watched.now += 0.1
        watched.watch.tick(watched.now)
    assert watched.asked == [(30_000, False), (20_000, False), (10_000, False)]
    watched.asked.clear()
    watched.gives = 0
    watched.look(0.95)
    watched.watch.tick(watched.now + 0.1)
    assert watched.asked == [(60_000, True)]  # nothing is there to drop: not asked in vain


def test_it_looks_once_a_second_and_quickly() -> None:
    watched = Watched()
    watched.look(0.5)
    watched.share = 0.99
    levels = []
    for later in (0.9, 1.0):
        watched.watch.tick(watched.now + later)
        levels.append(watched.watch.level)
    assert levels == [Level.FINE, Level.CLOSED]


def test_it_looks_as_soon_as_bodies_of_a_share_of_the_limit_have_come() -> None:
    """What comes in a second may be more than what is left."""
    watched = Watched()
    watched.look(0.5)
    watched.share = 0.99
    levels = []
    for nbytes in (10_000, 6_000):
        watched.watch.came(nbytes)
        levels.append(watched.watch.level)
    watched.share = 0.5
    watched.watch.came(15_000)
    levels.append(watched.watch.level)
    assert levels == [Level.FINE, Level.CLOSED, Level.CLOSED], "it counts from its last look"


def test_a_reading_that_fails_changes_nothing() -> None:
    watched = Watched()
    watched.look(0.93)

    def gone() -> Reading:
        raise FileNotFoundError

    watched.watch._read = gone
    assert watched.look(0.1) is Level.SHEDDING


# --- in a gateway -------------------------------------------------------------------------------


async def test_a_gateway_sheds_and_recovers(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        share = 0.5
        gateway.gateway._memory._read = lambda: Reading(int(share * 10_000), 10_000)
        await gateway.advance(1)
        held = (await gateway.submit(0)).json()["request_id"]
        assert (await gateway.poll(held).response()).status == 200
        share = 0.86
        await gateway.advance(1)
        refused = await gateway.submit(1)
        assert (refused.status, refused.headers[b"retry-after"]) == (429, b"1")
        assert b"connection" not in refused.headers
        assert (await gateway.submit(0)).status == 200  # a repeat adds nothing
        ready = await gateway.client.get("/readyz")
        assert "of memory are in use" in ready.json()["reasons"][0]
        assert (await gateway.poll(held).response()).status == 200
        share = 0.93
        await gateway.advance(1)
        refused = await gateway.submit(1)
        assert (refused.status, refused.headers[b"connection"]) == (429, b"close")
        assert (await gateway.poll(held).response()).status == 410
        share = 0.96
        await gateway.advance(1)
        assert (await gateway.submit(0)).status == 429  # not read, so not known as a repeat
        text = (await gateway.client.get("/metrics")).body
        assert metric(text, "memory_level") == 3
        assert metric(text, "memory_used_bytes") == 9600
        assert metric(text, "evicted_for_room_total") == 1
        share = 0.5
        await gateway.advance(1)
        assert (await gateway.submit(1)).status == 200
