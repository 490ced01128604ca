"""What comes in another order than it was asked for, with a server whose replies the test gives."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from asgi_gateway.ids import Ids
from asgi_gateway.shared.elsewhere import Elsewhere
from asgi_gateway.shared.samples import Lifetimes
from asgi_gateway.shared.verbs import Verbs
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import RUNNING, SUCCEEDED

CALLER = "caller"
LOOK = [int(RUNNING), b"0123456789", b"sampler", b"1", 10, b"", b"", 0, 1, None]


class Calls:
    """Commands by name, with what takes the reply of each."""

    def __init__(self) -> None:
        self.open: list[tuple[str, Callable[[Any], None]]] = []

    def call(self, group: int | None, args: Sequence[Any], done: Callable[[Any], None]) -> None:
        name = args[1].decode() if args[0] == "FCALL" else str(args[0])
        self.open.append((name, done))

    def reply(self, name: str, reply: object) -> None:
        """To the oldest of that name."""
        (index, *_) = [n for n, (called, _) in enumerate(self.open) if called.endswith(name)]
        self.open.pop(index)[1](reply)


async def test_a_message_that_overtakes_a_look_stands() -> None:
    """Their replies come together; the one who looked runs a turn later, with the older news."""
    calls, ids, woken = Calls(), Ids("a key"), list[Record]()
    verbs = Verbs(calls, Lifetimes(undelivered=1, delivered=1), epoch=ids.epoch)
    delivery: Any = SimpleNamespace(settled_elsewhere=woken.append)
    store: Any = SimpleNamespace()
    elsewhere = Elsewhere(verbs, store, delivery, lambda _: None, ids.missing)
    request_id = ids.issue(CALLER, group=7)
    finding = asyncio.ensure_future(elsewhere.find(request_id, CALLER))
    await asyncio.sleep(0)
    elsewhere.heard(b"w" + request_id.encode())
    calls.reply("look", LOOK)
    calls.reply("GET", b"result")
    record = await finding
    assert (record.state, record.result) == (SUCCEEDED, b"result")
    assert woken == [record]
