"""All groups on one server: the one that a URL names, or that Sentinels do.

A Sentinel makes another server the primary some seconds before it tells the old one, whose writes
are lost from then on. So it is listened to, and the old one is left at once.
"""

import asyncio
from typing import Final

from asgi_gateway.shared.address import Server
from asgi_gateway.shared.errors import ServerError, SharedStoreError, Unreachable
from asgi_gateway.shared.node import Node, Terms
from asgi_gateway.shared.refusals import LATER, READONLY, Later
from asgi_gateway.shared.resp import Argument
from asgi_gateway.shared.subscription import Subscription
from asgi_gateway.shared.waiting import Command, Waiting
from asgi_gateway.shared.wire import Wire
from asgi_gateway.textline import one_line

# Where Sentinels tell of another primary, of any service.
_SWITCHED: Final = "+switch-master"
_ASK: Final[tuple[Argument, ...]] = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME")


class Sole:
    """by_group: where the commands of each of the 256 groups go; changed in place."""

    def __init__(self, terms: Terms, later: Later, by_group: list[Waiting]) -> None:
        self.by_group = by_group
        self._terms = terms
        self._later = later
        self._address = terms.dialer.address
        # Those that were right last stand in front.
        self._sentinels = list(self._address.servers)
        self._node: Node
        # What is published at the new primary does not reach who listens to the old one.
        self._listening: list[Wire] = []
        self._switches: Subscription | None = None
        self._doubted = asyncio.Event()
        self._checks: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Sole {self._node!r}>"

    def open(self) -> None:
        names = ",".join(map(str, self._address.servers))
        self._node = Node(names, self, self._terms, self.primary)
        self.by_group[:] = [self._node] * len(self.by_group)
        if self._address.kind == "sentinel":
            doubt = self._doubted.set
            self._switches = Subscription(
                _SWITCHED, lambda _: doubt(), doubt, self._terms, self._sentinel
            )
            self._switches.open()
            self._checks = asyncio.get_running_loop().create_task(self._check())

    async def tried(self) -> None:
        await self._node.tried.wait()

    async def close(self) -> None:
        if self._switches is not None and self._checks is not None:
            await self._switches.close()
            self._checks.cancel()
            await asyncio.wait([self._checks])
        await self._node.close()

    def anywhere(self) -> Waiting:
        return self._node

    def tick(self, now: float) -> None:
        self._node.tick(now)
        if self._switches is not None:
            self._switches.tick(now)

    @property
    def down_since(self) -> float | None:
        return self._node.down_since

    @property
    def trouble(self) -> str:
        return self._node.trouble

    async def primary(self) -> Wire:
        """A new connection to the server that takes writes now.

        Raises:
            Unreachable: none does, as far as can be seen.
        """
        address, dialer = self._address, self._terms.dialer
        if address.kind == "one":
            return await dialer.primary(address.servers[0])
        failures: dict[str, None] = {}
        tried = set()
        for sentinel in list(self._sentinels):
            try:
                server = await self._named_by(sentinel)
                if server not in tried:
                    tried.add(server)
                    return await dialer.primary(server)
            except SharedStoreError as error:
                failures[str(error)] = None
            self._last(sentinel)
        raise Unreachable(f"no primary by any Sentinel: {'; '.join(failures)}")

    async def subscribable(self) -> Wire:
        """The same, to be left with the server."""
        wire = await self.primary()
        self._listening = [each for each in self._listening if each.loss is None] + [wire]
        return wire

    # --- from the node ----------------------------------------------------------------------------

    def refused(self, node: Node, command: Command, error: ServerError) -> bool:
        if error.code == READONLY:
            if node.wire is not None:
                self._leave(node.wire.server, "it is a replica now")
        elif error.code not in LATER:
            return False
        self._later.put(command, error)
        return True

    def unreachable(self, node: Node) -> None:
        """It tries again, and Sentinels are asked before each try."""

    # --- inside -----------------------------------------------------------------------------------

    async def _sentinel(self) -> Wire:
        failures = []
        for sentinel in list(self._sentinels):
            try:
                return await self._terms.dialer.sentinel(sentinel)
            except SharedStoreError as error:
                failures.append(str(error))
        raise Unreachable(f"no Sentinel: {'; '.join(failures)}")

    async def _check(self) -> None:
        """Leave a server that Sentinels do not name any more."""
        while True:
            await self._doubted.wait()
            self._doubted.clear()
            try:
                named = await self._named()
            except SharedStoreError:
                continue  # they will be asked again when one of them can be listened to
            wire = self._node.wire
            if wire is not None and wire.server != named:
                self._leave(wire.server, f"Sentinels name another, {named}")

    def _leave(self, server: Server, why: str) -> None:
        self._node.leave(f"{server}: {why}")
        for wire in self._listening:
            if wire.server == server:
                wire.lose(why)

    async def _named(self) -> Server:
        failures = []
        for sentinel in list(self._sentinels):
            try:
                return await self._named_by(sentinel)
            except SharedStoreError as error:
                failures.append(str(error))
                self._last(sentinel)
        raise Unreachable(f"no Sentinel names a primary: {'; '.join(failures)}")

    def _last(self, sentinel: Server) -> None:
        """Ask it after the others from now on: it is away, or knows an old primary."""
        self._sentinels.remove(sentinel)
        self._sentinels.append(sentinel)

    async def _named_by(self, sentinel: Server) -> Server:
        service = self._address.service
        wire = await self._terms.dialer.sentinel(sentinel)
        try:
            reply = await self._terms.dialer.answer(wire, *_ASK, service)
        finally:
            wire.lose("it was asked")
        match reply:
            case [bytes(host), bytes(port)] if host and port.isdigit() and len(port) < 6:
                return Server(host.decode("utf-8", "replace"), int(port))
            case None:
                raise Unreachable(f"{sentinel}: does not know {one_line(service, 100)!r}")
        raise Unreachable(f"{sentinel}: names no host and port")
