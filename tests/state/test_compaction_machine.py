"""Compaction against the naive owner: any order of events, a crash at any moment, failing disks."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from asgi_gateway.state.events import Event
from asgi_gateway.state.opening import open_journal
from tests.state.owner import (
    Owner,
    fill_up,
    recover,
    recover_as_if_killed_now,
    same,
)

# Hundreds of directories, and syncs that need not reach a disk to be called.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Step(NamedTuple):
    verb: str
    number: int


OF_SESSIONS = ["session", "sampling", "sampling", "join", "finish", "forget"]
OF_SAMPLES = ["accept"] * 8 + ["close"] * 7
OF_FILES = ["flush"] * 4 + ["compact"] * 12 + ["sync"] * 3 + ["crash"] * 4 + ["restart"]
OF_FAILURES = ["fill", "fill copy", "retry", "retry"]
HEALTHY = st.builds(
    Step, st.sampled_from(OF_SESSIONS + OF_SAMPLES + OF_FILES), st.integers(0, 1000)
)
FAILING = st.builds(
    Step, st.sampled_from(OF_SESSIONS + OF_SAMPLES + OF_FILES + OF_FAILURES), st.integers(0, 1000)
)


class World:
    """An owner and its journal in a directory that can be looked at as a crash would leave it."""

    def __init__(self, directory: Path, min_dead_bytes: int) -> None:
        self.directory = directory
        self.min_dead_bytes = min_dead_bytes
        self.owner = Owner()
        self.journal, _ = open_journal(directory, min_dead_bytes=min_dead_bytes)
        self.put(self.owner.boot(7))
        self.journal.flush()
        self.written = self.owner.recovered()

    def put(self, events: list[Event]) -> None:
        for event in events:
            self.journal.append(event)

    def take(self, step: Step) -> None:
        owner, journal, number = self.owner, self.journal, step.number
        match step.verb:
            case "session":
                self.put(owner.make_session())
            case "flush":
                journal.flush()
            case "compact":
                journal.compact_some(owner.live, budget=1 + number % 9)
            case "sync":
                with before_each_change(self.directory, self.check):
                    journal.sync()
            case "crash":
                self.check()
            case "retry":
                journal.retry()
            case "fill":
                fill_up(journal._segment.fd)
            case "fill copy" if journal._compaction is not None:
                fill_up(journal._compaction._segment.fd)
            case "restart" if journal.healthy:
                self.restart()
            case verb:
                self.change(verb, number)
        if not self.journal._buffer:
            self.written = owner.recovered()

    def change(self, verb: str, number: int) -> None:
        owner = self.owner
        going = [key for key in owner.sessions if key not in owner.finished]
        samplers = [key for key, made in owner.sampling.items() if made.session_id in going]
        if verb == "sampling" and going:
            self.put(owner.make_sampling(pick(going, number)))
        elif verb == "finish" and going:
            self.put(owner.finish(pick(going, number), closing=number % 2 == 0))
        elif verb == "forget" and owner.sessions:
            self.put(owner.forget(pick(list(owner.sessions), number)))
        elif verb == "join" and samplers:
            self.put(owner.join(pick(samplers, number)))
        elif verb == "accept" and samplers:
            self.put(owner.accept(pick(samplers, number)))
        elif verb == "close" and owner.samples:
            self.put(owner.close(pick(list(owner.samples), number)))

    def restart(self) -> None:
        self.journal.flush()
        if self.journal.healthy:
            self.journal.close()
            self.journal, recovered = open_journal(
                self.directory, min_dead_bytes=self.min_dead_bytes
            )
            assert same(recovered, self.owner.recovered())

    def check(self) -> None:
        """Killed now, it would find what was written last; after a failure, at least something."""
        recovered = recover_as_if_killed_now(self.directory)
        if self.journal.healthy:
            assert same(recovered, self.written)

    def end(self) -> None:
        for _ in range(100):
            self.journal.flush()
            self.journal.retry()
            self.journal.compact_some(self.owner.live)
            if self.journal.sync_wanted:
                self.journal.sync()
            if self.journal.healthy and self.journal._compaction is None:
                break
        assert self.journal.healthy, self.journal.failed
        on_disk = sum(p.stat().st_size for p in self.directory.glob("journal-*"))
        assert self.journal.nbytes == on_disk
        self.journal.close()
        assert same(recover(self.directory), self.owner.recovered())


def pick(keys: list[str], number: int) -> str:
    return keys[number % len(keys)]


@contextlib.contextmanager
def before_each_change(directory: Path, look: Callable[[], None]) -> Iterator[None]:
    """Call `look` whenever a file of the directory is about to be renamed or deleted."""
    rename, unlink = Path.rename, Path.unlink

    def looking_rename(path: Path, target: Path) -> Path:
        if path.parent == directory:
            look()
        return rename(path, target)

    def looking_unlink(path: Path, missing_ok: bool = False) -> None:
        if path.parent == directory:
            look()
        unlink(path, missing_ok)

    with mock.patch.multiple(Path, rename=looking_rename, unlink=looking_unlink):
        yield


def play(steps: list[Step], min_dead_bytes: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        world = World(Path(place, "state"), min_dead_bytes)
        for verb in ("session", "sampling", "session", "sampling"):
            world.take(Step(verb, 0))
        for step in steps:
            world.take(step)
        world.check()
        world.end()


@settings(deadline=None, max_examples=80)
@given(st.lists(HEALTHY, min_size=20, max_size=120), st.sampled_from([0, 300, 2000]))
def test_any_order_and_a_crash_anywhere(steps: list[Step], min_dead_bytes: int) -> None:
    play(steps, min_dead_bytes)


@settings(deadline=None, max_examples=80)
@given(st.lists(FAILING, min_size=20, max_size=120), st.sampled_from([0, 300, 2000]))
def test_the_same_on_a_disk_that_fills_up(steps: list[Step], min_dead_bytes: int) -> None:
    play(steps, min_dead_bytes)
