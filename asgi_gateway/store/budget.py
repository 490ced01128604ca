"""What all samples together may take: how many are in flight, and how many bytes are held."""

from asgi_gateway.errors import Overloaded, TooLarge
from asgi_gateway.kernel import memory_limit_bytes
from asgi_gateway.settings import StoreSettings


def most_bytes(settings: StoreSettings) -> int:
    """What is given, else half of what the process may have."""
    return settings.max_bytes or memory_limit_bytes() // 2


class Budget:
    """charged_bytes: of all records; settled_bytes: what of them those with an outcome take.

    The store changes both as records change.
    """

    __slots__ = ("charged_bytes", "max_bytes", "max_in_flight", "settled_bytes")

    def __init__(self, max_bytes: int, max_in_flight: int) -> None:
        self.max_bytes = max_bytes
        self.max_in_flight = max_in_flight
        self.charged_bytes = 0
        self.settled_bytes = 0

    def reconfigure(self, settings: StoreSettings) -> None:
        """Other limits; what is held beyond them stays."""
        self.max_bytes = most_bytes(settings)
        self.max_in_flight = settings.max_in_flight

    def admit(self, nbytes: int, in_flight: int) -> None:
        """Whether one more sample of `nbytes` may come in.

        Raises:
            Overloaded: it does not fit now.
            TooLarge: it would not fit into an empty store; 429 would be repeated for ever.
        """
        if nbytes > self.max_bytes:
            raise TooLarge(
                f"the sample has {nbytes} bytes, all samples together may have {self.max_bytes}"
                " (store.max_bytes)"
            )
        if in_flight >= self.max_in_flight:
            raise Overloaded(
                f"{in_flight} samples in flight, the limit (store.max_in_flight)", "in_flight"
            )
        if self.lacks_bytes(nbytes):
            raise Overloaded(
                f"{self.charged_bytes} bytes held and {nbytes} more asked,"
                f" the limit is {self.max_bytes} (store.max_bytes)",
                "bytes",
            )

    def lacks_bytes(self, nbytes: int) -> bool:
        """Whether so many do not fit now."""
        return self.charged_bytes + nbytes > self.max_bytes

    def could_fit(self, nbytes: int) -> bool:
        """Whether it would fit if everything settled were dropped."""
        return self.charged_bytes - self.settled_bytes + nbytes <= self.max_bytes

    def hold(self, nbytes: int) -> None:
        """So much more is held of what is settled."""
        self.charged_bytes += nbytes
        self.settled_bytes += nbytes
