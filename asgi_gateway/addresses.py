"""Configured URLs: whether they can be connected to, and as logs and pages may show them."""

import re
from typing import Final
from urllib.parse import urlsplit

HIDDEN: Final = "(hidden)"


def shown_url(url: str) -> str:
    """Without the user, password, query and fragment that it may carry.

    Passwords that should have been escaped are not shown either: of what has an @, only what
    follows the last one; and nothing where it is open whether that is the query's.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    head, *tail = re.split(r"[?#]", rest, maxsplit=1)
    shown = HIDDEN if tail and "@" in tail[0] else head.rpartition("@")[2].rstrip("/")
    return f"{scheme}{separator}{shown}"


def fault_of(url: str) -> str | None:
    """What keeps an http URL from being connected to; its text shows nothing secret of it."""
    if not url.startswith(("http://", "https://")):
        return "must start with http:// or https://"
    if not (url.isascii() and url.isprintable()) or " " in url:
        return "has characters that a URL must have escaped"
    try:
        parts = urlsplit(url)
        if not parts.hostname:
            return "has no host"
        port = parts.port
    except ValueError:
        return "is no URL: look at its host and port"
    return "has no port that can be connected to" if port == 0 else None
