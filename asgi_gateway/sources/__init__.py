"""Where the upstreams are, where that is no setting: somebody publishes their URLs."""

from typing import Protocol


class SourceError(Exception):
    """The source cannot tell now; what it told before still stands."""


class UrlSource(Protocol):
    """One publisher of upstream URLs."""

    async def current(self) -> list[str]:
        """Base URLs that are published now, without a slash at the end; empty where none is.

        Raises:
            SourceError: it cannot tell, or what it tells is no URL.
        """
