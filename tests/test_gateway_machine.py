"""The whole gateway under random event orders, with restarts: what clients were promised holds.

Clients submit, repeat, poll, poll in batches, acknowledge, cancel, leave and finish; the upstream
answers, fails and breaks in every way; time passes; the process is stopped or killed. Then:

* every accepted sample ends in exactly one of a result, a failure and 410, and that of its own run;
* a repeated submit never runs a sample twice;
* batched polls report everything that completed above the cursor until the client has read it.
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asgi_gateway import Gateway
from asgi_gateway.codec.sampling_pb2 import SampleResponse
from asgi_gateway.errors import Interrupted, StaleConnection, Unavailable
from asgi_gateway.store.states import State
from tests.support.asgi_client import Connection, Response, turns
from tests.support.clock import ManualClock
from tests.support.effort import machine
from tests.support.gateway import Driven
from tests.support.inprocess import InProcess, Sent, new_gateway
from tests.support.upstream import completion

T = TypeVar("T")
MAX_CONNECTIONS, MAX_IN_FLIGHT = 2, 6
# What ends everything comes once in so many, or nothing would ever get far.
SELDOM = st.integers(0, 5)
CLONE = 1_000_000_000
# What an upstream may do, and whether the sample is then over: as what.
GONE, OPEN = "gone", "open"
OUTCOMES = (
    "result", "result", "result", "unreadable", "refused", "aborted", "bad gateway", "reset",
    "stale", "engine fault", "unavailable", "away",
)  # fmt: skip


class Sample(msgspec.Struct, eq=False):
    """One promise of the gateway.

    state: open, result, failed, lost (its client is to be told 410) or gone (nothing is owed).
    runs: upstream requests since it was accepted, `again` how many of them the table allows.
    """

    request_id: str
    target: str
    seq_id: int
    tokens: int
    state: str = OPEN
    first_token: int = 0
    runs: int = 0
    again: int = 0
    engine_faults: int = 0
    # Whether its client was told by itself, and so is owed no report.
    told: bool = False
    # It was lost and submitted again under its id: the log may still tell of its first end too.
    revived: bool = False
    # Its clocks have run long enough for any of several ends.
    loose: bool = False

    @property
    def clone(self) -> int:
        return self.seq_id // CLONE


class Poller(msgspec.Struct, eq=False):
    """A client's batched polls: its cursor, and every id that it was told."""

    cursor: int = 0
    told: set[str] = set()


class GatewayMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="gateway-machine-"))
        self.boots = 0
        self.clock = ManualClock()
        self.upstream = InProcess()
        self.samples: list[Sample] = []
        self.pollers: dict[tuple[str, int], Poller] = {}
        self.targets: list[str] = []
        self.parked: list[tuple[Sample, Connection]] = []
        self.tokens = 10
        self.seen = 0
        logging.disable(logging.CRITICAL)
        self.run(self._boot())
        self.run(self._handshake())

    # --- the process ---

    def run(self, what: Awaitable[T]) -> T:
        async def step() -> T:
            done = await what
            await turns(6)
            return done

        return self.loop.run_until_complete(step())

    def _new(self) -> Gateway:
        self.boots += 1
        return new_gateway(
            self.upstream,
            self.clock,
            state__dir=str(self.folder / str(self.boots)),
            upstream__max_connections=MAX_CONNECTIONS,
            upstream__poison_after=0,
            store__max_in_flight=MAX_IN_FLIGHT,
            session__timeout_s=1e6,
            session__retention_s=1e7,
            poll__gather_s=0.0,
        )

    async def _boot(self) -> None:
        self.upstream = InProcess()
        self.seen = 0
        self.gateway = self._new()
        self.driven = Driven(self.gateway, self.clock)
        await self.gateway.open()
        await turns()

    async def _handshake(self) -> None:
        self.targets = [await self.driven.handshake()]
        self.session_id = self.driven.session_id

    def teardown(self) -> None:
        try:
            self.run(self._settle_everything())
        finally:
            self.run(self.gateway.close())
            for _, connection in self.parked:
                connection.hang_up()
            self.run(turns())
            assert self.gateway._metrics.bugs == 0
            self.loop.close()
            logging.disable(logging.NOTSET)
            shutil.rmtree(self.folder)

    # --- what clients do ---

    async def _post(self, route: str, body: object, accept: str = "") -> Response:
        headers = {"Accept": accept} if accept else {}
        return await self.driven.client.post(f"/api/v1/{route}", body, headers)

    async def _submit(self, target: str, seq_id: int, tokens: int) -> Response:
        return await self._post(
            "asample",
            {
                "sampling_session_id": target,
                "seq_id": seq_id,
                "num_samples": 1,
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(range(tokens))}]},
                "sampling_params": {"max_tokens": 2},
            },
        )

    @rule(
        data=st.data(),
        seq_id=st.integers(0, 3),
        clone=st.sampled_from([0, 0, 1]),
        tokens=st.sampled_from([1, 1, 1, 2]),
    )
    def submit(self, data: Any, seq_id: int, clone: int, tokens: int) -> None:
        """New, a repeat, or another body under a number that was used."""
        target = data.draw(st.sampled_from(self.targets))
        self._submit_one(target, clone * CLONE + seq_id, tokens)

    def _submit_one(self, target: str, seq_id: int, tokens: int) -> None:
        same = [
            s for s in self.samples if (s.target, s.seq_id) == (target, seq_id) and s.state != GONE
        ]
        assert len(same) <= 1
        known = same[0] if same else None
        answer = self.run(self._submit(target, seq_id, tokens))
        if answer.status == 429:
            assert known is None or known.state == "lost" or known.loose
            in_flight = [s for s in self.samples if s.state == OPEN or s.loose]
            assert len(in_flight) >= MAX_IN_FLIGHT
            return
        if answer.status == 422:
            earlier = [s for s in self.samples if (s.target, s.seq_id) == (target, seq_id)]
            assert any(s.tokens != tokens for s in earlier if s is known or s.loose)
            return
        assert answer.status == 200, answer.body
        request_id = answer.json()["request_id"]
        if known is None or known.loose:
            self._accepted(request_id, target, seq_id, tokens)
            return
        assert known.tokens == tokens, "another body was taken for the same sample"
        assert request_id == known.request_id
        if known.state == "lost":
            self._accepted(request_id, target, seq_id, tokens)

    def _accepted(self, request_id: str, target: str, seq_id: int, tokens: int) -> None:
        """A promise; under an id that is known it takes the place of the one that was lost."""
        for sample in self.samples:
            if sample.request_id != request_id:
                if (sample.target, sample.seq_id) == (target, seq_id):
                    sample.state = GONE  # its time was over, or this were another body
            else:
                if sample.loose and sample.state != GONE:
                    return  # found as it was, or accepted again: both are good
                sample.state = GONE
        revived = any(s.request_id == request_id for s in self.samples)
        self.samples = [s for s in self.samples if s.request_id != request_id]
        self.samples.append(Sample(request_id, target, seq_id, tokens, revived=revived))
        for poller in self.pollers.values():
            poller.told.discard(request_id)
        self._count_runs()

    @initialize(seq_ids=st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
    def begin(self, seq_ids: list[int]) -> None:
        for seq_id in seq_ids:
            self._submit_one(self.targets[0], seq_id, 1)

    @rule(
        data=st.data(),
        seq_id=st.integers(4, 9),
        outcomes=st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=3),
        lost=st.booleans(),
    )
    def as_clients_do(self, data: Any, seq_id: int, outcomes: list[str], lost: bool) -> None:
        """Look, submit, let the upstream do what it does, look again."""
        target = data.draw(st.sampled_from(self.targets))
        self._batched(target, 0, [], lost=False)
        self._submit_one(target, seq_id, 1)
        for outcome in outcomes:
            if self.upstream.under_way:
                self._answer(self.upstream.under_way[0], outcome)
        self._batched(target, 0, [], lost=lost)
        self._batched(target, 0, [], lost=lost)

    @precondition(lambda self: self.samples)
    @rule(data=st.data(), old_sdk=st.booleans(), stays=st.booleans())
    def poll(self, data: Any, old_sdk: bool, stays: bool) -> None:
        sample = data.draw(st.sampled_from(self.samples))
        self.run(self._poll(sample, old_sdk, stays))

    async def _poll(self, sample: Sample, old_sdk: bool, stays: bool) -> Response | None:
        accept = "application/json" if old_sdk else "application/x-protobuf"
        connection = self.driven.client.start(
            "POST",
            "/api/v1/retrieve_future",
            {"request_id": sample.request_id},
            {"Accept": accept},
        )
        await turns(6)
        if connection.answered:
            answer = await connection.response()
            self._told(sample, answer)
            return answer
        assert sample.state == OPEN or sample.loose
        if stays:
            self.parked.append((sample, connection))
        else:
            connection.hang_up()
            await turns(6)
            assert connection.answered
        return None

    def _told(self, sample: Sample, answer: Response) -> None:
        """What a poll of its own says must be what the model knows."""
        if answer.status == 408:
            assert sample.state == OPEN or sample.loose
            return
        if answer.status == 410:
            assert sample.state in ("lost", GONE) or sample.loose, sample
            sample.state, sample.told = GONE, True
            return
        assert answer.status == 200, answer.body
        if sample.loose and sample.state == GONE:
            return
        if b"error" in answer.body[:10]:
            assert sample.state == "failed" or sample.loose, sample
            assert answer.json()["category"] in ("user", "server")
            return
        assert sample.state == "result", sample
        if answer.headers[b"content-type"] == b"application/x-protobuf":
            sequence = SampleResponse.FromString(answer.body).sequences[0]
            tokens = list(memoryview(sequence.tokens).cast("i"))
        else:
            tokens = answer.json()["sequences"][0]["tokens"]
        assert tokens == [sample.first_token, sample.first_token + 1], "another run's result"

    @rule(
        data=st.data(),
        clone=st.sampled_from([0, 0, 1]),
        lost=st.booleans(),
        acknowledges=st.booleans(),
    )
    def batched_poll(self, data: Any, clone: int, lost: bool, acknowledges: bool) -> None:
        """One look; a lost answer leaves the client at its cursor."""
        target = data.draw(st.sampled_from(self.targets))
        poller = self.pollers.setdefault((target, clone), Poller())
        mine = [
            s
            for s in self.samples
            if s.request_id in poller.told and s.state in ("result", "failed") and not s.loose
        ]
        done = data.draw(st.lists(st.sampled_from(mine), max_size=2)) if mine else []
        self._batched(target, clone, done if acknowledges else [], lost=lost)

    def _batched(self, target: str, clone: int, acknowledged: list[Sample], *, lost: bool) -> None:
        poller = self.pollers.setdefault((target, clone), Poller())
        for sample in acknowledged:
            sample.state, sample.told = GONE, True
        ids = self.run(self._look(target, clone, poller, acknowledged, lost=lost))
        revived = {s.request_id for s in self.samples if s.revived or s.loose}
        once = [request_id for request_id in ids if request_id not in revived]
        assert len(once) == len(set(once)), "one completion twice in a page"
        for sample in self.samples:
            if sample.request_id in once and not sample.loose:
                assert sample.state != OPEN, sample

    async def _look(
        self,
        target: str,
        clone: int,
        poller: Poller,
        acknowledged: list[Sample] | None = None,
        *,
        lost: bool = False,
    ) -> list[str]:
        body = {
            "target": {"sampling_session_id": target, "cloned_sampler_id": clone},
            "prev_cursor": poller.cursor,
            "timeout": 0,
            "retrieved_request_ids": [s.request_id for s in acknowledged or []],
        }
        answer = await self._post("retrieve_futures", body)
        assert answer.status == 200, answer.body
        page = answer.json()
        ids = [entry["request_id"] for entry in page["completions"]]
        unread = {
            s.request_id
            for s in self.samples
            if (s.target, s.clone) == (target, clone)
            and s.state in ("result", "failed", "lost")
            and not (s.loose or s.told or s.request_id in poller.told)
        }
        assert unread <= set(ids), "a completion above the cursor was not reported"
        states = {s.request_id: s for s in self.samples}
        told = {entry["request_id"]: entry for entry in page["completions"]}
        for request_id, entry in told.items():
            sample = states.get(request_id)
            if sample is not None and sample.state != OPEN and not sample.loose:
                finished = entry["state"] == "finished"
                assert finished == (sample.state == "result"), (entry, sample)
        if not lost:
            poller.told |= set(ids)
            poller.cursor = page["cursor"]
        return ids

    @precondition(lambda self: self.samples)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        sample = data.draw(st.sampled_from(self.samples))
        answer = self.run(self._post("cancel_future", {"request_id": sample.request_id}))
        assert answer.status == 200
        if sample.state == OPEN:
            sample.state = "failed"
        elif sample.state == "lost":
            sample.state = GONE  # that call is told 410 inside, and answers as if it were done
            sample.told = True
        self._count_runs()
        self._parked_are_answered()

    @rule(spared=SELDOM)
    def finish(self, spared: int) -> None:
        """Its samples are over, whatever they were; a new client comes."""
        if spared:
            return
        self._parked_are_answered()
        path = f"sessions/{self.session_id}/finish"
        assert self.run(self._post(path, {})).status == 200
        for sample in self.samples:
            sample.state, sample.loose = GONE, False
            answer = self.run(self._submit(sample.target, sample.seq_id, sample.tokens))
            assert answer.status == 404
        self._parked_are_answered()
        for target in self.targets:
            look = {"target": {"sampling_session_id": target}, "timeout": 0}
            assert self.run(self._post("retrieve_futures", look)).status == 200
        self.samples.clear()
        self.pollers.clear()
        # What waited may have been begun for a moment before its turn to end came.
        assert not self.upstream.under_way
        self.seen = len(self.upstream.sent)
        self.run(self._handshake())

    @rule()
    def another_sampler(self) -> None:
        if len(self.targets) < 2:
            body = {"session_id": self.session_id, "sampling_session_seq_id": 1}
            made = self.run(
                self._post("create_sampling_session", body | {"base_model": "stand-in"})
            )
            assert made.status == 200
            self.targets.append(made.json()["sampling_session_id"])

    # --- what the upstream does ---

    @precondition(lambda self: self.upstream.under_way)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def upstream_answers(self, data: Any, outcome: str) -> None:
        sent = data.draw(st.sampled_from(self.upstream.under_way))
        self._answer(sent, outcome)

    def _answer(self, sent: Sent, outcome: str) -> None:
        sample = next(s for s in self.samples if s.request_id == sent.request_id)
        assert sample.state == OPEN or sample.loose, "it runs and is over"
        state = "lost"
        if outcome == "result":
            self.tokens += 2
            state, sample.first_token = "result", self.tokens
        elif outcome in ("unreadable", "refused"):
            state = "failed"
        elif outcome in ("unavailable", "away"):
            sample.again += 1
            state = OPEN
        elif outcome == "engine fault":
            sample.engine_faults += 1
            state = OPEN if sample.engine_faults == 1 else "failed"
            sample.again += state == OPEN
        elif outcome == "stale" and not sent.fresh:
            sample.again += 1
            state = OPEN
        if not (sample.loose and sample.state == GONE):
            sample.state = state

        async def answer() -> None:
            if outcome == "result":
                sent.complete(sample.first_token)
            elif outcome == "unreadable":
                sent.answer(200, b'{"choices":[{}]}')
            elif outcome == "refused":
                sent.answer(400, {"error": {"message": "no"}})
            elif outcome == "aborted":
                sent.answer(200, completion([1], [-1.0], finish_reason="abort"))
            elif outcome == "bad gateway":
                sent.answer(502, b"bad gateway")
            elif outcome == "reset":
                sent.fail(Interrupted("it broke"))
            elif outcome == "stale":
                sent.fail(StaleConnection("it was closed"))
            elif outcome == "engine fault":
                sent.answer(500, {"error": {"message": "engine"}})
            elif outcome == "unavailable":
                sent.answer(503, {"detail": "busy"}, "1")
            else:
                sent.fail(Unavailable("nobody there"))

        self.run(answer())
        self._count_runs()
        self._parked_are_answered()

    def _count_runs(self) -> None:
        new, self.seen = self.upstream.sent[self.seen :], len(self.upstream.sent)
        for sent in new:
            sample = next(s for s in self.samples if s.request_id == sent.request_id)
            sample.runs += 1
            assert sample.runs <= 1 + sample.again, "it runs twice"

    def _parked_are_answered(self) -> None:
        """Those whose samples are over, and those whose hold ended."""
        self.run(turns())
        for entry in list(self.parked):
            sample, connection = entry
            if connection.answered:
                self.parked.remove(entry)
                self._told(sample, self.run(connection.response()))
            else:
                assert sample.state == OPEN or sample.loose, "a poll sleeps on what is over"

    # --- time and ends ---

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(self.driven.advance(seconds))
        self._count_runs()
        self._parked_are_answered()

    @rule(spared=SELDOM)
    def much_time_passes(self, spared: int) -> None:
        """All results expire, all work is overdue, and what was away is given back."""
        if spared:
            return
        for sample in self.samples:
            sample.loose = True
        for _ in range(3):
            self.run(self.driven.advance(1000.0))
        self.seen = len(self.upstream.sent)
        self._parked_are_answered()
        for sample in self.samples:
            sample.again += 1000

    @rule(killed=st.booleans(), spared=SELDOM)
    def restart(self, killed: bool, spared: int) -> None:
        if spared:
            return
        if killed:
            now = self.folder / str(self.boots)
            shutil.copytree(now, self.folder / str(self.boots + 1))
            self.run(self.gateway.close())
        else:
            self.run(self.gateway.close())
            now = self.folder / str(self.boots)
            shutil.copytree(now, self.folder / str(self.boots + 1))
        for entry in list(self.parked):
            assert entry[1].answered, "a poll was held beyond the end"
        self.parked.clear()
        assert self.gateway._metrics.bugs == 0
        for sample in self.samples:
            if sample.state == GONE:
                # The note of its end may not have been written.
                sample.loose = True
            elif not sample.loose:
                sample.state = "lost"
                sample.told = False
        for poller in self.pollers.values():
            poller.told = set()
        self.run(self._boot())

    async def _settle_everything(self) -> None:
        """Let all that is open end well, and ask for everything: nothing may be open then."""
        for _ in range(200):
            for sent in self.upstream.under_way:
                sent.complete(1)
                for sample in self.samples:
                    if sample.request_id == sent.request_id:
                        sample.state, sample.first_token = "result", 1
            await turns(4)
            if not any(r.state <= State.RUNNING for r in self.gateway._store.records()):
                break
            await self.driven.advance(20.0)
        for sample in self.samples:
            answer = await self._poll(sample, old_sdk=False, stays=False)
            assert answer is not None, "neither result nor failure nor 410"
            assert answer.status in (200, 410)

    # --- the books ---

    @invariant()
    def never_more_than_the_connections(self) -> None:
        assert len(self.upstream.under_way) <= MAX_CONNECTIONS
        running = self.gateway._store.counts[State.RUNNING]
        assert running == len(self.upstream.under_way) == self.gateway._sampling._dispatch.running

    @invariant()
    def no_bug_was_met(self) -> None:
        assert self.gateway._metrics.bugs == 0


TestGatewayMachine = GatewayMachine.TestCase
TestGatewayMachine.settings = machine(runs=100, steps=60)
