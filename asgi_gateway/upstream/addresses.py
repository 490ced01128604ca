"""The addresses behind the upstreams' names: looked up in the background, so that nobody waits.

One look-up at a time for each name: at its first use, again when ten seconds are over while it is
used, and when an upstream is away. Only the first is waited for; after a failure the answer is
given a moment, since an upstream that has moved is found by it.
"""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

ADDRESSES_S: Final = 10.0
# An upstream that is away is looked up at most so often, and so long is waited for the answer.
DOUBT_EVERY_S: Final = 1.0
DOUBT_WAIT_S: Final = 0.5

# Host, port, addresses that are no longer among those of the name.
Gone = Callable[[str, int, frozenset[str]], None]


class _Name:
    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.addresses: list[str] = []
        self.asked_at = float("-inf")
        self.doubted = False
        self.doubted_at = float("-inf")
        self.turn = 0
        self.asking: asyncio.Task[None] | None = None


class Addresses:
    """All names of one gateway. gone: told of addresses that a name has lost."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, int], _Name] = {}
        self.gone: list[Gone] = []

    def __repr__(self) -> str:
        return f"<Addresses of {len(self._names)} names>"

    def forget(self) -> None:
        """An upstream is away: look its name up anew before the next connect."""
        for name in self._names.values():
            name.doubted = True

    def keep_fresh(self, host: str, port: int) -> None:
        """Look a name up that is in use if it is time; does nothing for one not known yet."""
        name = self._names.get((host, port))
        if name is not None and name.addresses:
            self._look_up_if_due(name)

    async def resolved(self, host: str, port: int) -> list[str]:
        """The host's addresses, each call beginning with the next one.

        Raises:
            OSError: the name does not resolve, and never did.
        """
        if _is_address(host):
            return [host]
        name = self._names.get((host, port))
        if name is None:
            name = self._names[host, port] = _Name(host, port)
        asking = self._look_up_if_due(name)
        if not name.addresses:
            # Not cancelled with one of those that wait for it.
            await asyncio.shield(asking or self._look_up(name))
        elif asking is not None and name.doubted:
            await asyncio.wait([asking], timeout=DOUBT_WAIT_S)
        name.turn += 1
        first = name.turn % len(name.addresses)
        return name.addresses[first:] + name.addresses[:first]

    async def close(self) -> None:
        asking = [name.asking for name in self._names.values() if name.asking is not None]
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)

    def _look_up_if_due(self, name: _Name) -> "asyncio.Task[None] | None":
        """The look-up that is under way now, if any."""
        now = asyncio.get_running_loop().time()
        if name.asking is not None:
            return name.asking
        if name.doubted and now - name.doubted_at >= DOUBT_EVERY_S:
            name.doubted_at = now
            return self._look_up(name)
        name.doubted = False
        return self._look_up(name) if now - name.asked_at > ADDRESSES_S else None

    def _look_up(self, name: _Name) -> "asyncio.Task[None]":
        name.asked_at = asyncio.get_running_loop().time()
        name.asking = asyncio.get_running_loop().create_task(self._ask(name))
        name.asking.add_done_callback(_seen)
        return name.asking

    async def _ask(self, name: _Name) -> None:
        loop = asyncio.get_running_loop()
        try:
            infos = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(info[4][0]) for info in infos))
            if not found:
                raise OSError("the name has no address")
        except (OSError, UnicodeError) as error:
            if not name.addresses:
                raise
            log.warning("%s is not looked up, its last addresses stay: %s", name.host, error)
        else:
            lost = frozenset(name.addresses) - frozenset(found)
            name.addresses = found
            if lost:
                for told in self.gone:
                    told(name.host, name.port, lost)
        finally:
            name.asking = None
            name.doubted = False


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _seen(task: "asyncio.Task[None]") -> None:
    """Its error was told to those that waited; a task whose waiters have gone is not a bug."""
    if not task.cancelled():
        task.exception()
