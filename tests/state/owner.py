"""What owns a journal, as naive as can be, and tools to look at a state directory."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from asgi_gateway.state.directory import segment_path
from asgi_gateway.state.events import (
    Accepted,
    Booted,
    Closed,
    Event,
    Joined,
    SamplingMade,
    SessionFinished,
    SessionForgotten,
    SessionMade,
    frame_into,
    header,
)
from asgi_gateway.state.journal import Journal
from asgi_gateway.state.opening import open_journal
from asgi_gateway.state.recovery import Recovered

INT64_MAX = 2**63 - 1


class Owner:
    """Holds what should survive. Verbs change it and return the events to append."""

    def __init__(self) -> None:
        self.epochs: list[str] = []
        self.cursor_base = 0
        self.sessions: dict[str, SessionMade] = {}
        self.finished: set[str] = set()
        self.sampling: dict[str, SamplingMade] = {}
        self.clones: dict[str, int] = {}
        self.samples: dict[str, Accepted] = {}
        self._issued = 0

    def live(self) -> Iterator[Event]:
        """As the journal asks for it: references first, events when they are drawn."""
        for epoch in list(self.epochs):
            yield Booted(epoch, self.cursor_base)
        for session_id, session in list(self.sessions.items()):
            if session_id in self.sessions:
                yield session
            if session_id in self.finished:
                yield SessionFinished(session_id)
        for key, made in list(self.sampling.items()):
            if key in self.sampling:
                yield made
            if key in self.clones:
                yield Joined(key, self.clones[key])
        for request_id, sample in list(self.samples.items()):
            if request_id in self.samples:
                yield sample

    def recovered(self) -> Recovered:
        """What a replay should say now."""
        return Recovered(
            epochs=list(self.epochs),
            cursor_base=self.cursor_base,
            sessions=dict(self.sessions),
            finished=set(self.finished),
            sampling=dict(self.sampling),
            clones=dict(self.clones),
            samples=list(self.samples.values()),
        )

    def boot(self, cursor_base: int = 0) -> list[Event]:
        epoch = f"epoch-{len(self.epochs)}"
        self.epochs.append(epoch)
        self.cursor_base = max(self.cursor_base, cursor_base)
        return [Booted(epoch, cursor_base)]

    def make_session(self) -> list[Event]:
        made = SessionMade(f"session-{self._next()}", "alice")
        self.sessions[made.session_id] = made
        return [made]

    def finish(self, session_id: str, *, closing: bool = True) -> list[Event]:
        """`closing`: whether each sample of it is closed one by one as well."""
        self.finished.add(session_id)
        dropped = self._drop_samples(session_id)
        closed: list[Event] = [Closed(request_id) for request_id in dropped if closing]
        return [SessionFinished(session_id), *closed]

    def forget(self, session_id: str) -> list[Event]:
        self._drop_samples(session_id)
        del self.sessions[session_id]
        self.finished.discard(session_id)
        for key, made in list(self.sampling.items()):
            if made.session_id == session_id:
                del self.sampling[key]
                self.clones.pop(key, None)
        return [SessionForgotten(session_id)]

    def make_sampling(self, session_id: str) -> list[Event]:
        number = self._next()
        path = f"tinker://run/{number}" if number % 2 else None
        made = SamplingMade(
            f"sampler-{number}",
            session_id,
            number,
            f"up-{number}",
            "org/base",
            f"salt-{number}",
            path,
        )
        self.sampling[made.sampling_session_id] = made
        return [made]

    def join(self, sampling_session_id: str) -> list[Event]:
        counter = self.clones.get(sampling_session_id, 0) + 1
        self.clones[sampling_session_id] = counter
        return [Joined(sampling_session_id, counter)]

    def accept(self, sampling_session_id: str) -> list[Event]:
        number = self._next()
        seq_id = INT64_MAX - number
        sample = Accepted(
            f"id-{number}", "alice", sampling_session_id, seq_id, number.to_bytes(16, "big")
        )
        self.samples[sample.request_id] = sample
        return [sample]

    def close(self, request_id: str) -> list[Event]:
        self.samples.pop(request_id, None)
        return [Closed(request_id)]

    def _drop_samples(self, session_id: str) -> list[str]:
        dropped = [
            request_id
            for request_id, sample in self.samples.items()
            if self.sampling[sample.sampling_session_id].session_id == session_id
        ]
        for request_id in dropped:
            del self.samples[request_id]
        return dropped

    def _next(self) -> int:
        self._issued += 1
        return self._issued


def small_history(owner: Owner | None = None) -> list[Event]:
    """One event of each kind and a few more; ends with open samples."""
    owner = owner or Owner()
    events = [*owner.boot(1000), *owner.make_session(), *owner.make_session()]
    first, second = owner.sessions
    events += [*owner.make_sampling(first), *owner.make_sampling(second)]
    sampler, other = owner.sampling
    events += [*owner.join(sampler), *owner.join(sampler)]
    for key in (sampler, other, sampler, sampler):
        events += owner.accept(key)
    events += owner.close(next(iter(owner.samples)))
    return [*events, *owner.finish(second), *owner.make_session(), *owner.accept(sampler)]


def write_segment(directory: Path, number: int, events: Iterable[Event]) -> Path:
    """A segment file with these events."""
    directory.mkdir(exist_ok=True)
    path = segment_path(directory, number)
    path.write_bytes(segment_bytes(events))
    return path


def segment_bytes(events: Iterable[Event]) -> bytes:
    buffer = bytearray(header())
    for event in events:
        frame_into(buffer, event)
    return bytes(buffer)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("journal-*"))


def recover(directory: Path) -> Recovered:
    """Open it, and close it again."""
    journal, recovered = open_journal(directory)
    journal.close()
    return recovered


def recover_as_if_killed_now(directory: Path) -> Recovered:
    """From a copy of the files as the kernel has them at this moment; their owner goes on."""
    with tempfile.TemporaryDirectory(dir=directory.parent) as place:
        copy = Path(place, "copy")
        shutil.copytree(directory, copy)
        return recover(copy)


def same(recovered: Recovered, expected: Recovered) -> bool:
    """Equal but for the count of what was left out, and in the same order throughout."""
    recovered = msgspec.structs.replace(recovered, dropped=expected.dropped)
    return recovered == expected and [list(d) for d in _dicts(recovered)] == [
        list(d) for d in _dicts(expected)
    ]


def _dicts(recovered: Recovered) -> list[dict[str, object]]:
    return [dict(recovered.sessions), dict(recovered.sampling)]


def put(journal: Journal, events: list[Event]) -> None:
    for event in events:
        journal.append(event)
    journal.flush()


def fill_up(fd: int) -> None:
    """Every write to `fd` fails with ENOSPC, and cannot be taken back, from now on."""
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, fd)
    os.close(full)


def rebuild(journal: Journal, owner: Owner) -> None:
    """What the owner's timer and turns do."""
    for _ in range(100):
        journal.retry()
        journal.compact_some(owner.live, budget=5)
        if journal.sync_wanted:
            journal.sync()
    assert journal.healthy, journal.failed
