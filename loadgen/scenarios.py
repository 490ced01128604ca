"""Named runs: what a plan and the stand-in behind the server are unless flags say otherwise.

Imports nothing, so that `--help` can name them at once; lengths are the fields of plan.Length.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

_SECONDS: Final = ("--gen-seconds", "--delay-s")

FULL: Final = 131_072


class Scenario(NamedTuple):
    """plan: fields of Plan. stand_in: flags of `loadgen upstream`, where one is started.

    A plan with a barrier starts it with one, whatever the flags.
    """

    text: str
    plan: dict[str, Any]
    stand_in: tuple[str, ...] = ()


def _fixed(tokens: int) -> dict[str, Any]:
    return {"low": tokens, "high": tokens}


def _log(low: int, high: int) -> dict[str, Any]:
    return {"low": low, "high": high, "kind": "log"}


SCENARIOS: Final = {
    "smoke": Scenario(
        "ten seconds for a pipeline: 125 samples a second, one poll in 20 given up",
        {
            "samples": 1_000,
            "arrivals": "constant",
            "rate": 125.0,
            "abandon": 0.05,
            "abandon_within_s": 0.2,
            "within_s": 60.0,
        },
        ("--delay-s", "0.2"),
    ),
    "burst": Scenario(
        "all samples at once, nothing answered upstream until all are accepted",
        {"samples": FULL, "sessions": 4, "barrier": True, "hold_s": 1.0},
    ),
    "steady": Scenario(
        "a minute of 500 samples a second, arriving at random, lengths drawn",
        {
            "samples": 30_000,
            "arrivals": "poisson",
            "rate": 500.0,
            "sessions": 4,
            "prompt_tokens": _log(32, 2048),
            "output_tokens": _log(16, 512),
            "warmup_s": 5.0,
        },
        ("--delay-s", "1"),
    ),
    "long-outputs": Scenario(
        "512 samples of 32,768 tokens each at once",
        {"samples": 512, "output_tokens": _fixed(32_768)},
        ("--max-model-len", "65536"),
    ),
    "queued": Scenario(
        "all samples at once behind 2,048 generations of 5 s at a time, polls repeated meanwhile",
        {"samples": FULL, "sessions": 4, "within_s": 3_600.0},
        ("--gen-seconds", "5", "--max-num-seqs", "2048"),
    ),
    "long-many": Scenario(
        "131,072 samples of 8,192 tokens each at once",
        {"samples": FULL, "sessions": 4, "output_tokens": _fixed(8_192), "within_s": 7_200.0},
        ("--bodies", "lean"),
    ),
    "soak": Scenario(
        "a minute of 400 samples a second, one poll in 20 given up, for a soak to repeat",
        {
            "samples": 24_000,
            "arrivals": "poisson",
            "rate": 400.0,
            "sessions": 4,
            "clones": 2,
            "abandon": 0.05,
            "prompt_tokens": _log(32, 1024),
            "output_tokens": _log(16, 512),
            "within_s": 300.0,
        },
        ("--delay-s", "1"),
    ),
    "full": Scenario(
        "all samples at once, held in flight for a minute",
        {"samples": FULL, "sessions": 4, "barrier": True, "hold_s": 60.0},
    ),
}


def scaled(flags: tuple[str, ...], time: float) -> tuple[str, ...]:
    """Flags of the stand-in with generations that take `time` times as long."""
    words = list(flags)
    for place, word in enumerate(words[:-1]):
        if word in _SECONDS:
            words[place + 1] = f"{float(words[place + 1]) * time:g}"
    return tuple(words)
