"""Groups over the primaries of a cluster, by its own map of slots, asked for when in doubt.

A server that points elsewhere is followed at once, and makes the map doubtful; so does one that
cannot be reached.
"""

import asyncio
import functools
import logging
from typing import Final

from asgi_gateway.shared.address import Server
from asgi_gateway.shared.backoff import Backoff
from asgi_gateway.shared.errors import ServerError, SharedStoreError, Unreachable
from asgi_gateway.shared.node import Node, Terms
from asgi_gateway.shared.refusals import LATER, READONLY, Later, pointed
from asgi_gateway.shared.resp import packer
from asgi_gateway.shared.slots import GROUPS, SlotMap, read, slots_of_groups
from asgi_gateway.shared.waiting import MAX_HOPS, Command, Waiting, ignore
from asgi_gateway.shared.wire import Wire

log = logging.getLogger(__name__)

# The largest cluster; no server makes us connect to more.
MAX_NODES: Final = 1024
# Another server may have the slots soon.
_ELECTING: Final = frozenset({READONLY, "CLUSTERDOWN", "MASTERDOWN"})


class Cluster:
    """by_group: where the commands of each of the 256 groups go; changed in place."""

    def __init__(self, terms: Terms, later: Later, by_group: list[Waiting], *, prefix: str) -> None:
        self.by_group = by_group
        self._slots = slots_of_groups(prefix)
        self._terms = terms
        self._later = later
        self._nodes: dict[Server, Node] = {}
        # Those that are not in the map any more and have replies to come.
        self._retired: set[Node] = set()
        # Commands of groups whose server is not known.
        self._lobby = Waiting(terms.room)
        by_group[:] = [self._lobby] * GROUPS
        self._doubted = asyncio.Event()
        self._suspects: dict[Server, None] = {}
        self._learned = asyncio.Event()
        self._down_since: float | None = terms.clock.now()
        self._trouble = "its map was not asked for yet"
        # The log has that it is not whole.
        self._told = False
        self._task: asyncio.Task[None]
        self._asking = packer()(("ASKING",))

    def __repr__(self) -> str:
        return f"<Cluster of {len(self._nodes)} nodes, {len(self._retired)} retired>"

    def open(self) -> None:
        self._doubted.set()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def tried(self) -> None:
        await self._learned.wait()
        await asyncio.gather(*(node.tried.wait() for node in self._nodes.values()))

    async def close(self) -> None:
        self._task.cancel()
        nodes = [*self._nodes.values(), *self._retired]
        await asyncio.gather(*(node.close() for node in nodes))
        self._lobby.drop("the link was closed")
        await asyncio.wait([self._task])

    def anywhere(self) -> Waiting:
        """A primary that is up, where there is one."""
        nodes = [node for node in self.by_group if isinstance(node, Node)]
        up = [node for node in nodes if node.up]
        found: list[Waiting] = [*up, *nodes, self._lobby]
        return found[0]

    def tick(self, now: float) -> None:
        self._lobby.expire(now - self._terms.timeout_s, self.trouble, self._terms.timeout_s)
        for node in self._nodes.values():
            node.tick(now)
        for node in list(self._retired):
            node.tick(now)
            if node.idle:
                self._retired.discard(node)
        if self._lobby in self.by_group:
            self._doubted.set()

    @property
    def down_since(self) -> float | None:
        """Up is a cluster where every group has a server that is up."""
        since = [self._down_since]
        since += [node.down_since for node in self._placed()]
        return min((each for each in since if each is not None), default=None)

    @property
    def trouble(self) -> str:
        if self._down_since is not None:
            return self._trouble
        down = [node.trouble for node in self._placed() if not node.up]
        return down[0] if down else self._trouble

    async def subscribable(self) -> Wire:
        """A new connection to a member: what is published reaches all of them.

        Raises:
            Unreachable: none can be connected to.
        """
        return await self._member(self._members())

    # --- from the nodes ---------------------------------------------------------------------------

    def refused(self, node: Node, command: Command, error: ServerError) -> bool:
        if error.code in ("MOVED", "ASK") and node.wire is not None:
            command.refusal = error
            command.hops += 1
            where = pointed(error, node.wire.server)
            target = self._named(where.server) if where is not None else None
            if where is None or target is None or command.hops > MAX_HOPS:
                self._doubt(None)
                self._later.put(command, error)
            elif error.code == "ASK":
                self._ask(target, command)
            else:
                if self._move(where.slot, target):
                    self._doubt(where.server)
                target.place(command)
            return True
        if error.code == READONLY:
            node.leave(f"{node.name}: it is a replica now")
        elif error.code not in LATER:
            return False
        if error.code in _ELECTING:
            self._doubt(None)
        self._later.put(command, error)
        return True

    def unreachable(self, node: Node) -> None:
        if node in self._nodes.values():
            self._doubt(None)

    # --- inside -----------------------------------------------------------------------------------

    def _placed(self) -> set[Node]:
        return {node for node in self.by_group if isinstance(node, Node)}

    def _doubt(self, suspect: Server | None) -> None:
        """Ask for the map again, first the one that another server pointed to."""
        if suspect is not None:
            self._suspects[suspect] = None
        self._doubted.set()

    def _named(self, server: Server) -> Node | None:
        node = self._nodes.get(server)
        if node is None and len(self._nodes) + len(self._retired) < MAX_NODES:
            connect = functools.partial(self._terms.dialer.primary, server)
            node = self._nodes[server] = Node(str(server), self, self._terms, connect)
        return node

    def _ask(self, target: Node, command: Command) -> None:
        """A slot on its way: the next command alone is taken by where it goes."""
        asking = Command(self._asking, ignore, command.group, command.born)
        target.room.count += 1
        target.room.nbytes += len(asking.packed)
        target.place(asking)
        target.place(command)

    def _move(self, slot: int, target: Node) -> bool:
        """Whether a group was elsewhere; keys of no group say nothing about the map."""
        moved = False
        for group, its_slot in enumerate(self._slots):
            if its_slot == slot and self.by_group[group] is not target:
                self.by_group[group] = target
                moved = True
        return moved

    async def _follow(self) -> None:
        backoff = Backoff(self._terms.random)
        while True:
            await self._doubted.wait()
            self._doubted.clear()
            try:
                self._arrange(await self._learn())
            except SharedStoreError as error:
                self._down(str(error))
                self._doubted.set()
            except Exception:
                log.exception("a cluster's map was met in a way not foreseen")
                self._doubted.set()
            else:
                if self._down_since is None and not self._doubted.is_set():
                    backoff.reset()
            self._learned.set()
            await asyncio.sleep(backoff.next_s())

    def _members(self) -> list[Server]:
        """Whom to ask, the best first."""
        suspects, self._suspects = list(self._suspects), {}
        up = [server for server, node in self._nodes.items() if node.up]
        rest = [*self._terms.dialer.address.servers, *self._nodes]
        return list(dict.fromkeys([*suspects, *up, *rest]))

    async def _member(self, servers: list[Server]) -> Wire:
        failures = []
        for server in servers:
            try:
                return await self._terms.dialer.member(server)
            except SharedStoreError as error:
                failures.append(str(error))
        raise Unreachable(f"no member of the cluster: {'; '.join(failures[:3])}")

    async def _learn(self) -> SlotMap:
        wire = await self._member(self._members())
        try:
            reply = await self._terms.dialer.answer(wire, "CLUSTER", "SLOTS")
            return read(reply, wire.server)
        finally:
            wire.lose("it was asked")

    def _arrange(self, slots: SlotMap) -> None:
        """Put every group where the map says, and what waits for it too."""
        places: list[Waiting] = []
        for slot in self._slots:
            server = slots.server(slot)
            places.append((self._named(server) if server else None) or self._lobby)
        self.by_group[:] = places
        homeless = self._lobby.take()
        for server in self._nodes.keys() - slots.servers:
            node = self._nodes.pop(server)
            homeless += node.retire()
            self._retired.add(node)
        for command in homeless:
            place = self.anywhere() if command.group is None else self.by_group[command.group]
            place.place(command)
        if self._lobby in places:
            self._down("the cluster has slots that no server serves")
        else:
            self._down_since = None
            if not self._told:
                self._trouble = ""
            self._told = False

    def _down(self, why: str) -> None:
        if self._down_since is None:
            self._down_since = self._terms.clock.now()
        if not self._told:
            self._told = True
            log.warning("the shared store's cluster: %s", why)
        self._trouble = why
