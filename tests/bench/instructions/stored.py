"""The stored counts: per interpreter, lock and host, and the rule that a rise needs a reason.

`counts.json` is a list of entries. A stored count is the lowest since its last explained rise, not
the latest: else a function could grow by 4% a commit for ever.
"""

import hashlib
import sys
from pathlib import Path
from typing import Final

import msgspec

from tests.bench.instructions.measure import ROOT, host

COUNTS: Final = Path(__file__).parent / "counts.json"
LOCK: Final = ROOT / "requirements.lock"
# A rise up to this much passes unexplained.
MAX_RISE: Final = 0.05


class Count(msgspec.Struct, frozen=True, omit_defaults=True):
    """`was` and `reason` are of the last rise of over 5%, where there was one."""

    instructions: int
    was: int | None = None
    reason: str | None = None


class Key(msgspec.Struct, frozen=True):
    """Counts of two keys cannot be compared. `python` is sys.version: builds differ too."""

    python: str
    lock: str
    host: str

    def __str__(self) -> str:
        return f"Python {self.python}, lock {self.lock[:12]}, {self.host}"


class Entry(msgspec.Struct, frozen=True):
    key: Key
    counts: dict[str, Count]


class Unexplained(Exception):
    """Counts rose and no reason was given; the text names them."""


def lock_hash(path: Path = LOCK) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def here() -> Key:
    """The key of this interpreter, this checkout and this host."""
    return Key(sys.version, lock_hash(), host())


def read(path: Path = COUNTS) -> list[Entry]:
    """Raises msgspec.ValidationError where the file is none of ours."""
    return msgspec.json.decode(path.read_bytes(), type=list[Entry]) if path.exists() else []


def write(entries: list[Entry], path: Path = COUNTS) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(entries), indent=1) + b"\n")


def find(entries: list[Entry], key: Key) -> Entry | None:
    return next((entry for entry in entries if entry.key == key), None)


def problems(entry: Entry, measured: dict[str, int]) -> list[str]:
    """Why the check fails; nothing where it passes."""
    found = [f"{name} has no stored count" for name in measured.keys() - entry.counts.keys()]
    found += [
        f"{name} has a stored count and is not measured any more"
        for name in entry.counts.keys() - measured.keys()
    ]
    found += [_rise(name, entry.counts[name], measured[name]) for name in risen(entry, measured)]
    return sorted(found)


def risen(entry: Entry, measured: dict[str, int]) -> list[str]:
    """Functions whose count is over 5% above the stored one."""
    return [
        name
        for name, count in entry.counts.items()
        if measured.get(name, 0) > count.instructions * (1 + MAX_RISE)
    ]


def recorded(entries: list[Entry], key: Key, measured: dict[str, int], reason: str) -> list[Entry]:
    """The entries with a new one for `key`, in the place of the one before it.

    The one before has the same interpreter and host; another lock's counts are compared too, as new
    versions of libraries are a reason that must be given like any other.

    Raises:
        Unexplained: a count is over 5% above the one before, and `reason` is empty.
    """
    before = next(
        (e for e in entries if (e.key.python, e.key.host) == (key.python, key.host)), None
    )
    rises = risen(before, measured) if before is not None else []
    if before is not None and rises and not reason.strip():
        raise Unexplained(
            "; ".join(_rise(name, before.counts[name], measured[name]) for name in rises)
        )
    old = before.counts if before is not None else {}
    counts = {}
    for name, instructions in measured.items():
        count = old.get(name)
        if count is None:
            counts[name] = Count(instructions)
        elif name in rises:
            counts[name] = Count(instructions, was=count.instructions, reason=reason.strip())
        else:
            lowest = min(instructions, count.instructions)
            counts[name] = msgspec.structs.replace(count, instructions=lowest)
    kept = [entry for entry in entries if entry is not before]
    return sorted([*kept, Entry(key, counts)], key=lambda entry: str(entry.key))


def _rise(name: str, count: Count, instructions: int) -> str:
    percent = 100 * (instructions / count.instructions - 1)
    return f"{name} rose by {percent:.1f}%, from {count.instructions:,} to {instructions:,}"
