"""A writer whose files may not grow beyond a limit: run by `test_journal` as a program.

Prints `name: value` lines. The limit holds for whole processes, so it is no matter for the tests'.
"""

import resource
import sys
from pathlib import Path

from asgi_gateway.state.opening import open_journal
from tests.state.owner import Owner, recover_as_if_killed_now

LIMIT_BYTES = 4096


def main(directory: Path) -> None:
    owner = Owner()
    journal, _ = open_journal(directory)
    journal.append(owner.boot()[0])
    journal.flush()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, hard))
    flushed = 0
    while journal.healthy:
        flushed = len(owner.sessions)
        good_bytes = journal.nbytes
        journal.append(owner.make_session()[0])
        journal.flush()
    print(f"failed: {journal.failed}")
    print(f"good bytes: {good_bytes}")
    print(f"size when failed: {(directory / 'journal-000001.log').stat().st_size}")
    print(f"flushed when failed: {flushed}")
    print(f"recovered when failed: {len(recover_as_if_killed_now(directory).sessions)}")
    # Attempts that meet the same limit: a copy of all this is too long as well.
    for _ in range(30):
        journal.retry()
        for _ in range(20):
            journal.compact_some(owner.live, budget=10)
            if journal.sync_wanted:
                journal.sync()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    for _ in range(50):
        journal.retry()
        journal.compact_some(owner.live, budget=10)
        if journal.sync_wanted:
            journal.sync()
    journal.append(owner.make_session()[0])
    journal.flush()
    print(f"healthy in the end: {journal.healthy}")
    print(f"sessions in the end: {len(owner.sessions)}")
    journal.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
