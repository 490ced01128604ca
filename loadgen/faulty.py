"""Which completion gets which fault, and how it is given."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from loadgen import script
from loadgen.body import Style
from loadgen.connection import Connection
from loadgen.counts import Counts
from loadgen.damage import damaged
from loadgen.faults import CANNED, DRIP_S, REFUSE_S, Fault, fault_of
from loadgen.peers import Peers
from loadgen.request import Job
from loadgen.script import Director, Injection
from loadgen.settings import Settings
from loadgen.tape import Tape

BY_PROMPT = {Fault.RATE_LIMITED: 1.0, Fault.DRIP: DRIP_S, Fault.REFUSE: REFUSE_S}
"""The values of faults that prompts ask for."""


class Faulty:
    """The faults of one stand-in process. `peers` is set where it is one of several."""

    def __init__(
        self,
        settings: Settings,
        counts: Counts,
        tape: Tape,
        style: Style,
        *,
        tell: Callable[[str], None],
    ) -> None:
        """tell: has every process do a command. Raises ValueError where the script is wrong."""
        self._settings = settings
        self._counts = counts
        self._tape = tape
        self._style = style
        self._tell = tell
        rules = script.parse(settings.script)
        self._director = Director(rules, seed=settings.seed) if rules else None
        self._given: dict[bytes, int] = {}
        self._began: float | None = None
        self._spans: list[asyncio.TimerHandle] = []
        self.peers: Peers | None = None

    def __repr__(self) -> str:
        return f"<Faulty {self._director!r} by_prompt={self._settings.faults}>"

    @property
    def active(self) -> bool:
        return self._settings.faults or self._director is not None

    def pick(self, job: Job) -> Injection | None:
        """The fault of the completion that arrives now."""
        injection = self._asked(job) if self._settings.faults else None
        if injection is None and self._director is not None:
            injection = self._director.pick(job, self._elapsed_s())
        times = self._settings.fault_times
        if injection is None or times is None:
            return injection
        key = blake2b(msgspec.json.encode(job.prompts), digest_size=16).digest()
        given = self._given.get(key, 0)
        if given >= times:
            return None
        self._given[key] = given + 1
        return injection

    def _asked(self, job: Job) -> Injection | None:
        fault = fault_of(job.prompts[0][0], self._settings.vocab)
        return None if fault is None else Injection(fault, BY_PROMPT.get(fault))

    def _elapsed_s(self) -> float:
        """Since the first completion that came to any of the processes."""
        now = time.monotonic()
        if self._began is None:
            began = now if self.peers is None else self.peers.began(now)
            if began == now:
                self._tell(f"began {began}")
            self._began = began
        return now - self._began

    def plan(self, began: float) -> None:
        """Have the listener shut in the spans of the script, counted from `began`."""
        if self._director is None or self._spans:
            return
        self._began = began
        loop = asyncio.get_running_loop()
        elapsed = time.monotonic() - began
        for from_s, to_s in self._director.shut_spans:
            # Longer than any run, where the script gives no end.
            seconds = min(to_s, 1e6) - from_s if to_s < math.inf else 1e6
            self._spans.append(loop.call_later(from_s - elapsed, self._shut, seconds))

    def _shut(self, seconds: float) -> None:
        if self.peers is None or self.peers.leads:  # one span is one fault
            self._counts.faults[Fault.REFUSE] += 1
            self._tell(f"refuse {seconds}")

    def stop(self) -> None:
        for timer in self._spans:
            timer.cancel()

    def give(
        self, connection: Connection, job: Job, injection: Injection, *, request_id: str
    ) -> None:
        """Answer with the fault, where the right answer is due."""
        fault, counts = injection.fault, self._counts
        counts.gave(fault, request_id)
        if (canned := CANNED.get(fault)) is not None:
            counts.statuses[canned.status] += 1
            headers = injection.retry_after
            connection.respond(canned.status, canned.body, canned.content_type, headers)
        elif fault is Fault.CLOSE_BEFORE:
            connection.drop()
        elif fault is Fault.RESET_BEFORE:
            connection.reset()
        elif fault is Fault.REFUSE:
            connection.drop()
            self._tell(f"refuse {injection.value}")
        else:
            self._give_damaged(connection, job, injection, request_id)

    def _give_damaged(
        self, connection: Connection, job: Job, injection: Injection, request_id: str
    ) -> None:
        fault, counts = injection.fault, self._counts
        created = int(time.time())
        made = damaged(job, self._tape, fault, self._style, request_id=request_id, created=created)
        counts.prompt_tokens += made.prompt_tokens
        counts.generation_tokens += made.generated
        if fault in (Fault.CLOSE_MIDWAY, Fault.RESET_BODY):
            connection.respond_half(200, made.body, reset=fault is Fault.RESET_BODY)
            return
        counts.statuses[200] += 1
        if fault is Fault.DRIP:
            connection.respond_slowly(200, made.body, injection.value or 0.0)
        else:
            connection.respond(200, made.body)
