"""Sending commands to the shared store's server, and loading our functions where it has none."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from asgi_gateway.shared.library import NAME, text

T = TypeVar("T")

Argument = bytes | str | int


class Calls(Protocol):
    """The connection, as far as verbs need it.

    group: 0..255 picks the node. done: called once, with the reply or an exception.
    """

    def call(
        self, group: int | None, args: Sequence[Argument], done: Callable[[Any], None]
    ) -> None: ...


class Command(Generic[T]):
    """One call, on its way at most once at a time; it is also what takes the reply."""

    __slots__ = ("_decode", "_done", "_sender", "args", "group", "loads")

    def __init__(self, group: int, args: Sequence[Argument], decode: Callable[[Any], T]) -> None:
        self.group = group
        self.args = args
        # How often the library was loaded for it.
        self.loads = 0
        self._decode = decode
        self._sender: Sender | None = None
        self._done: Callable[[T | Exception], None] | None = None

    def __repr__(self) -> str:
        return f"<Command {self.args[:2]!r} of group {self.group:02x}>"

    def sent(self, sender: "Sender", done: Callable[[T | Exception], None]) -> None:
        self._sender, self._done = sender, done
        if sender.loader.loading:
            sender.loader.hold(self)
        else:
            sender.calls.call(self.group, self.args, self)

    def __call__(self, reply: Any) -> None:
        assert self._sender is not None
        if isinstance(reply, Exception):
            if is_missing(reply):
                self._sender.loader.missed(self, reply)
            else:
                self.failed(reply)
            return
        try:
            value = self._decode(reply)
        except Exception as error:  # noqa: BLE001 - what the reply says, or that it is none
            self.failed(error)
        else:
            assert self._done is not None
            self._done(value)

    def again(self) -> None:
        assert self._sender is not None
        self._sender.calls.call(self.group, self.args, self)

    def failed(self, error: Exception) -> None:
        assert self._done is not None
        self._done(error)


class Sender:
    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.loader = Loader(calls)

    def send(self, command: Command[T], done: Callable[[T | Exception], None]) -> None:
        """done: called once with the value, or with what the reply or the connection says is wrong.

        No future and no task.
        """
        command.sent(self, done)

    def ask(self, command: Command[T]) -> "asyncio.Future[T]":
        """The same as a future, for the rare ones."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(value: T | Exception) -> None:
            if future.done():
                return
            if isinstance(value, Exception):
                future.set_exception(value)
            else:
                future.set_result(value)

        command.sent(self, done)
        return future


class Loader:
    """Loads the library where a function was not found, one server at a time.

    A server that was replaced or emptied turns away everything that was on its way; one load is
    enough for all of it, and in a cluster one for each node. What is sent meanwhile waits too: it
    would get there before what was turned away.
    """

    # The first keeps a library that is there already; a second replaces it, for then it is another.
    TRIES: Final = 2

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._text: str | None = None
        self._waiting: list[Command[Any]] = []
        self._held: list[Command[Any]] = []
        self._loading: int | None = None
        self.loads = 0

    def __repr__(self) -> str:
        return (
            f"<Loader {NAME}, {self.loads} loads, {len(self._waiting) + len(self._held)} waiting>"
        )

    @property
    def loading(self) -> bool:
        return self._loading is not None

    def hold(self, command: Command[Any]) -> None:
        """Send it behind what was turned away and what still will be."""
        self._held.append(command)

    def missed(self, command: Command[Any], error: Exception) -> None:
        """Send a command again after a load; gives it the error where that did not help."""
        if command.loads >= self.TRIES:
            command.failed(error)
            return
        self._waiting.append(command)
        if self._loading is None:
            self._load(command)

    def _load(self, command: Command[Any]) -> None:
        self._loading = command.group
        self.loads += 1
        if self._text is None:
            self._text = text()
        replace = ("REPLACE",) if command.loads else ()
        self._calls.call(command.group, ("FUNCTION", "LOAD", *replace, self._text), self._loaded)

    def _loaded(self, reply: Any) -> None:
        waiting, self._waiting, self._held = [*self._waiting, *self._held], [], []
        group, self._loading = self._loading, None
        failed = isinstance(reply, Exception) and "already exists" not in str(reply)
        for command in waiting:
            if command.group == group:
                command.loads += 1
                if failed:
                    command.failed(reply)
                    continue
            command.again()


def is_missing(error: Exception) -> bool:
    """Whether a server has no such function."""
    return "Function not found" in str(error)
