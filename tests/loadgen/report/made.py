"""Results with known figures, made without a run."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import numpy as np

from loadgen.histogram import histogram as counted
from loadgen.outcomes import Doubled, Outcomes, Traffic
from loadgen.plan import Length, Plan
from loadgen.results import (
    Check,
    ClientCheck,
    Environment,
    FaultCount,
    Histogram,
    Phase,
    Preflight,
    Profile,
    ProfileRow,
    Result,
    Series,
    Server,
    Stage,
    Upstream,
    Verdict,
    decode,
    encode,
)


def histogram(values_ms: Iterable[float]) -> Histogram:
    """Of these values, as a run makes it."""
    made = counted(np.fromiter(values_ms, np.float64) / 1e3)
    assert made is not None, "give values"
    return made


def series(seconds: int, rate: int = 1_000, seed: int = 1) -> Series:
    """A rise, a plateau and a fall, with some noise and a gap in what was measured."""
    random = np.random.default_rng(seed)
    noise = random.normal(1, 0.02, (8, seconds))
    t = [float(second) for second in range(seconds)]
    shape = [math.sin(math.pi * (second + 0.5) / seconds) for second in range(seconds)]
    cpu = [0.4 * rate / 1000 * float(noise[1][i]) for i in range(seconds)]
    p50 = [20 * float(noise[2][i]) for i in range(seconds)]
    return Series(
        t=t,
        planned=[rate] * seconds,
        accepted=[round(rate * float(noise[0][i])) for i in range(seconds)],
        completed=[round(rate * float(noise[3][i])) for i in range(seconds)],
        in_flight=[round(rate * part) for part in shape],
        polls=[round(rate / 20 * part) for part in shape],
        p50_ms=[*p50],
        p99_ms=[90 * float(noise[4][i]) for i in range(seconds)],
        client_cpu=[0.8 * float(noise[5][i]) for i in range(seconds)],
        client_lag_ms=[2 * float(noise[6][i]) for i in range(seconds)],
        server_cpu=[*cpu],
        server_rss=[180e6 + 1e6 * second for second in range(seconds)],
        server_descriptors=[220.0 if second != 1 else None for second in range(seconds)],
        server_lag_ms=[4 * float(noise[7][i]) for i in range(seconds)],
        healthz_p50_ms=[1.5] * seconds,
        healthz_max_ms=[3.0 + second % 5 for second in range(seconds)],
    )


def environment() -> Environment:
    return Environment(
        started_at="2026-11-30T00:00:00Z",
        command="loadgen run --url http://127.0.0.1:8000",
        loadgen="0.1.0",
        python="3.11.2",
        kernel="Linux 6.1",
        machine="x86_64",
        cpu="Test CPU",
        cores=2,
        memory=16_000_000_000,
        load_before=0.1,
        limits={"nofile": "20000"},
        versions={"uvloop": "0.23.0"},
    )


def result(
    *,
    samples: int = 20_000,
    seconds: int = 20,
    factor: float = 1.0,
    seed: int = 1,
    scenario: str = "burst",
) -> Result:
    """Every part filled in. factor: how much slower than 1,000 samples a second, e2e p50 20 ms."""
    return decode(_encoded(samples, seconds, factor, seed, scenario))


@functools.cache
def _encoded(samples: int, seconds: int, factor: float, seed: int, scenario: str) -> bytes:
    random = np.random.default_rng(seed)
    latencies = random.lognormal(math.log(20 * factor), 0.5, samples)
    later = histogram(latencies * 1.1)
    rate = 1_000 / factor
    made = Result(
        environment=environment(),
        plan=Plan(
            scenario=scenario,
            url="http://127.0.0.1:8000",
            samples=samples,
            output_tokens=Length(low=16, high=16),
        ),
        seconds=samples / rate,
        samples_per_s=rate,
        output_tokens_per_s=rate * 16,
        outcomes=Outcomes(succeeded=samples),
        doubled=Doubled(upstream=0),
        traffic=Traffic(
            submits=samples,
            polls=samples // 10,
            polls_abandoned=7,
            connections=40,
            reconnects=2,
            retries={"410": 3, "5xx": 4},
        ),
        stages={
            "submit": Stage(
                uncorrected=histogram(latencies / 10), corrected=histogram(latencies / 7)
            ),
            "queue": Stage(uncorrected=histogram(latencies / 5)),
            "upstream": Stage(uncorrected=histogram(latencies / 2)),
            "deliver": Stage(uncorrected=histogram(latencies / 8)),
            "e2e": Stage(uncorrected=histogram(latencies), corrected=later),
        },
        series=series(seconds, round(rate), seed),
        phases=[
            Phase(name="submit", began_s=0.0, seconds=4.0, cpu_s={"server": 2.0}),
            Phase(name="deliver", began_s=4.0, seconds=seconds - 4.0, cpu_s={"server": 4.0}),
        ],
        client=ClientCheck(
            cpu=[0.5, 0.6], lag_p99_ms=[2.0, 3.0], lag_max_ms=[9.0, 8.0], cpu_ms_per_sample=0.1
        ),
        verdict=Verdict(valid=True),
        server=Server(
            pids=[7],
            cpu_s=8.0,
            cpu_ms_per_sample=0.4 * factor,
            busy=0.7,
            rss_before=100_000_000,
            rss_peak=241_000_000,
            rss_after=180_000_000,
            bytes_per_sample=1_100.0,
            descriptors_peak=221,
            lag_p99_ms=4.0,
            lag_max_ms=11.0,
            healthz=histogram(random.lognormal(0, 0.5, 2_000)),
            healthz_failed=0,
            moved={'asgi_gateway_samples_total{outcome="succeeded"}': float(samples)},
        ),
        upstream=Upstream(requests=samples, samples=samples, missing=0, mode=""),
        preflight=Preflight(
            ok=False,
            checks=[
                Check(who="client", name="descriptors", needed=900, available=20_000, ok=True),
                Check(
                    who="machine",
                    name="somaxconn",
                    needed=50_000,
                    available=4_096,
                    ok=False,
                    remedy="sysctl -w net.core.somaxconn=50000",
                ),
            ],
            proposal="--style futures --processes 4",
        ),
        faults=[FaultCount(kind="reset", injected=3, seen={"retry.410": 3})],
        profiles=[
            Profile(
                who="server",
                tool="cProfile",
                seconds=10.0,
                rows=[
                    ProfileRow(
                        function="decode",
                        where="codec/parse.py:10",
                        self_share=0.2,
                        total_share=0.3,
                    )
                ],
            )
        ],
        notes=["made for a test"],
    )
    return encode(made)
