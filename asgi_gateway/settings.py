"""Settings: one frozen tree, filled from flags, environment, file and defaults, in that order.

The only module that reads the environment. `docs/settings.md` lists what each field means to an
operator; the comments here say why a default is what it is.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec
from msgspec import Meta

ENVIRONMENT_PREFIX: Final = "ASGI_GATEWAY_"
FILE_VARIABLE: Final = "ASGI_GATEWAY_CONFIG"
# What Kubernetes puts into every container beside a Service called asgi-gateway.
_OF_KUBERNETES: Final = re.compile(
    rf"{ENVIRONMENT_PREFIX}(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP).*)?)"
)
SECRETS: Final = frozenset({"id_key", "access.keys"})

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
    max_connections: Count = 2048
    connect_timeout_s: Positive = 60.0
    # No byte for so long ends a run, and so does its whole work clock.
    read_timeout_s: Positive = 2048.0
    # vLLM closes an idle connection after 5 s; reusing it then loses the request.
    keepalive_s: NotNegative = 4.0
    unavailable_grace_s: NotNegative = 300.0
    read_retries: Annotated[int, Meta(ge=0)] = 0
    poison_after: Annotated[int, Meta(ge=0)] = 3
    breaker_failures: Count = 5
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
    """One JSON line per finished sample."""

    # Empty: none. "-": standard output. Else a file that is appended to.
    samples: str = ""
    # Of those that succeeded; what failed, was cancelled, is gone or slow is always written.
    success_share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    slow_s: Positive = 60.0


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
    missing_logprobs: Literal["fail", "nan"] = "fail"
    # Secret of the MAC in request ids; a random one per process where not given.
    id_key: Annotated[str, Meta(min_length=16)] | None = None


class SettingsError(ValueError):
    """Every problem that was found, one line each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class Loaded(msgspec.Struct, frozen=True):
    """Effective settings and where each field came from: its path -> flag, environment, file."""

    settings: Settings
    sources: dict[str, str]


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Loaded:
    """Merge the sources; a later one of default, file, environment, flag wins field by field.

    Args:
        flags: dotted path -> value, e.g. {"upstream.urls": ["http://h:8001"]}; None is not given.
        environ: the process environment where not given.
        file: a TOML file; ASGI_GATEWAY_CONFIG where not given.

    Raises:
        SettingsError: unknown names, wrong types and values out of range, all at once.
    """
    environ = os.environ if environ is None else environ
    file = file or environ.get(FILE_VARIABLE) or None
    problems: list[str] = []
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    fields = dict(leaves(Settings))
    layers: list[tuple[str, Iterable[tuple[str, Any]]]] = [
        ("file", _from_file(Path(file), fields, problems) if file else ()),
        ("environment", _from_environment(environ)),
        ("flag", [(path, value) for path, value in (flags or {}).items() if value is not None]),
    ]
    for source, items in layers:
        for path, raw in items:
            if path not in fields:
                problems.append(f"{source}: unknown setting {path}{_hint(path, fields)}")
                continue
            try:
                value = _convert(raw, fields[path])
            except msgspec.ValidationError as error:
                problems.append(f"{source}: {path} = {shown(path, raw)}: {error}")
                continue
            values[path], sources[path] = value, source
    if problems:
        raise SettingsError(problems)
    return Loaded(_build(values), sources)


def leaves(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and type of every field below a section."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from leaves(hint, f"{prefix}{name}.")
        else:
            yield prefix + name, hint


def _from_file(path: Path, known: Container[str], problems: list[str]) -> list[tuple[str, Any]]:
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        problems.append(f"file: cannot read {path}: {error.strerror}")
        return []
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"file: {path} is not TOML: {error}")
        return []
    sections = {leaf.rpartition(".")[0] for leaf, _ in leaves(Settings)}
    return list(_flatten(table, known, sections))


def _flatten(
    table: Mapping[str, Any], known: Container[str], sections: Container[str], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Dotted path and value of all that a file says. A table may be the value of a setting; one
    that is unknown counts even when it is empty."""
    for name, value in table.items():
        path = prefix + name
        is_section = isinstance(value, dict) and path not in known
        if is_section and (value or path in sections):
            yield from _flatten(value, known, sections, f"{path}.")
        else:
            yield path, value


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for name, value in environ.items():
        if (
            name.startswith(ENVIRONMENT_PREFIX)
            and name != FILE_VARIABLE
            and not _OF_KUBERNETES.fullmatch(name)
        ):
            yield name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "."), value


def _convert(raw: Any, kind: Any) -> Any:
    """Text from the environment is read as the field's type; lists are separated by commas."""
    table = "dict" in str(kind)
    if isinstance(raw, str) and (table or "tuple" in str(kind)):
        raw = [part.strip() for part in raw.split(",") if part.strip()]
    if table and isinstance(raw, list):
        raw = _table(raw)
    return msgspec.convert(raw, kind, strict=not isinstance(raw, str))


def _table(entries: list[Any]) -> dict[str, str]:
    """KEY=VALUE entries as a table."""
    table: dict[str, str] = {}
    for entry in entries:
        key, equals, value = str(entry).partition("=")
        if not equals:
            raise msgspec.ValidationError(f"{entry!r} is not of the form KEY=VALUE")
        if key in table:
            raise msgspec.ValidationError(f"{key} is given twice")
        table[key] = value
    return table


def _hint(path: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(path, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def shown(path: str, value: Any) -> str:
    """A value as text, without secrets and without user and password of the URLs in it."""
    hidden = path in SECRETS and value
    return "(hidden)" if hidden else re.sub(r"//[^/@\s]*@", "//(hidden)@", repr(value))


def _build(values: Mapping[str, Any]) -> Settings:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        section, _, name = path.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    return msgspec.convert(tree, Settings)


def default_state_dir(host: str, port: int) -> Path:
    """Where `serve` keeps its journal: one folder per address that it listens on."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "asgi-gateway" / f"{host.replace(':', '_')}-{port}"
