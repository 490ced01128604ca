"""Submits whose word from the store came too late: it took them in, and their gateway does not know
under which id."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sharing.steps import API, Holding, pages, until_status
from tests.support.sharing import Pair, shared_pair
from tests.support.upstream import FakeUpstream
from tests.support.wire import Remote

pytestmark = pytest.mark.servers

TIMEOUT_S = 0.5


@pytest.fixture
def pair(upstream_port: int, tmp_path: Path) -> Iterator[Pair]:
    url = f"http://127.0.0.1:{upstream_port}"
    with shared_pair(
        url, tmp_path, store__timeout_s=TIMEOUT_S, poll__hold_s=2, store__lease_s=60.0
    ) as running:
        yield running


async def unheard(pair: Pair, remote: Remote, body: object) -> None:
    """A submit while the server stands still, which executes it afterwards."""
    with pair.store.frozen():
        assert (await remote.post(f"{API}/asample", body)).status == 503
    await remote.until(lambda now: now["store_up"] == 1)


@pytest.mark.parametrize("batched", [False, True])
async def test_a_submit_that_is_repeated_is_not_held_for_ever(
    pair: Pair, upstream: FakeUpstream, batched: bool
) -> None:
    """The store takes the second one in under the id of the first, which was lost."""
    held, (a, b) = Holding(upstream), await pair.clients()
    held.go()
    body = a.sample([7, 8])
    for _ in range(3):
        await unheard(pair, a, body)
    said = await a.post(f"{API}/asample", body)
    assert said.status == 200, said.body
    request_id = said.json()["request_id"]
    if batched:
        assert (await pages(b, {request_id})).keys() == {request_id}
    assert await until_status(b, request_id) in (200, 410)
