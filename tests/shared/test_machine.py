"""The functions under random orders of events from several processes: what is in the server, key by
key, is what the model says, and so is every message."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from asgi_gateway.errors import IllegalTransition, Overloaded, Unsupported
from asgi_gateway.shared.groups import group_of_session
from asgi_gateway.shared.outcomes import Fenced
from asgi_gateway.shared.verbs import Verbs
from asgi_gateway.store.records import Failure
from asgi_gateway.store.states import BUG, LATE, SETTLED, TABLE, Event, State
from tests.shared.model import (
    CLONES,
    FENCE_S,
    LOST_S,
    RESULT,
    SEQ_IDS,
    SESSIONS,
    TAGS,
    TEXT,
    UNFINISHED,
    Log,
    Model,
    Sample,
)
from tests.shared.server import LIFETIMES, Blocking, run
from tests.store.ids import made_id
from tests.store.records import DELIVERED_S, UNDELIVERED_S, new_record
from tests.support.clock import ManualClock
from tests.support.effort import machine

pytestmark = pytest.mark.system

EPOCHS = ("aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc")
MAX_UNFINISHED, MAX_BYTES = 5, 700
PASSED_S = st.sampled_from([0.0, 1.0, DELIVERED_S, UNDELIVERED_S, 5000.0, LOST_S, FENCE_S])


class SharedMachine(RuleBasedStateMachine):
    client: Any

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.client.flushall()
        self.processes = {
            epoch: Verbs(Blocking(self.client), LIFETIMES, epoch=epoch) for epoch in EPOCHS
        }
        self.model = Model(self.clock)
        self.cursors: dict[tuple[str, int], list[int]] = {}
        self.heard = self.client.pubsub()
        self.heard.psubscribe("agw:to:*")
        assert self.heard.get_message(timeout=5)["type"] == "psubscribe"

    def teardown(self) -> None:
        self.heard.close()

    def a_sample(self, data: Any) -> Sample:
        """Any there is, or one that is gone."""
        known = [*self.model.samples.values(), *self.model.forgotten]
        return data.draw(st.sampled_from(known), label="sample")  # type: ignore[no-any-return]

    # --- verbs ---

    @rule(
        data=st.data(),
        session=st.sampled_from(SESSIONS),
        seq_id=st.sampled_from(SEQ_IDS),
        epoch=st.sampled_from(EPOCHS),
        size=st.integers(1, 250),
        digest=st.sampled_from([b"digest", b"digest", b"other"]),
        caller=st.sampled_from(["caller", "caller", "caller", "another"]),
        adoptable=st.booleans(),
    )
    def submit(
        self,
        data: Any,
        session: str,
        seq_id: int,
        epoch: str,
        size: int,
        digest: bytes,
        caller: str,
        adoptable: bool,
    ) -> None:
        known = next((s for s in self.model.samples.values() if s.key == (session, seq_id)), None)
        record = new_record(seq_id, session=session, body=b"x" * size, digest=digest)
        record.caller, record.request_id = caller, made_id(session, epoch)
        record.accepted_at = self.model.now
        group = [
            s for s in self.model.samples.values() if s.group == TAGS[group_of_session(session)]
        ]
        unfinished = sum(s.state in UNFINISHED for s in group)
        charged = sum(s.charged_bytes for s in group)
        process = self.processes[epoch]
        command = process.accept(
            record.request_id,
            self.model.ms,
            sampling_session_id=session,
            seq_id=seq_id,
            digest=digest,
            caller=caller,
            nbytes=size,
            max_unfinished=MAX_UNFINISHED,
            max_bytes=MAX_BYTES,
            adoptable=(record.body or b"", b"meta") if adoptable else None,
        )
        if self.model.is_fenced(session, epoch):
            with pytest.raises(Fenced):
                run(process, command)
            return
        if known is not None and (known.record.digest, known.record.caller) != (digest, caller):
            with pytest.raises(Unsupported, match=f"seq_id {seq_id} "):
                run(process, command)
            return
        if known is not None and not known.lost:
            accepted = run(process, command)
            assert not accepted.fresh
            assert (accepted.request_id, accepted.state) == (known.id, known.state)
            assert accepted.owner == known.owner
            return
        if unfinished >= MAX_UNFINISHED or charged + size > MAX_BYTES:
            with pytest.raises(Overloaded) as refused:
                run(process, command)
            full = "in_flight" if unfinished >= MAX_UNFINISHED else "bytes"
            assert refused.value.source == full
            return
        accepted = run(process, command)
        assert accepted.fresh
        if known is not None:
            record.request_id = known.id
            self.model.erased(known)
            self.model.forgotten.remove(known)
        assert accepted.request_id == record.request_id
        self.model.samples[record.request_id] = Sample(record, epoch, adoptable)

    def held(self, *states: State) -> list[Sample]:
        return [sample for sample in self.model.samples.values() if sample.state in states]

    @precondition(lambda self: self.held(*UNFINISHED))
    @rule(data=st.data(), event=st.sampled_from([Event.SUCCEED, Event.SUCCEED, Event.FAIL]))
    def outcome(self, data: Any, event: Event) -> None:
        """By its owner, as most are."""
        sample = data.draw(st.sampled_from(self.held(*UNFINISHED)))
        starts = sample.state is State.QUEUED and event is Event.SUCCEED
        self.moved(sample, sample.owner, (Event.START, event) if starts else (event,), False)

    @precondition(lambda self: self.held(*SETTLED))
    @rule(data=st.data(), epoch=st.sampled_from(EPOCHS), told=st.booleans())
    def evict(self, data: Any, epoch: str, told: bool) -> None:
        """For room, by anybody."""
        sample = data.draw(st.sampled_from(self.held(*SETTLED)))
        self.moved(sample, epoch, (Event.EVICT,), told)

    @precondition(lambda self: self.model.samples or self.model.forgotten)
    @rule(
        data=st.data(),
        epoch=st.sampled_from(EPOCHS),
        events=st.sampled_from(
            [*((event,) for event in Event), (Event.START,), (Event.START, Event.SUCCEED)]
        ),
        flag=st.booleans(),
        others=st.booleans(),
    )
    def move(
        self, data: Any, epoch: str, events: tuple[Event, ...], flag: bool, others: bool
    ) -> None:
        sample = self.a_sample(data)
        self.moved(sample, epoch if others else sample.owner, events, flag)

    def moved(self, sample: Sample, epoch: str, events: tuple[Event, ...], flag: bool) -> None:
        process, event, nbytes = self.processes[epoch], events[-1], 0
        if event is Event.START:
            command = process.start(sample.id, self.model.ms, sample.record.reserve_bytes)
        elif event is Event.RETRY:
            command = process.retry(sample.id, self.model.ms)
        elif event is Event.SUCCEED:
            command = process.succeed(
                sample.id, self.model.ms, RESULT, delivered=flag, start=len(events) == 2
            )
            nbytes = len(RESULT)
        elif event is Event.FAIL:
            command = process.fail(sample.id, self.model.ms, Failure(TEXT, "server"))
            nbytes = len(TEXT)
        elif event is Event.CANCEL:
            command = process.cancel(sample.id, self.model.ms, "another" if flag else "")
        else:
            command = process.evict(sample.id, self.model.ms, told=flag)
        if self.model.is_fenced(sample.session, epoch):
            with pytest.raises(Fenced):
                run(process, command)
            return
        elsewhere = event is Event.CANCEL and flag and sample.record.caller != "another"
        if sample.id not in self.model.samples or elsewhere:
            assert run(process, command).outcome == "missing"
            return
        cell = TABLE[sample.state][events[0]]
        ours = sample.owner == epoch or event is Event.CANCEL or sample.state in SETTLED
        if cell is LATE:
            moved = run(process, command)
            assert (moved.outcome, moved.state) == ("late", sample.state)
            return
        if not ours:
            moved = run(process, command)
            assert (moved.outcome, moved.owner) == ("foreign", sample.owner)
            return
        if cell is BUG:
            with pytest.raises(IllegalTransition):
                run(process, command)
            return
        moved = run(process, command)
        if len(events) == 2:
            assert isinstance(cell, State)
            cell = TABLE[cell][events[1]]
        assert (moved.outcome, moved.state) == ("ok", cell)
        assert isinstance(cell, State)
        if cell in UNFINISHED:
            sample.state = cell
            sample.reserved_bytes = sample.record.reserve_bytes if cell is State.RUNNING else 0
        elif cell in SETTLED:
            self.model.settled(sample, cell, nbytes)
            if event is Event.SUCCEED and flag:
                sample.delivered, sample.clock = True, ("delivered", self.model.now + DELIVERED_S)
            if sample.owner != epoch:
                self.model.wake([sample.owner], f"c{sample.id}")
        elif flag:
            self.model.erased(sample)
        else:
            self.model.lost(sample)

    @precondition(lambda self: self.model.samples or self.model.forgotten)
    @rule(data=st.data(), epoch=st.sampled_from(EPOCHS), mine=st.booleans(), watch=st.booleans())
    def look(self, data: Any, epoch: str, mine: bool, watch: bool) -> None:
        sample = self.a_sample(data)
        caller = sample.record.caller if mine else "stranger"
        process = self.processes[epoch]
        found = run(process, process.look(sample.id, caller, watch=watch))
        if not mine or sample.id not in self.model.samples:
            assert found is None
            return
        assert found is not None
        assert (found.state, found.owner) == (sample.state, sample.owner)
        assert found.delivered is sample.delivered
        assert (found.sampling_session_id, found.seq_id) == sample.key
        assert found.nbytes == sample.charged_bytes - sample.reserved_bytes
        assert (found.failure is not None) is (sample.state in (State.FAILED, State.CANCELLED))
        if watch and sample.state in UNFINISHED and epoch not in sample.watchers:
            sample.watchers.append(epoch)

    @rule(
        data=st.data(),
        session=st.sampled_from(SESSIONS),
        clone=st.sampled_from(CLONES),
        epoch=st.sampled_from(EPOCHS),
        limit=st.integers(1, 3),
        watch=st.booleans(),
    )
    def page(
        self, data: Any, session: str, clone: int, epoch: str, limit: int, watch: bool
    ) -> None:
        given = self.cursors.setdefault((session, clone), [])
        cursor = data.draw(st.sampled_from([0, 2**52, -7, *given[-3:]]), label="cursor")
        process = self.processes[epoch]
        page = run(process, process.page(session, clone, cursor, limit, self.model.ms, watch=watch))
        log = self.model.logs.setdefault((session, clone), Log(self.model.ms * 1000))
        if log.watchers is None:
            log.watchers = []
        if 0 < cursor <= log.last:
            log.entries = {key: at for key, at in log.entries.items() if at > cursor}
        unread = sorted(log.entries.items(), key=lambda entry: entry[1])[:limit]
        assert [entry.request_id for entry in page.entries] == [key for key, _ in unread]
        for entry in page.entries:
            succeeded = self.model.samples[entry.request_id].state is State.SUCCEEDED
            assert entry.nbytes == (len(RESULT) if succeeded else None)
        assert page.cursor == (unread[-1][1] if unread else log.last)
        if page.cursor not in given:
            given.append(page.cursor)
        if not unread and watch and epoch not in log.watchers:
            log.watchers.append(epoch)

    @precondition(lambda self: self.model.samples or self.model.forgotten)
    @rule(data=st.data(), caller=st.sampled_from(["caller", "caller", "another"]))
    def acknowledge(self, data: Any, caller: str) -> None:
        chosen = [self.a_sample(data) for _ in range(2)]
        process = self.processes[EPOCHS[0]]
        ids = [sample.id for sample in chosen]
        freed = told = 0
        for command in process.acknowledge([*ids, "id-x", *ids], caller):
            result = run(process, command)
            freed, told = freed + result.freed, told + result.told
        for sample in chosen:
            if sample.record.caller == caller and self.model.samples.get(sample.id) is sample:
                if sample.state in SETTLED:
                    freed -= 1
                    self.model.erased(sample)
                elif sample.lost:
                    told -= 1
                    self.model.erased(sample)
        assert (freed, told) == (0, 0)

    @precondition(lambda self: self.model.samples)
    @rule(data=st.data())
    def told(self, data: Any) -> None:
        sample = self.a_sample(data)
        process = self.processes[EPOCHS[0]]
        (command,) = process.told(sample.id, sample.record.caller)
        was_lost = sample.lost and sample.id in self.model.samples
        assert run(process, command).told == was_lost
        if was_lost:
            self.model.erased(sample)

    @precondition(lambda self: self.model.samples)
    @rule(data=st.data())
    def deliver(self, data: Any) -> None:
        sample = self.a_sample(data)
        process = self.processes[EPOCHS[0]]
        first = run(process, process.delivered(sample.id, self.model.ms))
        if sample.id not in self.model.samples or sample.state not in SETTLED:
            assert first is None
            return
        assert first is not sample.delivered
        sample.delivered, sample.clock = True, ("delivered", self.model.now + DELIVERED_S)

    @rule(passed_s=PASSED_S, limit=st.integers(1, 3))
    def time_passes(self, passed_s: float, limit: int) -> None:
        self.clock.advance(passed_s)
        process = self.processes[EPOCHS[0]]
        evicted = unfetched = notes = 0
        for group in sorted({group_of_session(session) for session in SESSIONS}):
            for _ in range(len(self.model.samples) + len(EPOCHS) + 1):
                swept = run(process, process.sweep(group, self.model.ms, limit))
                assert swept.evicted + swept.notes <= limit
                evicted, unfetched = evicted + swept.evicted, unfetched + swept.unfetched
                notes += swept.notes
        for sample in list(self.model.samples.values()):
            if sample.clock is None or sample.clock[1] > self.model.now:
                continue
            if sample.lost:
                notes -= 1
                self.model.erased(sample)
            elif sample.delivered:
                evicted -= 1
                self.model.erased(sample)
            else:
                evicted -= 1
                unfetched -= sample.state is not State.CANCELLED
                self.model.lost(sample)
        assert (evicted, unfetched, notes) == (0, 0, 0)
        self.model.fenced = {
            key: at for key, at in self.model.fenced.items() if at > self.model.now - FENCE_S
        }

    @rule(
        session=st.sampled_from(SESSIONS),
        epoch=st.sampled_from(EPOCHS),
        by=st.sampled_from(EPOCHS),
        adopt=st.booleans(),
        limit=st.integers(0, 3),
    )
    def bury(self, session: str, epoch: str, by: str, adopt: bool, limit: int) -> None:
        process, group = self.processes[by], group_of_session(session)
        command = process.bury(group, epoch, self.model.ms, limit, adopt=adopt)
        if adopt and (by == epoch or self.model.is_fenced(session, by)):
            with pytest.raises(Fenced):
                run(process, command)
            return
        buried = run(process, command)
        self.model.fenced.setdefault((TAGS[group], epoch), self.model.now)
        theirs = {
            sample.id: sample
            for sample in self.model.samples.values()
            if sample.group == TAGS[group] and sample.owner == epoch and sample.state in UNFINISHED
        }
        left = {key.decode() for key in self.client.smembers(f"{TAGS[group]}:o:{epoch}")}
        assert left <= set(theirs)
        assert buried.left == len(left) == max(0, len(theirs) - limit)
        adopted = {each.request_id: each for each in buried.adopted}
        lost = 0
        # Which go first is the server's choice.
        for sample in sorted(theirs.values(), key=self.position):
            if sample.id in left:
                continue
            if adopt and sample.adoptable:
                got = adopted.pop(sample.id)
                record = sample.record
                assert (got.sampling_session_id, got.seq_id) == sample.key
                assert (got.digest, got.caller) == (record.digest, record.caller)
                assert (got.body, got.meta) == (record.body, b"meta")
                assert got.nbytes == len(record.body or b"")
                sample.owner, sample.state, sample.reserved_bytes = by, State.QUEUED, 0
            else:
                lost += 1
                self.model.lost(sample)
        assert adopted == {}
        assert buried.lost == lost

    def position(self, sample: Sample) -> float:
        """Where the server has a failed one in its log."""
        log = f"{sample.group}:l:{sample.session}:{sample.log[1]}"
        return self.client.zscore(log, f"{sample.id}:-") or 0.0

    @rule(session=st.sampled_from(SESSIONS), epoch=st.sampled_from(EPOCHS), told=st.booleans())
    def forget(self, session: str, epoch: str, told: bool) -> None:
        process = self.processes[epoch]
        command = process.forget(session, self.model.ms, told=told, accepted_by=self.model.ms)
        forgotten = run(process, command)
        assert forgotten.scan == ""
        ended = 0
        for sample in [s for s in self.model.samples.values() if s.session == session]:
            if sample.lost:
                if told:
                    self.model.erased(sample)
                continue
            ended += 1
            if sample.state in UNFINISHED and sample.owner != epoch:
                self.model.wake([sample.owner], f"c{sample.id}")
            if told:
                self.model.erased(sample)
            else:
                self.model.lost(sample)
        assert forgotten.ended == ended
        if told:
            for clone in CLONES:
                log = self.model.logs.pop((session, clone), None)
                if log is not None:
                    self.model.wake(log.watchers or [], f"p{clone}:{session}")

    # --- the books ---

    @invariant()
    def messages_are_the_models(self) -> None:
        heard = []
        self.heard.ping()
        while (message := self.heard.get_message(timeout=5))["type"] != "pong":
            heard.append((message["channel"].decode(), message["data"].decode()))
        assert sorted(heard) == sorted(self.model.messages)
        self.model.messages.clear()

    @invariant()
    def the_server_holds_what_the_model_does(self) -> None:
        assert self.everything() == self.model.expected()

    def everything(self) -> dict[str, Any]:
        client = self.client
        held: dict[str, Any] = {}
        for raw in client.keys("*"):
            key = raw.decode()
            kind = client.type(raw)
            if kind == b"hash":
                held[key] = {k.decode(): v.decode() for k, v in client.hgetall(raw).items()}
            elif kind == b"set":
                held[key] = {member.decode() for member in client.smembers(raw)}
            elif kind == b"zset":
                held[key] = {
                    member.decode(): score
                    for member, score in client.zrange(raw, 0, -1, withscores=True)
                }
            else:
                held[key] = client.get(raw)
        return held


def test_the_functions_under_any_order_of_events(client: Any) -> None:
    class OnServer(SharedMachine):
        pass

    OnServer.client = client
    run_state_machine_as_test(OnServer, settings=machine(runs=60, steps=40))
