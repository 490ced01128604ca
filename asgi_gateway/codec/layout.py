"""Where the contents of a choice end, guessed from the order and the sizes that vLLM writes.

A guess is taken only where the bytes stand that must follow there: the end of the value and the
next key. Their quotes make them a place in the document and no place in a string, for the reason
given in `cut`. So what is stepped over has its end where an array or a text of the document has it;
that this is the same one is not looked at here, and `cut` says why that is enough.
"""

from typing import Final

import numpy as np

_TEXT_THEN: Final = b'","logprobs":{"text_offset":['
_TO_BRACE: Final = _TEXT_THEN.index(b"{")
_TOKENS_THEN: Final = b'],"top_logprobs":['
_ROWS_THEN: Final = b']},"finish_reason":'

# Text has few braces. Where it has many, so much of it is searched for all that follows it.
_BRACES: Final = 16
_TEXT_WINDOW: Final = 256 << 10
# Tokens are the text's parts in quotes, but for special ones, which the text lacks, and for parts
# of a character, which are no characters.
_TOKENS_BEFORE: Final = 512
_TOKENS_BEHIND: Final = 4096


class Layout:
    """The sizes of what was found of one choice so far."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._sizes: dict[str, int] = {}
        self._length = 0

    def found(self, name: str, start: int, end: int) -> None:
        if name == "text":
            self._sizes.clear()
        self._sizes[name] = end - start
        if name == "text_offset":
            flat = np.frombuffer(self._body, np.uint8, end - start, start)
            self._length = int(np.count_nonzero(flat == ord(","))) + 1

    def text_end(self, start: int) -> int:
        """The closing quote; negative where it is not where it is looked for."""
        brace = start
        for _ in range(_BRACES):
            brace = self._body.find(b"{", brace + 1)
            end = brace - _TO_BRACE
            if end >= start and self._body.startswith(_TEXT_THEN, end):
                return end
            if brace < 0:
                return -1
        return self._body.find(_TEXT_THEN, brace, brace + _TEXT_WINDOW)

    def tokens_end(self, start: int) -> int:
        """The closing bracket of `tokens`; negative as above."""
        sizes = self._sizes
        if "text" not in sizes or "text_offset" not in sizes:
            return -1
        likely = start + sizes["text"] + len('"",') * self._length - 1
        first = max(start, likely - _TOKENS_BEFORE)
        return self._body.find(_TOKENS_THEN, first, likely + _TOKENS_BEHIND)

    def rows_end(self, start: int) -> int:
        """The closing bracket of `top_logprobs` with one cell a row, `{token:logprob}`."""
        sizes, commas = self._sizes, self._length - 1
        if not {"text_offset", "token_logprobs", "tokens"} <= sizes.keys():
            return -1
        tokens, logprobs = sizes["tokens"] - commas, sizes["token_logprobs"] - commas
        end = start + tokens + logprobs + len("{:}") * self._length + commas
        return end if self._body.startswith(_ROWS_THEN, end) else -1
