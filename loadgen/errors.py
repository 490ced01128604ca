"""Error answers in the shape vLLM gives them."""

from __future__ import annotations

import msgspec


class RequestError(Exception):
    """An error answer in vLLM's shape."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        return error_json(self.message, status=self.status, kind=self.kind, param=self.param)


def error_json(message: str, *, status: int, kind: str, param: str | None = None) -> bytes:
    """vLLM's error body. A message may quote text that UTF-8 cannot carry; that is replaced."""
    message = message.encode("utf-8", "replace").decode()
    return msgspec.json.encode(
        {"error": {"message": message, "type": kind, "param": param, "code": status}}
    )


def bad_value(message: str, param: str, value: object = None) -> RequestError:
    """A value of the right type that vLLM does not take."""
    shown = "" if value is None else f", value={value}"
    return RequestError(f"{message} (parameter={param}{shown})", param=param)
