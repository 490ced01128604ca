"""Configured URLs: whether they can be connected to, and as logs and errors may show them."""

from urllib.parse import urlsplit


def shown_url(url: str) -> str:
    """An upstream without the user, password and query that its URL may carry."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def fault_of(url: str) -> str | None:
    """What keeps an http URL from being connected to; its text shows nothing secret of it."""
    if not url.startswith(("http://", "https://")):
        return "must start with http:// or https://"
    try:
        parts = urlsplit(url)
        if not parts.hostname:
            return "has no host"
        port = parts.port
    except ValueError:
        return "is no URL: look at its host and port"
    return "has no port that can be connected to" if port == 0 else None
