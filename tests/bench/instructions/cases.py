"""What is counted. Each case prepares once and then runs so many times; nothing in it waits.

Cases stand on seams that outlive a rewrite: the ASGI application, the store's verbs, the two
functions of the codec. Everything is fixed: bodies, ids, clock; what random values would change is
how strings collide in dicts.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from asgi_gateway import Gateway
from asgi_gateway.asgi import Message, Reply, read_body, send_reply
from asgi_gateway.caller import DEFAULT
from asgi_gateway.codec import Want
from asgi_gateway.codec.decode import Decoder
from asgi_gateway.codec.encode import encode
from asgi_gateway.configuration import load
from asgi_gateway.ids import REQUEST, Ids
from asgi_gateway.metrics import Metrics
from asgi_gateway.protocol import SampleRequest, reader
from asgi_gateway.state.events import Accepted, Closed, frame_into
from asgi_gateway.store.states import State
from asgi_gateway.upstream.catalog import Model
from asgi_gateway.upstream.request import build
from tests.bench.instructions.given import (
    ANSWER,
    ANSWER_PROMPT_TOKENS,
    DIGEST,
    RESULT,
    SAMPLER,
    UPSTREAM,
    UPSTREAM_BODY,
    Run,
    new_record,
    new_store,
)
from tests.bench.instructions.upstream import pool_exchange, settle
from tests.support.clock import ManualClock

PAGE = 64
PROTOBUF_HEADERS = [
    (b"host", b"127.0.0.1:8000"),
    (b"accept", b"application/x-protobuf"),
    (b"content-type", b"application/json"),
    (b"user-agent", b"AsyncTinker/Python 0.38.0"),
    (b"x-stainless-package-version", b"0.38.0"),
    (b"x-stainless-retry-count", b"0"),
    (b"content-length", b"600"),
]


def sample_body(sampling_session_id: str, seq_id: int) -> bytes:
    """An `asample` as SDK 0.38 writes it, with a prompt of 64 tokens."""
    prompt = ",".join(str((i * 7919 + 13) % 121_000) for i in range(64))
    return (
        f'{{"sampling_session_id":"{sampling_session_id}","seq_id":{seq_id},"num_samples":1,'
        f'"prompt":{{"chunks":[{{"type":"encoded_text","tokens":[{prompt}]}}]}},'
        '"sampling_params":{"max_tokens":16,"temperature":1.0,"top_k":-1,"top_p":1.0},'
        '"prompt_logprobs":false,"topk_prompt_logprobs":0,"type":"sample"}'
    ).encode()


def finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that must not wait: the loop never turns while it is counted."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise RuntimeError("a counted call waits for something")


class Edge:
    """A gateway asked by hand. Its tasks never run, so no time and no socket takes part."""

    def __init__(self) -> None:
        flags: dict[str, Any] = {
            "upstream.urls": [UPSTREAM],
            "upstream.max_connections": 1,
            "state.dir": "",
            "id_key": "for counting only",
        }
        self._clock = ManualClock()
        self.gateway = Gateway(load(flags, environ={}).settings, clock=self._clock)
        self._never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._sent: list[Message] = []

    def sampler(self) -> str:
        """A sampling session, made below the edge: by the edge it would need an upstream."""
        sessions = self.gateway._sessions
        session = sessions.create(DEFAULT.name, self._clock.now())
        return sessions.create_sampling(session, 0, Model("m", "m", "salt")).sampling_session_id

    def settle(self) -> None:
        """Whatever is accepted has its result."""
        store, now = self.gateway._store, self._clock.now()
        for record in store.records():
            if record.state is State.QUEUED:
                store.start(record, now)
            store.succeed(record, RESULT, now)

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of a 200 answer."""
        message: Message | None = {"type": "http.request", "body": body}

        async def receive() -> Message:
            nonlocal message
            given, message = message, None
            return given if given is not None else await self._never

        async def send(message: Message) -> None:
            self._sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": "",
            "headers": PROTOBUF_HEADERS,
        }
        self._sent.clear()
        finish(self.gateway(scope, receive, send))
        status, answer = self._sent[0]["status"], b"".join(m.get("body", b"") for m in self._sent)
        if status != 200:
            raise RuntimeError(f"{path} answered {status}: {answer!r}")
        return answer


def healthz() -> Run:
    edge = Edge()
    return lambda: edge.ask("GET", "/api/v1/healthz")


def asample() -> Run:
    edge = Edge()
    before, after = sample_body(edge.sampler(), 987_654_321).split(b"987654321")
    numbers = itertools.count()
    return lambda: edge.ask("POST", "/api/v1/asample", b"%b%d%b" % (before, next(numbers), after))


def retrieve_future() -> Run:
    edge = Edge()
    promise = edge.ask("POST", "/api/v1/asample", sample_body(edge.sampler(), 0))
    edge.settle()
    body = b'{"request_id":"%b","allow_metadata_only":false}' % promise.split(b'"')[3]
    return lambda: edge.ask("POST", "/api/v1/retrieve_future", body)


def retrieve_futures() -> Run:
    """Page after page of the same: a client that repeats its cursor is told again."""
    edge = Edge()
    sampler = edge.sampler()
    for seq_id in range(PAGE):
        edge.ask("POST", "/api/v1/asample", sample_body(sampler, seq_id))
    edge.settle()
    body = b'{"target":{"sampling_session_id":"%b"},"prev_cursor":0}' % sampler.encode()
    if edge.ask("POST", "/api/v1/retrieve_futures", body).count(b"finished") != PAGE:
        raise RuntimeError("the page is not full")
    return lambda: edge.ask("POST", "/api/v1/retrieve_futures", body)


def read() -> Run:
    scope = {"type": "http", "headers": PROTOBUF_HEADERS}
    message = {"type": "http.request", "body": sample_body(SAMPLER, 7), "more_body": False}

    async def receive() -> Message:
        return message

    return lambda: finish(read_body(scope, receive, 32 << 20))


def reply() -> Run:
    answer = Reply(200, RESULT)

    async def send(message: Message) -> None:
        pass

    return lambda: finish(send_reply(send, answer))


def build_request() -> Run:
    decode, body = reader(SampleRequest), sample_body(SAMPLER, 7)
    return lambda: build(
        decode(body),
        model="m",
        cache_salt="salt",
        max_context=None,
        empty_stop_ends_nothing=True,
    )


def accept() -> Run:
    store, ids, numbers = new_store(), Ids("key"), itertools.count()

    def run() -> None:
        record = new_record(ids, next(numbers))
        store.submitted(SAMPLER, record.seq_id, DIGEST)
        store.admit(len(UPSTREAM_BODY))
        store.accept(record)

    return run


def cycle() -> Run:
    store, ids, numbers = new_store(), Ids("key"), itertools.count()

    def run() -> None:
        record = new_record(ids, next(numbers))
        store.accept(record)
        store.start(record, 1.0)
        store.drop_prompt(record)
        store.succeed(record, RESULT, 2.0)
        store.delivered(record, 3.0)
        store.acknowledge([record.request_id], DEFAULT.name)

    return run


def decode_answer() -> Run:
    decoder, want = Decoder(), Want()
    return lambda: decoder.decode(ANSWER, want, ANSWER_PROMPT_TOKENS)


def encode_result() -> Run:
    arrays = Decoder().decode(ANSWER, Want(), ANSWER_PROMPT_TOKENS)
    return lambda: encode(arrays)


def issue_id() -> Run:
    ids = Ids("key")
    return lambda: ids.issue(DEFAULT.name)


def verify_id() -> Run:
    ids = Ids("key")
    issued = ids.issue(DEFAULT.name)
    return lambda: ids.may_be_ours(issued, DEFAULT.name, REQUEST)


def journal_events() -> Run:
    request_id = Ids("key").issue(DEFAULT.name)

    def run() -> None:
        buffer = bytearray()
        frame_into(buffer, Accepted(request_id, DEFAULT.name, SAMPLER, 7, DIGEST))
        frame_into(buffer, Closed(request_id))

    return run


def stage() -> Run:
    metrics = Metrics()
    return lambda: metrics.stage("queued", 0.25)


class Case(NamedTuple):
    """`times`: how often it runs in the short count; three times that in the long one."""

    prepare: Callable[[], Run]
    text: str
    times: int = 50


CASES = {
    "edge.healthz": Case(healthz, "the application's own cost: routing, an answer, no body"),
    "edge.asample": Case(asample, "a whole submit with 64 prompt tokens, queued"),
    "edge.retrieve_future": Case(retrieve_future, "a whole delivery of 140 bytes"),
    "edge.retrieve_futures": Case(retrieve_futures, f"a whole batched poll of {PAGE} completions"),
    "asgi.read_body": Case(read, "a body in one message, its headers looked at", 300),
    "asgi.send_reply": Case(reply, "headers and two messages of an answer", 300),
    "request.build": Case(build_request, "decode a submit, write the upstream's request"),
    "store.accept": Case(accept, "an id, a record, the look for a repeat, admission, accept", 100),
    "store.cycle": Case(cycle, "an id, a record, and its life from accept to acknowledge"),
    "runs.settle": Case(settle, "a queued sample's run: sent, answered with 16 tokens, settled"),
    "pool.exchange": Case(pool_exchange, "a POST and its answer on a kept connection", 300),
    "codec.decode": Case(decode_answer, "vLLM's answer of 16 tokens to arrays"),
    "codec.encode": Case(encode_result, "arrays of 16 tokens to the SDK's protobuf", 300),
    "ids.issue": Case(issue_id, "a new request id", 300),
    "ids.verify": Case(verify_id, "whether an id is ours", 300),
    "journal.events": Case(journal_events, "frames of one Accepted and one Closed", 300),
    "metrics.stage": Case(stage, "one sample leaves a stage", 600),
}
