"""The wall clock may be set by an hour in either direction: no deadline rests on it."""

import pytest

from asgi_gateway import Gateway
from tests.support.clock import ManualClock
from tests.support.gateway import Driven, settings
from tests.support.held import Held
from tests.support.upstream import FakeUpstream
from tests.support.waiting import until

HOUR_S = 3600.0


class Jumping(ManualClock):
    """Its wall clock can be set."""

    def __init__(self) -> None:
        super().__init__()
        self.set_by_s = 0.0

    def wall_time(self) -> float:
        return super().wall_time() + self.set_by_s


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_nothing_expires(upstream: FakeUpstream, jump_s: float) -> None:
    """Sessions, held polls, running samples, undelivered and delivered results, a drain."""
    clock = Jumping()
    gateway = Gateway(settings(upstream.url), clock=clock)
    async with gateway.running():
        client = Driven(gateway, clock)
        await client.handshake()
        delivered, waiting = [
            (await client.submit(seq_id)).json()["request_id"] for seq_id in (1, 2)
        ]
        assert (await client.poll(delivered).response()).status == 200
        await until(lambda: gateway._store.in_flight == 0)
        held = Held(upstream)
        running = (await client.submit(3)).json()["request_id"]
        parked = client.poll(running)
        await held.running(3)
        stopped: list[bool] = []
        gateway.drain(lambda: stopped.append(True))

        clock.set_by_s = jump_s
        await client.advance(1)

        assert not stopped
        assert not parked.answered
        assert (await client.submit(4)).status == 200, "the session lives, and it still serves"
        for request_id in (delivered, waiting):
            assert (await client.poll(request_id).response()).status == 200
        held.release()
        assert (await parked.response()).status == 200
