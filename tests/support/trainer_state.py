"""What the stand-in trainer knows: sessions, runs, checkpoints, samplers and promises.

Shaped after the public SkyRL API server: its ids (`session_`, `model_`, `sampling_`, decimal
request ids), its statuses, and its rule that a run lives as long as its session's heartbeat.
"""

import secrets
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

Kind = str  # "weights" or "sampler_weights", as in a tinker path


@dataclass(frozen=True)
class Options:
    """How the stand-in behaves; times in seconds."""

    models: tuple[str, ...] = ("stand-in",)
    work_s: float = 0.05  # what every operation takes
    hold_s: float = 0.2  # how long a poll is held
    pending: str = "408"  # what a poll answers then; or "try_again"
    silence_s: float = 300.0  # a session without a heartbeat for so long loses its runs
    dynamic_config: bool = False  # SkyRL has none
    compress: bool = False  # ask the SDK for zstd on forward_backward, as SkyRL does
    short_paths: bool = False  # SkyRL's named saves: tinker://RUN/NAME


class Refused(Exception):
    """An answer with a status and FastAPI's `detail`."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass
class Session:
    session_id: str
    heard_at: float
    user_metadata: dict[str, Any]
    heartbeats: int = 0
    finished: str | None = None


@dataclass
class Run:
    model_id: str
    session_id: str
    base_model: str
    rank: int
    loaded: bool = True
    passes: int = 0
    steps: int = 0
    saves: int = 0


@dataclass
class Checkpoint:
    model_id: str
    kind: Kind
    name: str
    steps: int
    ready_at: float
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    @property
    def path(self) -> str:
        return f"tinker://{self.model_id}/{self.kind}/{self.name}"

    def shown(self) -> dict[str, Any]:
        return {
            "checkpoint_id": f"{self.kind}/{self.name}",
            "checkpoint_type": "training" if self.kind == "weights" else "sampler",
            "time": self.time,
            "tinker_path": self.path,
            "size_bytes": 1024,
        }


@dataclass
class Sampler:
    """`steps` tells which weights it has: the optimizer steps taken before the save."""

    sampler_id: str
    session_id: str
    base_model: str
    model_path: str | None
    steps: int = 0


@dataclass
class Promise:
    request_id: str
    ready_at: float
    result: Any
    protobuf: bytes | None = None
    failed: str | None = None
    polls: int = 0


class State:
    """All of it. Every verb that a client can get wrong raises Refused."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.sessions: dict[str, Session] = {}
        self.runs: dict[str, Run] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        self.samplers: dict[str, Sampler] = {}
        self.promises: dict[str, Promise] = {}
        self._sequence: dict[tuple[str, int], tuple[str, str]] = {}
        self._created: dict[tuple[str, int], Run] = {}

    def create_session(self, user_metadata: dict[str, Any]) -> Session:
        session = Session(f"session_{secrets.token_hex(4)}", time.monotonic(), user_metadata)
        self.sessions[session.session_id] = session
        return session

    def session(self, session_id: str) -> Session:
        if session_id not in self.sessions:
            raise Refused(404, "Session not found")
        return self.sessions[session_id]

    def heartbeat(self, session_id: str) -> None:
        session = self.session(session_id)
        if session.finished is not None:
            raise Refused(410, "Session is finished")
        self.unload_silent()  # a late one brings nothing back
        session.heard_at = time.monotonic()
        session.heartbeats += 1

    def finish(self, session_id: str, reason: str) -> None:
        session = self.session(session_id)
        session.finished = session.finished or reason
        for run in self.runs.values():
            run.loaded = run.loaded and run.session_id != session_id

    def unload_silent(self) -> None:
        """Only heartbeats count as life, however busy the session is otherwise."""
        now = time.monotonic()
        for run in self.runs.values():
            if now - self.sessions[run.session_id].heard_at > self.options.silence_s:
                run.loaded = False

    def create_run(
        self, session_id: str, number: int, base_model: str, rank: int, model_id: str | None = None
    ) -> Run:
        """The same run for the same session and number."""
        self.session(session_id)
        if (session_id, number) not in self._created:
            run = Run(model_id or f"model_{secrets.token_hex(4)}", session_id, base_model, rank)
            self._created[session_id, number] = self.runs[run.model_id] = run
        return self._created[session_id, number]

    def run(self, model_id: str) -> Run:
        self.unload_silent()
        if model_id not in self.runs:
            raise Refused(404, "Model not found")
        return self.runs[model_id]

    def save(self, run: Run, kind: Kind, name: str) -> Checkpoint:
        checkpoint = Checkpoint(
            run.model_id, kind, name, run.steps, time.monotonic() + self.options.work_s
        )
        if checkpoint.path in self.checkpoints:
            raise Refused(409, f"Checkpoint '{name}' already exists for model '{run.model_id}'")
        self.checkpoints[checkpoint.path] = checkpoint
        run.saves += 1
        return checkpoint

    def mint(self, session_id: str, base_model: str, checkpoint: Checkpoint | None) -> Sampler:
        sampler = Sampler(f"sampling_{secrets.token_hex(4)}", session_id, base_model, None)
        if checkpoint is not None:
            sampler.model_path, sampler.steps = checkpoint.path, checkpoint.steps
        self.samplers[sampler.sampler_id] = sampler
        return sampler

    def sampler(self, sampler_id: str) -> Sampler:
        if sampler_id not in self.samplers:
            raise Refused(404, "Sampler not found")
        return self.samplers[sampler_id]

    def checkpoint(self, path: str) -> Checkpoint:
        """By its path, the short form included."""
        found = self.checkpoints.get(path)
        if found is None and path.count("/") == 3:
            head, _, name = path.rpartition("/")
            found = self.checkpoints.get(f"{head}/sampler_weights/{name}")
        if found is None:
            raise Refused(404, f"Checkpoint not found: {path}")
        return found

    def saved(self, model_id: str | None = None) -> list[Checkpoint]:
        """Finished checkpoints, newest first."""
        now = time.monotonic()
        return [
            one
            for one in reversed(self.checkpoints.values())
            if one.ready_at <= now and model_id in (None, one.model_id)
        ]

    def repeated(self, run: Run, seq_id: int | None, digest: str) -> Promise | None:
        """The promise of the same request sent before.

        Raises:
            Refused: 409 where the number was used for another request.
        """
        if seq_id is None or (run.model_id, seq_id) not in self._sequence:
            return None
        before, request_id = self._sequence[run.model_id, seq_id]
        if before != digest:
            raise Refused(409, "Training request sequence number was reused")
        return self.promises[request_id]

    def promise(
        self,
        run: Run,
        result: Any,
        *,
        protobuf: bytes | None = None,
        seq_id: int | None = None,
        digest: str = "",
    ) -> Promise:
        """A run that is not loaded fails its promises, as SkyRL's engine does, not its submits."""
        promise = Promise(
            str(len(self.promises) + 1), time.monotonic() + self.options.work_s, result, protobuf
        )
        if not run.loaded:
            promise.failed = f"Model {run.model_id} not loaded"
        self.promises[promise.request_id] = promise
        if seq_id is not None:
            self._sequence[run.model_id, seq_id] = (digest, promise.request_id)
        return promise

    def shown(self) -> dict[str, Any]:
        self.unload_silent()
        return {
            "sessions": {key: asdict(one) for key, one in self.sessions.items()},
            "runs": {key: asdict(one) for key, one in self.runs.items()},
            "checkpoints": {key: asdict(one) for key, one in self.checkpoints.items()},
            "samplers": {key: asdict(one) for key, one in self.samplers.items()},
            "promises": {key: one.polls for key, one in self.promises.items()},
        }
