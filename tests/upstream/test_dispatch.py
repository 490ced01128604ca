"""The waiting line: at most so many starts in one turn of the loop, and all of them in the end."""

import asyncio
from collections.abc import Collection

import pytest

from asgi_gateway.codec import Want
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import State
from asgi_gateway.upstream import dispatch
from asgi_gateway.upstream.dispatch import Dispatch
from asgi_gateway.upstream.exchange import Exchange
from asgi_gateway.upstream.retrying import Repeats, RetryBudget
from tests.support.clock import ManualClock
from tests.support.told import Told


def queued(store: MemoryStore, number: int, reserve_bytes: int = 8) -> Record:
    record = Record(
        request_id=f"r{number}",
        caller="c",
        sampling_session_id="s",
        seq_id=number,
        digest=b"",
        want=Want(1, False, 0, 0, 0),
        prompt_tokens=1,
        reserve_bytes=reserve_bytes,
        body=b"x",
        accepted_at=0.0,
    )
    store.accept(record)
    return record


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(
        work_s=60, undelivered_s=60, delivered_s=60, max_in_flight=1000, max_bytes=1 << 20
    )


class Runs:
    """Stands for sampling and its transport: ends in the next turn, or when told."""

    def __init__(self, store: MemoryStore, max_connections: int, *, at_once: bool) -> None:
        self.started: list[str] = []
        self.aborted: list[Exchange] = []
        self.clock = ManualClock()
        self.freed: list[Exchange] = []
        self.given_back: list[Record] = []
        self.available = [object()]
        self.budget = RetryBudget(0.2)
        self.line = Dispatch(
            store,
            self.clock,
            self,
            max_connections,
            self._begin,
            upstreams=self,
            budget=self.budget,
            repeats=Repeats(300),
            freed=self.freed.append,
            give_back=self.given_back.append,
        )
        self._store = store
        self._at_once = at_once

    def _begin(self, record: Record) -> Exchange:
        self.started.append(record.request_id)
        exchange = Told()
        if self._at_once:
            asyncio.get_running_loop().call_soon(self._end, record, exchange)
        return exchange

    def _end(self, record: Record, exchange: Exchange) -> None:
        if exchange not in self.aborted:
            self._store.succeed(record, b"", 0.0)
            self.line.ended(record, exchange)

    def abort(self, exchange: Exchange) -> None:
        self.aborted.append(exchange)

    def open(self) -> None: ...

    async def close(self) -> None: ...

    def is_sent(self, exchange: Exchange) -> bool:
        return True

    def heard_within(self, url: str, seconds: float) -> bool:
        return False

    def reconfigure(self, settings: UpstreamSettings) -> None: ...

    def forget_addresses(self) -> None: ...

    def serve(self, urls: Collection[str]) -> None: ...

    def send(self, exchange: Exchange, url: str, body: bytes, **_: object) -> None: ...


async def test_starts_are_spread_over_turns_in_the_order_of_the_line(store: MemoryStore) -> None:
    runs = Runs(store, 1000, at_once=False)
    line = runs.line
    records = [queued(store, i) for i in range(3 * dispatch.STARTS_PER_TURN + 5)]
    for record in records:
        line.enqueue(record)
    seen = [len(runs.started)]
    while len(runs.started) < len(records):
        await asyncio.sleep(0)
        seen.append(len(runs.started))
    steps = [b - a for a, b in zip([0, *seen], seen, strict=False)]
    assert max(steps) == dispatch.STARTS_PER_TURN
    assert runs.started == [record.request_id for record in records]
    assert line.running == len(records)
    line.close()


async def test_a_few_start_at_once(store: MemoryStore) -> None:
    runs = Runs(store, 1000, at_once=False)
    line = runs.line
    for i in range(dispatch.STARTS_PER_TURN):
        line.enqueue(queued(store, i))
    assert line.running == dispatch.STARTS_PER_TURN
    line.close()


async def test_the_line_empties_by_itself_when_connections_are_few(store: MemoryStore) -> None:
    runs = Runs(store, 2, at_once=True)
    line = runs.line
    for i in range(300):
        line.enqueue(queued(store, i))
        assert line.running <= 2
    async with asyncio.timeout(5):
        while store.in_flight:  # noqa: ASYNC110 - nothing but the loop moves it
            await asyncio.sleep(0)
    assert store.counts[State.SUCCEEDED] == len(runs.started) == 300
    line.close()


async def test_nothing_starts_after_the_end(store: MemoryStore) -> None:
    runs = Runs(store, 1000, at_once=True)
    line = runs.line
    for i in range(2 * dispatch.STARTS_PER_TURN):
        line.enqueue(queued(store, i))
    line.close()
    assert len(runs.started) <= dispatch.STARTS_PER_TURN


async def test_an_aborted_exchange_frees_its_place_and_its_late_end_frees_no_other(
    store: MemoryStore,
) -> None:
    runs = Runs(store, 1, at_once=False)
    line = runs.line
    first, second, third = (queued(store, i) for i in range(3))
    for record in (first, second, third):
        line.enqueue(record)
    assert runs.started == ["r0"]
    exchange = line._running[first]
    store.cancel(first, 0.0)
    assert line.abort(first)
    assert runs.aborted == [exchange]
    assert runs.started == ["r0", "r1"]
    assert not line.abort(first)
    line.ended(first, exchange)
    assert line.running == 1
    line.close()


async def test_only_a_head_that_still_waits_is_blocked(store: MemoryStore) -> None:
    """And the one behind it waits its own time, not what is left of the other's."""
    runs = Runs(store, 1000, at_once=False)
    line, clock = runs.line, runs.clock
    running = queued(store, 0)
    line.enqueue(running)
    large = 1 << 20
    heads = [queued(store, number, reserve_bytes=large) for number in (1, 2)]
    for record in heads:
        line.enqueue(record)
    clock.advance(29)
    assert line.blocked(clock.now(), 30) is None
    clock.advance(1)
    store.cancel(heads[0], clock.now())
    assert line.blocked(clock.now(), 30) is None
    line.tick(clock.now())
    clock.advance(29)
    assert line.blocked(clock.now(), 30) is None
    clock.advance(1)
    assert line.blocked(clock.now(), 30) is heads[1]
    store.cancel(running, clock.now())
    line.close()


async def test_the_line_stands_while_no_upstream_is_available(store: MemoryStore) -> None:
    runs = Runs(store, 1000, at_once=False)
    line, available = runs.line, runs.available
    runs.available = []
    for number in range(3):
        line.enqueue(queued(store, number))
    line.tick(runs.clock.now())
    assert runs.started == []
    assert store.counts[State.QUEUED] == 3
    runs.available = available
    line.tick(runs.clock.now())
    assert runs.started == ["r0", "r1", "r2"]
    line.close()


async def test_repeats_come_first_and_those_over_budget_keep_nobody_waiting(
    store: MemoryStore,
) -> None:
    runs = Runs(store, 1000, at_once=False)
    line, now = runs.line, runs.clock.now()
    records = [queued(store, number) for number in range(13)]
    for record in records:
        line.enqueue(record)
    runs.available, available = [], runs.available
    line.enqueue(queued(store, 99))
    for record in records:
        store.retry(record, now)
        line.enqueue_again(record, not_before=now, earliest=now)
    assert len(runs.freed) == 13
    runs.started.clear()
    runs.available = available
    line.tick(now)
    # Ten, and a fifth of the thirteen that were sent first.
    again = [f"r{number}" for number in range(12)]
    assert runs.started == [*again, "r99"]
    assert line.delayed == 1
    line.recovered()
    line.tick(now)
    assert runs.started == [*again, "r99", "r12"]
    line.close()


async def test_who_waits_in_vain_to_be_sent_again_is_given_back(store: MemoryStore) -> None:
    runs = Runs(store, 1000, at_once=False)
    line, record = runs.line, queued(store, 0)
    line.enqueue(record)
    store.retry(record, runs.clock.now())
    runs.available = []
    line.enqueue_again(record, not_before=runs.clock.now(), earliest=0.0)
    runs.clock.advance(299)
    line.tick(runs.clock.now())
    assert runs.given_back == []
    runs.clock.advance(1)
    line.tick(runs.clock.now())
    assert runs.given_back == [record]
    line.close()


async def test_the_line_is_shut_while_this_machine_lacks_something(store: MemoryStore) -> None:
    """One connect has failed for it; the others wait as they are instead of failing as well."""
    runs = Runs(store, 10, at_once=False)
    runs.line.enqueue(queued(store, 0))
    now = runs.clock.now()
    runs.line.shut(now + 1)
    for number in range(1, 5):
        runs.line.enqueue(queued(store, number))
    assert runs.started == ["r0"]
    runs.line.tick(now + 0.9)
    assert runs.started == ["r0"]
    runs.line.tick(now + 1)
    assert runs.started == [f"r{number}" for number in range(5)]
