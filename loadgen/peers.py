"""Several stand-in processes on one port: what they share, and how they ask each other.

Any of them may be the one that a control request reaches, so each can speak for all. A board in
shared memory holds what hot paths need (how many wait at each process's barrier, when the first
completion came); everything else is asked for over a socket per process in a private directory.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

BOARD: Final = "board"
WORD: Final = 8
ANSWER_S: Final = 10.0

Command = Callable[[str], bytes]


def make_board(directory: Path, count: int) -> None:
    """Before any of `count` processes starts."""
    (directory / BOARD).write_bytes(bytes(WORD * (1 + count)))


class Peers:
    """One process's view of the others. `index` is from 0 below `count`."""

    def __init__(self, directory: Path, index: int, count: int, command: Command) -> None:
        """command: does what one of the others asks for here, and returns the answer."""
        self._directory = directory
        self._index = index
        self._count = count
        self._command = command
        with (directory / BOARD).open("r+b") as file:
            self._board = mmap.mmap(file.fileno(), WORD * (1 + count))
        self._held = 0

    def __repr__(self) -> str:
        return f"<Peers {self._index} of {self._count}>"

    @property
    def leads(self) -> bool:
        """Whether this process does what is to be done once."""
        return self._index == 0

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._answer, self._path(self._index))

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()
        self._board.close()

    def began(self, now: float) -> float:
        """When the first completion came to any of them: `now`, if none has."""
        (first,) = struct.unpack_from("<d", self._board, 0)
        if first == 0.0:
            struct.pack_into("<d", self._board, 0, now)
            return now
        return float(first)

    def holds(self, count: int) -> int:
        """Tell how many wait at this process's barrier; returns how many wait at all of them.

        Each writes its own word before it reads the others', so the last one to come sees all.
        """
        struct.pack_into("<q", self._board, WORD * (1 + self._index), count)
        return sum(struct.unpack_from(f"<{self._count}q", self._board, WORD))

    async def ask_all(self, command: str) -> list[bytes]:
        """Every process's answer, this one's among them."""
        return await asyncio.gather(*(self._ask(index, command) for index in range(self._count)))

    async def _ask(self, index: int, command: str) -> bytes:
        if index == self._index:
            return self._command(command)
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(self._path(index))
            try:
                writer.write(command.encode() + b"\n")
                return await reader.read()
            finally:
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            command = (await reader.readline()).decode().strip()
            writer.write(self._command(command))
            await writer.drain()
        except OSError:
            pass  # the asker has gone
        finally:
            writer.close()

    def _path(self, index: int) -> Path:
        return self._directory / f"{index}.sock"
