"""The last samples that did not succeed, for the status page."""

from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from asgi_gateway.errors import Category

KEPT: Final = 50


class Failed(msgspec.Struct, frozen=True, gc=False):
    """at: seconds of the monotonic clock. error: our own words, which never quote a prompt."""

    at: float
    request_id: str
    outcome: str
    category: Category | None
    error: str


class Recent:
    """The newest first; the oldest are forgotten."""

    def __init__(self) -> None:
        self._failed: deque[Failed] = deque(maxlen=KEPT)

    def __iter__(self) -> Iterator[Failed]:
        return reversed(self._failed)

    def add(self, failed: Failed) -> None:
        self._failed.append(failed)
