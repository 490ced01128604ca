"""The whole gateway under random event orders, with restarts: what clients were promised holds.

Clients submit, repeat, poll, poll in batches, acknowledge, cancel, leave and finish; the upstream
answers, fails and breaks in every way; time passes; the process is stopped or killed. Then:

* every accepted sample ends in exactly one of a result, a failure and 410, and that of its own run;
* a repeated submit never runs a sample twice;
* batched polls report everything that completed above the cursor until the client has read it.
"""

import logging
import shutil
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from asgi_gateway.store.states import State
from tests.support.asgi_client import turns
from tests.support.effort import machine
from tests.support.promised.answering import OUTCOMES, Answering
from tests.support.promised.polling import Polling
from tests.support.promised.samples import GONE, OPEN
from tests.support.promised.submitting import Submitting

# What ends everything comes once in so many, or nothing would ever get far.
SELDOM = st.integers(0, 5)


class GatewayMachine(Submitting, Polling, Answering):
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

    # --- what clients do besides ---

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


TestGatewayMachine = GatewayMachine.TestCase
TestGatewayMachine.settings = machine(runs=100, steps=60)
