"""kill -9 of a real process that writes and compacts as fast as it can."""

import subprocess
import sys
from pathlib import Path

from tests.state.owner import recover
from tests.state.writer import OPEN


def test_whatever_was_flushed_is_recovered(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.state.writer", str(tmp_path)]
    names: set[str] = set()
    last = 0
    for lines in (1, 500, 1501, 2002, 5003, 20_004):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            told = [writer.stdout.readline() for _ in range(lines)]
            writer.kill()
            # What it said before it died counts as well; a line may be cut short by the kill.
            told += writer.stdout.read().splitlines(keepends=True)
        flushed = [int(line) for line in told if line.endswith(b"\n")]
        assert len(flushed) >= lines
        numbers = [int(s.request_id.removeprefix("id-")) for s in recover(tmp_path).samples]
        # The newest are there without a gap, and nothing closed has come back.
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert last < flushed[-1] <= numbers[-1] <= flushed[-1] + 1
        assert len(numbers) <= OPEN + 2
        last = numbers[-1]
        names |= {path.name for path in tmp_path.iterdir()}
    assert len(names) > 3, "it has never compacted"
