"""The second delivery of a result, against a bare answer of its size to the same request; and what
a bare request costs in `serve`, against the same in uvicorn as it comes."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.bench.driver import Spec
from tests.bench.floors import US, one_sample
from tests.bench.processes import Bench, Driver, cpu_s
from tests.bench.requests import FETCH, PROTOBUF, poll_body, post
from tests.bench.table import Figure, Row, Run
from tests.support.flood.servers import Server

MAX_MODEL_LEN: Final = 262_144


class _Size(NamedTuple):
    figure: Figure
    tokens: int
    connections: int
    fetches: int
    quick_fetches: int


# 8 bytes a token: an id and a logprob of four each.
SIZES: Final = (
    _Size(Figure("redeliver-16", "second delivery, 16 tokens", "us", 1.2), 16, 64, 10_000, 4_000),
    _Size(Figure("redeliver-1mb", "second delivery, 1 MB", "us", 1.2), 125_000, 4, 1_000, 300),
)
SERVER: Final = Figure("server", "a bare request in serve, against uvicorn", "us")
SERVER_CONNECTIONS: Final = 512
SERVER_ANSWER_BYTES: Final = 200
FIGURES: Final = (*(size.figure for size in SIZES), SERVER)


def measure(bench: Bench, wanted: frozenset[str]) -> Iterator[Row]:
    with bench.stand_in("--max-model-len", str(MAX_MODEL_LEN)) as upstream:
        for size in SIZES:
            if size.figure.name in wanted:
                with bench.gateway(upstream) as gateway:
                    yield _row(bench, size, upstream, gateway)
        if SERVER.name in wanted:
            yield _server(bench, upstream)


def _server(bench: Bench, upstream: Server) -> Row:
    answers = {FETCH.decode(): SERVER_ANSWER_BYTES}
    asked = post(FETCH, poll_body("0" * 32, metadata=False), PROTOBUF)
    requests: list[tuple[bytes, int | None]] = [(asked, SERVER_ANSWER_BYTES)]
    count = SIZES[0].quick_fetches if bench.quick else SIZES[0].fetches
    pairs: list[Run] = []
    with (
        bench.bare(upstream, answers, "uvicorn") as stock,
        bench.bare(upstream, answers, "serve") as ours,
    ):

        def asking(server: Server) -> Spec:
            connections = SERVER_CONNECTIONS
            return Spec(kind="fixed", port=server.port, in_flight=connections, requests=requests)

        with bench.driver(asking(stock)) as one, bench.driver(asking(ours)) as other:
            for index in range(bench.runs + 1):
                least, value = _us_a_request(stock, one, count), _us_a_request(ours, other, count)
                if index:  # the first warms up
                    pairs.append((least, value))
    note = f"an empty application, {SERVER_CONNECTIONS} connections"
    return SERVER.paired(pairs, note)


def _row(bench: Bench, size: _Size, upstream: Server, gateway: Server) -> Row:
    fetches = size.quick_fetches if bench.quick else size.fetches
    sample = one_sample(gateway, size.tokens)
    result_bytes = len(sample.result)
    body = poll_body(sample.request_id, metadata=False)
    spec = Spec(
        kind="fixed",
        port=gateway.port,
        in_flight=size.connections,
        requests=[(post(FETCH, body, PROTOBUF), result_bytes)],
    )
    pairs: list[Run] = []
    with (
        bench.bare(upstream, {FETCH.decode(): result_bytes}) as bare,
        bench.driver(spec) as fetching,
    ):
        spec.port = bare.port
        with bench.driver(spec) as asking:
            for index in range(bench.runs + 1):
                least = _us_a_request(bare, asking, fetches)
                value = _us_a_request(gateway, fetching, fetches)
                if index:  # the first warms up
                    pairs.append((least, value))
    return size.figure.paired(pairs, f"{result_bytes:,} bytes, {size.connections} connections")


def _us_a_request(server: Server, driver: Driver, count: int) -> float:
    driver.open()
    before = cpu_s(server.pid)
    done = driver.run(count)
    return (cpu_s(server.pid) - before) / done.count * US
