"""When a source is asked, and what stands while it cannot tell."""

import asyncio
import logging

import pytest

from asgi_gateway.sources import SourceError
from asgi_gateway.sources.cached import INTERVAL_S, PAUSE_S, Cached
from tests.support.clock import ManualClock

OLD, NEW = "http://old:1", "http://new:1"


class Publisher:
    """Tells what a test says; an exception is raised. `gate` holds up answers until it is set."""

    def __init__(self, says: list[str] | SourceError) -> None:
        self.says = says
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def current(self) -> list[str]:
        self.asked += 1
        await self.gate.wait()
        if isinstance(self.says, SourceError):
            raise self.says
        return list(self.says)


def cached(says: list[str] | SourceError) -> tuple[Cached, Publisher, ManualClock]:
    publisher, clock = Publisher(says), ManualClock()
    return Cached(publisher, clock), publisher, clock


async def test_asked_by_interval() -> None:
    source, publisher, clock = cached([OLD])
    assert source.known == []
    assert await source.current() == [OLD]
    publisher.says = [NEW]
    clock.advance(INTERVAL_S - 0.1)
    assert (await source.current(), publisher.asked) == ([OLD], 1)
    clock.advance(0.1)
    assert (await source.current(), publisher.asked) == ([NEW], 2)
    assert source.known == [NEW]


async def test_asked_sooner_after_a_failed_connect_but_not_too_often() -> None:
    source, publisher, clock = cached([OLD])
    await source.current()
    source.failed(OLD + "/")
    assert (await source.current(), publisher.asked) == ([OLD], 1)
    clock.advance(PAUSE_S)
    assert (await source.current(), publisher.asked) == ([OLD], 2)
    publisher.says = [NEW]
    clock.advance(PAUSE_S)
    assert (await source.current(), publisher.asked) == ([OLD], 2), "the doubt was answered"
    source.failed(OLD)
    assert (await source.current(), publisher.asked) == ([NEW], 3)


async def test_late_news_of_what_is_not_told_any_more_is_none() -> None:
    source, publisher, clock = cached([OLD])
    source.failed(OLD)
    await source.current()
    source.failed(NEW)
    clock.advance(PAUSE_S)
    assert (await source.current(), publisher.asked) == ([OLD], 1)


async def test_a_failed_connect_while_a_question_is_under_way_still_counts() -> None:
    source, publisher, clock = cached([OLD])
    await source.current()
    clock.advance(INTERVAL_S)
    publisher.gate.clear()
    asking = asyncio.ensure_future(source.current())
    await asyncio.sleep(0)
    source.failed(OLD)
    publisher.gate.set()
    await asking
    clock.advance(PAUSE_S)
    await source.current()
    assert publisher.asked == 3


async def test_nothing_published_is_asked_for_often() -> None:
    source, publisher, clock = cached([])
    assert (await source.current(), publisher.asked) == ([], 1)
    assert (await source.current(), publisher.asked) == ([], 1)
    publisher.says = [OLD]
    clock.advance(PAUSE_S)
    assert (await source.current(), publisher.asked) == ([OLD], 2)


async def test_many_share_one_question() -> None:
    source, publisher, _ = cached([OLD])
    publisher.gate.clear()
    asking = [asyncio.ensure_future(source.current()) for _ in range(20)]
    await asyncio.sleep(0)
    publisher.gate.set()
    assert await asyncio.gather(*asking) == [[OLD]] * 20
    assert publisher.asked == 1


async def test_who_gives_up_leaves_the_question_to_the_next() -> None:
    source, publisher, _ = cached([OLD])
    publisher.gate.clear()
    first, second = (asyncio.ensure_future(source.current()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    publisher.gate.set()
    assert await second == [OLD]
    assert publisher.asked == 2


async def test_what_was_told_last_stands(caplog: pytest.LogCaptureFixture) -> None:
    """While the source cannot tell, which is logged when it begins and when it ends."""
    source, publisher, clock = cached([OLD])
    await source.current()
    publisher.says = SourceError("the file is away")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.advance(INTERVAL_S)
            assert await source.current() == [OLD]
        publisher.says = [NEW]
        clock.advance(INTERVAL_S)
        assert await source.current() == [NEW]
    begins, ends = caplog.messages
    assert "the file is away" in begins
    assert NEW in ends


async def test_a_doubt_outlives_a_source_that_cannot_tell() -> None:
    source, publisher, clock = cached([OLD])
    await source.current()
    publisher.says = SourceError("away")
    source.failed(OLD)
    clock.advance(PAUSE_S)
    assert (await source.current(), publisher.asked) == ([OLD], 2)
    publisher.says = [NEW]
    clock.advance(PAUSE_S)
    assert (await source.current(), publisher.asked) == ([NEW], 3)


async def test_nothing_was_ever_told() -> None:
    source, publisher, clock = cached(SourceError("no such table"))
    for _ in range(2):
        with pytest.raises(SourceError, match="no such table"):
            await source.current()
    assert publisher.asked == 1
    publisher.says = [OLD]
    clock.advance(PAUSE_S)
    assert await source.current() == [OLD]


async def test_its_answers_are_the_callers_to_change() -> None:
    source, _, _ = cached([OLD])
    (await source.current()).clear()
    source.known.clear()
    assert await source.current() == [OLD]
