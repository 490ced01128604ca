"""Settings: one frozen tree; `configuration` fills it.

The text below each field is what it means to an operator: docs/settings.md is made of them. The
comments say why a default is what it is.
"""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from asgi_gateway.settings.clients import (
    AccessSettings,
    ClientSettings,
    DrainSettings,
    LimitSettings,
    PollSettings,
    ServerSettings,
    SessionSettings,
)
from asgi_gateway.settings.section import (
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    Reloads,
    Section,
)

__all__ = [
    "MEMORY",
    "AccessSettings",
    "ClientSettings",
    "DrainSettings",
    "LimitSettings",
    "LogSettings",
    "ModelSettings",
    "PollSettings",
    "ServerSettings",
    "SessionSettings",
    "Settings",
    "SettingsError",
    "StateSettings",
    "StoreSettings",
    "TracingSettings",
    "TrainingSettings",
    "UpstreamSettings",
]


class UpstreamSettings(Section, frozen=True, kw_only=True):
    """The inference servers, and what is done where they fail."""

    urls: Reloads[tuple[str, ...]] = ()
    """base URLs of vLLM or vllm-router; one that is taken out gets no new samples, what runs there
    finishes"""
    # A database in which SkyRL publishes its vLLM.
    source: str = ""
    """instead of URLs: the database in which SkyRL publishes its vLLM,
    `sqlite:////path/tinker.db` or `postgresql://user:password@host/tinker`; see
    [before SkyRL](skyrl.md). User and password are hidden in what is shown"""
    source_interval_s: Positive = 30.0
    """it is read so often, and at most once a second while the upstream does not answer or none is
    published"""
    max_connections: Reloads[Count] = 2048
    """connections to all upstreams together; more samples wait in line"""
    connect_timeout_s: Positive = 60.0
    """one connect"""
    read_timeout_s: Positive = 2048.0
    """the work clock of one run, and the longest silence of the upstream"""
    # Reusing a connection that vLLM closes then loses the request.
    keepalive_s: NotNegative = 4.0
    """idle upstream connections are dropped; vLLM drops them after 5 s"""
    unavailable_grace_s: Reloads[NotNegative] = 300.0
    """how long a sample waits for an upstream that refuses or does not answer"""
    read_retries: Reloads[CountOrZero] = 0
    """runs after an interrupted one; each may double work that vLLM still does"""
    poison_after: Reloads[CountOrZero] = 3
    """interruptions in a row after which a body counts as poison and fails; 0 is off"""
    breaker_failures: Reloads[CountOrZero] = 5
    """failures in a row after which an upstream is given no samples for a while; 0 keeps every
    breaker closed"""
    breaker_probes: Reloads[Count] = 5
    """samples at a time that an upstream is given which failed, until one shows that it works"""
    health_interval_s: Reloads[NotNegative] = 5.0
    """each upstream is asked for `/health` so often; 0 is never"""
    health_timeout_s: Reloads[Positive] = 5.0
    """and must answer within that"""
    silent_s: Reloads[Positive] = 120.0
    """an upstream that fails its health checks and has sent nothing for so long gives its samples
    back, with 410"""
    answer_bytes: Count | None = None
    """the most bytes that one answer may have; not set: by what its sample asked for, see
    [behaviour](behaviour.md#upstream-outcomes)"""
    retry_budget: Reloads[Annotated[float, Meta(ge=0, le=10)]] = 0.2
    """samples sent again, as a share of those sent for the first time, over ten seconds and beside
    ten; more of them wait"""
    affinity: Reloads[Literal["sample", "session", "none"]] = "sample"
    """what `X-Session-ID` says: `sample` spreads, `session` keeps a client on one worker, `none`"""
    transport: Literal["httptools", "aiohttp"] = "httptools"
    """how upstreams are spoken to: `httptools`, the lean one, or `aiohttp`; see
    [performance](performance.md)"""


MEMORY: Final = "memory"


class StoreSettings(Section, frozen=True, kw_only=True):
    """Where samples and results are kept."""

    url: str = MEMORY
    """`memory`: in this process alone; or a Valkey or Redis that several gateways share, such as
    `valkey://host:6379/0`, see [several gateways](scaling.md). User and password are hidden in what
    is shown"""
    adopt: bool = False
    """samples of a gateway that died are run by another one; their prompts are in the shared store
    until then. Else they answer 410, and their clients submit them again"""
    prefix: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,32}$")] = "agw"
    """what the names of all keys in the shared store begin with"""
    timeout_s: Positive = 5.0
    """a call of the shared store that takes longer has failed"""
    lease_s: Positive = 6.0
    """a gateway that the shared store did not hear of for so long is taken for dead"""
    when_down: Literal["require", "degrade"] = "require"
    """while the shared store does not answer: `require` refuses new samples and is not ready,
    `degrade` takes them in for this process alone"""
    completed_ttl_s: Reloads[Positive] = 2048.0
    """a result that was not delivered is kept so long"""
    # Longer than the worst gap between two polls: 45 s limit and 30 s back-off, twice.
    retrieved_ttl_s: Reloads[Positive] = 300.0
    """a result is kept so long after each delivery"""
    max_in_flight: Reloads[Count] = 262_144
    """samples not settled; beyond, `asample` answers 429"""
    max_bytes: Reloads[Annotated[int, Meta(ge=1)] | None] = None
    """prompts, reservations and results together; half the memory limit of the container or
    machine where not given"""


class ModelSettings(Section, frozen=True, kw_only=True):
    base: Reloads[tuple[str, ...]] = ()
    """models that clients may ask for, NAME or NAME=UPSTREAM_NAME; all that the upstream serves
    where empty"""
    # The checkpoint is part of it, since vLLM keeps stale cache blocks for weights reloaded under
    # an old name.
    adapter_name: Reloads[str] = "{model_id}_{checkpoint_id}"
    """what the upstream calls the weights of a `tinker://` path; placeholders `{model_id}`,
    `{checkpoint_id}` and `{kind}`, see [models](behaviour.md#models-and-samplers)"""
    adapters: Reloads[dict[str, str]] = msgspec.field(default_factory=dict)
    """`tinker://` path -> upstream name, where the rule does not fit; as a list, PATH=NAME"""
    max_context_length: Reloads[Count | None] = None
    """where the upstream does not say its own"""


class TrainingSettings(Section, frozen=True, kw_only=True):
    """The Tinker-compatible API server that everything goes to which is not sampling."""

    url: str | None = None
    """Tinker-compatible trainer that gets every route which is not sampling"""
    embedded: bool = False
    """the inner application is that trainer"""


class StateSettings(Section, frozen=True, kw_only=True):
    """The journal of sessions and open samples."""

    dir: str | None = None
    """folder of the journal of sessions and open samples. Not given: `serve` keeps one per address
    under the user's state folder, an embedded gateway none. Empty: none"""
    fsync: Literal["none", "interval"] = "none"
    """`interval` syncs every second; a power cut loses what was not synced, a kill loses nothing"""


class LogSettings(Section, frozen=True, kw_only=True):
    """The log of `serve`, and files of one JSON line per finished sample and per HTTP request."""

    format: Literal["text", "json"] = "text"
    """the log of `serve` on standard error: `text`, or `json` for one object per line; an embedded
    gateway's is its host's. See [the log](observability.md#the-log)"""
    level: Reloads[Literal["debug", "info", "warning", "error"]] = "warning"
    """from which on `serve` writes"""
    samples: str = ""
    """one JSON line per finished sample: a file that is appended to, or `-` for standard output;
    empty: none. See [the sample log](observability.md#the-sample-log)"""
    success_share: Reloads[Annotated[float, Meta(ge=0, le=1)]] = 1.0
    """share of the successful samples that is written, 0 to 1; all others always are"""
    slow_s: Reloads[Positive] = 60.0
    """a sample that took longer from accept to settlement is always written"""
    access: str = ""
    """one JSON line per HTTP request: a file that is appended to, or `-` for standard output;
    empty: none. See [the access log](observability.md#the-access-log)"""
    access_share: Reloads[Annotated[float, Meta(ge=0, le=1)]] = 0.1
    """share of the requests that is written, 0 to 1; those that are refused always are"""


class TracingSettings(Section, frozen=True, kw_only=True):
    """Spans of samples, sent by OTLP over HTTP; needs the extra `otel`."""

    otlp: bool = False
    """make spans of samples and send them. See [traces](observability.md#traces)"""
    endpoint: str = ""
    """where spans are posted, such as `http://collector:4318/v1/traces`; as `OTEL_EXPORTER_OTLP_*`
    say where empty"""
    share: Reloads[Annotated[float, Meta(ge=0, le=1)]] = 0.01
    """share of the samples without a trace of their client that get spans, 0 to 1; a client that
    sends one says itself whether it is sampled"""


class Settings(Section, frozen=True, kw_only=True):
    server: ServerSettings = ServerSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    store: StoreSettings = StoreSettings()
    poll: PollSettings = PollSettings()
    session: SessionSettings = SessionSettings()
    drain: DrainSettings = DrainSettings()
    client: ClientSettings = ClientSettings()
    models: ModelSettings = ModelSettings()
    access: AccessSettings = AccessSettings()
    state: StateSettings = StateSettings()
    training: TrainingSettings = TrainingSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()
    missing_logprobs: Literal["fail", "nan"] = "fail"
    """`fail` the sample, or deliver `nan` where the upstream gave none"""
    id_key: Annotated[str, Meta(min_length=16)] | None = None
    """secret of the MAC in request ids, 16 characters or more; random per process where not
    given"""


class SettingsError(ValueError):
    """Every problem that was found, one line each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))
