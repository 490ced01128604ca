"""Configured URLs as they may be shown, in logs and in errors."""

from urllib.parse import urlsplit


def shown_url(url: str) -> str:
    """An upstream without the user, password and query that its URL may carry."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
