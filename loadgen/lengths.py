"""How many tokens an answer has, where that is drawn rather than as asked.

| spec | tokens |
|---|---|
| `fixed:N` | N |
| `uniform:A:B` | A to B, each as likely |
| `lognormal:MEDIAN:SIGMA` | SIGMA is that of the logarithm; 0.5 to 1 is usual for answers |
| `geometric:MEAN` | as if each token were the last one with the same probability |

A draw follows from the answer's key (prompt, model, seed of the request, choice) and the seed of
the distribution: the same choice has the same length in every run, whoever asks first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b
from statistics import NormalDist
from typing import Final

_STANDARD: Final = NormalDist()
_PARAMETERS: Final = {"fixed": 1, "uniform": 2, "lognormal": 2, "geometric": 1}
TOKENS_CAP: Final = 1 << 30
"""No draw is longer; a wide lognormal would leave the range of integers otherwise."""


def unit(seed: int, *parts: bytes) -> float:
    """A number in [0, 1) that follows from these alone."""
    digest = blake2b(b"%d\0" % seed + b"\0".join(parts), digest_size=7).digest()
    return (int.from_bytes(digest) >> 3) / (1 << 53)


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts."""

    kind: str
    parameters: tuple[float, ...]
    seed: int = 0

    def draw(self, key: bytes) -> int:
        """At least one token."""
        first = self.parameters[0]
        if self.kind == "fixed":
            return int(first)
        u = unit(self.seed, b"length", key)
        if self.kind == "uniform":
            return int(first + u * (self.parameters[1] - first + 1))
        if self.kind == "geometric":
            if first == 1:
                return 1
            return max(1, math.ceil(math.log1p(-u) / math.log1p(-1 / first)))
        # The quantile at 0 does not exist.
        deviation = _STANDARD.inv_cdf(max(u, 2**-54)) * self.parameters[1]
        return min(TOKENS_CAP, max(1, round(math.exp(math.log(first) + deviation))))


def parse(spec: str, *, seed: int = 0) -> Lengths:
    """The distribution that a spec names; ValueError says what is wrong with it."""
    kind, *words = spec.split(":")
    if kind not in _PARAMETERS:
        raise ValueError(f"no distribution {kind!r}: one of {', '.join(_PARAMETERS)}")
    if len(words) != _PARAMETERS[kind]:
        raise ValueError(f"{kind} takes {_PARAMETERS[kind]} parameters, got {len(words)}")
    try:
        numbers = tuple(map(float, words))
    except ValueError:
        raise ValueError(f"not a number in {spec!r}") from None
    whole = numbers if kind in ("fixed", "uniform") else ()
    if any(number != int(number) for number in whole if math.isfinite(number)):
        raise ValueError(f"{kind} takes whole numbers of tokens: {spec!r}")
    if not 1 <= numbers[0] <= TOKENS_CAP:
        raise ValueError(f"{kind} needs from 1 to {TOKENS_CAP} tokens, got {words[0]}")
    if kind == "uniform" and not numbers[0] <= numbers[1] <= TOKENS_CAP:
        raise ValueError(f"uniform:A:B needs A <= B <= {TOKENS_CAP}, got {words[0]} and {words[1]}")
    if kind == "lognormal" and not 0 <= numbers[1] <= 10:
        raise ValueError(f"lognormal's SIGMA must be from 0 to 10, got {words[1]}")
    return Lengths(kind, numbers, seed)
