"""What a run does, as one value that every process is given whole."""

from __future__ import annotations

from typing import Final

import msgspec

API_KEY: Final = "tml-loadgen"
"""What is sent where no key is given; servers without keys take any."""


class Length(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens: `low` always, or drawn between the two, uniformly or log-uniformly."""

    low: int
    high: int
    kind: str = "uniform"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. The same plan and seed make the same load in every process.

    style: futures (batched), future (one open poll a sample), sdk.
    arrivals: closed (as many as `concurrency` at a time), or open: constant or poisson at `rate` a
    second. concurrency 0 is all at once. abandon: share of polls that are given up, uniformly
    within `abandon_within_s`. warmup_s: samples planned earlier count in the ledger, not in
    histograms. oracle: whether the upstream is our stand-in, whose every token is known. shorter:
    whether answers may end before `max_tokens`. barrier: whether nothing is answered upstream until
    all samples are accepted and `hold_s` have passed.
    """

    scenario: str
    url: str
    samples: int
    seed: int = 1
    style: str = "futures"
    arrivals: str = "closed"
    rate: float = 0.0
    concurrency: int = 0
    processes: int = 1
    sessions: int = 1
    clones: int = 1
    prompt_tokens: Length = Length(low=64, high=64)
    output_tokens: Length = Length(low=16, high=16)
    abandon: float = 0.0
    abandon_within_s: float = 5.0
    submitters: int = 400
    fetchers: int = 64
    poll_timeout_s: float = 45.0
    warmup_s: float = 0.0
    barrier: bool = False
    hold_s: float = 0.0
    within_s: float = 900.0
    model: str = "stand-in"
    api_key: str = API_KEY
    oracle: bool = True
    shorter: bool = False
    source_addresses: list[str] = []
