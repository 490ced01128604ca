"""Health checks: what speaks of the upstream, and what of this machine."""

import asyncio

import pytest

from asgi_gateway.admission import Admission
from asgi_gateway.configuration import load
from asgi_gateway.errors import Unavailable
from asgi_gateway.upstream.checks import Checks
from asgi_gateway.upstream.fleet import Fleet
from tests.support.asgi_client import turns
from tests.support.clock import ManualClock


@pytest.mark.parametrize(("ours", "up"), [(True, True), (False, False)])
async def test_a_check_that_this_machine_cannot_make_says_nothing(ours: bool, up: bool) -> None:
    given = load({"upstream.urls": ["http://h1"]}, environ={}).settings.upstream
    fleet, clock = Fleet(given, admission=Admission(), recovered=lambda: None), ManualClock()
    asked: list[str] = []

    async def ask(url: str) -> None:
        asked.append(url)
        await asyncio.sleep(0)
        raise Unavailable("no descriptor is left", ours=ours)

    checks = Checks(fleet, clock, ask, 5.0)
    for _ in range(6):
        checks.tick(clock.now())
        await turns()
        clock.advance(5)
    assert len(asked) == 5
    assert fleet.upstreams[0].up is up
