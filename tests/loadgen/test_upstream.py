"""The server on real sockets: order, connections, faults, counters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import pytest

from loadgen import answers
from loadgen.counts import Counts
from loadgen.faults import Fault, fault_of, fault_prompt_id
from loadgen.settings import Settings
from loadgen.upstream import Upstream, running

PROMPT = [5, 6, 7]
VOCAB = 151_936


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One raw connection, so that a test sees when it is closed."""

    def __init__(self, server: Upstream) -> None:
        self._port = server.port

    async def __aenter__(self) -> Self:
        self.reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, raw: bytes) -> None:
        self._writer.write(raw)
        await self._writer.drain()

    async def receive(self) -> Answer:
        async with asyncio.timeout(5):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *rest = head.strip().split("\r\n")
            headers = dict(field.split(": ", 1) for field in rest)
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Answer(int(line.split()[1]), headers, body)

    async def rest(self) -> bytes:
        """What comes until the server closes."""
        async with asyncio.timeout(5):
            return await self.reader.read()

    async def ask(self, request_id: str | None = None, **fields: Any) -> Answer:
        await self.send(post(request_id, **fields))
        return await self.receive()

    async def get(self, path: str) -> Answer:
        await self.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return await self.receive()

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def post(request_id: str | None = None, extra: str = "", **fields: Any) -> bytes:
    body = json.dumps({"prompt": PROMPT, "return_token_ids": True} | fields).encode()
    named = "" if request_id is None else f"X-Request-Id: {request_id}\r\n"
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"{named}{extra}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until the server has noticed."""
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen within two seconds")


def ids_of(answer: Answer) -> list[list[int]]:
    return [choice["token_ids"] for choice in answer.json["choices"]]


async def test_answers_share_a_connection_and_carry_the_request_id() -> None:
    async with running(Settings(port=0)) as server, Client(server) as client:
        first = await client.ask("r-1", seed=1)
        second = await client.ask(seed=1)
        assert first.headers["content-type"] == "application/json"
        assert first.json["id"] == "cmpl-r-1"
        assert second.json["id"].startswith("cmpl-")
        assert ids_of(first) == ids_of(second) == [answers.tokens(PROMPT, count=16, seed=1)]
        assert server.counts.connections_total == 1


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running(Settings(port=0, delay_s=0.01)) as server, Client(server) as client:
        health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        await client.send(post("a") + health + post("b") + post("c") + health)
        got = [await client.receive() for _ in range(5)]
        assert [g.json["id"] if g.body else "" for g in got] == [
            "cmpl-a",
            "",
            "cmpl-b",
            "cmpl-c",
            "",
        ]
        assert server.counts.running_max == 1


async def test_a_long_pipeline_is_read_piece_by_piece() -> None:
    async with running(Settings(port=0, delay_s=0.001)) as server, Client(server) as client:
        await client.send(b"".join(post(f"r{i}") for i in range(300)))
        ids = [(await client.receive()).json["id"] for _ in range(300)]
        assert ids == [f"cmpl-r{i}" for i in range(300)]


async def test_requests_in_pieces_and_chunks_are_put_together() -> None:
    async with running(Settings(port=0)) as server, Client(server) as client:
        raw = post("slow")
        for i in range(0, len(raw), 7):
            await client.send(raw[i : i + 7])
            await asyncio.sleep(0)
        assert (await client.receive()).json["id"] == "cmpl-slow"
        chunks = [b'{"prompt":[5,', b"6,7],", b'"max_tokens":2}']
        await client.send(
            b"POST /v1/completions?x=1 HTTP/1.1\r\n"
            b"Content-Type: application/json; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks)
            + b"0\r\n\r\n"
        )
        assert (await client.receive()).json["usage"]["total_tokens"] == 5


async def test_large_bodies_and_expect_continue() -> None:
    async with running(Settings(port=0)) as server, Client(server) as client:
        raw = post(extra="Expect: 100-continue\r\n", max_tokens=20_000, logprobs=0)
        head, _, body = raw.partition(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        async with asyncio.timeout(5):
            interim = await client.reader.readuntil(b"\r\n\r\n")
        assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body)
        got = await client.receive()
        assert ids_of(got) == [answers.tokens(PROMPT, count=20_000)]
        assert len(got.body) > 1_500_000


@pytest.mark.parametrize(
    "head",
    ["POST /v1/completions HTTP/1.0\r\n", "POST /v1/completions HTTP/1.1\r\nConnection: close\r\n"],
)
async def test_a_connection_is_closed_when_the_client_wants_it(head: str) -> None:
    async with running(Settings(port=0)) as server, Client(server) as client:
        body = b'{"prompt":[1]}'
        await client.send(
            f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        got = await client.receive()
        assert got.headers["connection"] == "close"
        assert await client.rest() == b""


async def test_idle_connections_are_closed_but_not_before_the_first_answer() -> None:
    async with (
        running(Settings(port=0, keepalive_s=0.05)) as server,
        Client(server) as fresh,
        Client(server) as used,
        Client(server) as later,
    ):
        await used.ask()
        await later.ask()
        assert await used.rest() == b""
        assert await later.rest() == b""
        assert (await fresh.ask()).status == 200
        assert server.counts.connections == 1
        assert await fresh.rest() == b""


async def test_waiting_for_an_answer_is_not_idle() -> None:
    async with (
        running(Settings(port=0, keepalive_s=0.02, delay_s=0.08)) as server,
        Client(server) as client,
    ):
        assert (await client.ask()).status == 200
        assert await client.rest() == b""


async def test_leaving_aborts_what_was_asked() -> None:
    async with running(Settings(port=0, delay_s=60.0)) as server:
        async with Client(server) as staying, Client(server) as watcher:
            await staying.send(post())
            async with Client(server) as leaving:
                await leaving.send(post() + post())
                await until(lambda: server.counts.running == 2)
            await until(lambda: server.counts.aborted == 1)
            assert (server.counts.running, server.counts.running_max) == (1, 2)
            text = (await watcher.get("/metrics")).body.decode()
        assert "\nloadgen_upstream_aborted_total 1\n" in text
        assert "\nloadgen_upstream_running 1\n" in text
        assert '\nvllm:num_requests_running{engine="0",model_name="stand-in"} 1\n' in text


async def test_counters_and_request_ids() -> None:
    async with running(Settings(port=0)) as server, Client(server) as client:
        for request_id in ("a", "b", "a"):
            await client.ask(request_id, n=2, max_tokens=4)
        await client.ask("c", n=0)
        await client.ask("d", model="no such model")
        assert (await client.get("/requests")).json == {"a": 2, "b": 1, "c": 1, "d": 1}
        lines = (await client.get("/metrics")).body.decode().splitlines()
        for expected in (
            'loadgen_upstream_requests_total{status="200"} 3',
            'loadgen_upstream_requests_total{status="400"} 1',
            'loadgen_upstream_requests_total{status="404"} 1',
            "loadgen_upstream_prompt_tokens_total 9",
            "loadgen_upstream_generation_tokens_total 24",
            "loadgen_upstream_running 0",
            "loadgen_upstream_connections_total 1",
        ):
            assert expected in lines


def test_request_ids_are_bounded() -> None:
    kept = Counts(2)
    for request_id in ("a", "b", "c", "b"):
        kept.saw(request_id)
    assert kept.request_ids == {"b": 2, "c": 1}
    assert kept.counted(held=0, queued=0).forgotten == 1


async def test_small_routes() -> None:
    async with running(Settings(port=0)) as server, Client(server) as client:
        health = await client.get("/health")
        assert (health.status, health.body) == (200, b"")
        assert (await client.get("/version")).json == {"version": "0.32.0"}
        missing = await client.get("/v1/no_such_route")
        assert (missing.status, missing.json) == (404, {"detail": "Not Found"})
        wrong = await client.get("/v1/completions")
        assert (wrong.status, wrong.json) == (405, {"detail": "Method Not Allowed"})
        assert wrong.headers["allow"] == "POST"


async def test_no_http_is_refused_after_what_was_asked_before() -> None:
    async with running(Settings(port=0, delay_s=0.01)) as server, Client(server) as client:
        await client.send(post("a") + b"\x00\x01 nonsense\r\n\r\n")
        assert (await client.receive()).json["id"] == "cmpl-a"
        assert (await client.rest()).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def asking(fault: Fault, *more: int) -> list[int]:
    return [fault_prompt_id(fault, VOCAB), *more]


@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        (Fault.SERVER_ERROR, 500, "InternalServerError"),
        (Fault.BAD_REQUEST, 400, "BadRequestError"),
        (Fault.UNAVAILABLE, 503, "Service Unavailable"),
        (Fault.RATE_LIMITED, 429, "RateLimitError"),
        (Fault.NAN_LOGPROBS, 400, "BadRequestError"),
    ],
)
async def test_json_errors(fault: Fault, status: int, kind: str) -> None:
    async with running(Settings(port=0, faults=True)) as server, Client(server) as client:
        got = await client.ask(prompt=asking(fault, 1))
        assert (got.status, got.json["error"]["type"]) == (status, kind)
        assert got.json["error"]["code"] == status
        assert ("retry-after" in got.headers) == (fault is Fault.RATE_LIMITED)
        assert server.counts.statuses == {status: 1}
        assert server.counts.faults == {fault: 1}


async def test_answers_that_are_no_json() -> None:
    async with running(Settings(port=0, faults=True)) as server, Client(server) as client:
        page = await client.ask(prompt=asking(Fault.HTML))
        assert (page.status, page.headers["content-type"]) == (200, "text/html")
        plain = await client.ask(prompt=asking(Fault.PLAIN_ERROR))
        assert (plain.status, plain.body) == (500, b"Internal Server Error")
        assert plain.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize("delay_s", [0.0, 0.01])
async def test_closed_connections(delay_s: float) -> None:
    async with running(Settings(port=0, faults=True, delay_s=delay_s)) as server:
        async with Client(server) as client:
            await client.send(post(prompt=asking(Fault.CLOSE_BEFORE)) + post())
            assert await client.rest() == b""
        async with Client(server) as client:
            await client.send(post(prompt=asking(Fault.CLOSE_MIDWAY)) + post())
            head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        promised = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        assert len(body) == promised // 2
        assert (server.counts.running, server.counts.aborted) == (0, 0)


async def test_silence_lasts_until_the_client_leaves() -> None:
    async with (
        running(Settings(port=0, faults=True, keepalive_s=0.01)) as server,
        Client(server) as client,
    ):
        await client.send(post(prompt=asking(Fault.SILENT)))
        await until(lambda: server.counts.running == 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.reader.read(1)
        await client.close()
        await until(lambda: server.counts.aborted == 1)
        assert server.counts.running == 0


async def damaged(fault: Fault, **fields: Any) -> tuple[Sequence[Any], int]:
    """Choices of one damaged answer, and the tokens counted for it."""
    async with running(Settings(port=0, faults=True)) as server, Client(server) as client:
        got = await client.ask(prompt=asking(fault, 3, 4), max_tokens=5, **fields)
        await client.close()
        assert got.status == 200
        return got.json["choices"], server.counts.generation_tokens


async def test_damaged_logprobs() -> None:
    (choice,), _ = await damaged(Fault.NULL_LOGPROB, logprobs=0)
    values = choice["logprobs"]["token_logprobs"]
    assert [value is None for value in values] == [False, False, True, False, False]
    assert list(choice["logprobs"]["top_logprobs"][2].values()) == [None]
    (choice,), _ = await damaged(Fault.NO_LOGPROBS, logprobs=0)
    assert choice["logprobs"] is None
    assert len(choice["token_ids"]) == 5
    (choice,), _ = await damaged(Fault.LOGPROB_MISSING, logprobs=0)
    assert len(choice["logprobs"]["token_logprobs"]) == 4
    assert len(choice["token_ids"]) == 5


async def test_damage_to_logprobs_needs_logprobs() -> None:
    for fault in (Fault.NULL_LOGPROB, Fault.LOGPROB_MISSING):
        (choice,), _ = await damaged(fault)
        assert choice["logprobs"] is None


async def test_missing_choice() -> None:
    choices, _ = await damaged(Fault.CHOICE_MISSING, n=3)
    assert [choice["index"] for choice in choices] == [0, 1]
    assert await damaged(Fault.CHOICE_MISSING) == ([], 5)


async def test_aborted_answer_has_the_first_half() -> None:
    (choice,), generated = await damaged(Fault.ABORTED, logprobs=0)
    prompt = asking(Fault.ABORTED, 3, 4)
    assert choice["token_ids"] == answers.tokens(prompt, count=3)
    assert choice["text"] == answers.decode(choice["token_ids"])
    assert len(choice["logprobs"]["token_logprobs"]) == 3
    assert (choice["finish_reason"], choice["stop_reason"], generated) == ("abort", None, 3)


async def test_faults_are_off_unless_asked_for() -> None:
    async with running(Settings(port=0)) as server, Client(server) as client:
        for fault in Fault:
            assert (await client.ask(prompt=asking(fault))).status == 200


async def test_each_prompt_is_faulted_so_many_times() -> None:
    async with (
        running(Settings(port=0, faults=True, fault_times=2)) as server,
        Client(server) as client,
    ):
        for more in (1, 2):
            statuses = [
                (await client.ask(prompt=asking(Fault.UNAVAILABLE, more))).status for _ in range(4)
            ]
            assert statuses == [503, 503, 200, 200]


def test_only_the_faults_ids_ask_for_faults() -> None:
    assert [fault_of(fault_prompt_id(fault, 5_000), 5_000) for fault in Fault] == list(Fault)
    assert fault_of(3_999, 5_000) is None
    assert fault_of(4_000 + len(Fault), 5_000) is None


async def test_the_context_clamps_and_a_small_vocabulary_works() -> None:
    async with (
        running(Settings(port=0, vocab=2_000, max_model_len=10)) as server,
        Client(server) as client,
    ):
        got = await client.ask(max_tokens=100)
        assert ids_of(got) == [answers.tokens(PROMPT, count=7, vocab=2_000)]
        assert got.json["choices"][0]["finish_reason"] == "length"
        assert (await client.ask(prompt=[2_000])).status == 400


async def test_two_servers_share_nothing() -> None:
    async with (
        running(Settings(port=0)) as one,
        running(Settings(port=0)) as other,
        Client(one) as client,
    ):
        await client.ask("a")
        assert (one.counts.statuses.total(), other.counts.statuses.total()) == (1, 0)
        assert "connections=1" in repr(one)


@pytest.mark.parametrize(
    ("salt", "status"),
    [("a" * 128, 200), ("a" * 129, 400), ("a/b", 400), ("a\\b", 400), ("a@b", 400), ("", 400)],
)
async def test_salts_that_vllm_takes(salt: str, status: int) -> None:
    async with running(Settings(port=0)) as server, Client(server) as client:
        assert (await client.ask(cache_salt=salt)).status == status
