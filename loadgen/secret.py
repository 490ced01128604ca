"""The API key of a run, kept out of all that is written: results, pages, messages, progress."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from loadgen.plan import API_KEY
from loadgen.results import Result

HIDDEN: Final = "***"

DISTINCT: Final = 8
"""A key of fewer characters may be a part of any word: it is hidden where it stands by itself, in
command lines, notes and messages."""


READ: Final = 2_000
SHOWN: Final = 200


class Secret:
    """The key as it may stand in text: plain, or quoted for a shell, JSON, Python or a URL.

    The key that is used where none was given is known to all, and not hidden in text.
    """

    def __init__(self, key: str) -> None:
        self._distinct = len(key) >= DISTINCT
        self._pattern = None if key in ("", API_KEY) else re.compile(_forms(key, self._distinct))

    def __repr__(self) -> str:
        return f"<Secret {HIDDEN}>"

    def hide(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)

    def excerpt(self, body: bytes) -> str:
        """The beginning of an answer, for a message; hidden first, so that no part of it stays."""
        return self.hide(body[:READ].decode("utf-8", "replace"))[:SHOWN]

    def command(self, words: Sequence[str]) -> str:
        """A command line without it."""
        return shlex.join(self._word(word) for word in words)

    def _word(self, word: str) -> str:
        """A word may be a command line itself, in which the key is quoted in any way."""
        hidden = self.hide(word)
        try:
            inner = shlex.split(hidden)
        except ValueError:
            return hidden
        if inner in ([], [hidden]):
            return hidden
        shown = [self._word(each) for each in inner]
        return hidden if shown == inner else shlex.join(shown)

    def hide_in(self, result: Result) -> Result:
        """The result without it. What the server says may hold it: names, labels, reasons."""
        result = msgspec.structs.replace(
            result,
            plan=msgspec.structs.replace(result.plan, api_key=HIDDEN),
            environment=msgspec.structs.replace(
                result.environment, command=self.hide(result.environment.command)
            ),
            notes=[self.hide(note) for note in result.notes],
        )
        if self._pattern is None or not self._distinct:
            return result
        return msgspec.convert(self._hidden(msgspec.to_builtins(result)), Result)

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, dict):
            return {self.hide(name): self._hidden(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._hidden(item) for item in value]
        return value


def _forms(key: str, distinct: bool) -> str:
    """A regular expression of all; the longest first, since one may be a part of another."""
    quoted = {key, shlex.quote(key), json.dumps(key)[1:-1], repr(key)[1:-1]}
    quoted |= {json.dumps(key, ensure_ascii=False)[1:-1], quote(key, safe="")}
    forms = "|".join(re.escape(form) for form in sorted(quoted, key=len, reverse=True))
    return forms if distinct else rf"(?<!\w)(?:{forms})(?!\w)"
