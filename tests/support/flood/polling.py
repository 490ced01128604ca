"""One sampling session as its client keeps it, and the one poll that is held for it."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tests.support.flood.ledger import Tally
from tests.support.flood.wire import Answer, Dropped, Link

# What the SDK gives a poll over httpx, and one that only acknowledges over its usual transport.
POLL_WITHIN_S: Final = 45.0
ACK_WITHIN_S: Final = 10.0
PAUSE_S: Final = 1.0
# The SDK acknowledges as soon as it gets to it; so long it takes where it is busy.
ACK_GATHER_S: Final = 0.05

# Besides 5xx and a lost connection; anything else ends the sampling session for the SDK.
RETRYABLE: Final = frozenset({408, 409, 429})


class _Completion(msgspec.Struct):
    state: str
    request_id: str


class _Page(msgspec.Struct):
    completions: list[_Completion]
    cursor: int


class Poisoned(Exception):
    """An answer at which the SDK gives the sampling session up."""


class Sampler:
    """One sampling session. Request ids are in one place at a time, on their way down this list."""

    def __init__(self, session_id: str, sampling_session_id: str) -> None:
        self.session_id = session_id
        self.sampling_session_id = sampling_session_id
        self.next_seq_id = 0
        self.cursor = 0
        self.acked_cursor = 0
        # Accepted and not reported, by the number of the sample.
        self.waiting: dict[str, int] = {}
        # Reported before the answer to their submit was read.
        self.early: set[str] = set()
        # Fetched and not acknowledged.
        self.retrieved: set[str] = set()
        # Every id that was ever reported, to see repetitions.
        self.reported: set[str] = set()
        self.has_work = asyncio.Event()

    @property
    def done(self) -> bool:
        """Whether there is nothing to poll for and nothing to acknowledge."""
        return not (self.waiting or self.retrieved or self.cursor > self.acked_cursor)

    def accepted(self, request_id: str, number: int) -> bool:
        """A submit was answered; whether its completion was reported already."""
        self.has_work.set()
        if request_id in self.early:
            self.early.discard(request_id)
            return True
        self.waiting[request_id] = number
        return False

    def fetched(self, request_id: str) -> None:
        self.retrieved.add(request_id)
        self.has_work.set()

    def poll(self) -> dict[str, Any]:
        """The body of the next poll."""
        body: dict[str, Any] = {
            "target": {
                "type": "sampling_session",
                "sampling_session_id": self.sampling_session_id,
                "cloned_sampler_id": 0,
            },
            "prev_cursor": self.cursor,
            "retrieved_request_ids": list(self.retrieved),
        }
        if not self.waiting:
            body["timeout"] = 0
        return body


class Poller:
    """Holds one poll after the other, as long as there is something to wait for or to say."""

    def __init__(
        self, sampler: Sampler, link: Link, tally: Tally, fetch: Callable[[Sampler, int, str], None]
    ) -> None:
        """fetch: called with the number and id of each sample that completed."""
        self._sampler = sampler
        self._link = link
        self._tally = tally
        self._fetch = fetch

    async def poll_for_ever(self) -> None:
        """Raises Poisoned where the SDK would give up."""
        sampler = self._sampler
        with contextlib.closing(self._link):
            while True:
                if sampler.done:
                    sampler.has_work.clear()
                    await sampler.has_work.wait()
                if not sampler.waiting:
                    await asyncio.sleep(ACK_GATHER_S)
                if not await self._poll():
                    await asyncio.sleep(PAUSE_S)

    async def _poll(self) -> bool:
        """One poll; False where it must be repeated."""
        sampler, tally = self._sampler, self._tally
        wish = sampler.poll()
        ack_only = "timeout" in wish
        tally.polls += 1
        try:
            answer = await self._link.post(
                b"/api/v1/retrieve_futures",
                msgspec.json.encode(wish),
                within_s=ACK_WITHIN_S if ack_only else POLL_WITHIN_S,
            )
        except TimeoutError:
            tally.polls_abandoned += 1
            return False
        except Dropped:
            tally.polls_repeated += 1
            return False
        if answer.status in RETRYABLE or answer.status >= 500:
            tally.polls_repeated += 1
            return False
        page = _read(answer)
        acks = wish["retrieved_request_ids"]
        tally.acknowledged += len(acks)
        tally.polls_empty += not page.completions
        sampler.retrieved.difference_update(acks)
        sampler.acked_cursor = max(sampler.acked_cursor, wish["prev_cursor"])
        sampler.cursor = page.cursor
        for completion in page.completions:
            self._reported(completion.request_id)
        return True

    def _reported(self, request_id: str) -> None:
        sampler = self._sampler
        if request_id in sampler.reported:
            self._tally.completions_repeated += 1
            return
        sampler.reported.add(request_id)
        number = sampler.waiting.pop(request_id, None)
        if number is None:
            sampler.early.add(request_id)
        else:
            self._fetch(sampler, number, request_id)


def _read(answer: Answer) -> _Page:
    if answer.status != 200:
        raise Poisoned(answer.shown)
    page = _page.decode(answer.body)
    odd = [c for c in page.completions if c.state not in ("finished", "failed")]
    if odd:
        raise Poisoned(f"{odd[0].request_id} is {odd[0].state!r}")
    return page


_page: Final = msgspec.json.Decoder(_Page)
