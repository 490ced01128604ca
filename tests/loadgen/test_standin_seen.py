"""The stand-in as a run sees it: its record of each id, and the faults it gave meanwhile."""

from __future__ import annotations

import time

from loadgen.results import FaultCount
from loadgen.settings import Settings
from loadgen.standin import StandIn, injected
from loadgen.upstream import running
from tests.loadgen.test_upstream import Client, post, until


async def test_hits_have_the_times_between_which_it_worked() -> None:
    async with running(Settings(port=0, delay_s=0.05)) as server, Client(server) as client:
        began = time.monotonic()
        for name in ("a", "b", "a"):
            await client.ask(name)
        ended = time.monotonic()
        ids = (await StandIn(server.url).hits()).ids
    assert {name: hit[0] for name, hit in ids.items()} == {"a": 2, "b": 1}
    assert began <= ids["a"][1] <= ids["b"][1] - 0.04
    assert ids["b"][2] <= ids["a"][2] - 0.04
    assert ids["a"][2] <= ended


async def test_what_was_never_answered_has_no_time() -> None:
    async with running(Settings(port=0, script="hang:#1")) as server:
        async with Client(server) as asking:
            await asking.send(post("a"))
            await until(lambda: server.counts.running == 1)
        (hit,) = (await StandIn(server.url).hits()).ids.values()
    assert (hit[0], hit[2]) == (1, 0.0)


async def test_injected_faults_are_those_of_the_run() -> None:
    async with running(Settings(port=0, script="503:#1-#3,html:#4")) as server:
        stand_in = StandIn(server.url)
        async with Client(server) as client:
            await client.ask("a")
            before = await stand_in.counts()
            for name in ("a", "b", "a", "c"):
                await client.ask(name)
        after = await stand_in.counts()
        faulted = await stand_in.faulted()
    assert faulted == {"a": ["503", "503", "html"], "b": ["503"]}
    assert injected(before, after) == [
        FaultCount(kind="html", injected=1),
        FaultCount(kind="503", injected=2),
    ]
