"""What no client of ours would send: bodies, sizes, framing, names."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.faults.clients import rss
from tests.faults.found import Found, Size
from tests.faults.judge import asked
from tests.faults.load import passes, until
from tests.support.processes import serve, stand_in
from tests.support.wire import SDK_HEADERS, Remote, wire

ROUTES: Final = (
    "asample",
    "retrieve_future",
    "retrieve_futures",
    "cancel_future",
    "create_session",
    "create_sampling_session",
    "join_sampling_session",
    "session_heartbeat",
    "client/config",
    "telemetry",
)

_DEEP: Final = b"[" * 20_000 + b"]" * 20_000
_SAMPLE: Final = (
    b'{"sampling_session_id":"%b","seq_id":%b,"num_samples":%b,"prompt":{"chunks":[{"type":'
    b'"encoded_text","tokens":%b}]},"sampling_params":{"max_tokens":%b},"type":"sample"}'
)


def malformed(session: bytes) -> Iterator[bytes]:
    """Bodies of which none is a request."""
    yield from (b"", b"{", b"}", b"null", b"[]", b'"x"', b"0", b"NaN", b"\xff\xfe{", b"\x00")
    yield from (b"{]", b'{"a":1,}', b"{'a':1}", b'{"a":\x01}', b'{"a":"\xed\xa0\x80"}', _DEEP)
    yield from (b'{"a":' * 5_000, b'{"type":' + _DEEP + b"}", b"1" * 100_000, b'"' + b"a" * 60_000)
    yield b"(\xb5/\xfd" + b"\x00" * 64  # how zstd begins
    yield b"\x1f\x8b\x08" + b"\x00" * 64  # and gzip
    yield b"\x0a\xff\xff\xff\xff\x0f" * 8  # lengths as protobuf writes them, too long
    for tokens in (
        b"null",
        b"[[1]]",
        b"[-1]",
        b"[1.5]",
        b"[true]",
        b"[1e3]",
        b'["1"]',
        b"[1,,2]",
        b"[99999999999]",
        b"[1" + b"0" * 5_000 + b"]",
        b"[]",
        _DEEP,
        b"[NaN]",
        b"{}",
    ):
        yield _SAMPLE % (session, b"1", b"1", tokens, b"4")
    for number in (b"-1", b"0", b"1e400", b"NaN", b"1.5", b"true", b'"4"', b"9" * 400):
        yield _SAMPLE % (session, b"1", b"1", b"[1,2]", number)
        yield _SAMPLE % (session, b"1", number, b"[1,2]", b"4")
    yield _SAMPLE % (b"\\ud800", b"1", b"1", b"[1,2]", b"4")
    yield _SAMPLE % (b"x" * 50_000, b"1", b"1", b"[1,2]", b"4")


async def bodies(size: Size) -> Found:
    """Every malformed body to every route, over connections that are kept."""
    found = Found()
    times = 1 if size.small else 5
    with stand_in() as vllm, serve(vllm) as gateway:
        remote = Remote(gateway.port)
        await remote.handshake()
        corpus = list(malformed(remote.sampling_session_id.encode()))
        before, sent = rss(gateway.process.pid), 0
        for route in ROUTES:
            for body in corpus * times:
                sent += len(body)
                found.injected += 1
                async with wire(gateway.port) as link:
                    answer = await link.ask("POST", f"/api/v1/{route}", body, SDK_HEADERS)
                found.survived += answer.status < 500
                found.needs(
                    answer.status < 500, f"{route} answers {answer.status} to {body[:60]!r}"
                )
                if route == "asample":
                    found.needs(
                        400 <= answer.status < 500, f"asample takes {body[:300]!r} as a sample"
                    )
        for encoding in ("gzip", "zstd", "deflate"):
            headers = {**SDK_HEADERS, "content-encoding": encoding}
            async with wire(gateway.port) as link:
                answer = await link.ask("POST", "/api/v1/asample", b"\x1f\x8b\x08", headers)
            found.injected += 1
            found.survived += answer.status == 415
            found.needs(answer.status == 415, f"a body in {encoding} is answered {answer.status}")
        grown = rss(gateway.process.pid) - before
        found.figures |= {"MB sent": round(sent / 1e6, 1), "MB more": round(grown / 1e6, 1)}
        found.needs(grown < 64 << 20, f"{grown / 1e6:.0f} MB more after {sent / 1e6:.0f} MB")
        found.needs(not asked([vllm]).total, "some of it was sent upstream")
        found.recovery_s = await passes(remote)
        found.needs("Traceback" not in gateway.process.stderr, gateway.process.stderr[-800:])
        return found


async def raw_answer(port: int, data: bytes, within_s: float = 5.0) -> bytes:
    """All that comes back on one connection until it is closed or nothing more comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(data)
        async with asyncio.timeout(within_s):
            while more := await reader.read(1 << 16):
                got += more
    writer.close()
    return got


def statuses(data: bytes) -> list[int]:
    """Of all answers in what came back."""
    return [int(part[:3]) for part in data.split(b"HTTP/1.1 ")[1:] if part[:3].isdigit()]


async def oversized(size: Size) -> Found:
    """A body of a gigabyte that is announced, one that is sent, and a head of megabytes."""
    found = Found()
    with stand_in() as vllm, serve(vllm) as gateway:
        remote = Remote(gateway.port)
        await remote.handshake()
        before = rss(gateway.process.pid)
        for _ in range(1 if size.small else 5):
            async with wire(gateway.port) as link:
                link.send_head("POST", "/api/v1/asample", 1 << 30, SDK_HEADERS)
                announced = (await link.read()).status
            found.needs(announced == 413, f"a body of 1 GiB is answered {announced}")
            head = b"POST /api/v1/asample HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            chunk = b"100000\r\n" + b"1" * (1 << 20) + b"\r\n"
            sent = statuses(await raw_answer(gateway.port, head + chunk * 40, 3))
            found.needs(sent == [413], f"40 MB in chunks are answered {sent}")
            lines = b"".join(b"x-%d: %b\r\n" % (n, b"a" * 8_000) for n in range(300))
            long = statuses(
                await raw_answer(gateway.port, b"GET /livez HTTP/1.1\r\n" + lines + b"\r\n", 3)
            )
            found.needs(long == [431], f"a head of 2.4 MB is answered {long}")
            found.injected += 3
            found.survived += (announced == 413) + (sent == [413]) + (long == [431])
        grown = rss(gateway.process.pid) - before
        found.figures["MB more"] = round(grown / 1e6, 1)
        found.needs(grown < 96 << 20, f"{grown / 1e6:.0f} MB more")
        found.recovery_s = await passes(remote)
        return found


SMUGGLED: Final = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
_POST: Final = b"POST /api/v1/client/config HTTP/1.1\r\nhost: x\r\n"

AMBIGUOUS: Final = (
    _POST + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    _POST + b"content-length: 2\r\ncontent-length: 40\r\n\r\n{}" + SMUGGLED,
    _POST + b"content-length: 2, 2\r\n\r\n{}" + SMUGGLED,
    _POST + b"content-length: +2\r\n\r\n{}" + SMUGGLED,
    _POST + b"content-length: 0x2\r\n\r\n{}" + SMUGGLED,
    _POST + b"content-length : 2\r\n\r\n{}" + SMUGGLED,
    _POST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    _POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    _POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
    _POST + b"x: a\r\n content-length: 2\r\n\r\n{}" + SMUGGLED,
    _POST + b"content-length: 2\nx: y\r\n\r\n{}" + SMUGGLED,
    b"GET /livez HTTP/1.1\nhost: x\n\n" + SMUGGLED,
    b"GET /livez\r\n\r\n" + SMUGGLED,
    b"GET /livez HTTP/1.1\r\nhost: x\r\nx\x00: y\r\n\r\n" + SMUGGLED,
    _POST + b"transfer-encoding: chunked\r\n\r\n2;a=\nb\r\n{}\r\n0\r\n\r\n" + SMUGGLED,
    _POST + b"transfer-encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n" + SMUGGLED,
    _POST + b"transfer-encoding: chunked\r\n\r\n2 \r\n{}\r\n0\r\n\r\n" + SMUGGLED,
)


async def ambiguous(size: Size) -> Found:
    """Requests that two parsers would cut in two ways, with a second one inside."""
    found = Found()
    with stand_in() as vllm, serve(vllm) as gateway:
        remote = Remote(gateway.port)
        await remote.handshake()
        plain = _POST + b"content-length: 2\r\n\r\n{}" + SMUGGLED
        seen = statuses(await raw_answer(gateway.port, plain, 1.0))
        found.needs(seen == [200, 404], f"a second request shows as {seen}, so none could be told")
        for data in AMBIGUOUS:
            found.injected += 1
            told = statuses(await raw_answer(gateway.port, data, 1.0))
            right = 404 not in told  # the second request was not taken as one
            found.survived += right
            found.needs(right, f"answered {told}: {data[:160]!r}")
        found.recovery_s = await passes(remote)
        return found


PATHS: Final = (
    "http://127.0.0.1:{port}/",
    "tinker://127.0.0.1:{port}/weights/x",
    "tinker://a@127.0.0.1:{port}/weights/x",
    "//127.0.0.1:{port}/weights/x",
    "tinker://[::1]:{port}/weights/x",
    "tinker://2130706433:{port}/weights/x",
    "tinker://run/weights/http://127.0.0.1:{port}",
    "tinker://../../etc/passwd",
    "tinker://run/weights/../../../etc/passwd",
    "tinker://run/weights/%2e%2e%2fetc",
    "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/_x",
    "tinker://run/sampler_weights/a\r\nx-injected: 1",
    "tinker://run/sampler_weights/\u202eabc",
    "tinker://run/sampler_weights/\x00",
    "tinker://run/sampler_weights/" + "a" * 30_000,
    "tinker:///weights/x",
    "tinker://run//x",
    "TINKER://run/weights/x",
    " tinker://run/weights/x",
)


async def paths(size: Size) -> Found:
    """Model paths that would lead elsewhere, a listener in the trap, and what the log shows."""
    found, caught = Found(), 0

    def fell_in(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal caught
        caught += 1
        writer.close()

    trap = await asyncio.start_server(fell_in, "127.0.0.1", 0)
    port = trap.sockets[0].getsockname()[1]
    await raw_answer(port, b"x")
    found.needs(caught == 1, "the trap catches nothing")
    caught = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, stand_in() as vllm:
        log = Path(folder, "samples.jsonl")
        with serve(vllm, log__samples=log) as gateway:
            remote = Remote(gateway.port)
            await remote.handshake()
            asked_for: list[tuple[str, dict[str, object]]] = []
            for number, path in enumerate(PATHS):
                body = {"session_id": remote.session_id, "sampling_session_seq_id": number + 10}
                for field in ("model_path", "base_model"):
                    named = {**body, field: path.format(port=port)}
                    asked_for.append(("create_sampling_session", named))
                asked_for.append(("asample", {**remote.sample(), "sampling_session_id": path}))
            # Together: the upstreams are asked for their lists in rounds of half a second.
            answers = await asyncio.gather(
                *(remote.post(f"/api/v1/{route}", body) for route, body in asked_for)
            )
            for (route, body), answer in zip(asked_for, answers, strict=True):
                found.injected += 1
                found.survived += 400 <= answer.status < 500
                found.needs(
                    400 <= answer.status < 500, f"{route} {str(body)[:300]}: {answer.status}"
                )
            found.recovery_s = await passes(remote)
            await until(log.exists, "sample log", 10)
            said = gateway.process.stderr
        lines = await asyncio.to_thread(log.read_text)
        for line in lines.splitlines():
            found.needs(isinstance(json.loads(line), dict), f"no JSON in the log: {line[:200]!r}")
        found.needs(all(line.isprintable() for line in said.splitlines()), "controls in the log")
        found.needs(max(map(len, said.splitlines()), default=0) < 2_000, "a long line in the log")
    trap.close()
    found.needs(not caught, f"{caught} connections went where a client's path led")
    return found
