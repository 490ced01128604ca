"""Text of others in lines of ours: one line, bounded, without keys."""

import re
from typing import Final

# What the SDK's keys begin with.
_KEY: Final = re.compile(r"tml-[A-Za-z0-9_.~-]+")


def one_line(text: str, most: int) -> str:
    """At most so many characters of a text, those escaped that end a line or act on a terminal."""
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def without_keys(text: str) -> str:
    """A text in which no API key can be read that looks like one."""
    return _KEY.sub("tml-(hidden)", text) if "tml-" in text else text
