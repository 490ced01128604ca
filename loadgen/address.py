"""Where the server is, and the headers that every request to it has."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit


class Address(NamedTuple):
    """Where the server is and what goes before a path."""

    host: str
    port: int
    prefix: bytes


def address(url: str) -> Address:
    """Raises ValueError for what is no http URL."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{url!r}: only http://host:port is spoken here")
    return Address(parts.hostname, parts.port or 80, parts.path.rstrip("/").encode())


def headers(where: Address, api_key: str, version: str = "0.38.0") -> bytes:
    """What the SDK sends with every request, so that the server parses as much."""
    host = f"[{where.host}]" if ":" in where.host else where.host
    return (
        f" HTTP/1.1\r\nhost: {host}:{where.port}\r\naccept-encoding: gzip, deflate, zstd\r\n"
        f"user-agent: AsyncTinker/Python {version}\r\nx-stainless-lang: python\r\n"
        f"x-stainless-package-version: {version}\r\nx-stainless-os: Linux\r\n"
        "x-stainless-arch: x64\r\nx-stainless-runtime: CPython\r\n"
        "x-stainless-runtime-version: 3.11.7\r\nx-stainless-async: async:asyncio\r\n"
        "x-stainless-retry-count: 0\r\nx-stainless-read-timeout: 60\r\n"
        f"x-api-key: {api_key}\r\nx-sdk-version: {version}\r\n"
        "x-tinker-sampling-backpressure: 1\r\n"
        "x-idempotency-key: stainless-python-retry-6f1c1f3e-0b1d-4a52-9b8e-3d8f0c6a7e11\r\n"
    ).encode()
