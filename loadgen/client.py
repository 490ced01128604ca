"""One process's clients: makes the samples due, and carries each from submit to its outcome."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from loadgen.address import address
from loadgen.batched import Poller
from loadgen.fetch import Fetcher
from loadgen.ledger import Ledger
from loadgen.plan import Plan
from loadgen.samples import Samples
from loadgen.schedule import planned_s
from loadgen.selfcheck import SelfCheck
from loadgen.session import Api, Flags, HandshakeError, Sampler, beat, finish, handshake
from loadgen.share import Share, now, rows_of
from loadgen.submit import Submitter
from loadgen.wire import Pool

SUBMIT_WITHIN_S: Final = 60.0
SESSION_WITHIN_S: Final = 30.0
BEAT_WITHIN_S: Final = 10.0
UNBOUNDED: Final = 1 << 40
LOOK_EVERY_S: Final = 0.02
LAST_ACKS_WITHIN_S: Final = 15.0


class Client:
    """Process `process` of a plan. `prepare`, then `drive`, then `finish`; `close` in any case."""

    def __init__(self, plan: Plan, process: int) -> None:
        self.plan = plan
        self.process = process
        self.ledger = Ledger(rows_of(plan, process))
        self.flags = Flags()
        self._where = address(plan.url)
        self._api = Api(self._where, plan.api_key, self.ledger.traffic)
        self._samples = Samples(plan)
        self._samplers: list[Sampler] = []
        self._pollers: dict[Sampler, Poller] = {}
        self._pools: list[Pool] = []
        self._session_pool = self._pool(SESSION_WITHIN_S, size=4)
        self._beat_pool = self._pool(BEAT_WITHIN_S, size=4)
        self._beating: asyncio.Task[None] | None = None
        self._next_row = 0
        self._planned: list[float] = []
        self._closed = plan.arrivals == "closed"
        self._gated = False
        self._ended = False
        own = len(list(Path("/proc/self/fd").iterdir()))
        self.check = SelfCheck(self._work, lambda: own + sum(pool.open for pool in self._pools))

    async def prepare(self) -> None:
        """Shake hands and begin the heartbeats. Raises HandshakeError."""
        plan = self.plan
        self.flags, self._samplers = await handshake(
            self._api, self._session_pool, plan, self.process
        )
        batched = plan.style == "futures"
        if batched and not self.flags.sample_use_retrieve_futures:
            raise HandshakeError(
                "client/config: sample_use_retrieve_futures is off, so no SDK would poll in "
                "batches; use --style future"
            )
        share = Share(
            plan,
            self.process,
            samples=self._samples,
            ledger=self.ledger,
            api=self._api,
            flags=self.flags,
            samplers=self._samplers,
        )
        self._gated = not batched
        self._submitter = Submitter(
            share,
            self._pool(SUBMIT_WITHIN_S, size=plan.submitters),
            in_flight=0 if batched else self.flags.sample_max_concurrent_requests,
            refused=self._settled,
        )
        places = plan.fetchers if batched else UNBOUNDED
        self._fetcher = Fetcher(
            share,
            self._pool(plan.poll_timeout_s, size=plan.fetchers if batched else 0),
            places=places,
            held=not batched,
            ended=self._fetched_batched if batched else self._settled,
            gone=self._submitter.submit,
        )
        self._submitter.accepted = self._accepted_batched if batched else self._fetcher.fetch
        if batched:
            pool = self._pool(plan.poll_timeout_s)
            self._pollers = {
                sampler: Poller(
                    share,
                    pool,
                    sampler,
                    completed=self._fetcher.fetch,
                    poisoned=self._settled,
                )
                for sampler in self._samplers
            }
        self._beating = asyncio.create_task(
            beat(self._api, self._beat_pool, self._samplers, lambda: self._ended)
        )

    async def drive(self, start: float, stopped: Callable[[], bool]) -> None:
        """Have every sample sent when it is due; returns when all have ended or time is up.

        start: the monotonic time of the plan's zero. stopped: whether to end at once.
        """
        plan, ledger = self.plan, self.ledger
        self.check.start()
        if self._closed:
            most = plan.concurrency or plan.samples
            mine = len(range(self.process, most, plan.processes))
            self._next_row = min(mine, ledger.count)
            for row in range(self._next_row):
                ledger.planned[row] = start
                self._submitter.due(row)
        else:
            self._planned = (planned_s(plan)[self.process :: plan.processes] + start).tolist()
            self._open_loop()
        deadline = start + plan.within_s
        while ledger.open and now() < deadline and not stopped():  # noqa: ASYNC110 - three ends
            await asyncio.sleep(LOOK_EVERY_S)
        last = min(deadline, now() + LAST_ACKS_WITHIN_S)
        while not self._all_said and now() < last and not stopped():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)

    async def finish(self) -> None:
        """End the sessions, as the SDK does when it is closed."""
        traffic = self.ledger.traffic
        traffic.bytes_sent = sum(pool.sent for pool in self._pools)
        traffic.bytes_received = sum(pool.received for pool in self._pools)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SESSION_WITHIN_S):
                await finish(self._api, self._session_pool, self._samplers)

    def close(self) -> None:
        self._ended = True
        if self._beating is not None:
            self._beating.cancel()
        for pool in self._pools:
            pool.close()

    @property
    def _all_said(self) -> bool:
        return all(poller.done for poller in self._pollers.values())

    def _work(self) -> int:
        return self.ledger.traffic.submits + self.ledger.count - self.ledger.open

    def _pool(self, within_s: float, size: int = 0) -> Pool:
        pool = Pool(
            self._where,
            self.ledger.traffic,
            within_s=within_s,
            size=size,
            sources=self.plan.source_addresses[self.process :: self.plan.processes]
            or self.plan.source_addresses,
        )
        self._pools.append(pool)
        return pool

    # --- when ------------------------------------------------------------------------------------

    def _open_loop(self) -> None:
        """Every row that is due by now, then again when the next one is."""
        time = now()
        row, planned = self._next_row, self._planned
        while row < len(planned) and planned[row] <= time:
            self.check.late(time - planned[row])
            self.ledger.planned[row] = planned[row]
            self._submitter.due(row)
            row += 1
        self._next_row = row
        if row < len(planned) and not self._ended:
            asyncio.get_running_loop().call_later(planned[row] - time, self._open_loop)

    def _settled(self, _: int, sampler: Sampler, __: str = "") -> None:
        """A sample has its outcome: its sampler has room again, and the loop if it is closed."""
        sampler.in_flight -= 1
        submitter, row = self._submitter, self._next_row
        if self._gated:
            submitter.ended(sampler)
        if self._closed and row < self.ledger.count:
            self._next_row = row + 1
            self.ledger.planned[row] = now()
            submitter.due(row)

    def _accepted_batched(self, row: int, sampler: Sampler, request_id: str) -> None:
        self._pollers[sampler].accepted(row, request_id)

    def _fetched_batched(self, row: int, sampler: Sampler, request_id: str) -> None:
        self._pollers[sampler].retrieved(request_id)
        self._settled(row, sampler)
