"""What the routes of the status page take and give."""

import msgspec


class Drain(msgspec.Struct):
    """`POST /admin/drain`: no fields; the drain ends with the process."""


class DrainUpstream(msgspec.Struct):
    """`POST /admin/upstream`: `upstream` is a name that `/admin/state` lists."""

    upstream: str
    draining: bool


class UpstreamShown(msgspec.Struct, frozen=True):
    """One upstream by host and port. state: `up`, or the reason why it gets no samples, or few."""

    name: str
    state: str
    in_flight: int
    draining: bool


class Holder(msgspec.Struct):
    """A sampling session by what is held for it. `bytes`: prompts, reserved answers, results."""

    sampling_session_id: str
    caller: str
    model: str
    alive_s: float
    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    bytes: int = 0


class Timing(msgspec.Struct, frozen=True):
    """A histogram: counts of each bucket alone, the one beyond the last bound included."""

    counts: list[int]
    seconds: float


class NotDone(msgspec.Struct, frozen=True):
    """A sample that did not succeed; `time` is Unix time."""

    time: float
    request_id: str
    outcome: str
    category: str | None
    error: str


class Setting(msgspec.Struct, frozen=True):
    path: str
    value: str
    is_default: bool


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Counters are since the start; who wants a rate takes differences. Times are seconds."""

    version: str
    # Processes on the port that there should be, and those that this is the sum of.
    workers: int = 1
    workers_answered: int = 1
    time: float
    up_s: float
    ready: bool
    reasons: list[str]
    draining: bool
    samples: dict[str, int]
    outcomes: dict[str, int]
    refusals: dict[str, int]
    retries: dict[str, int]
    polls: int
    sessions: int
    bytes_charged: int
    bytes_limit: int
    results_bytes: int
    loop_lag_s: float
    loop_lag_max_s: float
    bounds_s: list[float]
    timings: dict[str, Timing]
    upstreams: list[UpstreamShown]
    holders: list[Holder]
    recent: list[NotDone]
    settings: list[Setting]
