"""A million samples in flight over hosts: the table of docs/scaling.md, from measured figures.

    python docs/scaling_plan.py [--check]

With --check nothing is written: it says where the table is stale. `simulated` plays a smaller crowd
out, poll by poll, and counts what `Plan` computes; a test compares the two.
"""

import heapq
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from generated import run

PAGE: Final = Path(__file__).resolve().parent / "scaling.md"
TABLE: Final = re.compile(r"(?<=<!-- plan -->\n).*?(?=<!-- end of plan -->)", re.DOTALL)

# --- measured -------------------------------------------------------------------------------------


class Way(NamedTuple):
    """What one sample asks of the store, and what it costs. Microseconds of CPU, bytes.

    again_*: of a poll that was held and comes again.
    """

    calls: float
    again_calls: float
    server_us: float
    again_server_us: float
    gateway_us: float
    again_gateway_us: float
    received: float
    again_received: float
    sent: float
    again_sent: float


# `python -m tests.bench.asked`: two gateways and Redis 7.0.15 on two cores that had other work
# beside. Of runs of 2 s, whose start is told, with polls at another gateway, as all but one of W
# are.
SINGLE: Final = Way(
    calls=6,
    again_calls=1,
    server_us=84,
    again_server_us=5,
    gateway_us=257,
    again_gateway_us=54,
    received=1_031,
    again_received=121,
    sent=425,
    again_sent=106,
)
BATCHED: Final = Way(
    calls=5.2,
    again_calls=1,
    server_us=71,
    again_server_us=5,
    gateway_us=222,
    again_gateway_us=54,
    received=949,
    again_received=121,
    sent=416,
    again_sent=106,
)
# The same: bytes of the store's memory and file. The result of these has so many bytes.
UNFINISHED: Final = 445
SETTLED: Final = 976
FILE: Final = 1_461
MEASURED_RESULT: Final = 140
# `python -m tests.bench.sample_memory`, `poll_memory`, and docs/deploy.md: bytes in a gateway.
WAITING: Final = 749
PROMPT: Final = 375  # 64 tokens, in digits
PARKED: Final = 13_855
UPSTREAM: Final = 16_000
PROCESS: Final = 60_000_000

# --- settings -------------------------------------------------------------------------------------

UPSTREAM_CONNECTIONS: Final = 2_048  # upstream.max_connections
RESERVE: Final = 128
DESCRIPTORS: Final = 20_000
HOLD_S: Final = 30.0  # poll.hold_s
DELIVERED_S: Final = 300.0  # store.retrieved_ttl_s
LOCAL_S: Final = 10.0  # what the store has is kept in its gateway for so long
LEASE_S: Final = 6.0  # store.lease_s
BEATS: Final = 3
GROUPS_PER_S: Final = 36  # swept 32, compared 4
# `sample_max_concurrent_requests` of each sampling client, the SDK's default.
PER_CLIENT: Final = 2_000
# Of a batched client at a time: its poll, 50 submits, 50 fetches.
CONNECTIONS_OF_CLIENT: Final = 101
# From the page that named a result to its acknowledgement.
ACKNOWLEDGED_S: Final = 2.0
# A core that is used more has no room for a burst.
BUSY: Final = 0.6


class Plan(NamedTuple):
    """in_flight samples that take `latency_s` on average, each with a result of so many bytes."""

    in_flight: int
    latency_s: float
    result: int
    batched: bool
    descriptors: int = DESCRIPTORS

    @property
    def way(self) -> Way:
        return BATCHED if self.batched else SINGLE

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.in_flight / self.latency_s

    @property
    def again(self) -> float:
        """Polls a second that were held to the end. Latencies are taken as exponential: of all
        samples `exp(-HOLD_S / latency_s)` outlive a poll, of these again as many, and so on."""
        clients = self.in_flight / PER_CLIENT
        if self.batched:  # something settles for each client long before its hold ends
            return clients / HOLD_S * math.exp(-HOLD_S * self.rate / clients)
        return self.rate / math.expm1(HOLD_S / self.latency_s)

    @property
    def connections(self) -> int:
        """Of clients, to all gateways."""
        if self.batched:
            return math.ceil(self.in_flight / PER_CLIENT) * CONNECTIONS_OF_CLIENT
        return self.in_flight

    @property
    def room(self) -> int:
        """Clients' connections that one worker may have."""
        return self.descriptors - UPSTREAM_CONNECTIONS - RESERVE

    @property
    def gateway_cores(self) -> float:
        way = self.way
        return (self.rate * way.gateway_us + self.again * way.again_gateway_us) / 1e6

    @property
    def workers(self) -> int:
        """As many as connections or CPU want, whichever is more."""
        return max(math.ceil(self.connections / self.room), math.ceil(self.gateway_cores / BUSY))

    @property
    def worker_bytes(self) -> float:
        """Memory of each."""
        held = self.in_flight * (WAITING + PROMPT) + self.connections * PARKED
        local = self.rate * LOCAL_S * (WAITING + self.result)
        own = PROCESS + UPSTREAM_CONNECTIONS * UPSTREAM
        return own + (held + local) / self.workers

    @property
    def running(self) -> int:
        """At upstreams at a time, at most; the rest waits in line."""
        return min(self.in_flight, self.workers * UPSTREAM_CONNECTIONS)

    @property
    def idle_calls(self) -> float:
        """Calls a second without a sample: beats, looks at each other's leases, groups swept and
        compared."""
        beats = self.workers * BEATS / LEASE_S
        return beats * (3 + self.workers - 1) + self.workers * GROUPS_PER_S

    @property
    def calls(self) -> float:
        """Of the store, a second."""
        way = self.way
        return self.rate * way.calls + self.again * way.again_calls + self.idle_calls

    @property
    def store_cores(self) -> float:
        way = self.way
        each = way.server_us / way.calls
        samples = self.rate * way.server_us + self.again * way.again_server_us
        return (samples + self.idle_calls * each) / 1e6

    @property
    def store_nodes(self) -> int:
        """Primaries of a cluster, each of which runs on one core."""
        return math.ceil(self.store_cores / BUSY)

    @property
    def settled(self) -> float:
        """Outcomes that the store holds at a time."""
        return self.rate * (ACKNOWLEDGED_S if self.batched else DELIVERED_S)

    @property
    def store_bytes(self) -> float:
        outcome = SETTLED + self.result - MEASURED_RESULT
        return self.in_flight * UNFINISHED + self.settled * outcome

    @property
    def file_bytes(self) -> float:
        """Of the append-only file, and to each replica, a second."""
        return self.rate * (FILE + self.result - MEASURED_RESULT)

    @property
    def to_store(self) -> float:
        """Bytes a second."""
        way, more = self.way, self.result - MEASURED_RESULT
        return self.rate * (way.received + more) + self.again * way.again_received

    @property
    def from_store(self) -> float:
        way, more = self.way, self.result - MEASURED_RESULT
        return self.rate * (way.sent + more) + self.again * way.again_sent


# --- the table ------------------------------------------------------------------------------------

RESULT: Final = 8 * 1024 + MEASURED_RESULT
SHOWN: Final = (
    ("a poll per sample", Plan(1_000_000, 60.0, RESULT, batched=False)),
    ("a poll per sample, 262,144 descriptors", Plan(1_000_000, 60.0, RESULT, False, 262_144)),
    ("batched polls", Plan(1_000_000, 60.0, RESULT, batched=True)),
)


def rows() -> Iterator[tuple[str, str, list[str]]]:
    """What, how it is computed, and its value in each plan."""

    def each(
        what: str, how: str, name: str, form: str, unit: float = 1.0
    ) -> tuple[str, str, list[str]]:
        return what, how, [format(getattr(plan, name) / unit, form) for _, plan in SHOWN]

    yield each("samples a second", "in flight / 60 s", "rate", ",.0f")
    yield each("polls that come again, a second", "rate / (e^(30 s / 60 s) - 1)", "again", ",.0f")
    yield each(
        "connections of clients", "one a sample, or 101 for each 2,000", "connections", ",.0f"
    )
    yield each("of which a worker may have", "descriptors - 2,048 - 128", "room", ",.0f")
    yield each("cores for gateways", "rate and polls, by their CPU", "gateway_cores", ",.1f")
    yield each("**workers**", f"by connections, or cores / {BUSY:g}", "workers", ",.0f")
    yield each(
        "memory of a worker, MB",
        "[what one takes](deploy.md#how-much-it-takes), results for 10 s",
        "worker_bytes",
        ",.0f",
        1e6,
    )
    yield each("at upstreams at a time, at most", "2,048 a worker", "running", ",.0f")
    yield each(
        "**calls of the store a second**",
        "rate and polls, by their calls, and the next line",
        "calls",
        ",.0f",
    )
    yield each(
        "of which without any sample", "beats, leases, 36 groups a worker", "idle_calls", ",.0f"
    )
    yield each("cores for the store", "by its CPU", "store_cores", ",.2f")
    yield each("**its primaries**, in a cluster", f"cores / {BUSY:g}", "store_nodes", ",.0f")
    yield each("outcomes that it holds", "rate x 300 s, or x 2 s", "settled", ",.0f")
    yield each(
        "**its memory, GB**", "unfinished and settled, by their bytes", "store_bytes", ",.1f", 1e9
    )
    yield each("its file and each replica, MB/s", "rate, by bytes", "file_bytes", ",.0f", 1e6)
    yield each(
        "network to the store, Mbit/s", "rate and polls, by bytes", "to_store", ",.0f", 125_000
    )
    yield each("network from the store, Mbit/s", "the same", "from_store", ",.0f", 125_000)


def table() -> str:
    head = ["", "how", *(name for name, _ in SHOWN)]
    lines = [head, ["---"] * len(head), *([what, how, *values] for what, how, values in rows())]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


# --- simulation -----------------------------------------------------------------------------------


class Simulated(NamedTuple):
    """A second, on average: samples, polls that were held to the end, in flight."""

    rate: float
    again: float
    in_flight: float


def simulated(plan: Plan, seconds: float, seed: int = 1) -> Simulated:
    """A closed crowd of single polls, each sample followed by the next: every end of a hold and
    every outcome is an event of its own. Counted after the first `latency_s` x 2."""
    draw = random.Random(seed)
    began, ends = 2 * plan.latency_s, 2 * plan.latency_s + seconds
    events: list[tuple[float, int, bool]] = []
    settles = [draw.expovariate(1 / plan.latency_s) for _ in range(plan.in_flight)]

    def next_event(sample: int, now: float) -> None:
        over = now + HOLD_S
        events_at = min(over, settles[sample])
        heapq.heappush(events, (events_at, sample, settles[sample] <= over))

    for sample in range(plan.in_flight):
        next_event(sample, 0.0)
    settled = again = 0
    while events[0][0] < ends:
        now, sample, is_settled = heapq.heappop(events)
        if now >= began:
            settled += is_settled
            again += not is_settled
        if is_settled:
            settles[sample] = now + draw.expovariate(1 / plan.latency_s)
        next_event(sample, now)
    return Simulated(settled / seconds, again / seconds, float(len(events)))


# --- the page -------------------------------------------------------------------------------------


def fresh() -> str:
    return TABLE.sub(lambda _: table(), PAGE.read_text())


def problems() -> list[str]:
    found = TABLE.findall(PAGE.read_text())
    if found == [table()]:
        return []
    return ["docs/scaling.md: the plan is not what docs/scaling_plan.py writes: run that"]


if __name__ == "__main__":
    raise SystemExit(run(PAGE, fresh, problems))
