"""The result of a run: one versioned document, which `report` shows and `compare` compares.

Times are milliseconds unless a name says seconds; sizes are bytes. What was not measured is null,
never zero. Fields are only added within one `SCHEMA`; a changed meaning is a new number.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from loadgen.outcomes import Doubled, Outcomes, Traffic
from loadgen.plan import Plan

SCHEMA: Final = 1

STAGES: Final = ("submit", "queue", "upstream", "deliver", "fetch", "e2e")
"""What each stage lasts, of a sample that succeeded:

submit    until the server accepted it
queue     accepted until the upstream was asked; needs the stand-in's record
upstream  asked until the upstream answered; the same
deliver   the upstream's answer until its bytes were here; the same
fetch     the request that brought the result until its bytes were here
e2e       until its bytes were here

submit and e2e count from when the sample was planned where they are `corrected`, and from the first
byte sent where they are not. The others begin with an event, so they have no corrected form.
"""

PERCENTILES: Final = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)

LATE_MS: Final = 50.0


class SchemaError(Exception):
    """A file that is no result, or of a version that this program does not read."""


class Histogram(msgspec.Struct, kw_only=True):
    """An HDR histogram in whole microseconds, and what people read off it.

    hdr: V2, compressed, base64, as the HdrHistogram tools read it. A percentile with fewer than ten
    samples above it is null: it would be noise. Keys are as in "p50", "p99.9".
    """

    hdr: str
    count: int
    min_ms: float
    mean_ms: float
    max_ms: float
    percentiles: dict[str, float | None]


class Stage(msgspec.Struct, kw_only=True):
    uncorrected: Histogram
    corrected: Histogram | None = None


class Environment(msgspec.Struct, kw_only=True):
    """Where and with what it ran. limits: nofile, somaxconn, port_range and the like, as text."""

    started_at: str
    command: str
    loadgen: str
    python: str
    kernel: str
    machine: str
    cpu: str
    cores: int
    memory: int
    load_before: float
    git: str | None = None
    limits: dict[str, str] = {}
    versions: dict[str, str] = {}


class Series(msgspec.Struct, kw_only=True):
    """Columns of equal length, a row a second; `t` is seconds since the first planned sample.

    in_flight: accepted and without outcome, at the row's end. Latencies are e2e from the plan, of
    samples that ended in this second. cpu: cores in use. server_gc: collections in this second.
    server_in_flight: the server's own count.
    """

    t: list[float] = []
    planned: list[int] = []
    accepted: list[int] = []
    completed: list[int] = []
    in_flight: list[int] = []
    polls: list[int] = []
    p50_ms: list[float | None] = []
    p99_ms: list[float | None] = []
    client_cpu: list[float | None] = []
    client_lag_ms: list[float | None] = []
    server_cpu: list[float | None] = []
    server_rss: list[float | None] = []
    server_descriptors: list[float | None] = []
    server_lag_ms: list[float | None] = []
    server_threads: list[float | None] = []
    server_gc: list[float | None] = []
    server_in_flight: list[float | None] = []
    healthz_p50_ms: list[float | None] = []
    healthz_max_ms: list[float | None] = []


class Phase(msgspec.Struct, kw_only=True):
    """A stretch of the run: submit, hold, deliver. CPU in seconds, by process name."""

    name: str
    began_s: float
    seconds: float
    cpu_s: dict[str, float] = {}


class Server(msgspec.Struct, kw_only=True):
    """The server as seen from outside, over all its pids.

    busy: share of one core that its busiest process used while samples were being submitted or
    delivered. starved: share of that time that it was runnable and not running. metrics: the last
    /metrics, by name and labels; moved: by how much its counters rose during the run.
    """

    pids: list[int] = []
    cpu_s: float | None = None
    cpu_ms_per_sample: float | None = None
    busy: float | None = None
    starved: float | None = None
    rss_before: int | None = None
    rss_peak: int | None = None
    rss_after: int | None = None
    bytes_per_sample: float | None = None
    descriptors_peak: int | None = None
    gc_collections: int | None = None
    gc_pause_s: float | None = None
    gc_pause_max_ms: float | None = None
    lag_p99_ms: float | None = None
    lag_max_ms: float | None = None
    in_flight_peak: int | None = None
    left_behind: int | None = None
    healthz: Histogram | None = None
    healthz_failed: int | None = None
    metrics: dict[str, float] = {}
    moved: dict[str, float] = {}


class Upstream(msgspec.Struct, kw_only=True):
    """What the stand-in saw. ceiling_per_s: what it can answer on cores of its own here.

    mode: the flags that it was started with, null where another started it.
    """

    requests: int
    samples: int
    missing: int
    aborted: int = 0
    running_peak: int = 0
    cpu_s: float | None = None
    ceiling_per_s: float | None = None
    mode: str | None = None


class FaultCount(msgspec.Struct, kw_only=True):
    """A kind of fault: how often the stand-in gave it, and what came of it at the client.

    seen: by outcome of the sample that met it, as "succeeded" (the server tried again),
    "failed.server", "lost"; "no sample" where no request of the run did. Sums to `injected`.
    """

    kind: str
    injected: int
    seen: dict[str, int] = {}


class ClientCheck(msgspec.Struct, kw_only=True):
    """Whether the client kept up. Per process lists; shares are of 1.

    cpu: share of a core used while submitting or delivering. starved: share of that time that it
    was runnable and not running. late: samples that were due more than LATE_MS before the client
    came to them.
    """

    cpu: list[float] = []
    starved: list[float] = []
    lag_p99_ms: list[float] = []
    lag_max_ms: list[float] = []
    late: int = 0
    late_max_ms: float = 0.0
    cpu_ms_per_sample: float | None = None
    descriptors_peak: list[int] = []
    machine_busy: float | None = None


class Check(msgspec.Struct, kw_only=True):
    """One line of the preflight. who: client, server or machine. remedy: the command that helps."""

    who: str
    name: str
    needed: float
    available: float
    ok: bool
    remedy: str | None = None


class Preflight(msgspec.Struct, kw_only=True):
    """proposal: a plan that fits where a limit cannot be raised, as flags of `loadgen run`."""

    ok: bool
    checks: list[Check] = []
    proposal: str | None = None


class ProfileRow(msgspec.Struct, kw_only=True):
    function: str
    where: str
    self_share: float
    total_share: float


class Profile(msgspec.Struct, kw_only=True):
    """The top of a profile. who: server or client; tool: py-spy or cProfile."""

    who: str
    tool: str
    seconds: float
    rows: list[ProfileRow] = []


class Threshold(msgspec.Struct, kw_only=True):
    """value: of the expression's left side; null where it was not measured, which fails it."""

    expression: str
    value: float | None
    ok: bool


class Verdict(msgspec.Struct, kw_only=True):
    """valid: whether the server, not the client or the machine, was what the figures are about.

    exit_status: 0 ok, 1 a threshold failed or the ledger is not clean, 3 invalid.
    """

    valid: bool
    reasons: list[str] = []
    clean: bool = True
    problems: list[str] = []
    thresholds: list[Threshold] = []
    exit_status: int = 0


class Result(msgspec.Struct, kw_only=True):
    """A whole run. seconds: from the first planned sample to the last outcome, `hold_s` left out.

    clean (see Verdict): 0 failed, refused, wrong, lost and doubled, beyond what faults explain.
    """

    schema: int = SCHEMA
    environment: Environment
    plan: Plan
    seconds: float
    samples_per_s: float
    output_tokens_per_s: float
    outcomes: Outcomes
    doubled: Doubled
    traffic: Traffic
    stages: dict[str, Stage]
    series: Series
    phases: list[Phase]
    client: ClientCheck
    verdict: Verdict
    server: Server | None = None
    upstream: Upstream | None = None
    preflight: Preflight | None = None
    faults: list[FaultCount] = []
    profiles: list[Profile] = []
    notes: list[str] = []


def encode(result: Result) -> bytes:
    """The file: JSON, indented, with a newline at its end.

    Text that is not UTF-8, as a command line may be, is escaped: no run is lost for it.
    """
    try:
        data = msgspec.json.encode(result)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_escaped(msgspec.to_builtins(result)))
    return msgspec.json.format(data, indent=1) + b"\n"


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value


def decode(data: bytes) -> Result:
    """Read a file. Raises SchemaError, which names what is wrong."""
    try:
        loose: Any = msgspec.json.decode(data)
        if not isinstance(loose, dict) or "schema" not in loose:
            raise SchemaError("no result of loadgen: it has no field schema")
        if loose["schema"] != SCHEMA:
            raise SchemaError(f"schema {loose['schema']}; this program reads {SCHEMA}")
        return msgspec.convert(loose, Result)
    except msgspec.MsgspecError as error:
        raise SchemaError(f"no result of loadgen: {error}") from error
