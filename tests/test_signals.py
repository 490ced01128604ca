"""Standing in front of a server's signal handlers, and stepping back."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import uvloop

from asgi_gateway import Gateway, create_app
from asgi_gateway.signals import NUMBERS, Chain
from tests.support.asgi_client import turns
from tests.support.gateway import settings
from tests.support.waiting import until

NOWHERE = "http://127.0.0.1:9"


class Story:
    """What happened, in order; the drain ends when a test says so."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.stopped: Callable[[], None] | None = None
        self.chain = Chain(self.drain, lambda: self.told.append("let go"))

    def drain(self, stopped: Callable[[], None]) -> None:
        self.told.append("drain")
        self.stopped = stopped

    def server(self, number: int, _: FrameType | None) -> None:
        self.told.append(f"server {number}")


@pytest.fixture
def story() -> Iterator[Story]:
    """With a server's handler in place; what the test process had is put back."""
    told = Story()
    before = {number: signal.signal(number, told.server) for number in NUMBERS}
    yield told
    told.chain.restore()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
async def test_the_server_hears_of_it_after_the_drain(story: Story, number: int) -> None:
    story.chain.install(asyncio.get_running_loop())
    signal.raise_signal(number)
    await turns()
    assert story.told == ["drain"]
    signal.raise_signal(number)
    await turns()
    assert story.told == ["drain", "drain"], "the drain decides what a second one means"
    assert story.stopped is not None
    story.stopped()
    assert story.told[2:] == [f"server {number}"]
    assert signal.getsignal(number) == story.server, "and later ones are the server's alone"
    story.stopped()
    assert len(story.told) == 3


async def test_stepping_back(story: Story) -> None:
    story.chain.install(asyncio.get_running_loop())
    assert [signal.getsignal(number) == story.server for number in NUMBERS] == [False, False]
    story.chain.restore()
    assert [signal.getsignal(number) == story.server for number in NUMBERS] == [True, True]


async def test_a_handler_that_came_after_ours_is_left_alone(story: Story) -> None:
    story.chain.install(asyncio.get_running_loop())

    def later(*_: Any) -> None:
        """Another part of the program."""

    signal.signal(signal.SIGTERM, later)
    story.chain.restore()
    assert signal.getsignal(signal.SIGTERM) is later
    assert signal.getsignal(signal.SIGINT) == story.server


async def test_what_is_ignored_stays_ignored(story: Story) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    story.chain.install(asyncio.get_running_loop())
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


async def test_nothing_outside_the_main_thread(story: Story) -> None:
    await asyncio.to_thread(story.chain.install, asyncio.get_running_loop())
    assert signal.getsignal(signal.SIGTERM) == story.server


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_loop_that_watches_signals_itself(story: Story, run: Callable[[Any], None]) -> None:
    """It hears of them as before, and polls are let go at once."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, story.told.append, "server")
        story.chain.install(loop)
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: len(story.told) == 2)
        story.chain.restore()
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: len(story.told) == 3)
        loop.remove_signal_handler(signal.SIGTERM)

    run(main())
    assert sorted(story.told) == ["let go", "server", "server"]
    assert story.told[2] == "server"


def test_a_loop_that_is_gone(story: Story) -> None:
    """A host that ended without closing us is stopped as without us."""

    async def main() -> None:
        story.chain.install(asyncio.get_running_loop())

    with asyncio.Runner() as runner:
        runner.run(main())
    signal.raise_signal(signal.SIGTERM)
    assert story.told == [f"server {signal.SIGTERM.value}"]


# --- who does it ----------------------------------------------------------------------------------


@pytest.fixture
def from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASGI_GATEWAY_UPSTREAM__URLS", NOWHERE)


async def test_a_gateway_of_ones_own_touches_no_signal(story: Story) -> None:
    async with Gateway(settings(NOWHERE)).running():
        assert [signal.getsignal(number) == story.server for number in NUMBERS] == [True, True]


@pytest.mark.usefixtures("from_environment")
async def test_the_factorys_does_while_it_is_open(story: Story) -> None:
    gateway = create_app()
    assert signal.getsignal(signal.SIGTERM) == story.server
    async with gateway.running():
        assert signal.getsignal(signal.SIGTERM) != story.server
    assert signal.getsignal(signal.SIGTERM) == story.server


@pytest.mark.usefixtures("from_environment")
def test_the_factorys_in_a_thread_does_not(story: Story) -> None:
    seen: list[bool] = []

    async def main() -> None:
        async with create_app().running():
            seen.append(signal.getsignal(signal.SIGTERM) == story.server)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    thread.join()
    assert seen == [True]


@pytest.mark.usefixtures("from_environment")
async def test_the_factorys_drains_at_a_signal(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASGI_GATEWAY_DRAIN__PREDRAIN_S", "0.2")
    async with create_app().running() as gateway:
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: gateway._admission.reasons)
        assert gateway._admission.reasons[0].startswith("about to drain")
        assert story.told == []
        await until(lambda: story.told == [f"server {signal.SIGTERM.value}"])
        assert gateway._admission.reasons == ["the gateway is stopping"]
        assert gateway._sampling.delivery.stopping
