from tests.support.gateway import driven
from tests.support.upstream import FakeUpstream


async def test_a_sample_goes_up_and_comes_back(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        promise = await gateway.submit()
        assert promise.status == 200, promise.body
        result = await gateway.poll(promise.json()["request_id"]).response()
        assert result.status == 200
        assert result.headers[b"content-type"] == b"application/x-protobuf"
        assert len(upstream.requests) == 1
