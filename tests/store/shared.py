"""The shared store behind the verbs of the memory store, for the tests that both must pass.

What a verb leaves in the server is read back after it and written into the record: a test that
looks at the record sees what another process would. What is read is checked against the books.
"""

from collections.abc import Iterable
from typing import Any

from asgi_gateway.shared.groups import group_of_session, tags
from asgi_gateway.shared.outcomes import Moved
from asgi_gateway.shared.verbs import Verbs
from asgi_gateway.store.completions import Page
from asgi_gateway.store.records import Expired, Failure, Lost, Record
from asgi_gateway.store.states import GONE, QUEUED, RUNNING, SETTLED, SUCCEEDED, Event, State
from tests.shared.server import LIFETIMES, Blocking, run
from tests.store.ids import EPOCH, made_id


class SharedStore:
    """Sampling sessions of one group at most; all times are whole milliseconds."""

    def __init__(self, client: Any, *, max_in_flight: int, max_bytes: int) -> None:
        client.flushall()
        self.client = client
        self.verbs = Verbs(Blocking(client), LIFETIMES, epoch=EPOCH)
        self._max_in_flight, self._max_bytes = max_in_flight, max_bytes
        self._records: dict[str, Record] = {}
        self.late_events = [0] * len(Event)

    def __len__(self) -> int:
        return len(self._hashes())

    # --- accept ---

    def find(self, request_id: str) -> Record | None:
        found = run(self.verbs, self.verbs.look(request_id, "caller", watch=False))
        return None if found is None or found.state is GONE else self._records[request_id]

    def submitted(
        self, sampling_session_id: str, seq_id: int, digest: bytes
    ) -> Record | Lost | None:
        """By an accept; what it took in is taken out again."""
        accepted = run(
            self.verbs,
            self.verbs.accept(
                made_id(sampling_session_id),
                0,
                sampling_session_id=sampling_session_id,
                seq_id=seq_id,
                digest=digest,
                caller="caller",
                nbytes=0,
            ),
        )
        if not accepted.fresh:
            return self._records[accepted.request_id]
        run(self.verbs, self.verbs.evict(accepted.request_id, 0, told=True))
        return None

    def admit(self, nbytes: int) -> None:
        """By an accept as well."""
        probe = made_id("sampler-1")
        command = self.verbs.accept(
            probe,
            0,
            sampling_session_id="sampler-1",
            seq_id=2**63 - 1,
            digest=b"",
            caller="caller",
            nbytes=nbytes,
            max_unfinished=self._max_in_flight,
            max_bytes=self._max_bytes,
        )
        run(self.verbs, command)
        run(self.verbs, self.verbs.evict(probe, 0, told=True))

    def accept(self, record: Record) -> None:
        body = record.body or b""
        accepted = run(
            self.verbs,
            self.verbs.accept(
                record.request_id,
                _ms(record.accepted_at),
                sampling_session_id=record.sampling_session_id,
                seq_id=record.seq_id,
                digest=record.digest,
                caller=record.caller,
                nbytes=len(body),
                adoptable=(body, b"meta"),
            ),
        )
        assert accepted.fresh
        assert accepted.request_id == record.request_id
        self._records[record.request_id] = record
        self._read(record)

    # --- run and settle ---

    def start(self, record: Record, now: float) -> bool:
        command = self.verbs.start(record.request_id, _ms(now), record.reserve_bytes)
        return self._moved(record, Event.START, run(self.verbs, command))

    def retry(self, record: Record, now: float) -> bool:
        command = self.verbs.retry(record.request_id, _ms(now))
        return self._moved(record, Event.RETRY, run(self.verbs, command))

    def succeed(self, record: Record, result: bytes, now: float) -> bool:
        command = self.verbs.succeed(record.request_id, _ms(now), result)
        return self._moved(record, Event.SUCCEED, run(self.verbs, command))

    def fail(self, record: Record, failure: Failure, now: float) -> bool:
        command = self.verbs.fail(record.request_id, _ms(now), failure)
        return self._moved(record, Event.FAIL, run(self.verbs, command))

    def cancel(self, record: Record, now: float) -> bool:
        command = self.verbs.cancel(record.request_id, _ms(now))
        return self._moved(record, Event.CANCEL, run(self.verbs, command))

    def evict(self, record: Record, *, told: bool = True, now: float = 0.0) -> bool:
        command = self.verbs.evict(record.request_id, _ms(now), told=told)
        return self._moved(record, Event.EVICT, run(self.verbs, command))

    def _moved(self, record: Record, event: Event, moved: Moved) -> bool:
        # What is not held any more is not told from what never was.
        if moved.outcome == "missing":
            assert record.state is GONE
        else:
            assert moved.outcome in ("ok", "late")
        self.late_events[event] += moved.outcome != "ok"
        self._read(record)
        assert moved.state in (None, record.state)
        return moved.outcome == "ok"

    # --- deliver ---

    def delivered(self, record: Record, now: float) -> bool:
        first = run(self.verbs, self.verbs.delivered(record.request_id, _ms(now)))
        self._read(record)
        return first is True

    def acknowledge(self, request_ids: Iterable[str], caller: str) -> None:
        for command in self.verbs.acknowledge(request_ids, caller):
            run(self.verbs, command)
        self._read_all()

    def told_lost(self, request_id: str, caller: str) -> bool:
        (command,) = self.verbs.told(request_id, caller)
        return run(self.verbs, command).told == 1

    def sweep(self, now: float, budget: int) -> Expired:
        """Of all groups; the time that a run may take is its owner's to watch."""
        swept = [run(self.verbs, self.verbs.sweep(g, _ms(now), budget)) for g in self._groups()]
        self._read_all()
        return Expired([], sum(one.evicted for one in swept), sum(one.unfetched for one in swept))

    def page(self, sampling_session_id: str, clone: int, prev_cursor: int, limit: int) -> Page:
        command = self.verbs.page(sampling_session_id, clone, prev_cursor, limit, 1000, watch=False)
        page = run(self.verbs, command)
        entries = []
        for entry in page.entries:
            record = self._records[entry.request_id]
            assert (entry.nbytes is None) is (record.result is None)
            assert entry.nbytes in (None, len(record.result or b""))
            entries.append(record)
        return Page(entries, page.cursor)

    # --- what is held ---

    @property
    def in_flight(self) -> int:
        return sum(run(self.verbs, self.verbs.counts(g)).unfinished for g in self._groups())

    @property
    def charged_bytes(self) -> int:
        return sum(run(self.verbs, self.verbs.counts(g)).nbytes for g in self._groups())

    @property
    def results_bytes(self) -> int:
        return sum(self.client.strlen(key) for key in self.client.keys("*:r:*"))

    @property
    def counts(self) -> list[int]:
        """By a walk over all samples."""
        counts = [0] * len(State)
        for held in self._hashes().values():
            counts[int(held[b"st"])] += 1
        counts[GONE] = 0  # a note is no sample
        books = [run(self.verbs, self.verbs.counts(g)) for g in self._groups()]
        assert sum(book.unfinished for book in books) == counts[QUEUED] + counts[RUNNING]
        assert sum(book.settled for book in books) == sum(counts[state] for state in SETTLED)
        return counts

    def clocks(self) -> dict[str, dict[str, float]]:
        clocks: dict[str, dict[str, float]] = {"undelivered": {}, "delivered": {}}
        hashes = self._hashes()
        for group in self._groups():
            for key, due_at in self.client.zrange(self._tag(group) + ":x", 0, -1, withscores=True):
                held = hashes[key.decode()]
                if int(held[b"st"]) != GONE:
                    name = "delivered" if b"de" in held else "undelivered"
                    clocks[name][key.decode()] = due_at / 1000
        return clocks

    def held_of(self, sampling_session_id: str) -> list[Record]:
        index = self._tag(group_of_session(sampling_session_id)) + f":i:{sampling_session_id}"
        return [self._records[each.decode()] for each in self.client.hvals(index)]

    def is_lost(self, request_id: str) -> bool:
        found = run(self.verbs, self.verbs.look(request_id, "caller", watch=False))
        return found is not None and found.state is GONE

    def everything(self) -> dict[str, Any]:
        """All keys with what they hold."""
        return {key.decode(): self.client.dump(key) for key in sorted(self.client.keys("*"))}

    # --- inside ---

    def _tag(self, group: int) -> str:
        return tags("agw")[group].decode()

    def _groups(self) -> list[int]:
        return sorted({int(key[5:7], 16) for key in self.client.keys("*")})

    def _hashes(self) -> dict[str, dict[bytes, bytes]]:
        return {
            key.decode().rpartition(":")[2]: self.client.hgetall(key)
            for key in self.client.keys("*:s:*")
        }

    def _read_all(self) -> None:
        for record in self._records.values():
            self._read(record)

    def _read(self, record: Record) -> None:
        """Write into a record what the server holds of it."""
        group = self._tag(group_of_session(record.sampling_session_id))
        held = self.client.hgetall(f"{group}:s:{record.request_id}")
        found = run(self.verbs, self.verbs.look(record.request_id, record.caller, watch=False))
        record.result = run(self.verbs, self.verbs.result(record.request_id))
        record.state = GONE if found is None else found.state
        record.failure = None if found is None else found.failure
        record.body = held.get(b"bd")
        due_at = self.client.zscore(f"{group}:x", record.request_id)
        if record.state in SETTLED and b"de" not in held:
            assert due_at is not None
            record.settled_at = (due_at - LIFETIMES.undelivered) / 1000
        charged = int(held.get(b"nb", 0)) + int(held.get(b"rv", 0))
        assert record.charged_bytes == charged
        assert (record.result is not None) is (record.state is SUCCEEDED)
        unfinished = self.client.sismember(f"{group}:o:{self.verbs.epoch}", record.request_id)
        assert bool(unfinished) is (record.state in (QUEUED, RUNNING))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
