"""What speaks against new samples now. Each source sets its own objection and takes it back.

One object for both who asks: a submit, which is refused, and `/readyz`, which names every reason.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from asgi_gateway.errors import Refusal

# All that there are.
SOURCES: Final = ("descriptors", "drain", "memory", "store", "upstreams")


class Objection(msgspec.Struct, frozen=True):
    """refusal: makes the answer to a submit; None where samples still come in."""

    source: str
    reason: str
    refusal: Callable[[str], Refusal] | None


class Admission:
    """Sources are told apart by name; of several that refuse, the one that began first answers."""

    def __init__(self) -> None:
        self._objections: dict[str, Objection] = {}
        self._refusing: Objection | None = None

    def __repr__(self) -> str:
        return f"<Admission {list(self._objections)}>"

    def object(
        self, source: str, reason: str, refusal: Callable[[str], Refusal] | None = None
    ) -> None:
        """Not ready, for this reason; with `refusal`, new samples are refused with it."""
        self._objections[source] = Objection(source, reason, refusal)
        self._choose()

    def clear(self, source: str) -> None:
        """This source has nothing against new samples any more."""
        if self._objections.pop(source, None) is not None:
            self._choose()

    def _choose(self) -> None:
        refusing = (o for o in self._objections.values() if o.refusal is not None)
        self._refusing = next(refusing, None)

    def objects(self, source: str) -> bool:
        """Whether this one has something against new samples now."""
        return source in self._objections

    @property
    def reasons(self) -> list[str]:
        return [objection.reason for objection in self._objections.values()]

    def check(self) -> None:
        """Whether a new sample may come in. Raises the Refusal of the first that objects."""
        refusing = self._refusing
        if refusing is not None and refusing.refusal is not None:
            raise _refusal(refusing.refusal, refusing.reason, refusing.source)


def _refusal(kind: Callable[[str], Refusal], reason: str, source: str) -> Refusal:
    refusal = kind(reason)
    refusal.source = source
    return refusal
