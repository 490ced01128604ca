"""What the server should hold, as a plain model: samples, logs, fences and who waits; messages too.

It shares with the memory store's what is known of one sample.
"""

from typing import Any

from asgi_gateway.shared.groups import group_of_session, tags
from asgi_gateway.store.records import Record, clone_of
from asgi_gateway.store.states import SETTLED, State
from tests.shared.server import LIFETIMES
from tests.store.model import Expected
from tests.support.clock import ManualClock

# The first and the last are of one group.
SESSIONS = ("sampler-1", "sampler-2", "sampler-50")
SEQ_IDS = (0, 1, 2, 1_000_000_000, 1_000_000_001)
CLONES = (0, 1)
LOST_S, FENCE_S = LIFETIMES.lost / 1000, LIFETIMES.fence / 1000
RESULT, TEXT = b"r" * 150, "f" * 9
UNFINISHED = (State.QUEUED, State.RUNNING)
TAGS = [tag.decode() for tag in tags("agw")]


class Sample(Expected):
    """Of a note too; one that is erased is taken out of the model."""

    def __init__(self, record: Record, owner: str, adoptable: bool) -> None:
        super().__init__(record)
        self.owner = owner
        self.adoptable = adoptable
        self.watchers: list[str] = []
        self.delivered = False

    @property
    def session(self) -> str:
        return self.record.sampling_session_id

    @property
    def id(self) -> str:
        return self.record.request_id

    @property
    def log(self) -> tuple[str, int]:
        return self.session, clone_of(self.record.seq_id)

    @property
    def group(self) -> str:
        return TAGS[group_of_session(self.session)]


class Log:
    def __init__(self, base: int) -> None:
        self.last = base
        self.entries: dict[str, int] = {}
        # None: never polled.
        self.watchers: list[str] | None = None


class Model:
    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.samples: dict[str, Sample] = {}
        self.forgotten: list[Sample] = []
        self.logs: dict[tuple[str, int], Log] = {}
        self.fenced: dict[tuple[str, str], float] = {}
        self.messages: list[tuple[str, str]] = []

    @property
    def now(self) -> float:
        return self._clock.now()

    @property
    def ms(self) -> int:
        return round(self.now * 1000)

    def wake(self, epochs: list[str], message: str) -> None:
        self.messages += [(f"agw:to:{epoch}", message) for epoch in epochs]

    def report(self, sample: Sample) -> None:
        log = self.logs.setdefault(sample.log, Log(self.ms * 1000))
        log.last += 1
        log.entries[sample.id] = log.last
        if log.watchers:
            self.wake(log.watchers, f"p{sample.log[1]}:{sample.session}")
            log.watchers = []

    def settled(self, sample: Sample, state: State, nbytes: int) -> None:
        sample.settle(state, nbytes, self.now)
        self.report(sample)
        self.wake(sample.watchers, f"w{sample.id}")
        sample.watchers = []
        sample.adoptable = False

    def lost(self, sample: Sample) -> None:
        if sample.state in UNFINISHED:
            self.settled(sample, State.CANCELLED, 0)
        sample.gone(lost=True)
        sample.clock = ("lost", self.now + LOST_S)
        sample.delivered = False

    def erased(self, sample: Sample) -> None:
        if sample.state in UNFINISHED:
            self.wake(sample.watchers, f"w{sample.id}")
        del self.samples[sample.id]
        self.forgotten.append(sample)
        log = self.logs.get(sample.log)
        if log is not None:
            log.entries.pop(sample.id, None)
            if not log.entries and log.watchers is None:
                del self.logs[sample.log]
        sample.gone()

    def is_fenced(self, session: str, epoch: str) -> bool:
        return (TAGS[group_of_session(session)], epoch) in self.fenced

    def expected(self) -> dict[str, Any]:
        """Key by key."""
        keys: dict[str, Any] = {}

        def into(key: str) -> dict[str, Any]:
            kept: dict[str, Any] = keys.setdefault(key, {})
            return kept

        for sample in self.samples.values():
            group, record = sample.group, sample.record
            into(f"{group}:s:{sample.id}").update(self.hash_of(sample))
            into(f"{group}:i:{sample.session}")[str(record.seq_id)] = sample.id
            if sample.state is State.SUCCEEDED:
                keys[f"{group}:r:{sample.id}"] = RESULT
            if sample.state in UNFINISHED:
                keys.setdefault(f"{group}:o:{sample.owner}", set()).add(sample.id)
            else:
                assert sample.clock is not None
                into(f"{group}:x")[sample.id] = sample.clock[1] * 1000
            books = into(f"{group}:c")
            for name, add in (
                ("b", sample.charged_bytes),
                ("u", sample.state in UNFINISHED),
                ("s", sample.state in SETTLED),
                ("l", sample.lost),
            ):
                books[name] = str(int(books.get(name, 0)) + int(add))
        for (session, clone), log in self.logs.items():
            group = TAGS[group_of_session(session)]
            positions = into(f"{group}:b:{session}")
            positions[str(clone)] = str(log.last)
            if log.watchers is not None:
                positions[f"w{clone}"] = " ".join(log.watchers)
                positions["n"] = str(int(positions.get("n", 0)) + 1)
            for request_id, at in log.entries.items():
                size = "150" if self.samples[request_id].state is State.SUCCEEDED else "-"
                into(f"{group}:l:{session}:{clone}")[f"{request_id}:{size}"] = float(at)
        for (group, epoch), since in self.fenced.items():
            into(f"{group}:c")[f"f{epoch}"] = str(round(since * 1000))
            into(f"{group}:f")[epoch] = since * 1000
        return keys

    def hash_of(self, sample: Sample) -> dict[str, str]:
        record = sample.record
        kept = {
            "st": str(sample.state.value),
            "ow": sample.owner,
            "ca": record.caller,
            "ss": sample.session,
            "sq": str(record.seq_id),
            "dg": record.digest.decode(),
            "nb": str(sample.charged_bytes - sample.reserved_bytes),
            "at": str(round(record.accepted_at * 1000)),
        }
        if sample.reserved_bytes:
            kept["rv"] = str(sample.reserved_bytes)
        if sample.watchers:
            kept["wa"] = " ".join(sample.watchers)
        if sample.adoptable:
            kept |= {"bd": (record.body or b"").decode(), "me": "meta"}
        if sample.delivered:
            kept["de"] = "1"
        if sample.state is State.FAILED:
            kept |= {"fa": TEXT, "fc": "server"}
        return kept
