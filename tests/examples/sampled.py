"""One sample through a program of examples/embed, and an upstream that is known by its answers."""

from loadgen.sampling_pb2 import SampleResponse
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.wire import Remote

API = "/api/v1"


def answering(token: int) -> FakeUpstream:
    """An upstream that answers every prompt with this one token."""

    async def script(request: Request) -> Raw:
        return answer(200, completion([token], [-1.0], n=request.json()["n"]))

    upstream = FakeUpstream()
    upstream.script = script
    return upstream


async def tokens(remote: Remote, base_model: str = "stand-in") -> list[int]:
    """Those of one sample, by the SDK's routes from the first to the last."""
    await remote.handshake(base_model)
    result = await remote.poll(await remote.submit())
    assert result.status == 200, result.body
    (sequence,) = SampleResponse.FromString(result.body).sequences
    return memoryview(sequence.tokens).cast("i").tolist()
