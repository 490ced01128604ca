"""Who is parked for one sample each. Pure."""

from collections.abc import Sequence

from asgi_gateway.peer import Waker
from asgi_gateway.store.records import Record


class Waiting:
    """Wakers by the record they wait for; they outlive it until they unpark."""

    __slots__ = ("_count", "_parked")

    def __init__(self) -> None:
        self._parked: dict[Record, list[Waker]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Polls parked, which may be several for one record."""
        return self._count

    def park(self, record: Record, waker: Waker) -> None:
        waiters = self._parked.get(record)
        if waiters is None:
            self._parked[record] = [waker]
        else:
            waiters.append(waker)
        self._count += 1

    def unpark(self, record: Record, waker: Waker) -> None:
        waiters = self._parked.get(record)
        if waiters is not None and waker in waiters:
            self._count -= 1
            if len(waiters) == 1:
                del self._parked[record]
            else:
                waiters.remove(waker)

    def of(self, record: Record) -> Sequence[Waker]:
        """Those parked for a record, to be walked before anything is parked or unparked."""
        return self._parked.get(record, ())
