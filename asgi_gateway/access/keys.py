"""Keys as the settings and the keys file say them. Pure but for the reading of the file.

Only digests are read and kept. No text of an entry that cannot be used goes into a problem: it may
be a secret in the wrong place.
"""

import hashlib
import math
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from asgi_gateway.access.models import canonical
from asgi_gateway.caller import Caller, Grant
from asgi_gateway.settings import AccessSettings, SettingsError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")
MAX_FILE_BYTES: Final = 16 << 20


class Entry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One table of the keys file. Several digests are several secrets of one caller."""

    sha256: str | tuple[str, ...]
    scopes: Annotated[tuple[Grant, ...], Meta(min_length=1)] = ("sample",)
    max_in_flight: Annotated[int, Meta(ge=1)] | None = None
    max_requests_per_s: Annotated[float, Meta(gt=0)] | None = None
    burst: Annotated[int, Meta(ge=1)] | None = None
    models: Annotated[tuple[str, ...], Meta(min_length=1)] | None = None


class Key(msgspec.Struct, frozen=True, eq=False):
    """A digest of 32 bytes and whose it is."""

    digest: bytes
    caller: Caller


class Keys(msgspec.Struct, frozen=True, eq=False):
    """All keys, by digest. An attacker cannot steer a digest, so a dict's timing tells nothing."""

    by_digest: dict[bytes, Key]

    def __len__(self) -> int:
        return len(self.by_digest)

    def __repr__(self) -> str:
        return f"<Keys {len(self)}>"


def load(settings: AccessSettings) -> Keys:
    """The keys of the settings and of the file.

    Raises:
        SettingsError: every problem of both; none of the keys is to be used then.
    """
    problems: list[str] = []
    entries = list(_listed(settings.keys, problems))
    if settings.keys_file:
        entries += _from_file(Path(settings.keys_file), problems)
    keys: dict[bytes, Key] = {}
    names: set[str] = set()
    for source, name, entry in entries:
        if name in names:
            problems.append(f"{source}: the name {name} is given twice")
        names.add(name)
        try:
            caller = _caller(name, entry)
            digests = _digests(entry.sha256)
        except ValueError as error:
            problems.append(f"{source}: {name}: {error}")
            continue
        for digest in digests:
            if digest in keys:
                problems.append(f"{source}: {name}: another key has the same sha256")
            keys[digest] = Key(digest, caller)
    if not keys and not problems:
        # A file that is being written begins empty, and 401 ends the runs of all its keys.
        problems.append("access.keys_file: there is no key in it")
    if problems:
        raise SettingsError(problems)
    return Keys(keys)


def is_configured(settings: AccessSettings) -> bool:
    """Whether a key is asked for at all."""
    return bool(settings.keys_file or settings.keys)


def problems(settings: AccessSettings) -> Iterable[str]:
    """What is wrong with the keys that are configured."""
    if is_configured(settings):
        try:
            load(settings)
        except SettingsError as error:
            return error.problems
    return ()


def stamp(path: str) -> tuple[int, int, int] | None:
    """What changes when a file does; None where it is not there."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def is_name(text: str) -> bool:
    """Whether a key may be called so."""
    return _NAME.fullmatch(text) is not None


def digest_of(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _listed(keys: Iterable[str], problems: list[str]) -> Iterator[tuple[str, str, Entry]]:
    for position, text in enumerate(keys, 1):
        name, _, digest = text.partition("=")
        if _NAME.fullmatch(name) and _SHA256.fullmatch(digest):
            yield "access.keys", name, Entry(digest)
        else:
            problems.append(f"access.keys: entry {position} is not of the form NAME=SHA256HEX")


def _from_file(path: Path, problems: list[str]) -> Iterator[tuple[str, str, Entry]]:
    source = "access.keys_file"
    table: dict[str, Any] = {}
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            problems.append(f"{source}: {path} has over {MAX_FILE_BYTES} bytes")
        else:
            table = tomllib.loads(text.decode())
    except OSError as error:
        problems.append(f"{source}: cannot read {path}: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        problems.append(f"{source}: {path} is not TOML")
    for position, (name, value) in enumerate(table.items(), 1):
        if not _NAME.fullmatch(name):
            problems.append(
                f"{source}: the name of entry {position} must be 1 to 64 of letters, digits,"
                " '.', '_' and '-', the first a letter or digit"
            )
            continue
        if not isinstance(value, dict):
            problems.append(f"{source}: entry {position} is not a table [name]")
            continue
        try:
            yield source, name, msgspec.convert(value, Entry)
        except msgspec.ValidationError as error:
            problems.append(f"{source}: {name}: {_quoteless(str(error))}")


def _quoteless(text: str) -> str:
    """A validation error without the value that it may quote."""
    return re.sub(r"'[^']*'", "(hidden)", text)


def _caller(name: str, entry: Entry) -> Caller:
    """Raises ValueError."""
    rate = entry.max_requests_per_s
    if rate is not None and not math.isfinite(rate):
        raise ValueError("max_requests_per_s must be a finite number; left out, it is no limit")
    if entry.burst is not None and rate is None:
        raise ValueError("burst needs max_requests_per_s")
    models = None if entry.models is None else frozenset(map(canonical, entry.models))
    return Caller(
        name=name,
        grants=frozenset(entry.scopes),
        models=models,
        max_in_flight=entry.max_in_flight,
        max_requests_per_s=rate,
        burst=entry.burst or max(1, math.ceil(rate or 1)),
    )


def _digests(listed: str | tuple[str, ...]) -> list[bytes]:
    """Raises ValueError."""
    texts = (listed,) if isinstance(listed, str) else listed
    if not texts or not all(_SHA256.fullmatch(text) for text in texts):
        raise ValueError("sha256 must be 64 hexadecimal digits, as `asgi-gateway hash-key` prints")
    digests = [bytes.fromhex(text) for text in texts]
    if digest_of(b"") in digests:
        raise ValueError("sha256 is the one of an empty secret")
    return digests
