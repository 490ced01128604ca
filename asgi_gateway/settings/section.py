"""What settings are made of: sections, types with ranges, and the mark of those that reload."""

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
CountOrZero = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class Mark:
    """Stands in the type of a field."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


RELOADS: Final = Mark("reloads")

T = TypeVar("T")
# A running gateway takes another value of such a field; of all others the next start does. Whoever
# keeps a value of one has a `reconfigure`.
Reloads = Annotated[T, RELOADS]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the configuration file. The text below each field is its row in
    docs/settings.md, which `python docs/settings_reference.py` writes."""


def reloads(hint: Any) -> bool:
    """Whether a field of this type is marked."""
    return RELOADS in getattr(hint, "__metadata__", ())
