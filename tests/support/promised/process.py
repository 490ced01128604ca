"""The process of a gateway, its state folder and its upstream, and what clients send to it."""

import asyncio
import logging
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from hypothesis.stateful import RuleBasedStateMachine, invariant

from asgi_gateway import Gateway
from asgi_gateway.store.states import State
from tests.support.asgi_client import Connection, Response, turns
from tests.support.clock import ManualClock
from tests.support.gateway import Driven
from tests.support.inprocess import InProcess, new_gateway
from tests.support.promised.samples import Poller, Sample

T = TypeVar("T")
MAX_CONNECTIONS, MAX_IN_FLIGHT = 2, 6


class Process(RuleBasedStateMachine):
    """A gateway that is run step by step; a rule is one step."""

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

    @invariant()
    def never_more_than_the_connections(self) -> None:
        assert len(self.upstream.under_way) <= MAX_CONNECTIONS
        running = self.gateway._store.counts[State.RUNNING]
        assert running == len(self.upstream.under_way) == self.gateway._sampling._dispatch.running

    @invariant()
    def no_bug_was_met(self) -> None:
        assert self.gateway._metrics.bugs == 0
