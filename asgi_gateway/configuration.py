"""Fills the settings from flags, environment, file and defaults, in that order.

The only module that reads the environment.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec
from msgspec.structs import replace

from asgi_gateway.addresses import shown_url
from asgi_gateway.settings import Settings, SettingsError
from asgi_gateway.settings.section import reloads

ENVIRONMENT_PREFIX: Final = "ASGI_GATEWAY_"
FILE_VARIABLE: Final = "ASGI_GATEWAY_CONFIG"
# What Kubernetes puts into every container beside a Service called asgi-gateway.
_OF_KUBERNETES: Final = re.compile(
    rf"{ENVIRONMENT_PREFIX}(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP).*)?)"
)
SECRETS: Final = frozenset({"id_key", "access.keys"})
URLS: Final = frozenset(
    {"store.url", "upstream.urls", "upstream.source", "training.url", "tracing.endpoint"}
)


class Loaded(msgspec.Struct, frozen=True):
    """Effective settings and where each field came from: its path -> flag, environment, file."""

    settings: Settings
    sources: dict[str, str]


class Gathered(msgspec.Struct, frozen=True):
    """What could be loaded beside every problem. wrong: settings that it speaks for nothing of,
    since their values could not be taken or may be meant by an unknown name."""

    loaded: Loaded
    problems: list[str]
    wrong: set[str]


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Loaded:
    """Merge the sources; see `gather`.

    Raises:
        SettingsError: unknown names, wrong types and values out of range, all at once.
    """
    gathered = gather(flags, environ, file)
    if gathered.problems:
        raise SettingsError(gathered.problems)
    return gathered.loaded


def gather(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Gathered:
    """Merge the sources; a later one of default, file, environment, flag wins field by field.

    Args:
        flags: dotted path -> value, e.g. {"upstream.urls": ["http://h:8001"]}; None is not given.
        environ: the process environment where not given.
        file: a TOML file; ASGI_GATEWAY_CONFIG where not given.
    """
    environ = os.environ if environ is None else environ
    file = file or environ.get(FILE_VARIABLE) or None
    problems: list[str] = []
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    fields = dict(leaves(Settings))
    from_file = _from_file(Path(file), fields, problems) if file else []
    # Whatever a file says that cannot be read.
    wrong = set(fields) if problems else set()
    layers: list[tuple[str, Iterable[tuple[str, Any]]]] = [
        ("file", from_file),
        ("environment", _from_environment(environ)),
        ("flag", [(path, value) for path, value in (flags or {}).items() if value is not None]),
    ]
    for source, items in layers:
        for path, raw in items:
            if path not in fields:
                near = difflib.get_close_matches(path, list(fields), n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                problems.append(f"{source}: unknown setting {path}{hint}")
                wrong.update(near)
                continue
            try:
                value = _convert(raw, fields[path])
            except msgspec.ValidationError as error:
                problems.append(f"{source}: {path} = {shown(path, raw)}: {error}")
                wrong.add(path)
                continue
            values[path], sources[path] = value, source
    return Gathered(Loaded(_build(values), sources), problems, wrong)


def leaves(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and type of every field below a section."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from leaves(hint, f"{prefix}{name}.")
        else:
            yield prefix + name, hint


def value_at(settings: Settings, path: str) -> Any:
    """What a dotted path leads to."""
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def changes(
    before: Settings, after: Settings, *, reloadable: bool | None = None
) -> Iterator[tuple[str, Any, Any]]:
    """Path, old and new value of every field that differs; of all, or of those that a running
    gateway takes or does not take."""
    for path, hint in leaves(Settings):
        old, new = value_at(before, path), value_at(after, path)
        if old != new and reloadable in (None, reloads(hint)):
            yield path, old, new


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


def shown(path: str, value: Any) -> str:
    """A value as text, without secrets, and its URLs as `shown_url` has them."""
    if path in SECRETS and value:
        return "(hidden)"
    if path in URLS and isinstance(value, str):
        # From the environment several come in one text, and a comma may be part of a password.
        parts = re.split(r",\s*(?=[a-z]+://)", value) if path == "upstream.urls" else [value]
        return repr(",".join(map(shown_url, parts)))
    if path in URLS and isinstance(value, list | tuple):
        return repr(type(value)(shown_url(u) if isinstance(u, str) else u for u in value))
    return repr(value)


def _build(values: Mapping[str, Any]) -> Settings:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        section, _, name = path.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    return msgspec.convert(tree, Settings)


def with_state_folder(settings: Settings) -> Settings:
    """As `serve` has it: with the state folder of the address where none is given."""
    server = settings.server
    if settings.state.dir is not None or server.port == 0:
        # A port that was picked at random cannot be come back to, so nothing is kept for it.
        return settings
    folder = default_state_dir(server.host, server.port)
    return replace(settings, state=replace(settings.state, dir=str(folder)))


def environment_with(variables: Mapping[str, str]) -> dict[str, str]:
    """The process environment and these besides, for a process that is started."""
    return {**os.environ, **variables}


def default_state_dir(host: str, port: int) -> Path:
    """Where `serve` keeps its journal: one folder per address that it listens on."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "asgi-gateway" / f"{host.replace(':', '_')}-{port}"
