"""What a plan says about each sample, drawn from its seed: the same in every process.

Nothing here uses a library's random generator, whose stream may change between versions. Columns
are indexed by the number of a sample in the whole run; process p of P drives p, p + P, ...
"""

from __future__ import annotations

import enum
import math
from ipaddress import IPv4Address
from typing import Final

import numpy as np
import numpy.typing as npt

from loadgen.plan import Length, Plan

SAMPLES_CAP: Final = 8_000_000
"""Rows are kept per sample, about 150 bytes; more than this is no load test of one machine."""

PER_ADDRESS: Final = 20_000
"""Connections from one source address to one listener; Linux offers 28,232 ports by default."""

_FIRST_SOURCE: Final = int(IPv4Address("127.0.1.1"))
_MIX = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)))
_MASK: Final = (1 << 64) - 1


class Stream(enum.IntEnum):
    """Independent draws of one seed."""

    ARRIVALS = 1
    PROMPTS = 2
    OUTPUTS = 3
    POLLS = 4
    CLONES = 5


class PlanError(Exception):
    """A plan that cannot be run; names the field, its value and the limit."""


def uniform(seed: int, stream: Stream, count: int) -> npt.NDArray[np.float64]:
    """`count` numbers in [0, 1) by splitmix64; the first ones do not depend on `count`."""
    with np.errstate(over="ignore"):
        start = np.uint64((seed * 0xD1342543DE82EF95 + (stream << 48)) & _MASK)
        z = (np.arange(count, dtype=np.uint64) + start) * _MIX[0]
        z = (z ^ (z >> np.uint64(30))) * _MIX[1]
        z = (z ^ (z >> np.uint64(27))) * _MIX[2]
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) / (1 << 53)


def one_uniform(seed: int, stream: Stream, *key: int) -> float:
    """One number in [0, 1) for a key of whole numbers."""
    z = (seed * 0xD1342543DE82EF95 + (stream << 48)) & _MASK
    for part in key:
        z = ((z ^ part) * 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        z ^= z >> 31
    return (z >> 11) / (1 << 53)


def check(plan: Plan) -> None:
    """Raises PlanError unless the plan can be run."""
    cores = {"samples": (1, SAMPLES_CAP), "processes": (1, 256), "sessions": (1, 65_536)}
    cores |= {"clones": (1, 1000), "submitters": (1, 400), "fetchers": (1, 20_000)}
    for field, (low, high) in cores.items():
        if not low <= (value := getattr(plan, field)) <= high:
            raise PlanError(f"{field}={value}: must be {low} to {high:,}")
    if not plan.api_key.isascii() or not plan.api_key.isprintable() or " " in plan.api_key:
        raise PlanError("api_key: must be printable ASCII without blanks")
    if plan.sessions < plan.processes:
        raise PlanError(f"sessions={plan.sessions}: each of {plan.processes} processes needs one")
    if plan.concurrency and plan.concurrency < plan.processes:
        raise PlanError(f"concurrency={plan.concurrency}: at least one for each process")
    if plan.arrivals != "closed" and not plan.rate > 0:
        raise PlanError(f"rate={plan.rate:g}: {plan.arrivals} arrivals need samples a second")
    if plan.prompt_tokens.low < 3:
        raise PlanError(
            f"prompt_tokens={plan.prompt_tokens.low}: at least 3, which name the sample"
        )
    for field in ("prompt_tokens", "output_tokens"):
        length: Length = getattr(plan, field)
        if not 1 <= length.low <= length.high <= 4_000_000:
            raise PlanError(f"{field}={length.low}:{length.high}: must rise, from 1 to 4,000,000")
    if not 0 <= plan.abandon <= 0.95:
        raise PlanError(f"abandon={plan.abandon:g}: a share of polls, 0 to 0.95")
    if plan.barrier and plan.concurrency and plan.concurrency < plan.samples:
        raise PlanError(
            f"concurrency={plan.concurrency}: a barrier waits for all {plan.samples} samples"
        )


def planned_s(plan: Plan) -> npt.NDArray[np.float64]:
    """When each sample is due, in seconds from the start, rising; zeros in a closed loop."""
    if plan.arrivals == "closed":
        return np.zeros(plan.samples)
    if plan.arrivals == "constant":
        return np.arange(plan.samples) / plan.rate
    draws = uniform(plan.seed, Stream.ARRIVALS, plan.samples)
    return np.asarray(np.cumsum(-np.log1p(-draws) / plan.rate))


def lengths(plan: Plan) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Prompt and output tokens of each sample."""
    return (
        _lengths(plan.prompt_tokens, uniform(plan.seed, Stream.PROMPTS, plan.samples)),
        _lengths(plan.output_tokens, uniform(plan.seed, Stream.OUTPUTS, plan.samples)),
    )


def _lengths(length: Length, draws: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    if length.kind == "log":
        span = np.log((length.high + 1) / length.low)
        drawn: npt.NDArray[np.float64] = length.low * np.exp(draws * span)
        return np.minimum(drawn.astype(np.int64), length.high)
    return length.low + (draws * (length.high - length.low + 1)).astype(np.int64)


def abandoned_after_s(plan: Plan, owner: int, poll: int) -> float | None:
    """After how many seconds this poll is given up; None where it is not.

    owner: the sample's number, or the sampler's where polls are batched.
    """
    draw = one_uniform(plan.seed, Stream.POLLS, owner, poll)
    if draw >= plan.abandon:
        return None
    return draw / plan.abandon * plan.abandon_within_s


def clone_id(plan: Plan, sampler: int) -> int:
    """What a clone calls itself where the server allocates no counters: 1 to 1e9 - 1."""
    return 1 + int(one_uniform(plan.seed, Stream.CLONES, sampler) * 999_999_998)


def connections(plan: Plan) -> int:
    """The most connections that all client processes together open, the few of handshakes aside."""
    per_process = plan.submitters + 4
    if plan.style == "futures":
        own = plan.fetchers * plan.processes + plan.sessions * plan.clones
    else:
        own = in_flight(plan)
    return per_process * plan.processes + own


def in_flight(plan: Plan) -> int:
    """The most samples that are open at once.

    Nothing bounds an open loop but its length. As many as are due while one poll lasts are counted;
    a server that stands still for longer runs the client out of connections, as its retries tell.
    """
    if plan.arrivals == "closed":
        return min(plan.samples, plan.concurrency or plan.samples)
    return min(plan.samples, math.ceil(plan.rate * plan.poll_timeout_s))


def source_addresses(plan: Plan) -> list[str]:
    """Loopback addresses to connect from, one where ports suffice; 127.0.1.1 and following."""
    count = -(-connections(plan) // PER_ADDRESS)
    if count == 1:
        return []
    return [str(IPv4Address(_FIRST_SOURCE + index)) for index in range(count)]
