"""Dispatch under random event orders: what starts, and when, is what a slow line would start.

The model is a list. After every step it starts what may start, and the line must have started the
same records in the same order.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asgi_gateway.errors import Overloaded
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.store.records import Failure, Record
from asgi_gateway.store.states import SETTLED, State
from asgi_gateway.upstream import dispatch
from asgi_gateway.upstream.dispatch import Dispatch
from asgi_gateway.upstream.exchange import Exchange
from asgi_gateway.upstream.retrying import Repeats, RetryBudget
from tests.store.records import new_record, new_store
from tests.support.clock import ManualClock
from tests.support.effort import machine
from tests.support.told import Told

MAX_CONNECTIONS, MAX_BYTES, STARTS_PER_TURN = 3, 500, 2
PASSED_S = st.sampled_from([0.0, 0.1, 1.0, 5.0, 31.0])


class Line:
    """The transport and the owner of the line: keeps what was begun and what was aborted."""

    def __init__(self) -> None:
        self.begun: list[tuple[Record, Exchange]] = []
        self.aborted: list[Exchange] = []

    def begin(self, record: Record) -> Exchange:
        assert record.state is State.RUNNING
        exchange = Told()
        self.begun.append((record, exchange))
        return exchange

    def abort(self, exchange: Exchange) -> None:
        assert exchange not in self.aborted
        self.aborted.append(exchange)

    def open(self) -> None: ...

    async def close(self) -> None: ...

    def reconfigure(self, settings: UpstreamSettings) -> None: ...

    def forget_addresses(self) -> None: ...

    def serve(self, urls: Collection[str]) -> None: ...

    def is_sent(self, exchange: Exchange) -> bool:
        """All are; the line itself never asks."""
        return True

    def heard_within(self, url: str, seconds: float) -> bool:
        """Nothing comes from here; the line itself never asks."""
        return False

    def send(self, exchange: Exchange, url: str, body: bytes, **_: object) -> None: ...


class DispatchMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.store = new_store(max_in_flight=30, max_bytes=MAX_BYTES)
        self.far = Line()
        self.available = ["one"]
        self.repeats = Repeats(float("inf"))
        self.freed: list[Exchange] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dispatch, "STARTS_PER_TURN", STARTS_PER_TURN)
            self.line = Dispatch(
                self.store,
                self.clock,
                self.far,
                MAX_CONNECTIONS,
                self.far.begin,
                upstreams=self,
                budget=RetryBudget(1000.0),
                repeats=self.repeats,
                freed=self.freed.append,
                give_back=lambda record: pytest.fail(f"{record} was given back"),
            )
        self.records: list[Record] = []
        # The model: both lines from their heads, the delayed by time and order, what runs and as
        # what. Those that were upstream before go first.
        self.waiting: list[Record] = []
        self.again: list[Record] = []
        self.delayed: list[tuple[float, int, Record]] = []
        self.running: dict[Record, Exchange] = {}
        self.over: list[tuple[Record, Exchange]] = []
        self.started = 0

    def teardown(self) -> None:
        begun, aborted = len(self.far.begun), len(self.far.aborted)
        self.line.close()
        assert set(self.far.aborted[aborted:]) == set(self.running.values())
        for record in self.records:
            if record.state is State.QUEUED:
                self.line.enqueue(record)
        assert len(self.far.begun) == begun, "something started after the end"
        self.loop.close()

    def do(self, what: Callable[[], object]) -> None:
        """One step in a turn of the loop, and the turns that follow from it."""

        async def step() -> None:
            what()
            for _ in range(2 * MAX_CONNECTIONS + 2):
                assert self.line.running <= MAX_CONNECTIONS
                await asyncio.sleep(0)

        self.loop.run_until_complete(step())

    def settle_the_model(self) -> None:
        """Start what may start; the line must have begun the same, in the same order."""
        new = iter(self.far.begun[self.started :])
        while (self.again or self.waiting) and len(self.running) < MAX_CONNECTIONS:
            if not self.available:
                break
            line = self.again or self.waiting
            head = line[0]
            if head in self.running or head.state not in (State.QUEUED, State.RUNNING):
                line.pop(0)
                continue
            if self.running and self.charged() + head.reserve_bytes > MAX_BYTES:
                break
            record, exchange = next(new, (None, None))
            assert record is head, f"{head.request_id} was next, {record} was begun"
            assert exchange is not None
            line.pop(0)
            self.running[head] = exchange
        assert next(new, None) is None, "more was begun than may run"
        self.started = len(self.far.begun)

    def charged(self) -> int:
        """Without the line's own starts: those the model has not made are still queued to it."""
        return sum(
            (r.reserve_bytes if r in self.running else 0)
            + len(r.body or b"")
            + (len(r.result or b"") if r.state is State.SUCCEEDED else 0)
            + (len(r.failure.text) if r.state is State.FAILED and r.failure else 0)
            for r in self.records
            if r.state is not State.GONE
        )

    def a_running(self, data: Any) -> tuple[Record, Exchange]:
        drawn: tuple[Record, Exchange] = data.draw(st.sampled_from(list(self.running.items())))
        return drawn

    # --- what happens to samples ---

    @rule(size=st.integers(1, 40), reserve=st.sampled_from([0, 10, 150, 300, 900]))
    def submit(self, size: int, reserve: int) -> None:
        record = new_record(len(self.records), body=b"x" * size, reserve=reserve)
        try:
            self.store.admit(size)
        except Overloaded:
            return
        self.store.accept(record)
        self.records.append(record)
        self.waiting.append(record)
        self.do(lambda: self.line.enqueue(record))
        self.settle_the_model()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), fails=st.booleans(), size=st.integers(0, 200))
    def answer(self, data: Any, fails: bool, size: int) -> None:
        record, exchange = self.a_running(data)
        now = self.clock.now()
        if fails:
            assert self.store.fail(record, Failure("f" * 9, "server"), now)
        else:
            self.store.drop_prompt(record)
            assert self.store.succeed(record, b"r" * size, now)
        self._over(record, exchange)
        self.do(lambda: self.line.ended(record, exchange))
        self.settle_the_model()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), wait_s=st.sampled_from([0.0, 0.5, 1.0, 10.0]))
    def once_more(self, data: Any, wait_s: float) -> None:
        """Back in line, now or later; only then is the run over."""
        record, exchange = self.a_running(data)
        now = self.clock.now()
        self._over(record, exchange)
        assert self.store.retry(record, now)
        if wait_s:
            self.delayed.append((now + wait_s, len(self.over), record))
        else:
            self.again.append(record)

        def back() -> None:
            self.line.enqueue_again(record, not_before=now + wait_s, earliest=now)
            assert len(self.line._running) <= MAX_CONNECTIONS
            self.line.ended(record, exchange)

        self.do(back)
        self.settle_the_model()

    @precondition(lambda self: any(r.state <= State.RUNNING for r in self.records))
    @rule(data=st.data(), evicted=st.booleans())
    def cancel(self, data: Any, evicted: bool) -> None:
        """Wherever it is: waiting, delayed or running."""
        record = data.draw(st.sampled_from([r for r in self.records if r.state <= State.RUNNING]))
        exchange = self.running.get(record)
        before = len(self.far.aborted)
        if evicted:
            assert self.store.evict(record)
        else:
            assert self.store.cancel(record, self.clock.now())
        if exchange is not None:
            self._over(record, exchange)
        self.do(lambda: self.line.abort(record))
        assert self.far.aborted[before:] == ([] if exchange is None else [exchange])
        if exchange is not None:  # else who waits behind it starts with the next tick
            self.settle_the_model()

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def an_end_that_comes_late(self, data: Any) -> None:
        """Of a run that is over: it must not free the connection of the record's next run."""
        record, exchange = data.draw(st.sampled_from(self.over))
        assert not self.line.runs(record, exchange)
        self.do(lambda: self.line.ended(record, exchange))
        self.settle_the_model()

    @precondition(lambda self: any(r.state in SETTLED for r in self.records))
    @rule(data=st.data())
    def acknowledge(self, data: Any) -> None:
        """Makes room that nobody tells the line of: the next tick finds it."""
        record = data.draw(st.sampled_from([r for r in self.records if r.state in SETTLED]))
        self.store.acknowledge([record.request_id], record.caller)

    @rule(passed_s=PASSED_S)
    def time_passes(self, passed_s: float) -> None:
        self.clock.advance(passed_s)
        now = self.clock.now()
        self.delayed.sort(key=lambda entry: entry[:2])
        while self.delayed and self.delayed[0][0] <= now:
            self.again.append(self.delayed.pop(0)[2])
        self.do(lambda: self.line.tick(now))
        self.settle_the_model()

    @rule(for_s=st.sampled_from([0.0, 1.0, 30.0]))
    def what_waits_for_bytes(self, for_s: float) -> None:
        record = self.line.blocked(self.clock.now(), for_s)
        if record is not None:
            assert record.state is State.QUEUED
            assert record in self.again + self.waiting

    def _over(self, record: Record, exchange: Exchange) -> None:
        del self.running[record]
        self.over.append((record, exchange))

    @rule()
    def upstreams_come_and_go(self) -> None:
        """While none is available the line stands, and goes on with the next tick after."""
        self.available = [] if self.available else ["one"]
        self.do(lambda: self.line.tick(self.clock.now()))
        self.settle_the_model()

    # --- the books ---

    @invariant()
    def what_runs_is_what_the_store_says(self) -> None:
        assert self.line._running == self.running
        assert self.line.running == len(self.running) <= MAX_CONNECTIONS
        assert {r for r in self.records if r.state is State.RUNNING} == set(self.running)
        for record, exchange in self.running.items():
            assert self.line.runs(record, exchange)
        assert len(self.freed) == len(set(self.freed)), "a connection was given back twice"

    @invariant()
    def what_is_queued_is_in_line_once(self) -> None:
        in_line = [r for r in self.line._waiting if r.state is State.QUEUED]
        in_line += [r for r in self.repeats.ready if r.state is State.QUEUED]
        in_line += [r for _, _, r, _ in self.repeats._later if r.state is State.QUEUED]
        queued = [r for r in self.records if r.state is State.QUEUED]
        assert len(in_line) == len(queued)
        assert set(in_line) == set(queued)


TestDispatchMachine = DispatchMachine.TestCase
TestDispatchMachine.settings = machine(runs=60, steps=50)
