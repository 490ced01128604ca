"""One upstream: where it is, and what every request to it begins with."""

import base64
import ssl
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit


class Origin:
    """The address of one configured URL, userinfo and path included."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.hostname is None:
            raise ValueError(f"{url!r} names no host")
        self.host = parts.hostname
        self.ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self.port = parts.port or (443 if self.ssl else 80)
        path = f"{parts.path.rstrip('/')}/v1/completions"
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: {parts.netloc.rpartition('@')[2]}",
            "Content-Type: application/json",
            "Accept: application/json",
        ]
        if parts.username is not None:
            account = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            lines.append(f"Authorization: Basic {base64.b64encode(account.encode()).decode()}")
        self._head = "\r\n".join(lines)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def head(
        self,
        request_id: str,
        affinity: str | None,
        size: int,
        more: Sequence[tuple[str, str]] = (),
    ) -> bytes:
        """Request line and headers of a POST of `size` bytes; `more` headers are valid ones.

        Raises:
            ValueError: an id with characters that no header may hold.
        """
        named = request_id
        if affinity is not None:
            if not affinity.isprintable():
                raise ValueError("a sampling session id holds control characters")
            named = f"{request_id}\r\nX-Session-ID: {affinity}"
        if more:
            named += "".join([f"\r\n{name}: {value}" for name, value in more])
        head = f"{self._head}\r\nX-Request-Id: {named}\r\nContent-Length: {size}\r\n\r\n"
        return head.encode("ascii")
