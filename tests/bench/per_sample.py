"""CPU of the gateway per completed sample, against the floor of the same run.

A closed loop alone would not keep N in flight: with answers that come at once most of the N wait in
socket buffers. So the stand-in answers after a delay, chosen from the rate that the gateway has
without one, such that its connections would allow LOAD times that rate: the gateway is
the one that is busy all the time, as the bare server is in the floor's closed loop. What is more
than the connections waits in the gateway's line. `in flight` in the notes is the gateway's own
gauge.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Final, Literal, NamedTuple

from asgi_gateway.configuration import leaves
from asgi_gateway.settings import Settings
from tests.bench.driver import Spec
from tests.bench.floors import (
    LEAST_SAMPLES,
    QUICK_SAMPLES,
    UPSTREAM_CONNECTIONS,
    US,
    floors,
    one_sample,
)
from tests.bench.processes import Bench, Driver, cpu_s
from tests.bench.requests import Caller
from tests.bench.table import Figure, Row, Run
from tests.support.flood.servers import Server

TOKENS: Final = 16
LEVELS: Final = (64, 512, 2048, 16_384)
QUICK_LEVELS: Final = (64, 2048)
BATCHED_LEVEL: Final = 2048
LOG_LEVEL: Final = 512
SESSIONS: Final = 4
LOAD: Final = 1.25
# A run of N in flight fills and empties the line once; in between it has to be full, and most of
# the run has to be in between.
RUNS_OF_LINE: Final = 2.5
RUNS_OF_CONNECTIONS: Final = 8
LOG_PAIRS: Final = 5
JOURNAL: Final = "state.dir"

PER_SAMPLE: Final = {
    level: Figure(f"sample-{level}", f"CPU a sample, {level:,} in flight", "us", 1.5)
    for level in LEVELS
}
FLAT: Final = Figure("sample-flat", "dearest in-flight count over cheapest", "us", 1.2)
BATCHED: Final = Figure("batched", "CPU a sample, batched polls", "us", 1.3)
BATCHED_JOURNAL: Final = Figure("batched-journal", "CPU a sample, batched, journal on", "us", 1.5)
# On against off, and what is set to a file for it.
LOGS: Final = {
    "log.samples": Figure("log-samples", "CPU a sample, log of samples on against off", "us", 1.03),
    "log.access": Figure("access-log", "CPU a sample, log of requests on against off", "us", 1.03),
}

FIGURES: Final = (*PER_SAMPLE.values(), FLAT, BATCHED, BATCHED_JOURNAL, *LOGS.values())
NOT_IN_QUICK: Final = frozenset(PER_SAMPLE[n].name for n in LEVELS if n not in QUICK_LEVELS)


class Load(NamedTuple):
    """A load on one gateway. delay_s: of the stand-in."""

    kind: Literal["sample", "batched"]
    in_flight: int
    delay_s: float
    settings: Mapping[str, str] = {}


class Seen(NamedTuple):
    """One run."""

    us_a_sample: float
    samples_per_s: float
    in_flight: float
    client_busy: float
    resubmitted: int
    samples: int


class Loaded:
    """A gateway, its own stand-in, and the driver of one load."""

    def __init__(
        self, load: Load, gateway: Server, upstream: Server, driver: Driver, caller: Caller
    ) -> None:
        self.gateway = gateway
        self._load = load
        self._upstream = upstream
        self._driver = driver
        self._caller = caller

    def gauges(self) -> dict[str, float]:
        """The gateway's /metrics."""
        return self._caller.gauges()

    def run(self, samples: int) -> Seen:
        """client_busy: share of their core that client and stand-in had."""
        gauges: list[float] = []
        self._driver.open()
        before = cpu_s(self.gateway.pid), cpu_s(self._upstream.pid)
        done = self._driver.run(samples, lambda: gauges.append(self.gauges()["samples_inflight"]))
        used = cpu_s(self.gateway.pid) - before[0]
        beside = done.cpu_s + cpu_s(self._upstream.pid) - before[1]
        return Seen(
            us_a_sample=used / done.count * US,
            samples_per_s=done.count / done.seconds,
            in_flight=median(gauges) if gauges else 0.0,
            client_busy=beside / done.seconds,
            resubmitted=done.resubmitted,
            samples=done.count,
        )


@contextlib.contextmanager
def loaded(bench: Bench, load: Load) -> Iterator[Loaded]:
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(bench.stand_in("--delay-s", str(load.delay_s)))
        gateway = stack.enter_context(bench.gateway(upstream, load.settings))
        caller = stack.enter_context(contextlib.closing(Caller(gateway.port)))
        spec = Spec(
            kind=load.kind,
            port=gateway.port,
            in_flight=load.in_flight,
            sessions=caller.sampling_sessions(SESSIONS),
            tokens=TOKENS,
        )
        driver = stack.enter_context(bench.driver(spec))
        yield Loaded(load, gateway, upstream, driver, caller)


def measure(bench: Bench, wanted: frozenset[str]) -> Iterator[Row]:
    delay_of = delays(bench, "sample")
    rows = []
    for level, figure in PER_SAMPLE.items():
        if figure.name in wanted:
            load = Load("sample", level, delay_of(level))
            rows.append(_against_floor(bench, figure, load))
            yield rows[-1]
    if FLAT.name in wanted:
        yield flatness(rows)
    if {BATCHED.name, BATCHED_JOURNAL.name} & wanted:
        delay_s = delays(bench, "batched")(BATCHED_LEVEL)
        load = Load("batched", BATCHED_LEVEL, delay_s)
        if BATCHED.name in wanted:
            yield _against_floor(bench, BATCHED, load)
        if BATCHED_JOURNAL.name in wanted:
            with tempfile.TemporaryDirectory(prefix="bench-state-") as folder:
                journaled = load._replace(settings={JOURNAL: folder})
                yield _against_floor(bench, BATCHED_JOURNAL, journaled)
    for setting, figure in LOGS.items():
        if figure.name in wanted:
            yield _log(bench, Load("sample", LOG_LEVEL, delay_of(LOG_LEVEL)), setting, figure)


def samples_of(bench: Bench, in_flight: int) -> int:
    return max(
        QUICK_SAMPLES if bench.quick else LEAST_SAMPLES,
        int(RUNS_OF_LINE * in_flight),
        RUNS_OF_CONNECTIONS * min(in_flight, UPSTREAM_CONNECTIONS),
    )


def flatness(rows: list[Row]) -> Row:
    """Of the rows of this run; the levels that failed or were not asked for are not in it."""
    values = {row.name: row.value for row in rows if row.value is not None}
    if len(values) < 2:
        return FLAT.missing("it needs two in-flight counts at least")
    dearest, cheapest = max(values.values()), min(values.values())
    return FLAT.single(dearest, f"of {', '.join(values)}", floor=cheapest)


def delays(bench: Bench, kind: Literal["sample", "batched"]) -> Callable[[int], float]:
    """The stand-in's delay for an in-flight count; measured when first asked for."""
    rates: list[float] = []

    def delay_s(in_flight: int) -> float:
        if not rates:
            with loaded(bench, Load(kind, LOG_LEVEL, 0.0)) as gateway:
                gateway.run(QUICK_SAMPLES)
                rates.append(gateway.run(QUICK_SAMPLES).samples_per_s)
        return min(in_flight, UPSTREAM_CONNECTIONS) / (LOAD * rates[0])

    return delay_s


def _against_floor(bench: Bench, figure: Figure, load: Load) -> Row:
    samples = samples_of(bench, load.in_flight)
    pairs: list[Run] = []
    seen: list[Seen] = []
    with bench.stand_in() as prompt, loaded(bench, load) as gateway:
        sample = one_sample(gateway.gateway, TOKENS)
        with floors(bench, prompt, sample, load.in_flight, TOKENS) as floor:
            gateway.run(samples if load.in_flight <= LEAST_SAMPLES else load.in_flight)
            for _ in range(bench.runs):
                least = floor.us_a_sample()
                seen.append(gateway.run(samples))
                pairs.append((least, seen[-1].us_a_sample))
    return figure.paired(pairs, _note(load, seen))


def _note(load: Load, seen: list[Seen]) -> str:
    rate = median(run.samples_per_s for run in seen)
    in_flight = median(run.in_flight for run in seen)
    busy = median(run.client_busy for run in seen)
    note = f"{rate:,.0f} samples/s with {in_flight:,.0f} in flight, the stand-in answers after"
    note += f" {load.delay_s:.2f} s; client and stand-in took {busy:.0%} of their core"
    if again := seen[-1].resubmitted:
        note += f"; {again} samples were interrupted and submitted again"
    return note


def _log(bench: Bench, load: Load, setting: str, figure: Figure) -> Row:
    """Two gateways in turn, one with a log, one without."""
    if setting not in dict(leaves(Settings)):
        return figure.missing(f"there is no setting {setting}")
    samples = samples_of(bench, load.in_flight)
    pairs: list[Run] = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-log-"))
        logging = load._replace(settings={setting: f"{folder}/lines.log"})
        off = stack.enter_context(loaded(bench, load))
        on = stack.enter_context(loaded(bench, logging))
        off.run(samples)
        on.run(samples)
        for _ in range(max(bench.runs, LOG_PAIRS)):
            quiet = off.run(samples).us_a_sample
            pairs.append((quiet, on.run(samples).us_a_sample))
    return figure.paired(pairs, f"{load.in_flight:,} in flight")
