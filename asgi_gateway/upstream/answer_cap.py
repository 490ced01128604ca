"""How many bytes the answer to a sample may have, so that no upstream fills the memory with one."""

from collections.abc import Callable
from typing import Final

from asgi_gateway.store.records import Record

# Whatever was asked for: error texts, usage, what a router adds.
BASE_BYTES: Final = 1 << 20
# A generated token as vLLM writes it: its text twice, id, offset, logprob, the entry of its
# alternatives. Some 90 bytes on average; the longest tokens of usual vocabularies have 128
# characters. Where alternatives are asked for, each is reserved twice as much, and takes less.
PER_RESERVED_BYTE: Final = 64
# A token of the prompt, as `return_token_ids` sends it back in every choice.
PER_PROMPT_TOKEN: Final = 16
# Its score or one of its alternatives: id, logprob, rank, text.
PER_PROMPT_SCORE: Final = 512


class AnswerCap:
    """The bound of a sample's answer: generous, by what the sample asked for.

    setting: in its place, where an operator gave one. whole: what all samples together may hold
    now; the bound is never above it.
    """

    def __init__(self, setting: int | None, whole: Callable[[], int]) -> None:
        self._setting = setting
        self._whole = whole

    def __call__(self, record: Record) -> int:
        """Bytes of the body. Called once an answer has grown large, so never for most."""
        if self._setting is not None:
            return self._setting
        want = record.want
        per_token = PER_PROMPT_TOKEN
        if want.prompt_logprobs:
            per_token += PER_PROMPT_SCORE * (want.prompt_topk + 1)
        prompt = record.prompt_tokens * want.sequences * per_token
        derived = BASE_BYTES + PER_RESERVED_BYTE * record.reserve_bytes + prompt
        return min(derived, max(self._whole(), BASE_BYTES))
