"""Two gateways that share a store, on real sockets: each for itself, or behind one address."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.support.front import Front, front
from tests.support.processes import START_S, Served
from tests.support.supervised import Supervised
from tests.support.valkey import Valkey, valkey
from tests.support.wire import Remote

# One that dies is found dead soon, so that tests need not wait for it.
LEASE_S = 1.5
# Its numbers of samples, above all of the other's.
_OF_THE_OTHER = 100_000


class Pair:
    def __init__(self, store: Valkey, gateways: list[Supervised]) -> None:
        self.store = store
        self.gateways = gateways

    @property
    def a(self) -> Supervised:
        return self.gateways[0]

    @property
    def b(self) -> Supervised:
        return self.gateways[1]

    async def clients(self) -> tuple[Remote, Remote]:
        """One client of one sampling session, at each gateway; the session was made at the
        first."""
        one, other = Remote(self.a.port), Remote(self.b.port)
        await one.handshake()
        return one, beside(one, other)

    def held_keys(self) -> list[str]:
        """What is left in the server."""
        return sorted(line for line in self.store.run("KEYS", "*").splitlines() if line)


def beside(one: Remote, other: Remote) -> Remote:
    """The same client at another gateway."""
    other.session_id, other.sampling_session_id = one.session_id, one.sampling_session_id
    other._seq_id = one._seq_id + _OF_THE_OTHER
    return other


def shared(upstream: str, url: str, **settings: object) -> Supervised:
    """One gateway more; to be closed."""
    return Supervised(upstream, None, {"store__url": url, "store__lease_s": LEASE_S, **settings})


@contextlib.contextmanager
def shared_pair(
    upstream: str, folder: Path, *, options: Sequence[str] = (), **settings: object
) -> Iterator[Pair]:
    """options: of the server."""
    with valkey(folder, *options) as store, contextlib.ExitStack() as stack:
        gateways = []
        for _ in range(2):
            gateways.append(shared(upstream, store.url, **settings))
            stack.callback(gateways[-1].close)
        yield Pair(store, gateways)


# --- as one ---------------------------------------------------------------------------------------


class _Both:
    """What tests ask of a gateway's process, of both and of the front."""

    def __init__(self, gateways: list[Supervised], before: Front) -> None:
        self._gateways = gateways
        self._front = before

    @property
    def pid(self) -> int:
        return self._gateways[0].process.pid

    @property
    def stdout(self) -> str:
        return self._front.log

    @property
    def stderr(self) -> str:
        return "".join(one.warnings() for one in self._gateways)

    def story(self) -> str:
        return "\n".join(one.stories() for one in self._gateways)

    def wait_for(self, found: Callable[[], bool], what: str, within_s: float = START_S) -> None:
        deadline = time.monotonic() + within_s
        while not found():
            assert time.monotonic() < deadline, f"no {what} within {within_s} s: {self.story()}"
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        for one in self._gateways:
            one.process.signal(number)


class AsOne(Served):
    """Looks like one gateway: the front's address, the front's access log, both logs."""

    gateways = 2

    def __init__(self, pair: Pair, before: Front) -> None:
        self.pair = pair
        self.front = before
        process = _Both(pair.gateways, before)
        super().__init__("front", before.port, process)  # type: ignore[arg-type]

    def kill(self) -> None:
        for one in self.pair.gateways:
            one.kill()

    def start(self) -> None:
        for one in self.pair.gateways:
            one.start()

    @property
    def settings(self) -> dict[str, object]:
        """A change counts from the next life on."""
        return self.pair.a.settings

    @settings.setter
    def settings(self, settings: dict[str, object]) -> None:
        for one in self.pair.gateways:
            one.settings = dict(settings)


@contextlib.contextmanager
def as_one(upstream: str, folder: Path, **settings: object) -> Iterator[AsOne]:
    """In the place of one gateway: two, each request on the other than the one before, polls never
    on the one that accepted."""
    given = {name: value for name, value in settings.items() if name != "state__dir"}
    with (
        shared_pair(upstream, folder, options=(), **given) as pair,
        front(pair.a.port, pair.b.port) as before,
    ):
        yield AsOne(pair, before)
        submits, polls = (
            [before.landed[path, where] for where in (0, 1)]
            for path in ("asample", "retrieve_future")
        )
        assert sum(submits) < 4 or all(submits), submits
        assert sum(submits) < 4 or sum(polls) < 4 or all(polls), polls
