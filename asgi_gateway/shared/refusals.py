"""What servers say instead of doing a command, where it will be done elsewhere or later."""

from typing import Final, NamedTuple

from asgi_gateway.shared.address import Server
from asgi_gateway.shared.errors import ServerError
from asgi_gateway.shared.waiting import Command, Room, not_taken

# Nothing was done, and a moment later it will be: reading from disk, running a long function,
# moving a slot, electing another primary.
LATER: Final = frozenset({"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"})
# The server is a replica now.
READONLY: Final = "READONLY"
SLOTS: Final = 16_384


class Pointed(NamedTuple):
    slot: int
    server: Server


class Later:
    """Commands that servers refused for now; each is tried again with the next tick."""

    def __init__(self, room: Room, timeout_s: float) -> None:
        self._room = room
        self._timeout_s = timeout_s
        self._commands: list[Command] = []

    def __repr__(self) -> str:
        return f"<Later {len(self._commands)}>"

    def put(self, command: Command, error: ServerError) -> None:
        command.refusal = error
        command.hops = 0
        self._commands.append(command)

    def due(self, now: float) -> list[Command]:
        """Those to send again; whose time is over is told."""
        commands, self._commands = self._commands, []
        again = []
        for command in commands:
            if command.born < now - self._timeout_s:
                self._room.settle(command, not_taken(command, "refused", self._timeout_s))
            else:
                again.append(command)
        return again

    def drop(self, why: str) -> None:
        commands, self._commands = self._commands, []
        for command in commands:
            self._room.settle(command, not_taken(command, why, self._timeout_s))


def pointed(error: ServerError, asked: Server) -> Pointed | None:
    """Where MOVED or ASK points; None if that cannot be read."""
    _, _, rest = str(error).partition(" ")
    slot, _, where = rest.partition(" ")
    host, _, port = where.partition(" ")[0].rpartition(":")
    if not (_number(slot) and _number(port)):
        return None
    if not (int(slot) < SLOTS and 0 < int(port) < 65_536):
        return None
    # Without a host it is another port of the server that was asked.
    return Pointed(int(slot), Server(host or asked.host, int(port)))


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6
