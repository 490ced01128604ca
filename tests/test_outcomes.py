"""What an upstream's answer, or the lack of one, means for a sample.

Three ends are told apart because the SDK acts on them: a result or an error is final, 410 makes it
submit the sample again, 408 makes it poll again. An error is only for what a repeat cannot fix.
"""

import asyncio
import contextlib
import functools
import itertools
import math
import struct
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from loadgen.sampling_pb2 import SampleResponse
from tests.support.asgi_client import Connection, Response
from tests.support.gateway import Driven, driven
from tests.support.processes import free_port
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion, in_order
from tests.support.waiting import until

ANSWER_S = 5.0
GOOD = answer(200, completion([11, 12], [-1.0, -2.0]))
WHOLE = GOOD.data

pytestmark = pytest.mark.usefixtures("each_transport")


def error(status: int, message: str, **headers: str) -> Raw:
    """An error of vLLM's."""
    body = {"error": {"message": message, "type": "X", "param": None, "code": status}}
    return answer(status, body, headers={k.replace("_", "-"): v for k, v in headers.items()})


def choice(**fields: object) -> Raw:
    """A 200 whose one choice has these fields."""
    body = completion([11, 12], [-1.0, -2.0])
    body["choices"][0] |= fields
    return answer(200, body)


async def outcome(poll: Connection) -> Response:
    async with asyncio.timeout(ANSWER_S):
        return await poll.response()


@contextlib.asynccontextmanager
async def sampled(upstream: FakeUpstream, **flags: Any) -> AsyncIterator[tuple[Driven, str]]:
    """A gateway and the id of a sample that it just accepted."""
    async with driven(upstream.url, **flags) as gateway:
        await gateway.handshake()
        promise = await gateway.submit()
        assert promise.status == 200, promise.body
        yield gateway, promise.json()["request_id"]


def sent(upstream: FakeUpstream) -> Counter[str]:
    """How often each gateway request id arrived."""
    return Counter(request.request_id for request in upstream.requests)


def sequences(response: Response) -> list[tuple[list[int], list[float]]]:
    """Tokens and logprobs of a delivered result."""
    assert response.status == 200, response.body
    assert response.headers[b"content-type"] == b"application/x-protobuf", response.body
    return [
        (
            list(struct.unpack(f"<{len(one.tokens) // 4}i", one.tokens)),
            list(struct.unpack(f"<{len(one.logprobs) // 4}f", one.logprobs)),
        )
        for one in SampleResponse.FromString(response.body).sequences
    ]


# --- error results: a repeat cannot fix it --------------------------------------------------------

ERRORS = {
    "400": (error(400, "this prompt is bad"), "user", "this prompt is bad"),
    "404": (error(404, "The model `x` does not exist."), "user", "does not exist"),
    "413": (error(413, "too large"), "user", "too large"),
    "422": (answer(422, {"detail": "not valid"}), "user", "not valid"),
    "418": (answer(418, b"teapot", content_type="text/plain"), "user", "teapot"),
    "400 empty": (answer(400, b""), "user", "400"),
    "401": (error(401, "Unauthorized"), "server", "Unauthorized"),
    "403": (error(403, "no"), "server", "403"),
    "405": (answer(405, {"detail": "Method Not Allowed"}), "server", "Method Not Allowed"),
    "415": (error(415, "no"), "server", "415"),
    "NaN": (error(400, "Out of range float values are not JSON compliant"), "server", "Out of"),
    "redirect": (answer(307, b"", headers={"location": "/elsewhere"}), "server", "307"),
    "204": (Raw(b"HTTP/1.1 204 No Content\r\n\r\n", "keep"), "server", "parse"),
    "HTML": (answer(200, b"<html>Sign in</html>", content_type="text/html"), "server", "parse"),
    "no choices": (answer(200, {"id": "x"}), "server", "parse"),
    "JSON list": (answer(200, [1]), "server", "parse"),
    "NaN in the body": (answer(200, WHOLE[-9:] + b"[NaN]"), "server", "parse"),
    "too many choices": (answer(200, completion([1], [-1.0], n=2)), "server", "choices"),
    "no token ids": (choice(token_ids=None), "server", "token_ids"),
    "ids of a wrong type": (choice(token_ids=["a", "b"]), "server", "parse"),
    "fewer logprobs than ids": (choice(logprobs={"token_logprobs": [-1.0]}), "server", "logprobs"),
    "a null logprob": (choice(logprobs={"token_logprobs": [-1.0, None]}), "server", "null"),
    "no logprobs": (choice(logprobs=None), "server", "logprobs"),
}


@pytest.mark.parametrize("case", ERRORS)
async def test_an_error_result(upstream: FakeUpstream, case: str) -> None:
    raw, category, text = ERRORS[case]
    upstream.script = in_order(raw)
    async with sampled(upstream) as (gateway, request_id):
        first = await outcome(gateway.poll(request_id))
        assert first.status == 200
        assert first.headers[b"content-type"] == b"application/json"
        failure = first.json()
        assert failure["category"] == category
        assert text in failure["error"]
        assert (await outcome(gateway.poll(request_id))).body == first.body
    assert sent(upstream) == {request_id: 1}


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"' + b"long " * 40_000 + b'"}}',
        b"\xff\xfe plain " * 40_000,
        b'{"detail":"line\\u0000one\\r\\n\\u001b[31mline two"}',
        b"[" * 100_000,
    ],
    ids=["long", "not UTF-8", "control characters", "deep"],
)
async def test_the_upstreams_text_is_bounded_and_printable(
    upstream: FakeUpstream, body: bytes
) -> None:
    upstream.script = in_order(answer(400, body))
    async with sampled(upstream) as (gateway, request_id):
        failure = (await outcome(gateway.poll(request_id))).json()
        assert failure["category"] == "user"
        assert len(failure["error"]) < 1100
        assert failure["error"].isprintable()


# --- interrupted: 410, so that the SDK submits the sample again -----------------------------------

CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"

INTERRUPTIONS = {
    "closed before an answer": Raw(b"", "close"),
    "reset before an answer": Raw(b"", "reset"),
    "closed within the headers": Raw(WHOLE[:20], "close"),
    "closed within the body": Raw(WHOLE[:-5], "close"),
    "closed within the chunks": Raw(CHUNKED + b"10\r\n0123456789abcdef\r\n", "close"),
    "not HTTP": Raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "close"),
    "500 of a router": answer(500, b"upstream connect error", content_type="text/plain"),
    "500 empty": answer(500, b""),
    "502": error(502, "bad gateway"),
    "504": error(504, "timeout"),
    "505": answer(505, b""),
    "abort": choice(finish_reason="abort"),
    "error": choice(finish_reason="error"),
    "null finish_reason": choice(finish_reason=None),
    "unknown finish_reason": choice(finish_reason="tired"),
    "no choices": answer(200, {"choices": []}),
}


@pytest.mark.parametrize("case", INTERRUPTIONS)
async def test_an_interruption_hands_the_sample_back(upstream: FakeUpstream, case: str) -> None:
    upstream.script = in_order(INTERRUPTIONS[case])
    async with sampled(upstream) as (gateway, request_id):
        for _ in range(2):
            gone = await outcome(gateway.poll(request_id))
            assert (gone.status, list(gone.json())) == (410, ["detail"])
    assert sent(upstream) == {request_id: 1}


async def test_a_reset_within_the_body_hands_the_sample_back(upstream: FakeUpstream) -> None:
    async def script(request: Request) -> Raw:
        await request.write(WHOLE[:-5])
        await asyncio.sleep(0.02)  # a reset overtakes what the other side has not read yet
        return Raw(b"", "reset")

    upstream.script = script
    async with sampled(upstream) as (gateway, request_id):
        assert (await outcome(gateway.poll(request_id))).status == 410
    assert sent(upstream) == {request_id: 1}


async def test_fewer_choices_than_asked_hand_the_sample_back(upstream: FakeUpstream) -> None:
    upstream.script = in_order(answer(200, completion([1, 2], [-1.0, -2.0], n=2)))
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        promise = (await gateway.submit(num_samples=3)).json()
        assert (await outcome(gateway.poll(promise["request_id"]))).status == 410


async def test_a_sample_handed_back_can_be_submitted_again(upstream: FakeUpstream) -> None:
    """As the SDK does it: the same sample under a new number."""
    upstream.script = in_order(Raw(b"", "reset"), GOOD)
    async with sampled(upstream) as (gateway, request_id):
        assert (await outcome(gateway.poll(request_id))).status == 410
        again = (await gateway.submit(seq_id=1)).json()["request_id"]
        assert sequences(await outcome(gateway.poll(again))) == [([11, 12], [-1.0, -2.0])]
        assert again != request_id


async def test_the_same_number_after_410_runs_anew(upstream: FakeUpstream) -> None:
    """A repeat of a submit whose answer was lost, after its sample was handed back."""
    upstream.script = in_order(Raw(b"", "reset"), GOOD)
    async with sampled(upstream) as (gateway, request_id):
        assert (await outcome(gateway.poll(request_id))).status == 410
        again = (await gateway.submit(seq_id=0)).json()["request_id"]
        assert sequences(await outcome(gateway.poll(again))) == [([11, 12], [-1.0, -2.0])]


async def test_an_operator_may_allow_a_repeat_after_an_interruption(
    upstream: FakeUpstream,
) -> None:
    upstream.script = in_order(error(502, "x"), error(502, "x"), GOOD)
    async with sampled(upstream, upstream__read_retries=1) as (gateway, request_id):
        assert (await outcome(gateway.poll(request_id))).status == 410
    assert sent(upstream) == {request_id: 2}


async def test_no_setting_repeats_a_sample_whose_answer_had_begun(upstream: FakeUpstream) -> None:
    """Its prompt was dropped with the first byte of the answer."""
    upstream.script = in_order(Raw(WHOLE[:-5], "close"), GOOD)
    async with sampled(upstream, upstream__read_retries=5) as (gateway, request_id):
        assert (await outcome(gateway.poll(request_id))).status == 410
    assert sent(upstream) == {request_id: 1}


# --- a JSON 500: once more after a second ---------------------------------------------------------


async def test_an_engine_fault_is_tried_once_more_after_a_second(upstream: FakeUpstream) -> None:
    upstream.script = in_order(error(500, "EngineCore died"), GOOD)
    async with sampled(upstream) as (gateway, request_id):
        poll = gateway.poll(request_id)
        await until(lambda: upstream.requests and not upstream.active)
        await gateway.advance(0.9)
        await asyncio.sleep(0.03)
        assert len(upstream.requests) == 1
        await gateway.advance(0.2)
        assert sequences(await outcome(poll)) == [([11, 12], [-1.0, -2.0])]
    assert sent(upstream) == {request_id: 2}


async def test_an_engine_fault_that_stays_is_an_error(upstream: FakeUpstream) -> None:
    upstream.script = in_order(error(500, "EngineCore died"))
    async with sampled(upstream) as (gateway, request_id):
        poll = gateway.poll(request_id)
        await until(lambda: upstream.requests and not upstream.active)
        await asyncio.sleep(0.02)
        await gateway.advance(1.1)
        failure = (await outcome(poll)).json()
        assert failure["category"] == "server"
        assert "EngineCore died" in failure["error"]
    assert sent(upstream) == {request_id: 2}


# --- availability: wait, say so, and never fail the sample ----------------------------------------

UNAVAILABLE = {
    "408": error(408, "timeout"),
    "429": error(429, "too many"),
    "503": error(503, "loading"),
    "503 plain": answer(503, b"no healthy upstream", content_type="text/plain"),
    "503 odd Retry-After": error(503, "x", retry_after="soon"),
    "503 dated Retry-After": error(503, "x", retry_after="Wed, 21 Oct 2026 07:28:00 GMT"),
}


@pytest.mark.parametrize("case", UNAVAILABLE)
async def test_an_upstream_that_does_not_take_it_is_tried_at_once(
    upstream: FakeUpstream, case: str
) -> None:
    upstream.script = in_order(UNAVAILABLE[case], GOOD)
    async with sampled(upstream) as (gateway, request_id):
        assert sequences(await outcome(gateway.poll(request_id))) == [([11, 12], [-1.0, -2.0])]
    assert sent(upstream) == {request_id: 2}


async def test_the_tries_back_off_and_then_the_sample_is_handed_back(
    upstream: FakeUpstream,
) -> None:
    upstream.script = in_order(error(503, "loading"))
    async with sampled(upstream) as (gateway, request_id):
        # The second comes at once: no time passes before it.
        await until(lambda: len(upstream.requests) == 2)
        tries_at = [gateway.clock.time] * 2
        poll = gateway.poll(request_id)
        seen, states = 2, set()
        for _ in range(2000):
            await asyncio.sleep(0.001)
            if len(upstream.requests) > seen:
                tries_at += [gateway.clock.time] * (len(upstream.requests) - seen)
                seen = len(upstream.requests)
                continue  # the answer's consequences first
            if poll.answered:
                held = await poll.response()
                if held.status != 408:
                    break
                states.add((held.json()["queue_state"], held.json()["queue_state_reason"]))
                poll = gateway.poll(request_id)
            await gateway.advance(0.5)
        assert held.status == 410
        assert states == {
            ("paused_capacity", "the inference server is not available; trying again")
        }
        # The second at once, then ever longer, jittered downwards to a half, at most 15 s apart.
        gaps = [later - earlier for earlier, later in itertools.pairwise(tries_at)]
        assert gaps[0] == 0
        assert 0.25 <= gaps[1] <= 1.5
        assert 7.5 <= max(gaps) <= 16.5
        # The grace is 300 s from the first try; a wait that would end after it is not begun.
        assert 284 <= tries_at[-1] - tries_at[0] <= 301
        assert gateway.clock.time - tries_at[0] <= 301
    assert set(sent(upstream)) == {request_id}


def _answered(upstream: FakeUpstream, count: int) -> bool:
    return len(upstream.requests) == count and not upstream.active


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_respected_from_the_first_try_on(
    upstream: FakeUpstream, status: int
) -> None:
    busy = error(status, "busy", retry_after="7")
    upstream.script = in_order(busy, busy, GOOD)
    async with sampled(upstream) as (gateway, request_id):
        poll = gateway.poll(request_id)
        for tries in (1, 2):
            await until(functools.partial(_answered, upstream, tries))
            await asyncio.sleep(0.02)
            await gateway.advance(6.8)
            await asyncio.sleep(0.03)
            assert len(upstream.requests) == tries
            await gateway.advance(0.3)
        assert sequences(await outcome(poll)) == [([11, 12], [-1.0, -2.0])]


@pytest.mark.parametrize("tries", [1, 2])
async def test_a_wish_beyond_the_grace_hands_the_sample_back(
    upstream: FakeUpstream, tries: int
) -> None:
    """A try that could only come after 300 s is not waited for, whichever it is."""
    upstream.script = in_order(
        *[error(503, "x")] * (tries - 1), error(503, "x", retry_after="1000"), GOOD
    )
    async with sampled(upstream) as (gateway, request_id):
        assert (await outcome(gateway.poll(request_id))).status == 410
    assert sent(upstream) == {request_id: tries}


async def test_an_upstream_that_is_down_is_waited_for() -> None:
    upstream, port = FakeUpstream(), free_port()
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(contextlib.AsyncExitStack())
        await first.enter_async_context(upstream.running(port))
        gateway = await stack.enter_async_context(driven(upstream.url))
        await gateway.handshake()
        await first.aclose()
        request_id = (await gateway.submit()).json()["request_id"]
        poll = gateway.poll(request_id)
        for _ in range(12):  # a minute of refused connections
            await asyncio.sleep(0.01)
            await gateway.advance(2.5)
        assert (await outcome(poll)).json()["queue_state"] == "paused_capacity"
        assert not upstream.requests
        await stack.enter_async_context(upstream.running(port))
        poll = gateway.poll(request_id)
        for _ in range(10):
            await asyncio.sleep(0.01)
            await gateway.advance(2.5)
            if poll.answered:
                break
        assert sequences(await outcome(poll)) == [([11, 12], [-1.0, -2.0])]
        assert sent(upstream) == {request_id: 1}


async def test_refused_for_the_whole_grace_is_410_and_never_an_error() -> None:
    async with (
        FakeUpstream().running() as upstream,
        driven(upstream.url, upstream__unavailable_grace_s=20) as gateway,
    ):
        await gateway.handshake()
        await upstream.stop()
        request_id = (await gateway.submit()).json()["request_id"]
        poll = gateway.poll(request_id)
        for _ in range(25):
            await asyncio.sleep(0.005)
            await gateway.advance(1)
            if poll.answered:
                break
        assert (await outcome(poll)).status == 410
    assert not upstream.requests


@pytest.mark.parametrize("how", ["refuses", "503", "500"])
async def test_another_upstream_comes_first(how: str) -> None:
    async with (
        FakeUpstream().running() as left,
        FakeUpstream().running() as right,
        driven("", upstream__urls=[left.url, right.url]) as gateway,
    ):
        for seq_id in range(16):
            await gateway.handshake()
            promise = (await gateway.submit(seq_id)).json()
            assert (await outcome(gateway.poll(promise["request_id"]))).status == 200
        assert left.requests
        assert right.requests
        if how == "refuses":
            await left.stop()
        else:
            left.script = in_order(error(int(how), "x"))
        before = len(right.requests)
        for seq_id in range(8):
            await gateway.handshake()
            poll = gateway.poll((await gateway.submit(seq_id)).json()["request_id"])
            if how == "500":
                await until(lambda: not left.active and not right.active)
                await asyncio.sleep(0.01)
                await gateway.advance(1.1)
            assert sequences(await outcome(poll)) == [([11, 12], [-1.0, -2.0])]
        assert len(right.requests) == before + 8


# --- logprobs are never made up -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logprobs", "expected"),
    [
        ({"token_logprobs": [-1.0, None]}, [-1.0, math.nan]),
        (None, [math.nan, math.nan]),
    ],
)
async def test_missing_logprobs_can_be_delivered_as_nan(
    upstream: FakeUpstream, logprobs: object, expected: list[float]
) -> None:
    upstream.script = in_order(choice(logprobs=logprobs))
    async with sampled(upstream, missing_logprobs="nan") as (gateway, request_id):
        ((tokens, given),) = sequences(await outcome(gateway.poll(request_id)))
        assert tokens == [11, 12]
        assert given == pytest.approx(expected, nan_ok=True)
