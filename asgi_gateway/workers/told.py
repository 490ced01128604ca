"""What a worker is told at its start, and the words that it and its supervisor exchange later."""

from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from asgi_gateway.kernel import memory_limit_bytes
from asgi_gateway.settings import Settings, SettingsError

# Of the command line; for the supervisor alone.
FLAG: Final = "--as-worker"

# --- the worker says -----------------------------------------------------------------------------

ACCEPTING: Final = b"accepting"
# It was asked for the end of all of them.
END_ALL: Final = b"end all"

# --- the supervisor says -------------------------------------------------------------------------

# No signals: where these come from a service manager or a terminal they go to all processes, and
# the one that is passed on would be the second one, which ends a drain.
DRAIN: Final = b"drain"
# The end of the drain, as a second signal is.
STOP: Final = b"stop"
# Drain, and let the others have the connections: they go on.
LEAVE: Final = b"leave"
RELOAD: Final = b"reload"


class Told(msgspec.Struct, frozen=True):
    """slot: whose journal it has; serial: of all workers of this supervisor, counted from 1;
    count: how many there should be; listener, control: descriptors; folder: where all meet."""

    slot: int
    serial: int
    count: int
    listener: int
    control: int
    folder: str

    def flags(self) -> list[str]:
        return [FLAG, msgspec.json.encode(self).decode()]

    def own(self, settings: Settings) -> Settings:
        """The worker's part of what they have together."""
        state, store = settings.state, settings.store
        if state.dir:
            state = replace(state, dir=str(journal(state.dir, self.slot)))
        if store.max_bytes is None:
            # Half of the memory for all of them.
            store = replace(store, max_bytes=max(1, memory_limit_bytes() // 2 // self.count))
        return replace(settings, state=state, store=store)


def told(text: str) -> Told:
    """Raises SettingsError: nobody but a supervisor knows what to say."""
    try:
        return msgspec.json.decode(text, type=Told)
    except msgspec.DecodeError as error:
        raise SettingsError([f"{FLAG} is for the processes of serve --workers: {error}"]) from error


def journal(folder: str, slot: int) -> Path:
    """The journal of one worker below the state folder of all."""
    return Path(folder) / f"worker-{slot}"


def slots(folder: str | None, count: int) -> list[int]:
    """So many numbers, of the journals that were written last where there are more.

    A rolling restart gives workers other numbers than they had at first.
    """
    written: list[tuple[float, int]] = []
    if folder:
        for path in Path(folder).glob("worker-*"):
            number = path.name.removeprefix("worker-")
            times = [file.stat().st_mtime for file in path.glob("journal-*")]
            if number.isdecimal() and times:
                written.append((max(times), int(number)))
    newest = sorted(written, reverse=True)[:count]
    chosen = {slot for _, slot in newest}
    while len(chosen) < count:
        chosen.add(lowest_free(chosen))
    return sorted(chosen)


def lowest_free(used: set[int]) -> int:
    return next(number for number in range(len(used) + 1) if number not in used)
