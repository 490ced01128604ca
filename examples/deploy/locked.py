"""Cuts out of a lock what some packages need: they and all below them, with their hashes.

    python locked.py requirements.lock                 the gateway's own dependencies
    python locked.py requirements.lock hatchling       what hatchling needs

The lock holds everything that development needs, an image should have the core only, and a second
lock would go stale. What needs what is read from the `# via` comments that uv writes below each
entry. Needs nothing but Python, so that it runs before anything is installed.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

# What the `# via` of a dependency in [project] says; those of groups have `:dev` behind the file.
PROJECT: Final = "asgi-gateway (pyproject.toml)"
VIA: Final = "    # via"


def entries(lock: str) -> dict[str, str]:
    """Name of each package -> its lines: version, marker, hashes, who needs it."""
    found: dict[str, str] = {}
    name = ""
    for line in lock.splitlines(keepends=True):
        if line.startswith("#"):
            continue
        if not line.startswith(" ") and line.strip():
            name = line.split("==")[0]
            # numpy has one entry per version of Python
            found[name] = found.get(name, "")
        if name:
            found[name] += line
    return found


def needed_by(entry: str) -> set[str]:
    """Whoever its `# via` comments name."""
    needed: set[str] = set()
    for line in entry.splitlines():
        text = line.strip().removeprefix("#").strip()
        if line.startswith(VIA):
            text = text.removeprefix("via").strip()
        if line.lstrip().startswith("#") and text:
            needed.add(text)
    return needed


def closure(lock: str, roots: Iterable[str]) -> dict[str, str]:
    """The entries of `roots`, and of whatever they need, in the order of the lock.

    Raises:
        KeyError: a root that the lock does not have.
    """
    known = entries(lock)
    parents = {name: needed_by(entry) for name, entry in known.items()}
    chosen = set(roots)
    for missing in sorted(chosen - known.keys() - {PROJECT}):
        raise KeyError(missing)
    while more := {n for n, above in parents.items() if n not in chosen and above & chosen}:
        chosen |= more
    return {name: entry for name, entry in known.items() if name in chosen}


def main(arguments: list[str]) -> int:
    if not arguments:
        sys.stderr.write("usage: locked.py LOCK [PACKAGE]...\n")
        return 2
    path, *roots = arguments
    try:
        chosen = closure(Path(path).read_text(), roots or [PROJECT])
    except KeyError as error:
        sys.stderr.write(f"locked.py: {path} has no {error.args[0]}\n")
        return 2
    sys.stdout.write("".join(chosen.values()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
