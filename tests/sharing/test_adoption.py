"""With `store.adopt` a gateway runs what a dead one was running."""

from pathlib import Path

import pytest

from tests.sharing.steps import Holding, parked
from tests.support.sharing import LEASE_S, shared_pair
from tests.support.upstream import FakeUpstream
from tests.support.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.system]


async def test_samples_of_a_dead_gateway_are_run_under_their_ids(
    upstream_port: int, upstream: FakeUpstream, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{upstream_port}"
    held = Holding(upstream)
    with shared_pair(url, tmp_path, poll__hold_s=20, store__adopt="true") as pair:
        a, b = await pair.clients()
        await b.until(lambda now: now["store_up"] == 1)
        submitted = {await a.submit([7, 40 + n]): [7, 40 + n] for n in range(5)}
        await until(lambda: set(submitted) <= set(held.ids))
        first = next(iter(submitted))
        async with parked(b, first) as standing:
            pair.a.kill()
            # Asked for again under the same ids, by the one that is left.
            await until(
                lambda: all(held.ids.count(one) == 2 for one in submitted), within_s=4 * LEASE_S + 5
            )
            held.go()
            assert (await standing).status == 200
        for request_id, tokens in submitted.items():
            result = await b.poll(request_id)
            assert result.status == 200, result.body
            sent = [r.json()["prompt"] for r in upstream.requests if r.request_id == request_id]
            assert sent == [tokens, tokens]
        assert (await b.metrics())["store_adopted_total"] == len(submitted)
        assert "Traceback" not in pair.b.warnings()
