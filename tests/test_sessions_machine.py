"""Sessions under random event orders, against a model of one row per session.

The ledger is real enough: what it was told is what a second `Sessions` is restored from, as after a
restart, and that must know what the first one knew.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asgi_gateway.errors import Gone, NotFound, Unsupported
from asgi_gateway.ids import Ids
from asgi_gateway.ledger import Ledger
from asgi_gateway.sessions import RESOLUTION_S, SamplingSession, Session, Sessions
from asgi_gateway.upstream.catalog import Model
from tests.support.clock import ManualClock
from tests.support.effort import machine

TIMEOUT_S, RETENTION_S = 300.0, 1000.0
CALLERS = ("alice", "bob")
MODELS = (
    Model("up", "org/base", "salt"),
    Model("up2", "org/base", "salt2", "tinker://r/weights/c"),
)
PASSED_S = st.sampled_from([0.0, RESOLUTION_S / 2, 1.0, TIMEOUT_S - 1, TIMEOUT_S, RETENTION_S])


class Known(msgspec.Struct, eq=False):
    """One session by the model; `lapsed`: its work was ended and no life was seen since."""

    session_id: str
    caller: str
    alive_at: float
    finished: bool = False
    lapsed: bool = False
    # Number -> (id, model, clones).
    sampling: dict[int, tuple[str, Model, int]] = {}

    @property
    def sampling_ids(self) -> set[str]:
        return {made[0] for made in self.sampling.values()}


class Notes(Ledger):
    """What a journal would hold at a crash."""

    def __init__(self) -> None:
        self.sessions: dict[str, str] = {}
        self.finished: set[str] = set()
        self.sampling: dict[str, tuple[str, int, Model]] = {}
        self.clones: dict[str, int] = {}

    def session_made(self, session_id: str, caller: str) -> None:
        assert session_id not in self.sessions
        self.sessions[session_id] = caller

    def session_finished(self, session_id: str) -> None:
        self.finished.add(session_id)

    def session_forgotten(self, session_id: str) -> None:
        del self.sessions[session_id]
        self.finished.discard(session_id)
        for made, (of, _, _) in list(self.sampling.items()):
            if of == session_id:
                del self.sampling[made]

    def sampling_made(
        self, sampling_session_id: str, session_id: str, seq_id: int, **model: Any
    ) -> None:
        assert sampling_session_id not in self.sampling
        self.sampling[sampling_session_id] = (session_id, seq_id, Model(**model))

    def joined(self, sampling_session_id: str, counter: int) -> None:
        self.clones[sampling_session_id] = counter


class SessionsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.notes = Notes()
        self.ids = Ids("a key of the machine")
        self.sessions = Sessions(TIMEOUT_S, RETENTION_S, self.ids, self.notes)
        self.known: dict[str, Known] = {}
        self.forgotten: list[Known] = []
        self.issued: set[str] = set()
        self.named = 0

    @property
    def now(self) -> float:
        return self.clock.now()

    def drawn(self, data: Any) -> tuple[Known, Session]:
        known: Known = data.draw(st.sampled_from(list(self.known.values())))
        session = self.sessions.read(known.session_id, known.caller)
        return known, session

    def seen(self, known: Known) -> None:
        """A sign of life; those that come within the resolution of the last one are none."""
        if self.now - known.alive_at >= RESOLUTION_S:
            known.alive_at, known.lapsed = self.now, False

    # --- sessions ---

    @rule(caller=st.sampled_from(CALLERS), foreign=st.booleans())
    def create(self, caller: str, foreign: bool) -> None:
        self.named += 1
        name = f"trainer-{self.named}" if foreign else None
        session = self.sessions.create(caller, self.now, name)
        assert name in (None, session.session_id)
        assert session.session_id not in self.issued
        assert ":" not in session.session_id
        self.issued.add(session.session_id)
        self.known[session.session_id] = Known(session.session_id, caller, self.now)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def adopt_again(self, data: Any) -> None:
        """Two requests may hear of the trainer's session at once: it is one, as it is."""
        known, session = self.drawn(data)
        assert self.sessions.create(known.caller, self.now, known.session_id) is session

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def heartbeat(self, data: Any) -> None:
        known, session = self.drawn(data)
        if known.finished:
            with pytest.raises(Gone):
                self.sessions.find(known.session_id, known.caller)
        else:
            assert self.sessions.find(known.session_id, known.caller) is session
            self.sessions.alive(session, self.now)
            self.seen(known)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def another_caller(self, data: Any) -> None:
        known, _ = self.drawn(data)
        other = CALLERS[known.caller == CALLERS[0]]
        with pytest.raises(NotFound):
            self.sessions.read(known.session_id, other)
        for made in known.sampling_ids:
            with pytest.raises(NotFound):
                self.sessions.find_sampling(made, other)
            assert not self.sessions.may_have_issued(made, other)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        known, session = self.drawn(data)
        ended = self.sessions.finish(session)
        assert {made.sampling_session_id for made in ended} == known.sampling_ids
        known.finished = True

    # --- sampling sessions ---

    @precondition(lambda self: self.known)
    @rule(data=st.data(), number=st.integers(0, 2), model=st.sampled_from(MODELS))
    def create_sampling(self, data: Any, number: int, model: Model) -> None:
        known, session = self.drawn(data)
        before = known.sampling.get(number)
        if before is not None and before[1] != model:
            with pytest.raises(Unsupported):
                self.sessions.create_sampling(session, number, model)
            return
        made = self.sessions.create_sampling(session, number, model)
        assert made.model == model
        assert made.session is session
        if before is not None:
            assert made.sampling_session_id == before[0]
        else:
            assert made.sampling_session_id not in self.issued
            self.issued.add(made.sampling_session_id)
            known.sampling[number] = (made.sampling_session_id, model, 0)

    @precondition(lambda self: any(k.sampling for k in self.known.values()))
    @rule(data=st.data(), life=st.booleans())
    def sample(self, data: Any, life: bool) -> None:
        """A request that names a sampling session: found, and alive where it says so."""
        known, _, (identifier, model, _) = self.a_sampler(data)
        if known.finished:
            with pytest.raises(NotFound):
                self.sessions.find_sampling(identifier, known.caller)
        else:
            assert self.sessions.find_sampling(identifier, known.caller).model == model
        assert self.sessions.may_have_issued(identifier, known.caller)
        assert self.sessions.upstream_name(identifier) == model.upstream_name
        if life:
            self.sessions.sign_of_life(identifier, self.now)
            if not known.finished:
                self.seen(known)

    @precondition(lambda self: any(k.sampling for k in self.known.values()))
    @rule(data=st.data())
    def join(self, data: Any) -> None:
        known, number, (identifier, model, clones) = self.a_sampler(data)
        if not known.finished:
            sampling = self.sessions.find_sampling(identifier, known.caller)
            assert self.sessions.join(sampling) == clones + 1
            known.sampling[number] = (identifier, model, clones + 1)

    def a_sampler(self, data: Any) -> tuple[Known, int, tuple[str, Model, int]]:
        all_of_them = [
            (known, number, made)
            for known in self.known.values()
            for number, made in known.sampling.items()
        ]
        drawn: tuple[Known, int, tuple[str, Model, int]] = data.draw(st.sampled_from(all_of_them))
        return drawn

    # --- time ---

    @rule(passed_s=PASSED_S, budget=st.integers(1, 3))
    def time_passes(self, passed_s: float, budget: int) -> None:
        """Sweeps until nothing more is due, as the ticker does over its turns."""
        self.clock.advance(passed_s)
        lapsed: list[SamplingSession] = []
        forgotten: list[SamplingSession] = []
        for _ in range(2 * len(self.known) + 2):
            swept = self.sessions.sweep(self.now, budget)
            lapsed += swept.lapsed
            forgotten += swept.forgotten
        self.ended(lapsed, forgotten)

    def ended(self, lapsed: list[SamplingSession], forgotten: list[SamplingSession]) -> None:
        expected_lapsed: list[str] = []
        expected_forgotten: list[str] = []
        for known in list(self.known.values()):
            due = known.alive_at + TIMEOUT_S <= self.now
            if due and not (known.lapsed or known.finished):
                known.lapsed = True
                expected_lapsed += known.sampling_ids
            if known.alive_at + RETENTION_S <= self.now:
                expected_forgotten += known.sampling_ids
                self.forgotten.append(self.known.pop(known.session_id))
        assert sorted(made.sampling_session_id for made in lapsed) == sorted(expected_lapsed)
        assert sorted(made.sampling_session_id for made in forgotten) == sorted(expected_forgotten)

    @rule()
    def restart(self) -> None:
        """A new process with what the ledger was told: clocks start anew, and all life is gone."""
        notes = self.notes
        self.ids = Ids("a key of the machine")
        self.sessions = Sessions(TIMEOUT_S, RETENTION_S, self.ids, notes)
        for session_id, caller in notes.sessions.items():
            finished = session_id in notes.finished
            self.sessions.restore(session_id, caller, finished, self.now)
        for identifier, (session_id, number, model) in notes.sampling.items():
            clones = notes.clones.get(identifier, 0)
            self.sessions.restore_sampling(identifier, session_id, number, model, clones)
        for known in self.known.values():
            known.alive_at, known.lapsed = self.now, False

    # --- the books ---

    @invariant()
    def what_is_known_is_the_models(self) -> None:
        assert len(self.sessions) == len(self.known)
        found = {session.session_id: session for session in self.sessions}
        assert found.keys() == self.known.keys()
        for known in self.known.values():
            session = found[known.session_id]
            assert (session.caller, session.finished) == (known.caller, known.finished)
            assert {
                number: (made.sampling_session_id, made.model, made.clones)
                for number, made in session.sampling.items()
            } == known.sampling
        samplers = {made for known in self.known.values() for made in known.sampling_ids}
        assert self.sessions._sampling.keys() == samplers

    @invariant()
    def clocks_are_those_of_the_living(self) -> None:
        alive = {session.session_id for session, _ in self.sessions._alive}
        assert alive == {
            known.session_id
            for known in self.known.values()
            if not (known.finished or known.lapsed)
        }
        assert {session.session_id for session, _ in self.sessions._kept} == self.known.keys()

    @invariant()
    def what_was_forgotten_is_not_found_and_was_ours(self) -> None:
        for known in self.forgotten[-3:]:
            with pytest.raises(NotFound):
                self.sessions.read(known.session_id, known.caller)
            for made in known.sampling_ids:
                with pytest.raises(NotFound):
                    self.sessions.find_sampling(made, known.caller)
                assert self.sessions.may_have_issued(made, known.caller)

    @invariant()
    def the_newest_come_first(self) -> None:
        for caller in CALLERS:
            mine = [k.session_id for k in self.known.values() if k.caller == caller]
            assert [s.session_id for s in self.sessions.newest(caller)] == mine[::-1]


TestSessionsMachine = SessionsMachine.TestCase
TestSessionsMachine.settings = machine(runs=80, steps=50)
