"""Two gateways in one process have nothing in common."""

from tests.support.held import metric
from tests.support.routes import API, assert_error, finished, ready
from tests.support.upstream import FakeUpstream


async def test_two_gateways_in_one_process_share_nothing(upstream: FakeUpstream) -> None:
    async with ready(upstream.url) as one, ready(upstream.url) as two:
        promise = await one.submit()
        request_id = promise.json()["request_id"]
        assert (await one.poll(request_id).response()).status == 200
        assert_error(await two.submit(sampling_session_id=one.sampling_session_id), 404)
        heartbeat = {"session_id": one.session_id}
        assert_error(await two.client.post(f"{API}/session_heartbeat", heartbeat), 404)
        # A well-formed id of another epoch gets the benefit of the doubt.
        assert_error(await two.poll(request_id).response(), 410)
        metrics = [(await each.client.get("/metrics")).body for each in (one, two)]
        assert [metric(text, "samples_held") for text in metrics] == [1, 0]
        assert [metric(text, "polls_total", result="ready") for text in metrics] == [1, 0]

        await finished(two)
        assert (await one.poll(request_id).response()).status == 200
        assert (await one.submit(1)).status == 200


async def test_closing_one_gateway_leaves_the_other_serving(upstream: FakeUpstream) -> None:
    async with ready(upstream.url) as one:
        async with ready(upstream.url) as two:
            assert (await two.submit()).status == 200
        promise = await one.submit()
        response = await one.poll(promise.json()["request_id"]).response()
    assert response.status == 200
