"""Several greedy samples repeat the prompt in one upstream request; how often is bounded."""

from tests.support.gateway import driven
from tests.support.upstream import FakeUpstream

GREEDY = {"temperature": 0, "max_tokens": 1}


async def test_a_prompt_that_would_be_gigabytes_is_refused(upstream: FakeUpstream) -> None:
    long = {"chunks": [{"tokens": [1_000_000] * 60_000}]}
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        refused = await gateway.submit(prompt=long, num_samples=16_384, sampling_params=GREEDY)
        assert refused.status == 400
        assert "num_samples is 16384" in refused.json()["detail"]
        accepted = await gateway.submit(prompt=long, num_samples=2, sampling_params=GREEDY)
        assert accepted.status == 200
        short = await gateway.submit(1, num_samples=16_384, sampling_params=GREEDY)
        assert short.status == 200
