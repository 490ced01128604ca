"""An upstream's answer has a bound: what goes on beyond it fails its sample and is read no more."""

import asyncio
import zlib
from typing import Any

import pytest

from asgi_gateway.codec import Want
from asgi_gateway.errors import Unavailable
from asgi_gateway.store.records import Record
from asgi_gateway.upstream.answer_cap import BASE_BYTES, AnswerCap
from asgi_gateway.upstream.client import LISTING_BYTES, Client
from loadgen.body import EXACT
from loadgen.body import answer as body_of
from loadgen.request import Limits, check, read
from loadgen.tape import tape
from tests.support.gateway import driven, settings
from tests.support.sample_request import made
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.waiting import until

MIB = 1 << 20
VOCAB = 151_936
PIECE = b"x" * (256 << 10)
MOST = 64 * MIB
GOOD = answer(200, completion([11, 12], [-1.0, -2.0]))


class Endless:
    """Answers with a body that goes on for 64 MiB; `sent` are bytes that were taken of it."""

    def __init__(self, upstream: FakeUpstream, head: bytes, chunk: bytes = PIECE) -> None:
        self.sent = 0
        self._head, self._chunk = head, chunk
        upstream.script = self._script

    async def _script(self, request: Request) -> Raw:
        await request.write(self._head)
        while self.sent < MOST and not request.hung_up.is_set():
            try:
                await request.write(self._chunk)
            except OSError:
                break
            self.sent += len(self._chunk)
            await asyncio.sleep(0)
        return Raw()


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)


@pytest.mark.usefixtures("each_transport")
@pytest.mark.parametrize(
    ("head", "chunk"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (1 << 40), PIECE),
        (CHUNKED, CHUNK),
        (b"HTTP/1.1 200 OK\r\n\r\n", PIECE),
        (b"HTTP/1.1 503 busy\r\ncontent-length: %d\r\n\r\n" % (1 << 40), PIECE),
        (CHUNKED, b"1\r\nx\r\n" * 20_000),
    ],
    ids=["announced", "chunked", "until the end", "an error", "a byte a chunk"],
)
async def test_an_answer_without_an_end(upstream: FakeUpstream, head: bytes, chunk: bytes) -> None:
    endless = Endless(upstream, head, chunk)
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        async with asyncio.timeout(30):
            told = (await gateway.poll(request_id).response()).json()
        assert told["category"] == "server"
        cap_bytes = BASE_BYTES + 64 * 8 * 2 + 16 * 3  # two tokens asked for, three in the prompt
        assert f"over {cap_bytes} bytes" in told["error"]
        assert "upstream.answer_bytes" in told["error"]
        await until(lambda: not upstream.active)
        assert endless.sent < 32 * MIB
        assert len(upstream.requests) == 1
        # What is behind it goes on.
        upstream.script = _good
        again = (await gateway.submit(1)).json()["request_id"]
        assert (await gateway.poll(again).response()).status == 200


async def _good(_: Request) -> Raw:
    return GOOD


@pytest.mark.usefixtures("each_transport")
async def test_an_operators_bound_counts_instead(upstream: FakeUpstream) -> None:
    body = b" " * (3 * MIB) + completion_bytes()
    upstream.script = lambda _: _whole(body)
    for cap_bytes, good in ((4 * MIB, True), (2 * MIB, False)):
        async with driven(upstream.url, upstream__answer_bytes=cap_bytes) as gateway:
            await gateway.handshake()
            request_id = (await gateway.submit()).json()["request_id"]
            told = await gateway.poll(request_id).response()
            assert (b'"category":"server"' not in told.body) == good, told.body


async def _whole(body: bytes) -> Raw:
    return Raw(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body, "keep")


def completion_bytes() -> bytes:
    return GOOD.data.partition(b"\r\n\r\n")[2]


@pytest.mark.usefixtures("each_transport")
async def test_a_packed_body_is_not_unpacked(upstream: FakeUpstream) -> None:
    """Nothing packed was asked for: a kilobyte of it would be a megabyte."""
    data = zlib.compress(completion_bytes())
    upstream.script = lambda _: _packed(data)
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        told = (await gateway.poll(request_id).response()).json()
        assert told["category"] == "server"


async def _packed(data: bytes) -> Raw:
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: deflate\r\ncontent-length: %d\r\n\r\n" % len(data)
    return Raw(head + data, "keep")


# --- the bound is far from what vLLM writes ----------------------------------------------------


def record_of(want: Want, prompt_tokens: int, reserve_bytes: int) -> Record:
    return Record(
        request_id="r",
        caller="c",
        sampling_session_id="s",
        seq_id=0,
        digest=b"",
        want=want,
        prompt_tokens=prompt_tokens,
        reserve_bytes=reserve_bytes,
        body=b"",
        accepted_at=0.0,
    )


ASKED: tuple[dict[str, Any], ...] = (
    {},
    {"num_samples": 8},
    {"num_samples": 8, "temperature": 0.0},
    {"topk_sample_logprobs": 20},
    {"num_samples": 4, "topk_sample_logprobs": 5},
    {"prompt_logprobs": True},
    {"topk_prompt_logprobs": 20, "num_samples": 4},
    {"topk_prompt_logprobs": 5, "num_samples": 3, "temperature": 0.0},
)


@pytest.mark.parametrize("asked", ASKED, ids=range(len(ASKED)))
@pytest.mark.parametrize(("prompt", "tokens"), [(4_000, 20), (10, 2_000), (1_000, 1_000)])
def test_full_answers_are_far_below_it(asked: dict[str, Any], prompt: int, tokens: int) -> None:
    fields = dict(asked)
    temperature = fields.pop("temperature", 1.0)
    envelope = {
        "sampling_session_id": "s",
        "seq_id": 0,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(range(1, prompt + 1))}]},
        "sampling_params": {"max_tokens": tokens, "temperature": temperature},
        **fields,
    }
    request = made(envelope, model="stand-in", max_context=None)
    limits = Limits(("stand-in",), 1 << 20, VOCAB)
    job = check(read(request.body, b"application/json"), limits)
    written = len(body_of(job, tape(VOCAB), EXACT, request_id="r", created=1).body)
    record = record_of(request.want, request.prompt_tokens, request.reserve_bytes)
    cap_bytes = AnswerCap(None, lambda: 1 << 40)(record)
    assert 2 * written < cap_bytes
    assert cap_bytes - BASE_BYTES < 40 * written, "and it is a bound"
    assert AnswerCap(None, lambda: 2 << 20)(record) <= 2 << 20, "never above what all may hold"
    assert AnswerCap(7, lambda: 2 << 20)(record) == 7


async def test_a_model_list_and_a_health_check_have_a_bound_too(upstream: FakeUpstream) -> None:
    large = answer(200, b" " * (LISTING_BYTES + 1), headers={"connection": "close"})

    async def script(_: Request) -> Raw:
        return Raw(large.data, "close")

    upstream.health = script
    upstream.models = {"data": [], "filler": "x" * LISTING_BYTES}
    client = Client(settings(upstream.url).upstream)
    client.open()
    try:
        with pytest.raises(Unavailable, match=f"more than {LISTING_BYTES} bytes"):
            await client.models(upstream.url)
        with pytest.raises(Unavailable, match=f"more than {LISTING_BYTES} bytes"):
            await client.health(upstream.url)
    finally:
        await client.close()
