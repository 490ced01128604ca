"""The poison guard: what accuses a prompt, and what does not."""

import pytest

from asgi_gateway.upstream.poison import EPISODE_S, MAX_SUSPECTS, PoisonGuard
from tests.support.gateway import driven
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion

BAD, GOOD, OTHER = b"bad", b"good", b"other"
FIRST, SECOND = "http://a", "http://b"

pytestmark = pytest.mark.usefixtures("each_transport")


def episodes(guard: PoisonGuard, count: int, start: float = 0.0) -> list[bool]:
    """`count` losses of BAD on FIRST, far apart, each after somebody else was answered."""
    verdicts = []
    for number in range(count):
        guard.succeeded(GOOD, FIRST)
        verdicts.append(guard.lost(BAD, FIRST, start + number * (EPISODE_S + 1)))
    return verdicts


def test_three_episodes_in_a_row_are_poison() -> None:
    assert episodes(PoisonGuard(3), 3) == [False, False, True]


def test_zero_switches_it_off() -> None:
    assert not any(episodes(PoisonGuard(0), 9))


def test_a_success_of_the_body_starts_anew() -> None:
    guard = PoisonGuard(3)
    episodes(guard, 2)
    guard.succeeded(BAD, FIRST)
    assert episodes(guard, 3, start=1000.0) == [False, False, True]


def test_losses_of_one_episode_count_once() -> None:
    guard = PoisonGuard(2)
    guard.succeeded(GOOD, FIRST)
    assert not any(guard.lost(BAD, FIRST, 0.1 * n) for n in range(50))


def test_an_upstream_that_is_down_accuses_nobody() -> None:
    guard = PoisonGuard(2)
    assert not any(guard.lost(BAD, FIRST, n * (EPISODE_S + 1)) for n in range(20))


def test_only_the_answer_to_another_body_clears_the_upstream() -> None:
    guard = PoisonGuard(1)
    guard.succeeded(BAD, FIRST)
    assert not guard.lost(BAD, FIRST, 0.0)
    guard.succeeded(OTHER, FIRST)
    assert guard.lost(BAD, FIRST, EPISODE_S + 1)


def test_upstreams_have_episodes_of_their_own() -> None:
    guard = PoisonGuard(2)
    guard.succeeded(GOOD, FIRST)
    guard.succeeded(GOOD, SECOND)
    assert not guard.lost(BAD, FIRST, 0.0)
    assert guard.lost(BAD, SECOND, 1.0)


def test_upstreams_that_have_gone_leave_nothing() -> None:
    guard = PoisonGuard(2)
    for number in range(20):
        url = f"http://h{number}:1"
        guard.succeeded(GOOD, url)
        assert guard.lost(b"%d" % number, url, 0.0) is False
        guard.succeeded(GOOD, url)
        guard.forget_all_but([url])
    assert {len(kept) for kept in (guard._episodes, guard._answered)} == {1}
    assert guard.lost(b"0", url, 1.0), "what is suspected is not forgotten with its upstream"


def test_suspects_are_bounded() -> None:
    guard = PoisonGuard(3)
    guard.succeeded(GOOD, FIRST)
    for number in range(MAX_SUSPECTS + 10):
        guard.lost(b"%d" % number, FIRST, 0.0)
    assert repr(guard) == f"<PoisonGuard {MAX_SUSPECTS} suspects>"


async def test_a_prompt_that_kills_the_engine_ends_in_an_error(upstream: FakeUpstream) -> None:
    async def engine(request: Request) -> Raw:
        if request.json()["prompt"] == [666]:
            return Raw(b"", "reset")
        return answer(200, completion([1, 2], [-1.0, -2.0]))

    upstream.script = engine
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        statuses = []
        for attempt in range(3):
            innocent = (await gateway.submit(2 * attempt)).json()["request_id"]
            assert (await gateway.poll(innocent).response()).status == 200
            prompt = {"chunks": [{"type": "encoded_text", "tokens": [666]}]}
            accused = (await gateway.submit(2 * attempt + 1, prompt=prompt)).json()["request_id"]
            result = await gateway.poll(accused).response()
            statuses.append(result.status)
            await gateway.advance(EPISODE_S + 1)
        assert statuses == [410, 410, 200]
        assert result.json()["category"] == "server"
        assert "interrupted 3 times" in result.json()["error"]


async def test_aborts_are_not_counted(upstream: FakeUpstream) -> None:
    async def engine(request: Request) -> Raw:
        if request.json()["prompt"] == [666]:
            return answer(200, completion([1], [-1.0], finish_reason="abort"))
        return answer(200, completion([1, 2], [-1.0, -2.0]))

    upstream.script = engine
    async with driven(upstream.url, upstream__poison_after=1) as gateway:
        await gateway.handshake()
        for attempt in range(3):
            innocent = (await gateway.submit(2 * attempt)).json()["request_id"]
            assert (await gateway.poll(innocent).response()).status == 200
            prompt = {"chunks": [{"type": "encoded_text", "tokens": [666]}]}
            aborted = (await gateway.submit(2 * attempt + 1, prompt=prompt)).json()["request_id"]
            assert (await gateway.poll(aborted).response()).status == 410
            await gateway.advance(EPISODE_S + 1)
