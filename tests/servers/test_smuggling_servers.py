"""Ambiguous requests on real sockets under the servers that are not ours: what each lets through.

FAILS is what they do today; the table in docs/servers.md says it for people. A server that gets
better fails here too, so that the table stays true.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterator

import msgspec
import pytest

from tests.support.processes import ROOT, SERVERS, Served, under
from tests.support.smuggling import CASES, Case
from tests.support.wire import Remote

pytestmark = pytest.mark.servers

# So long nothing must come for a connection to count as kept.
QUIET_S = 1.5
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")

# Server -> what it answers 200 and should not, by the names of the cases.
FAILS: dict[str, set[str]] = {
    "uvicorn": {"no version"},
    "hypercorn": {
        "CL and TE",
        "TE and CL",
        "TE and CL of 4",
        "two equal lengths",
        "a list of lengths",
        "bare LF after a header",
        "bare LF after the request line",
        "bare LF everywhere",
        "a folded header",
        "a folded TE",
        "a CR in a chunk extension",
        "a method in small letters",
        "HTTP/1.2",
        "an upgrade",
    },
    "granian": {
        "TE and CL of 4",
        "two equal lengths",
        "bare LF after a header",
        "bare LF after the request line",
        "bare LF everywhere",
        "an upgrade",
        "an upgrade without a body",
    },
}


class Seen(msgspec.Struct):
    """What came back for one case; `made` are the sessions that it told of."""

    case: Case
    statuses: list[int]
    made: int
    closed: bool

    @property
    def fine(self) -> bool:
        match self.case.expectation:
            case "refused":
                return self.made == 0 and all(400 <= status < 600 for status in self.statuses)
            case "one":
                return self.made <= 1 and len(self.statuses) <= 1
            case "two":
                return (self.statuses, self.made) == ([200, 200], 2)
            case "served":
                return (self.statuses, self.made) == ([200], 1)
            case _:  # hypercorn answers 400 for what comes behind `Connection: close`
                return self.made <= 1 and len(self.statuses) <= 1


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Served]]:
    with under(request.param, "http://127.0.0.1:9") as served:
        yield request.param, served


async def test_what_gets_through(server: tuple[str, Served]) -> None:
    name, served = server
    remote = Remote(served.port)
    before = (await remote.metrics()).get("sessions", 0)
    limit = asyncio.Semaphore(48)

    async def limited(case: Case) -> Seen:
        async with limit:
            return await sent(served.port, case)

    seen = await asyncio.gather(*(limited(case) for case in CASES))
    after = (await remote.metrics()).get("sessions", 0)
    told = sum(one.made for one in seen)
    # A server may close before it has sent an answer; no more than that is unseen.
    assert told <= after - before <= told + sum(not one.statuses or not one.fine for one in seen)
    failed = {one.case.name for one in seen if not one.fine}
    for one in seen:
        if one.case.name in failed ^ FAILS[name]:
            print(name, one.case.name, one.statuses, one.made, one.closed)
    assert failed == FAILS[name]


async def sent(port: int, case: Case) -> Seen:
    """The bytes of a case at once, and all that comes until the end or a silence."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    came, closed = b"", False
    try:
        writer.write(case.sent)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        while not closed:
            try:
                async with asyncio.timeout(QUIET_S):
                    piece = await reader.read(1 << 16)
            except TimeoutError:
                break
            except ConnectionError:
                piece = b""
            came += piece
            closed = not piece
    finally:
        writer.close()
    statuses = [int(status) for status in _STATUS.findall(came)]
    return Seen(case, statuses, came.count(b'"session_id"'), closed)


def test_the_docs_say_it() -> None:
    text = (ROOT / "docs" / "servers.md").read_text()
    section = text.split("## Ambiguous requests")[1].split("\n## ")[0]
    for names in FAILS.values():
        for name in names:
            assert name in section, f"docs/servers.md does not name {name!r}"
