"""Configured URLs as they may be shown, in logs, in errors and on the status page."""

import re
from typing import Final

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
