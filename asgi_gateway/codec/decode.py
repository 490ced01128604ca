"""vLLM completion bytes -> SampleArrays, without a Python object per generated token.

Small bodies are parsed whole (`whole`). Of larger ones the parser sees a skeleton and slices
(`pieces`): most of a body is what nobody asked for, and a parser takes three times a document's
size beside it. Nothing of a parsed document leaves this package.

Shapes and field names: the recorded bodies under tests/fixtures/vllm.
"""

from collections.abc import Generator
from typing import Final

import simdjson

from asgi_gateway.codec import SampleArrays, Want, pieces, whole
from asgi_gateway.codec.cut import Cut
from asgi_gateway.codec.rows import Odd
from asgi_gateway.codec.values import MissingPolicy
from asgi_gateway.errors import Aborted, MissingLogprobs, Unreadable

__all__ = ["Decoder", "MissingPolicy"]

# Measured: below, the searches cost more than the parse that they save. Names and rows, of which
# the plain way makes objects, pay for them sooner.
CUT_FROM_BYTES: Final = 128 << 10
CUT_OBJECTS_FROM_BYTES: Final = 16 << 10
# A kept parser holds up to 3.5 times its largest body.
_KEEP_PARSER_BELOW_BYTES: Final = 1 << 20

# pysimdjson says INCORRECT_TYPE with TypeError, NO_SUCH_FIELD with KeyError, a malformed document
# with ValueError or RuntimeError; a scalar where an object should be has none of its attributes; a
# number beyond float32 is a FloatingPointError.
_PARSER_ERRORS: Final = (
    ValueError,
    TypeError,
    LookupError,
    RuntimeError,
    ArithmeticError,
    AttributeError,
)
_NOT_UNDERSTOOD: Final = (Cut, Odd, Unreadable, MissingLogprobs, Aborted, *_PARSER_ERRORS)
_EXCERPT_BYTES: Final = 80


def _worth_cutting(body: bytes, want: Want) -> bool:
    size = len(body)
    return size >= CUT_FROM_BYTES or (
        size >= CUT_OBJECTS_FROM_BYTES
        and (want.named_tokens or want.prompt_logprobs or want.sampled_topk > 0)
    )


class Decoder:
    """Decodes answers; for one thread. It may decode others while a run of `steps` is paused."""

    def __init__(self, missing_logprobs: MissingPolicy = "fail") -> None:
        self._missing = missing_logprobs
        self._parser: simdjson.Parser | None = None
        self._slicer: simdjson.Parser | None = None

    def decode(self, body: bytes, want: Want, prompt_tokens: int) -> SampleArrays:
        """Decode a 200 body of /v1/completions for a prompt of `prompt_tokens` tokens.

        Raises:
            Unreadable: the body does not parse, lacks a field, or its lengths contradict.
            MissingLogprobs: a logprob is null or absent and the policy is "fail".
            Aborted: a choice was aborted or ended for an unknown reason, or choices lack.
        """
        if not _worth_cutting(body, want):
            return self._whole(body, want, prompt_tokens)
        run = self.steps(body, want, prompt_tokens)
        while True:
            try:
                next(run)
            except StopIteration as done:
                arrays: SampleArrays = done.value
                return arrays

    def steps(
        self, body: bytes, want: Want, prompt_tokens: int
    ) -> Generator[None, None, SampleArrays]:
        """`decode` with pauses: yields between pieces of work of some milliseconds each.

        One piece is longer: a body that is not laid out as vLLM does it, or that is refused, is
        parsed whole.
        """
        if _worth_cutting(body, want):
            slicer, self._slicer = self._slicer or simdjson.Parser(), None
            try:
                arrays = yield from pieces.steps(body, want, prompt_tokens, self._missing, slicer)
            except _NOT_UNDERSTOOD:
                pass
            else:
                self._slicer = slicer
                return arrays
        return self._whole(body, want, prompt_tokens)

    def _whole(self, body: bytes, want: Want, prompt_tokens: int) -> SampleArrays:
        parser, self._parser = self._parser or simdjson.Parser(), None
        try:
            arrays = whole.answer(parser.parse(body), want, prompt_tokens, self._missing)
        except _PARSER_ERRORS as error:
            raise Unreadable(
                f"the upstream's answer does not parse: {error}"
                f" (it begins {body[:_EXCERPT_BYTES]!r})"
            ) from error
        # Not after an exception: its traceback holds proxies of the document, and a parser refuses
        # to parse again while one lives.
        if len(body) < _KEEP_PARSER_BELOW_BYTES:
            self._parser = parser
        return arrays
