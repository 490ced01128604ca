"""What else could have been generated at a position of the tape."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from loadgen.tape import FAULT_RANGE, LOGPROBS, TOP_LOGPROBS_CAP, Tape


class Candidate(NamedTuple):
    """One token at one position. Rank 1 is the most likely."""

    token_id: int
    logprob: float
    rank: int


def candidates(
    drawn: Tape, position: int, *, token_id: int, k: int, greedy: bool = False
) -> list[Candidate]:
    """The chosen token at a tape position, then the k most likely ones without it.

    The ranked ones take neighbouring values of the descending logprob table, on the side that
    agrees with the chosen token's rank.
    """
    index = drawn.logprob_indexes[position]
    rank = 1 if greedy else drawn.ranks[position]
    found = [Candidate(token_id, LOGPROBS[index], rank)]
    if k == 0:
        return found
    ordinary = drawn.vocab - FAULT_RANGE
    start = drawn.alternative_starts[position]
    others = (
        other
        for other in ((start + step) % ordinary for step in range(TOP_LOGPROBS_CAP + 1))
        if other != token_id
    )
    if rank == 1:
        ranked = enumerate(islice(others, k - 1), 2)
        found += [Candidate(other, LOGPROBS[index + r - 1], r) for r, other in ranked]
    else:
        ranked = enumerate(islice(others, k), 1)
        above = index - TOP_LOGPROBS_CAP - 1
        found += [Candidate(other, LOGPROBS[above + r], r) for r, other in ranked]
    return found
