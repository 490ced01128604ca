"""Field report 4.05: an answer that belongs to another request is never delivered."""

import pytest

from asgi_gateway.ids import Ids, names_other_request
from tests.support.gateway import driven
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion

OURS, OTHER = Ids().issue("default"), Ids().issue("default")

pytestmark = pytest.mark.usefixtures("each_transport")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f'{{"id":"cmpl-{OTHER}","x":1}}', True),
        (f' {{ "id" : "cmpl-{OTHER}" }}', True),
        (f'{{"id":"cmpl-{OURS}"}}', False),
        ('{"id":"cmpl-b7751c8fe4d72736"}', False),
        ('{"object":"text_completion"}', False),
        ("", False),
    ],
    ids=["another", "another, spaced", "ours", "vLLM's own", "none", "nothing"],
)
def test_an_answer_names_its_request(body: str, expected: bool) -> None:
    assert names_other_request(body.encode(), OURS) is expected


async def test_a_mixed_up_answer_hands_the_sample_back(upstream: FakeUpstream) -> None:
    async def mixed_up(request: Request) -> Raw:
        named = OTHER if len(upstream.requests) == 1 else request.headers["x-request-id"]
        return answer(200, {**completion([1, 2], [-1.0, -2.0]), "id": f"cmpl-{named}"})

    upstream.script = mixed_up
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        first = (await gateway.submit(0)).json()["request_id"]
        assert (await gateway.poll(first).response()).status == 410
        second = (await gateway.submit(1)).json()["request_id"]
        assert (await gateway.poll(second).response()).status == 200
