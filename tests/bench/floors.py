"""What a sample costs at the least: two bare requests to the same ASGI server and one request by
the leanest client, with bodies and answers of the same sizes and as many in flight."""

import contextlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.bench.driver import Spec
from tests.bench.processes import Bench, Driver, cpu_s
from tests.bench.requests import (
    FETCH,
    PROMPT_TOKENS,
    PROTOBUF,
    SUBMIT,
    Caller,
    Samples,
    completion,
    poll_body,
    post,
    post_upstream,
)
from tests.support.flood.servers import Server

US: Final = 1e6
# The gateway's upstream connections by default; more than these are never in flight upstream.
UPSTREAM_CONNECTIONS: Final = 2048
LEAST_SAMPLES: Final = 8_000
QUICK_SAMPLES: Final = 3_000


class Sample(NamedTuple):
    """One sample as the gateway answered it."""

    request_id: str
    promise: bytes
    result: bytes


def one_sample(gateway: Server, tokens: int) -> Sample:
    """Have one run, for the sizes of its answers."""
    with contextlib.closing(Caller(gateway.port)) as caller:
        promise, request_id, result = caller.sample(caller.sampling_sessions(1)[0], 0, tokens)
        return Sample(request_id, promise, result)


class Floors:
    """Measures the floor again whenever it is asked to, between the runs of the gateway."""

    def __init__(self, bare: Server, posts: Driver, client: Driver, samples: int) -> None:
        self._bare = bare
        self._posts = posts
        self._client = client
        self._samples = samples

    def us_a_sample(self) -> float:
        """CPU of two bare requests and of one by the client, in microseconds."""
        self._posts.open()
        before = cpu_s(self._bare.pid)
        posts = self._posts.run(2 * self._samples).count
        served = (cpu_s(self._bare.pid) - before) / posts
        self._client.open()
        done = self._client.run(self._samples)
        return (2 * served + done.cpu_s / done.count) * US


@contextlib.contextmanager
def floors(
    bench: Bench, upstream: Server, sample: Sample, in_flight: int, tokens: int
) -> Iterator[Floors]:
    """upstream: a stand-in that answers at once. sample: as the gateway under test answered it."""
    samples = max(in_flight, QUICK_SAMPLES if bench.quick else LEAST_SAMPLES)
    submit = Samples(PROMPT_TOKENS, tokens).request(0, "0" * 36, 0)
    poll = poll_body(sample.request_id, metadata=True)
    answers = {SUBMIT.decode(): len(sample.promise), FETCH.decode(): len(sample.result)}
    posts = Spec(
        kind="fixed",
        port=0,
        in_flight=in_flight,
        requests=[
            (post(SUBMIT, submit), len(sample.promise)),
            (post(FETCH, poll, PROTOBUF), len(sample.result)),
        ],
    )
    client = Spec(
        kind="fixed",
        port=upstream.port,
        in_flight=min(in_flight, UPSTREAM_CONNECTIONS),
        requests=[(post_upstream(completion(number, tokens)), None) for number in range(16)],
    )
    with contextlib.ExitStack() as stack:
        bare = stack.enter_context(bench.bare(upstream, answers))
        posts.port = bare.port
        measured = Floors(
            bare,
            stack.enter_context(bench.driver(posts)),
            stack.enter_context(bench.driver(client, measured=True)),
            samples,
        )
        measured.us_a_sample()  # warms up
        yield measured
