"""What the shared store says is ours and is not: ended once that is sure, and only then."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from asgi_gateway.ids import Ids
from asgi_gateway.shared import claims
from asgi_gateway.shared.claims import COMPARED_PER_S, Claims
from asgi_gateway.shared.errors import NotSent
from asgi_gateway.shared.groups import GROUPS
from tests.support.waiting import until


class Said:
    """The link: what the store says is unfinished, by group."""

    up = True

    def __init__(self) -> None:
        self.unfinished: dict[int, list[bytes]] = {}
        self.asked: list[tuple[int, Sequence[Any]]] = []
        self.failing = False

    def call(self, group: int, args: Sequence[Any], done: Callable[[Any], None]) -> None:
        self.asked.append((group, args))
        done(NotSent("not there") if self.failing else self.unfinished.get(group, []))


class Here:
    def __init__(self, *held: str) -> None:
        self.held = set(held)
        self.disowned: list[str] = []
        self.unheard: set[int] = set()

    def confirm(self, request_id: str) -> bool:
        return request_id in self.held

    def disown(self, request_id: str) -> None:
        self.disowned.append(request_id)


@pytest.fixture(autouse=True)
def _sure_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "SURE_AFTER_S", 0.05)


def made(said: Said, here: Here) -> tuple[Claims, Ids]:
    ids = Ids("key")
    return Claims(said, ids, here, "agw"), ids  # type: ignore[arg-type]  # all that is used of it


async def test_all_groups_are_asked_for_our_own() -> None:
    said = Said()
    compared, ids = made(said, Here())
    compared.compare_all()
    assert [group for group, _ in said.asked] == list(range(GROUPS))
    assert said.asked[0x3F][1] == ("SMEMBERS", b"{agw:3f}:o:" + ids.epoch.encode())


async def test_what_is_not_held_is_ended() -> None:
    said, here = Said(), Here("held")
    said.unfinished[7] = [b"held", b"lost"]
    compared, _ = made(said, here)
    compared.compare_all()
    assert here.disowned == []  # it may be about to be adopted
    await until(lambda: here.disowned)
    assert here.disowned == ["lost"]
    assert compared.disowned == 1


async def test_what_comes_meanwhile_is_not() -> None:
    said, here = Said(), Here()
    said.unfinished[7] = [b"adopted", b"lost"]
    compared, _ = made(said, here)
    compared.compare_all()
    here.held.add("adopted")
    await until(lambda: here.disowned)
    await asyncio.sleep(0.05)
    assert here.disowned == ["lost"]


async def test_a_fenced_process_ends_nothing() -> None:
    said, here = Said(), Here()
    said.unfinished[7] = [b"lost"]
    compared, ids = made(said, here)
    compared.compare_all()
    ids.renew()
    await asyncio.sleep(0.1)
    assert here.disowned == []


async def test_without_an_answer_nothing_is_ended() -> None:
    said, here = Said(), Here()
    said.failing = True
    compared, _ = made(said, here)
    compared.compare_all()
    await asyncio.sleep(0.1)
    assert here.disowned == []


async def test_groups_of_submits_that_were_not_heard_come_first() -> None:
    """And once more, for what was still on its way."""
    said, here = Said(), Here()
    compared, _ = made(said, here)
    here.unheard = {0x91}
    said.up = False
    compared.tick(1.0)
    assert said.asked == []
    said.up = True
    compared.tick(1.1)
    assert said.asked[0][0] == 0x91
    assert here.unheard == set()
    await until(lambda: [group for group, _ in said.asked].count(0x91) == 2)


async def test_ticks_come_to_all_groups_in_turn() -> None:
    said = Said()
    compared, _ = made(said, Here())
    for tick in range(GROUPS + 1):
        compared.tick(tick / COMPARED_PER_S)
        compared.tick(tick / COMPARED_PER_S + 0.01)  # too early
    assert [group for group, _ in said.asked] == [*range(GROUPS), 0]
    said.up = False
    compared.tick(10_000.0)
    assert len(said.asked) == GROUPS + 1
