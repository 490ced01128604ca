"""Settings: one frozen tree; `configuration` fills it.

`docs/settings.md` lists what each field means to an operator; the comments here say why a default
is what it is.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the configuration file."""


class ServerSettings(_Section, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: Port = 8000
    # Above the idle time of common pools (the SDK's transport keeps 90 s), so that the client and
    # not the server ends an idle connection and no request meets a closing socket.
    keepalive_s: Positive = 100.0
    backlog: Count = 65_535
    # An event loop that stands still for so long has its stack printed; 0: never.
    stall_dump_s: NotNegative = 5.0
    insecure: bool = False


class UpstreamSettings(_Section, frozen=True, kw_only=True):
    urls: tuple[str, ...] = ()
    # A database in which SkyRL publishes its vLLM, instead of URLs.
    source: str = ""
    source_interval_s: Positive = 30.0
    max_connections: Count = 2048
    connect_timeout_s: Positive = 60.0
    # No byte for so long ends a run, and so does its whole work clock.
    read_timeout_s: Positive = 2048.0
    # vLLM closes an idle connection after 5 s; reusing it then loses the request.
    keepalive_s: NotNegative = 4.0
    unavailable_grace_s: NotNegative = 300.0
    read_retries: Annotated[int, Meta(ge=0)] = 0
    poison_after: Annotated[int, Meta(ge=0)] = 3
    breaker_failures: Annotated[int, Meta(ge=0)] = 5
    breaker_probes: Count = 5
    health_interval_s: NotNegative = 5.0
    health_timeout_s: Positive = 5.0
    silent_s: Positive = 120.0
    retry_budget: Annotated[float, Meta(ge=0, le=10)] = 0.2
    affinity: Literal["sample", "session", "none"] = "sample"
    transport: Literal["httptools", "aiohttp"] = "httptools"


class StoreSettings(_Section, frozen=True, kw_only=True):
    completed_ttl_s: Positive = 2048.0
    # Longer than the worst gap between two polls: 45 s limit and 30 s back-off, twice.
    retrieved_ttl_s: Positive = 300.0
    max_in_flight: Count = 262_144
    # Half the memory limit of the container or machine where not given.
    max_bytes: Annotated[int, Meta(ge=1)] | None = None


class PollSettings(_Section, frozen=True, kw_only=True):
    # The SDK gives a poll 45 s and common proxies cut at 60.
    hold_s: Annotated[float, Meta(gt=0, le=40)] = 30.0
    # Bounds how long one turn of the event loop may be when many polls end at once.
    wakes_per_turn: Count = 128
    # A batched poll waits so long after the first completion for more to join it.
    gather_s: NotNegative = 0.01
    # A larger result is announced first where the client allows it, so that it can reserve memory.
    inline_bytes: Count = 1 << 20


class SessionSettings(_Section, frozen=True, kw_only=True):
    timeout_s: Positive = 300.0
    retention_s: Positive = 86_400.0


class DrainSettings(_Section, frozen=True, kw_only=True):
    """What follows the first SIGTERM or SIGINT; a second one ends it."""

    # Long enough for a balancer to notice that /readyz fails.
    predrain_s: NotNegative = 5.0
    grace_s: NotNegative = 60.0


class ClientSettings(_Section, frozen=True, kw_only=True):
    """What `client/config` and `client/dynamic_config` tell the SDK."""

    sample_max_concurrent_requests: Count = 2000
    sample_dispatch_bytes_semaphore_size: Count = 10 << 20
    inflight_response_bytes_semaphore_size: Count = 50 << 20
    refresh_interval_sec: Count = 300
    # On where a journal is kept: a completion that is never reported hangs a sample for hours.
    sample_use_retrieve_futures: bool | None = None
    sample_join_sampling_session: bool | None = None
    sample_cancel_enabled: bool = True


class ModelSettings(_Section, frozen=True, kw_only=True):
    # Names that clients may ask for: NAME, or NAME=UPSTREAM_NAME where the two differ.
    base: tuple[str, ...] = ()
    # What the upstream calls the weights of a tinker:// path; `upstream/naming` checks it. The
    # checkpoint is part of it, since vLLM keeps stale cache blocks for weights reloaded under an
    # old name.
    adapter_name: str = "{model_id}_{checkpoint_id}"
    # Path -> upstream name, where the rule does not fit.
    adapters: dict[str, str] = {}
    # Where the upstream does not say its own.
    max_context_length: Count | None = None


class LimitSettings(_Section, frozen=True, kw_only=True):
    """Largest request bodies in bytes, 413 beyond; then how long `serve` waits for its clients."""

    asample_body_bytes: Count = 32 << 20
    retrieve_futures_body_bytes: Count = 16 << 20
    telemetry_body_bytes: Count = 256 << 10
    body_bytes: Count = 64 << 10
    sessions_per_caller: Count = 65_536
    header_s: Positive = 10.0
    body_idle_s: Positive = 10.0
    # And a second more for each 64 KiB that came.
    body_s: Positive = 30.0
    write_s: Positive = 30.0
    connections: Count | None = None
    # None by default: rollout workers share addresses.
    connections_per_address: Annotated[int, Meta(ge=0)] = 0


class TrainingSettings(_Section, frozen=True, kw_only=True):
    """The Tinker-compatible API server that everything goes to which is not sampling."""

    url: str | None = None
    # The inner application that the gateway is wrapped around is that server.
    embedded: bool = False


class AccessSettings(_Section, frozen=True, kw_only=True):
    """API keys, in a file or as NAME=SHA256HEX; without any, every caller is let in."""

    keys_file: str = ""
    keys: tuple[str, ...] = ()


class StateSettings(_Section, frozen=True, kw_only=True):
    """The journal of sessions and open samples."""

    # Not given: none when embedded, a folder per address under `serve`. Empty: none.
    dir: str | None = None
    fsync: Literal["none", "interval"] = "none"


class LogSettings(_Section, frozen=True, kw_only=True):
    """The log of `serve`, and files of one JSON line per finished sample and per HTTP request."""

    # Of `serve` alone: a host has its own.
    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "warning"
    # Empty: none. "-": standard output. Else a file that is appended to.
    samples: str = ""
    # Of those that succeeded; what failed, was cancelled, is gone or slow is always written.
    success_share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    slow_s: Positive = 60.0
    # As `samples`.
    access: str = ""
    # A sample is two requests or more; of those that were refused all are written.
    access_share: Annotated[float, Meta(ge=0, le=1)] = 0.1


class TracingSettings(_Section, frozen=True, kw_only=True):
    """Spans of samples, sent by OTLP over HTTP; needs the extra `otel`."""

    otlp: bool = False
    # Not given: as OTEL_EXPORTER_OTLP_* say, else the collector of this machine.
    endpoint: str = ""
    # Of the samples whose client sent no trace; one that did says itself whether it is sampled.
    share: Annotated[float, Meta(ge=0, le=1)] = 0.01


class Settings(_Section, frozen=True, kw_only=True):
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
    # Secret of the MAC in request ids; a random one per process where not given.
    id_key: Annotated[str, Meta(min_length=16)] | None = None


class SettingsError(ValueError):
    """Every problem that was found, one line each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))
