"""Closed loops of samples. The unit is one sample, delivered; in `HeldLoop`, accepted."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tests.bench.link import Link, Loop
from tests.bench.requests import (
    FETCH,
    POLL_MANY,
    PROMPT_TOKENS,
    PROTOBUF,
    SUBMIT,
    Samples,
    poll_body,
    post,
)

# How long a client takes to get to what is only left to acknowledge.
ACK_GATHER_S: Final = 0.05
SUBMITTERS: Final = 64
FETCHERS: Final = 64
BYTES_A_TOKEN: Final = 8


class _Promise(msgspec.Struct):
    request_id: str


class _Page(msgspec.Struct):
    completions: list[_Promise]
    cursor: int


class SampleLoop(Loop):
    """Each connection submits a sample and polls it until it is there, as SDKs without batched
    polls do; as many are in flight as there are connections."""

    def __init__(self, port: int, links: int, sessions: Sequence[str], tokens: int) -> None:
        super().__init__(port, links)
        self._sessions = sessions
        self._samples = Samples(PROMPT_TOKENS, tokens)
        self._least_bytes = BYTES_A_TOKEN * tokens
        self._number = 0

    def _begin(self) -> None:
        for link in self.links[: self._unstarted]:
            self._submit(link)

    def _submit(self, link: Link) -> None:
        self._unstarted -= 1
        number = self._number
        self._number += 1
        session = self._sessions[number % len(self._sessions)]
        link.ask(post(SUBMIT, self._samples.request(number, session, number)), self._accepted)

    def _accepted(self, link: Link, status: int, body: bytes) -> None:
        if status != 200:
            self._fault(f"asample answered {status}: {body[:200]!r}")
            return
        request_id = _promise.decode(body).request_id
        link.mark = post(FETCH, poll_body(request_id, metadata=True), PROTOBUF)
        link.ask(link.mark, self._polled)

    def _polled(self, link: Link, status: int, body: bytes) -> None:
        if status == 408:
            link.ask(link.mark, self._polled)
        elif status == 410:
            self.resubmitted += 1
            self._unstarted += 1
            self._submit(link)
        elif status != 200 or len(body) < self._least_bytes:
            self._fault(f"retrieve_future answered {status}: {body[:200]!r}")
        elif self._done():
            self._submit(link)


class HeldLoop(SampleLoop):
    """Submits only. `park` then holds a poll for each on a connection of its own."""

    def __init__(self, port: int, links: int, sessions: Sequence[str], tokens: int) -> None:
        super().__init__(port, links, sessions, tokens)
        self._accepted_ids: list[str] = []

    def _accepted(self, link: Link, status: int, body: bytes) -> None:
        if status != 200:
            self._fault(f"asample answered {status}: {body[:200]!r}")
            return
        self._accepted_ids.append(_promise.decode(body).request_id)
        if self._done():
            self._submit(link)

    async def park(self) -> None:
        """Returns when all polls are written; raises OSError where a connection is not had."""
        self._wanted += len(self._accepted_ids)
        await self.open()
        for link, request_id in zip(self.links[::-1], self._accepted_ids, strict=False):
            link.mark = post(FETCH, poll_body(request_id, metadata=True), PROTOBUF)
            link.ask(link.mark, self._polled)


class _Sampler:
    """One sampling session: what it waits for, and what it has to acknowledge."""

    def __init__(self, sampling_session: str, link: Link) -> None:
        self.sampling_session = sampling_session
        self.link = link
        self.polling = False
        self.cursor = 0
        self.acked_cursor = 0
        self.waiting: set[str] = set()
        self.early: set[str] = set()
        self.retrieved: list[str] = []

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.retrieved or self.cursor > self.acked_cursor)


class BatchedLoop(Loop):
    """As the SDK with batched polls: one held poll per sampling session reports what is finished,
    each is then fetched over a pool of connections, and acknowledged by a later poll.

    A run ends when the last one is acknowledged; `window` are in flight.
    """

    def __init__(self, port: int, window: int, sessions: Sequence[str], tokens: int) -> None:
        super().__init__(port, SUBMITTERS + FETCHERS + len(sessions))
        self._window = window
        self._names = sessions
        self._samplers: list[_Sampler] = []
        self._samples = Samples(PROMPT_TOKENS, tokens)
        self._least_bytes = BYTES_A_TOKEN * tokens
        self._number = 0
        self._outstanding = 0
        self._free_submitters: list[Link] = []
        self._free_fetchers: list[Link] = []
        self._unfetched: deque[tuple[_Sampler, str]] = deque()

    def _begin(self) -> None:
        pollers = self.links[: len(self._names)]
        if self._samplers:
            for sampler, link in zip(self._samplers, pollers, strict=True):
                sampler.link = link
        else:
            self._samplers = list(map(_Sampler, self._names, pollers))
        rest = self.links[len(self._names) :]
        self._free_submitters, self._free_fetchers = rest[:SUBMITTERS], rest[SUBMITTERS:]
        self._submit_more()

    def _submit_more(self) -> None:
        while self._unstarted and self._free_submitters and self._outstanding < self._window:
            self._unstarted -= 1
            self._outstanding += 1
            number = self._number
            self._number += 1
            link = self._free_submitters.pop()
            sampler = link.mark = self._samplers[number % len(self._samplers)]
            body = self._samples.request(number, sampler.sampling_session, number)
            link.ask(post(SUBMIT, body), self._accepted)

    def _accepted(self, link: Link, status: int, body: bytes) -> None:
        if status != 200:
            self._fault(f"asample answered {status}: {body[:200]!r}")
            return
        sampler: _Sampler = link.mark
        self._free_submitters.append(link)
        request_id = _promise.decode(body).request_id
        if request_id in sampler.early:
            sampler.early.discard(request_id)
            self._reported(sampler, request_id)
        else:
            sampler.waiting.add(request_id)
            self._poll(sampler)
        self._submit_more()

    def _poll(self, sampler: _Sampler) -> None:
        if sampler.polling or sampler.idle:
            return
        sampler.polling = True
        if sampler.waiting:
            self._send_poll(sampler)
        else:
            asyncio.get_running_loop().call_later(ACK_GATHER_S, self._send_poll, sampler)

    def _send_poll(self, sampler: _Sampler) -> None:
        wish: dict[str, Any] = {
            "target": {
                "type": "sampling_session",
                "sampling_session_id": sampler.sampling_session,
                "cloned_sampler_id": 0,
            },
            "prev_cursor": sampler.cursor,
            "retrieved_request_ids": sampler.retrieved,
        }
        if not sampler.waiting:
            wish["timeout"] = 0
        sampler.link.mark = sampler
        sampler.retrieved = []
        sampler.link.ask(post(POLL_MANY, msgspec.json.encode(wish)), self._polled)

    def _polled(self, link: Link, status: int, body: bytes) -> None:
        if status != 200:
            self._fault(f"retrieve_futures answered {status}: {body[:200]!r}")
            return
        sampler: _Sampler = link.mark
        sampler.polling = False
        page = _page.decode(body)
        sampler.acked_cursor, sampler.cursor = sampler.cursor, page.cursor
        for completion in page.completions:
            if completion.request_id in sampler.waiting:
                sampler.waiting.discard(completion.request_id)
                self._reported(sampler, completion.request_id)
            else:
                sampler.early.add(completion.request_id)
        self._poll(sampler)
        self._end_if_all_said()

    def _reported(self, sampler: _Sampler, request_id: str) -> None:
        self._unfetched.append((sampler, request_id))
        self._fetch_more()

    def _fetch_more(self) -> None:
        while self._unfetched and self._free_fetchers:
            link = self._free_fetchers.pop()
            link.mark = self._unfetched.popleft()
            _, request_id = link.mark
            request = post(FETCH, poll_body(request_id, metadata=False), PROTOBUF)
            link.ask(request, self._fetched)

    def _fetched(self, link: Link, status: int, body: bytes) -> None:
        sampler, request_id = link.mark
        if status == 410:
            self.resubmitted += 1
            self._unstarted += 1
        elif status != 200 or len(body) < self._least_bytes:
            self._fault(f"retrieve_future answered {status}: {body[:200]!r}")
            return
        else:
            sampler.retrieved.append(request_id)
            self._undone -= 1
        self._free_fetchers.append(link)
        self._outstanding -= 1
        self._poll(sampler)
        self._submit_more()
        self._fetch_more()

    def _end_if_all_said(self) -> None:
        if not self._undone and all(s.idle and not s.polling for s in self._samplers):
            self._end()


_promise: Final = msgspec.json.Decoder(_Promise)
_page: Final = msgspec.json.Decoder(_Page)
