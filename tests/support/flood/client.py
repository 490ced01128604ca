"""The client: what the SDK does under batched polls, without its cost.

Per sampling session one poll is held; what it reports is fetched over a bounded pool of connections
and acknowledged by a later poll. Submits go over a bounded pool of their own. Statuses mean what
they mean to SDK 0.38.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from tests.support.flood.ledger import Ledger, Outcome, Tally
from tests.support.flood.polling import PAUSE_S, POLL_WITHIN_S, RETRYABLE, Poller, Sampler
from tests.support.flood.samples import MODEL, Samples
from tests.support.flood.wire import PROTOBUF, Answer, Dropped, Link

HEARTBEAT_S: Final = 10.0
RESUBMIT_S: Final = 0.5


class _Promise(msgspec.Struct):
    request_id: str
    sample_sequence_ids: list[str]


class Client:
    """Drives all sampling sessions; `running` keeps its tasks, `flood` gives them samples."""

    def __init__(self, port: int, samples: Samples, *, submitters: int, fetchers: int) -> None:
        self.tally = Tally()
        self._port = port
        self._samples = samples
        self._submitters = submitters
        self._fetchers = fetchers
        self._samplers: list[Sampler] = []
        self._submits: asyncio.Queue[tuple[Sampler, int, int]] = asyncio.Queue()
        self._fetches: asyncio.Queue[tuple[Sampler, int, str]] = asyncio.Queue()
        self._paused_until = 0.0
        self._ledger = Ledger(0)

    async def handshake(self, sessions: int) -> None:
        """As the SDK begins; raises where the gateway does not offer batched polls."""
        with contextlib.closing(self._link()) as link:
            config = await _json(link, "client/config", {"sdk_version": "0.38.0"})
            if not config["sample_use_retrieve_futures"]:
                raise RuntimeError("the gateway does not offer retrieve_futures")
            for _ in range(sessions):
                made = await _json(link, "create_session", {"tags": [], "sdk_version": "0.38.0"})
                session_id = made["session_id"]
                wish = {
                    "session_id": session_id,
                    "sampling_session_seq_id": 0,
                    "base_model": MODEL,
                }
                made = await _json(link, "create_sampling_session", wish)
                self._samplers.append(Sampler(session_id, made["sampling_session_id"]))

    async def finish(self) -> None:
        with contextlib.closing(self._link()) as link:
            for sampler in self._samplers:
                wish = {"reason": {"type": "success"}, "detail": None}
                await _json(link, f"sessions/{sampler.session_id}/finish", wish)

    def flood(self, first: int, count: int) -> Ledger:
        """Have `count` samples from number `first` submitted; their ledger."""
        self._ledger = Ledger(count)
        for number in range(first, first + count):
            self._submit(self._samplers[number % len(self._samplers)], number)
        return self._ledger

    async def all_acknowledged(self) -> None:
        """Until nothing is left to say; where all samples are settled, it stays so."""
        while not all(sampler.done for sampler in self._samplers):  # noqa: ASYNC110 - no one event
            await asyncio.sleep(0.01)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Submitters, fetchers, pollers and heartbeats; a fault in one of them ends all."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._submit_for_ever()) for _ in range(self._submitters)]
            tasks += [group.create_task(self._fetch_for_ever()) for _ in range(self._fetchers)]
            for sampler in self._samplers:
                poller = Poller(sampler, self._link(), self.tally, self._fetch)
                tasks.append(group.create_task(poller.poll_for_ever()))
                tasks.append(group.create_task(self._beat_for_ever(sampler)))
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    def _link(self) -> Link:
        return Link(self._port, self.tally)

    # --- submit ----------------------------------------------------------------------------------

    def _submit(self, sampler: Sampler, number: int) -> None:
        self._submits.put_nowait((sampler, number, sampler.next_seq_id))
        sampler.next_seq_id += 1

    async def _submit_for_ever(self) -> None:
        with contextlib.closing(self._link()) as link:
            while True:
                sampler, number, seq_id = await self._submits.get()
                body = self._samples.request(number, sampler.sampling_session_id, seq_id)
                while (answer := await self._try_submit(link, body)) is None:
                    self.tally.submits_repeated += 1
                if answer.status == 200:
                    self._accepted(sampler, number, answer.body)
                else:
                    self._ledger.settle(number, Outcome.REFUSED, answer.shown)

    async def _try_submit(self, link: Link, body: bytes) -> Answer | None:
        """One asample; None where the SDK would send the same again, after its pause."""
        loop = asyncio.get_running_loop()
        if (wait_s := self._paused_until - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        try:
            answer = await link.post(b"/api/v1/asample", body)
        except (Dropped, TimeoutError):
            await asyncio.sleep(PAUSE_S)
            return None
        if answer.status == 429:  # the whole client pauses
            self.tally.submits_429 += 1
            self._paused_until = loop.time() + PAUSE_S
            return None
        if answer.status in RETRYABLE or answer.status >= 500:
            await asyncio.sleep(PAUSE_S)
            return None
        return answer

    def _accepted(self, sampler: Sampler, number: int, body: bytes) -> None:
        promise = _promise.decode(body)
        request_id, sequence_ids = promise.request_id, promise.sample_sequence_ids
        if len(sequence_ids) != 1:
            self._ledger.problem(f"{request_id} has {len(sequence_ids)} sequence ids")
        self._ledger.accepted(number, request_id)
        if sampler.accepted(request_id, number):
            self._fetch(sampler, number, request_id)

    # --- fetch -----------------------------------------------------------------------------------

    def _fetch(self, sampler: Sampler, number: int, request_id: str) -> None:
        self._fetches.put_nowait((sampler, number, request_id))

    async def _fetch_for_ever(self) -> None:
        with contextlib.closing(self._link()) as link:
            while True:
                sampler, number, request_id = await self._fetches.get()
                body = f'{{"request_id":"{request_id}","allow_metadata_only":false}}'.encode()
                while (answer := await self._try_fetch(link, body)) is None:
                    self.tally.fetches_repeated += 1
                self._fetched(sampler, number, request_id, answer)

    async def _try_fetch(self, link: Link, body: bytes) -> Answer | None:
        """One retrieve_future; None where it must be repeated."""
        try:
            answer = await link.post(
                b"/api/v1/retrieve_future", body, accept=PROTOBUF, within_s=POLL_WITHIN_S
            )
        except (Dropped, TimeoutError):
            await asyncio.sleep(PAUSE_S)
            return None
        if answer.status == 408:
            self.tally.fetches_408 += 1
            return None
        if answer.status == 429 or answer.status >= 500:
            await asyncio.sleep(PAUSE_S)  # the SDK repeats a 5xx at once
            return None
        return answer

    def _fetched(self, sampler: Sampler, number: int, request_id: str, answer: Answer) -> None:
        if answer.status == 410:
            self.tally.resubmitted += 1
            delay_s = RESUBMIT_S * random.uniform(0.75, 1.25)
            asyncio.get_running_loop().call_later(delay_s, self._submit, sampler, number)
            return
        if answer.status != 200 or answer.content_type != PROTOBUF:
            self._ledger.settle(number, Outcome.FAILED, answer.shown)
        elif (fault := self._samples.fault(number, answer.body)) is not None:
            self._ledger.settle(number, Outcome.WRONG, fault)
        else:
            self._ledger.settle(number, Outcome.DELIVERED)
        sampler.fetched(request_id)

    # --- heartbeat -------------------------------------------------------------------------------

    async def _beat_for_ever(self, sampler: Sampler) -> None:
        body = msgspec.json.encode({"session_id": sampler.session_id, "type": "session_heartbeat"})
        with contextlib.closing(self._link()) as link:
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                self.tally.heartbeats += 1
                try:
                    answer = await link.post(b"/api/v1/session_heartbeat", body, within_s=10.0)
                except (Dropped, TimeoutError):
                    self.tally.heartbeats_failed += 1
                    continue
                self.tally.heartbeats_failed += answer.status != 200


async def _json(link: Link, route: str, body: object) -> dict[str, Any]:
    answer = await link.post(b"/api/v1/" + route.encode(), msgspec.json.encode(body))
    if answer.status != 200:
        raise RuntimeError(f"{route}: {answer.shown}")
    return msgspec.json.decode(answer.body, type=dict[str, Any])


_promise: Final = msgspec.json.Decoder(_Promise)
