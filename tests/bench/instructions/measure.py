"""Starts the worker under callgrind and reads the counts of its forks.

A count is (long - short) / (rounds of long - rounds of short), the median of three forks. All that
could change it from run to run is fixed: no address randomisation (`setarch -R`), an empty
environment, one seed for string hashes. What is left depends on the interpreter, the libraries, the
C library and, through valgrind's imitation of a processor, on whether the host has AVX2; `host`
names these.
"""

import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.instructions.cases import CASES

ROOT = Path(__file__).parents[3]
REPEATS = 3
TIMEOUT_S = 600

ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    # A first run without compiled modules would allocate otherwise; see `_warm_up`.
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # aiohttp loads every root certificate when it is imported: a third of the whole start.
    "SSL_CERT_FILE": os.devnull,
    "SSL_CERT_DIR": os.devnull,
}
WORKER = "tests.bench.instructions.worker"
_DUMP = re.compile(r"callgrind\.(\d+)\.(\d+)\Z")
_TOTAL = re.compile(r"^totals: (\d+)$", re.MULTILINE)


class CannotMeasure(Exception):
    """A program is missing, or the worker failed; the text says which and how."""


def measure(names: list[str] | None = None) -> dict[str, int]:
    """Instructions per run of each case, all of them unless named."""
    valgrind, setarch = _program("valgrind"), _program("setarch")
    wanted = names or list(CASES)
    _warm_up(wanted)
    with tempfile.TemporaryDirectory() as folder:
        children = Path(folder) / "children"
        _run(
            [
                setarch,
                "-R",
                valgrind,
                "-q",
                "--tool=callgrind",
                "--dump-before=getpgid",
                f"--callgrind-out-file={folder}/callgrind.%p",
                *_worker("--children", str(children), "--repeats", str(REPEATS)),
                *wanted,
            ]
        )
        totals = _totals(Path(folder))
        counts: dict[str, list[float]] = {name: [] for name in wanted}
        for line in children.read_text().splitlines():
            pid, name = line.split()
            counts[name].append(_count(totals.get(int(pid), []), CASES[name].times, name))
    return {name: round(statistics.median(values)) for name, values in counts.items()}


def _count(totals: list[int], times: int, name: str) -> float:
    if len(totals) != 3:
        raise CannotMeasure(f"callgrind wrote {len(totals)} counts of {name}, not 3")
    _, short, long = totals
    return (long - short) / (2 * times)


def _totals(folder: Path) -> dict[int, list[int]]:
    """Process -> instructions of each dump that a mark made, in order."""
    found: dict[int, dict[int, int]] = {}
    for path in folder.iterdir():
        # The file without a number is the one that ends a process.
        name = _DUMP.match(path.name)
        if name is not None:
            total = _TOTAL.search(path.read_text())
            if total is None:
                raise CannotMeasure(f"callgrind wrote no totals into {path.name}")
            found.setdefault(int(name[1]), {})[int(name[2])] = int(total[1])
    return {pid: [dumps[n] for n in sorted(dumps)] for pid, dumps in found.items()}


def _warm_up(names: list[str]) -> None:
    """Without valgrind: compiles what is not compiled, and fails at once where a case does."""
    _run(_worker() + names, {"PYTHONDONTWRITEBYTECODE": ""})


def _worker(*arguments: str) -> list[str]:
    parallel = str(min(2, len(os.sched_getaffinity(0))))
    return [sys.executable, "-m", WORKER, "--parallel", parallel, *arguments]


def _run(command: list[str], changed: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**ENVIRONMENT, **(changed or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise CannotMeasure(f"{' '.join(command[:4])} ... failed:\n{done.stdout}{done.stderr}")


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise CannotMeasure(f"{name} is missing; `make test-system` says how to get it")
    return path


def host() -> str:
    """What a count depends on beside the interpreter and the libraries."""
    words = Path("/proc/cpuinfo").read_text().split()
    version = subprocess.run(
        [_program("valgrind"), "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    vectors = "avx2" if "avx2" in words else "no avx2"
    return f"{platform.machine()}, {vectors}, {' '.join(platform.libc_ver())}, {version}"
