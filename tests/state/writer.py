"""A writer that is to be killed: run by `test_kill` as a program.

Accepts samples and closes them in order, some hundreds open at a time, and compacts all along.
Prints the number of each accepted sample once it has been flushed.
"""

import os
import sys
from pathlib import Path

from asgi_gateway.state.opening import open_journal
from tests.state.owner import Owner

OPEN = 300


def main(directory: Path) -> None:
    owner = Owner()
    journal, recovered = open_journal(directory, min_dead_bytes=20_000)
    if recovered.epochs:
        owner.epochs = recovered.epochs
        owner.sessions = recovered.sessions
        owner.sampling = recovered.sampling
        owner.samples = {sample.request_id: sample for sample in recovered.samples}
        owner._issued = int(recovered.samples[-1].request_id.removeprefix("id-"))
    else:
        for event in owner.boot() + owner.make_session():
            journal.append(event)
        for event in owner.make_sampling(next(iter(owner.sessions))):
            journal.append(event)
    sampler = next(iter(owner.sampling))
    while True:
        for event in owner.accept(sampler):
            journal.append(event)
        journal.flush()
        os.write(1, b"%d\n" % owner._issued)
        while len(owner.samples) > OPEN:
            for event in owner.close(next(iter(owner.samples))):
                journal.append(event)
        journal.compact_some(owner.live, budget=10)
        if journal.sync_wanted:
            journal.sync()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
