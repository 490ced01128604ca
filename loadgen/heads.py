"""Answers as httptools tells them, and what was made of their heads."""

from __future__ import annotations

from typing import Any, Final

import httptools
import msgspec


class Head(msgspec.Struct, gc=False):
    """What httptools made of a head. size: of the whole answer, -1 where only a parser can tell.

    end: where the body begins. kept: whether the connection may be used again.
    """

    data: bytes
    status: int
    kind: bytes
    end: int
    size: int
    kept: bool


NO_HEAD: Final = Head(b"", 0, b"", 0, -1, kept=False)


class Message:
    """One answer as httptools tells it."""

    def __init__(self) -> None:
        self.kind = b""
        self.length = -1
        self.parts: list[bytes] = []
        self.head: Head | None = None
        self.parser: Any = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"content-type":
            self.kind = value
        elif lower == b"content-length":
            self.length = int(value)

    def on_body(self, data: bytes) -> None:
        self.parts.append(data)

    def on_message_complete(self) -> None:
        parser = self.parser
        kept = bool(parser.should_keep_alive())  # says no once this has returned
        self.head = Head(b"", parser.get_status_code(), self.kind, 0, -1, kept)
