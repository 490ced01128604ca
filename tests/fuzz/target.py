"""What a fuzz target is: it makes cases from a number, and finds fault with any case."""

import abc
from random import Random
from typing import ClassVar


class Target(abc.ABC):
    """A case is bytes, so that one that found something can be kept in the corpus as it is."""

    name: ClassVar[str]
    # Of all cases of a run.
    share: ClassVar[float]

    def open(self) -> None:  # noqa: B027 - most need nothing
        """Before the first case."""

    def close(self) -> None:  # noqa: B027
        """After the last."""

    @abc.abstractmethod
    def make(self, rng: Random) -> bytes:
        """A case, the same for the same state of `rng`."""

    @abc.abstractmethod
    def check(self, case: bytes) -> str:
        """Try it, and name what became of it for the table.

        Raises:
            Exception: a finding; AssertionError where a promise was broken.
        """
