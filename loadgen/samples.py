"""Samples by number: the request of each, and what is right about its result."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from loadgen import answers
from loadgen.plan import Plan
from loadgen.sampling_pb2 import (
    STOP_REASON_LENGTH,
    STOP_REASON_STOP,
    SampleResponse,
)
from loadgen.schedule import lengths
from loadgen.tape import LOGPROBS, key_of, slices, tape

_FILLER: Final = 7_919
_ITEM: Final = 4

EXPECTED_CAP: Final = 128 << 20

TELLING: Final = 8
"""From so many tokens on, two samples with the same tokens and logprobs are one result twice."""


_REQUEST: Final = (
    b'{"sampling_session_id":"%b","seq_id":%d,"num_samples":1,"prompt":{"chunks":'
    b'[{"type":"encoded_text","tokens":[%d,%d,%d%b]}]},"sampling_params":{"max_tokens":%d,'
    b'"temperature":1.0,"top_k":-1,"top_p":1.0},"prompt_logprobs":false,'
    b'"topk_prompt_logprobs":0,"topk_sample_logprobs":0,"record_stability_info":false,'
    b'"prompt_alt_tokens_k":0,"type":"sample"}'
)


class Vocabulary:
    """The ids that prompts are made of: few enough for any model, none of them special."""

    FIRST: Final = 1_000
    COUNT: Final = 20_000


_FIRST_ID: Final = Vocabulary.FIRST
_PER_ID: Final = Vocabulary.COUNT


class Finding(NamedTuple):
    """What a result is: wrong in which way (see outcomes.WRONG), how long, and its digest.

    digest: 0 where it is known to be the sample's own, or too short to tell it from another.
    """

    wrong: str | None
    tokens: int
    digest: int


class Samples:
    """Sample number n asks for its output tokens after a prompt whose first three ids are n's.

    With an oracle every token and logprob of a result is compared with the stand-in's; without one,
    counts, types and the stop reason are.
    """

    def __init__(self, plan: Plan) -> None:
        prompts, outputs = lengths(plan)
        self.prompt_tokens: list[int] = prompts.tolist()
        self.output_tokens: list[int] = outputs.tolist()
        filler = [b",%d" % token for token in self.filler_ids()]
        self._filler = b"".join(filler)
        self._bounds = list(accumulate(map(len, filler), initial=0))
        self.third = _FIRST_ID + plan.seed % _PER_ID
        self._shorter = plan.shorter
        self._oracle = _Oracle(plan.model) if plan.oracle else None

    @property
    def knows(self) -> bool:
        """Whether every token of a right result is known."""
        return self._oracle is not None

    def filler_ids(self) -> list[int]:
        """What follows the first three ids of a prompt, as long as the longest needs it."""
        longest = max(self.prompt_tokens)
        return [_FIRST_ID + i * _FILLER % _PER_ID for i in range(longest - 3)]

    def request(self, number: int, head: bytes, target: bytes, seq_id: int) -> bytes:
        """Its whole asample to the sampling session `target`. head: see session.Api.head."""
        second, first = divmod(number, _PER_ID)
        body = _REQUEST % (
            target,
            seq_id,
            _FIRST_ID + first,
            _FIRST_ID + second,
            self.third,
            self._filler[: self._bounds[self.prompt_tokens[number] - 3]],
            self.output_tokens[number],
        )
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)

    def prompt(self, number: int) -> bytes:
        """Its ids as JSON without blanks."""
        second, first = divmod(number, _PER_ID)
        rest = self._filler[: self._bounds[self.prompt_tokens[number] - 3]]
        return b"[%d,%d,%d%b]" % (_FIRST_ID + first, _FIRST_ID + second, self.third, rest)

    def expect(self, numbers: range) -> list[bytes] | None:
        """The results of these as protobuf writes them, to compare with before looking closer.

        None where they are not known or would take more than `EXPECTED_CAP` bytes.
        """
        size = sum(self.output_tokens[number] for number in numbers) * 2 * _ITEM
        if self._oracle is None or self._shorter or size > EXPECTED_CAP:
            return None
        return [self._expected(number) for number in numbers]

    def _expected(self, number: int) -> bytes:
        assert self._oracle is not None
        count = self.output_tokens[number]
        tokens, logprobs = self._oracle.answer(self.prompt(number), count)
        before, between = _frame(count)
        return b"".join((before, tokens, between, logprobs))

    def check(self, number: int, body: bytes) -> Finding:
        """What is wrong with the result of a sample, if anything is."""
        try:
            sequences = SampleResponse.FromString(body).sequences
        except DecodeError:
            return Finding("unreadable", 0, 0)
        if len(sequences) != 1:
            return Finding("sequences", 0, 0)
        sequence = sequences[0]
        tokens, logprobs, reason = sequence.tokens, sequence.logprobs, sequence.stop_reason
        if len(tokens) % _ITEM or len(logprobs) % _ITEM:
            return Finding("dtype", 0, 0)
        count = len(tokens) // _ITEM
        wrong = self._wrong(number, tokens, logprobs, reason)
        if count < TELLING or (self._oracle is not None and wrong != "identity"):
            return Finding(wrong, count, 0)  # known to be its own, or too short to tell
        return Finding(wrong, count, _digest(tokens, logprobs))

    def differs(
        self, number: int, tokens: int, logprobs: int, of_tokens: str, of_both: str
    ) -> str | None:
        """What is wrong with a result of which only lengths and digests are known."""
        asked = self.output_tokens[number]
        if tokens > asked or (tokens < asked and not self._shorter):
            return "tokens"
        if logprobs != tokens:
            return "logprobs"
        if self._oracle is None:
            return None
        right = self._oracle.answer(self.prompt(number), tokens)
        if of_tokens != blake2b(right[0], digest_size=8).hexdigest():
            return "identity"
        state = blake2b(right[0] + right[1], digest_size=8)
        return None if of_both == state.hexdigest() else "logprobs"

    def digest(self, number: int) -> int:
        """Of the right result of a sample; 0 without an oracle."""
        count = self.output_tokens[number]
        if self._oracle is None or count < TELLING:
            return 0
        return _digest(*self._oracle.answer(self.prompt(number), count))

    def _wrong(self, number: int, tokens: bytes, logprobs: bytes, reason: int) -> str | None:
        count, asked = len(tokens) // _ITEM, self.output_tokens[number]
        if count > asked or (count < asked and not self._shorter):
            return "tokens"
        if len(logprobs) != len(tokens):
            return "logprobs"
        if self._oracle is not None:
            right_tokens, right_logprobs = self._oracle.answer(self.prompt(number), count)
            if tokens != right_tokens:
                return "identity"
            if logprobs != right_logprobs:
                return "logprobs"
        if reason not in (STOP_REASON_STOP, STOP_REASON_LENGTH):
            return "stop_reason"
        ended_by_itself = count < asked or self._oracle is None
        if reason != STOP_REASON_LENGTH and not ended_by_itself:
            return "stop_reason"
        return None


class _Oracle:
    """The stand-in's answers as the bytes of a result, cut from its tape."""

    def __init__(self, model: str) -> None:
        drawn = tape(answers.VOCAB)
        self._ids = memoryview(np.array(drawn.ids, "<i4").tobytes())
        values = np.array(LOGPROBS, "<f4")[np.array(drawn.logprob_indexes)]
        self._logprobs = memoryview(values.tobytes())
        self._model = model.encode()
        self._draw = answers.draw_name(seed=None, choice=0)

    def answer(self, prompt: bytes, count: int) -> tuple[bytes, bytes]:
        """Tokens, int32, and logprobs, float32, both little-endian."""
        key = key_of(b"%b\0%b\0" % (self._model, prompt), self._draw)
        ranges = [(a * _ITEM, b * _ITEM) for a, b in slices(key, count)]
        ids, logprobs = self._ids, self._logprobs
        return (
            b"".join([ids[a:b] for a, b in ranges]),
            b"".join([logprobs[a:b] for a, b in ranges]),
        )


@lru_cache(maxsize=4096)
def _frame(count: int) -> tuple[bytes, bytes]:
    """What protobuf writes before the tokens and between tokens and logprobs."""
    size = _varint(_ITEM * count)
    before = b"\x08%c\x12%b" % (STOP_REASON_LENGTH, size)
    between = b"\x1a%b" % size
    inner = len(before) + len(between) + 2 * _ITEM * count
    return b"\x0a%b%b" % (_varint(inner), before), between


def _varint(number: int) -> bytes:
    groups = []
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes((*groups, number))


def _digest(tokens: bytes, logprobs: bytes) -> int:
    state = blake2b(tokens, digest_size=8)
    state.update(logprobs)
    return int.from_bytes(state.digest(), "little") or 1
