"""The library in a server: what it is called, and how it gets there."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from asgi_gateway.shared import library
from asgi_gateway.shared.commands import Argument, Command
from asgi_gateway.shared.groups import GROUPS
from asgi_gateway.shared.outcomes import Counts
from asgi_gateway.shared.verbs import Verbs
from tests.shared.server import LIFETIMES, Blocking, run
from tests.store.ids import EPOCH

MISSING = RuntimeError("ERR Function not found")


class Nodes:
    """A cluster of `count` nodes that answers when it is told to. `has`: nodes with the library;
    `stale`: those that have one of the name without the function."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.has: set[int] = set()
        self.stale: set[int] = set()
        self.broken: set[int] = set()
        self.loads: list[tuple[int, bool]] = []
        self.ran: list[Sequence[Argument]] = []
        self._waiting: list[tuple[int, Sequence[Argument], Callable[[Any], None]]] = []

    def call(
        self, group: int | None, args: Sequence[Argument], done: Callable[[Any], None]
    ) -> None:
        assert group is not None
        self._waiting.append((group * self.count // GROUPS, args, done))

    def answer(self) -> None:
        """All that waits, and what it leads to."""
        for _ in range(10_000):
            if not self._waiting:
                return
            self.step()
        raise AssertionError("it never ends")

    def step(self) -> None:
        """One command."""
        node, args, done = self._waiting.pop(0)
        if args[0] == "FCALL":
            if node in self.has:
                self.ran.append(args[1:])
            done([b"ok", 1] if node in self.has else MISSING)
            return
        replace = "REPLACE" in args
        self.loads.append((node, replace))
        if node in self.broken:
            done(RuntimeError("OOM command not allowed"))
        elif node in self.stale | self.has and not replace:
            done(RuntimeError(f"ERR Library '{library.NAME}' already exists"))
        else:
            self.has.add(node)
            done(library.NAME.encode())


def sent(nodes: Nodes, groups: Sequence[int]) -> tuple[Verbs, list[Any]]:
    verbs, got = Verbs(nodes, LIFETIMES, epoch=EPOCH), list[Any]()
    for group in groups:
        verbs.send(Command(group, ("FCALL", b"f"), lambda reply: reply), got.append)
    nodes.answer()
    return verbs, got


@pytest.mark.parametrize("count", [1, 3])
def test_one_load_for_a_node_answers_all_that_was_turned_away(count: int) -> None:
    nodes = Nodes(count)
    verbs, got = sent(nodes, [*range(GROUPS)] * 3)
    assert got == [[b"ok", 1]] * (3 * GROUPS)
    assert sorted(nodes.loads) == [(node, False) for node in range(count)]
    assert verbs.loader.loads == count
    assert "0 waiting" in repr(verbs.loader)


@pytest.mark.parametrize("between", range(6))
def test_what_is_sent_while_it_loads_stays_behind_what_was_turned_away(between: int) -> None:
    nodes = Nodes(1)
    verbs, got = Verbs(nodes, LIFETIMES, epoch=EPOCH), list[Any]()
    for number in range(4):
        verbs.send(Command(7, ("FCALL", number), lambda reply: reply), got.append)
        if number == 1:
            for _ in range(between):
                nodes.step()
    nodes.answer()
    assert nodes.ran == [(number,) for number in range(4)]
    assert got == [[b"ok", 1]] * 4
    assert len(nodes.loads) == 1


def test_another_library_of_the_name_is_replaced() -> None:
    nodes = Nodes(2)
    nodes.stale = {1}
    _, got = sent(nodes, [0, 255, 254])
    assert got == [[b"ok", 1]] * 3
    assert nodes.loads == [(0, False), (1, False), (1, True)]


def test_a_load_that_fails_is_the_commands_error_and_the_next_ones_try_again() -> None:
    nodes = Nodes(2)
    nodes.broken = {1}
    verbs, got = sent(nodes, [0, 255])
    assert [b"ok", 1] in got
    assert [str(each) for each in got if isinstance(each, Exception)] == ["OOM command not allowed"]
    nodes.broken.clear()
    counts = list[Any]()
    verbs.send(Command(255, ("FCALL", b"f"), lambda reply: reply), counts.append)
    nodes.answer()
    assert counts == [[b"ok", 1]]


def test_a_server_that_never_has_it_is_not_asked_for_ever() -> None:
    class Forgetful(Nodes):
        def answer(self) -> None:
            self.has = Never()
            super().answer()

    class Never(set[int]):
        def __contains__(self, node: object) -> bool:
            return False

    nodes = Forgetful(1)
    _, got = sent(nodes, [1, 1, 2])
    assert got == [MISSING] * 3
    assert len(nodes.loads) <= 6


def test_each_state_and_event_is_in_the_text() -> None:
    lines = library.text().splitlines()
    assert lines[0] == f"#!lua name={library.NAME}"
    assert "local SUCCEEDED = 2" in lines
    assert "local EVICT = 5" in lines
    (table,) = (line for line in lines if line.startswith("local AFTER"))
    assert table.count("late") == 21
    assert table.count("bug") == 3
    (settled,) = (line for line in lines if line.startswith("local SETTLED"))
    assert settled == "local SETTLED = { [2] = true, [3] = true, [4] = true }"


@pytest.mark.system
def test_a_real_server_takes_it_and_has_every_function(client: Any) -> None:
    client.function_flush()
    verbs = Verbs(Blocking(client), LIFETIMES, epoch=EPOCH)
    assert run(verbs, verbs.sweep(7, 1000)).evicted == 0
    assert run(verbs, verbs.counts(7)) == Counts(0, 0, 0, 0)
    ((_, name, _, _, _, functions),) = client.function_list()
    assert name == library.NAME.encode()
    names = {dict(zip(each[::2], each[1::2], strict=True))[b"name"] for each in functions}
    one = ["accept", "succeed", "move", "look", "delivered"]
    verbs_of = [*one, "page", "acknowledge", "sweep", "bury", "forget"]
    assert names == {f"{library.VERB_PREFIX}{verb}".encode() for verb in verbs_of}
    assert verbs.loader.loads == 1


@pytest.mark.system
def test_a_server_that_was_emptied_gets_it_again(client: Any) -> None:
    verbs = Verbs(Blocking(client), LIFETIMES, epoch=EPOCH)
    for _ in range(2):
        client.function_flush()
        assert run(verbs, verbs.sweep(7, 1000)).evicted == 0
    other = f"#!lua name={library.NAME}\nredis.register_function('agw_other', function() end)"
    client.function_flush()
    client.function_load(other)
    assert run(verbs, verbs.sweep(7, 1000)).evicted == 0, "one of the name without our functions"
