"""Hosts as network namespaces, joined by a switch in another; cut off by their port of it."""

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator

# Set aside for measurements (RFC 2544), so that no network has them; a third part by process and
# by what it made before, for the kernel takes devices away some time after their namespace.
NETWORK = "198.18.{}.{}"
_made = itertools.count()


class NotAllowed(Exception):
    """The kernel makes no network namespaces here."""


class Lan:
    """The machine itself is on it, too, as number 254."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._name = f"agw{number}"
        self._hosts: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Lan {self._name} {sorted(self._hosts)}>"

    def address(self, host: str) -> str:
        return NETWORK.format(self._number, self._hosts[host])

    def on(self, host: str) -> list[str]:
        """What stands before a command, for it to run there."""
        return ["ip", "netns", "exec", self._space(host)]

    def open(self) -> None:
        """Raises NotAllowed."""
        try:
            ip("netns", "add", self._space("switch"))
        except subprocess.CalledProcessError as error:
            raise NotAllowed(error.stderr.decode().strip()) from error
        self._switch("link", "add", "br0", "type", "bridge")
        self._switch("link", "set", "br0", "up")
        mine = f"{self._name}m"
        ip("link", "add", mine, "type", "veth", "peer", "self", "netns", self._space("switch"))
        self._plug("self")
        ip("address", "add", f"{NETWORK.format(self._number, 254)}/24", "dev", mine)
        ip("link", "set", mine, "up")

    def add(self, host: str) -> None:
        self._hosts[host] = len(self._hosts) + 1
        space = self._space(host)
        ip("netns", "add", space)
        pair = (
            "eth0",
            "netns",
            space,
            "type",
            "veth",
            "peer",
            host,
            "netns",
            self._space("switch"),
        )
        ip("link", "add", *pair)
        self._plug(host)
        ip("-n", space, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", space, "link", "set", device, "up")

    def close(self) -> None:
        """The pairs of devices go with their namespaces."""
        for host in (*self._hosts, "switch"):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "delete", self._space(host))

    @contextlib.contextmanager
    def cut_off(self, host: str) -> Iterator[None]:
        """Nothing from there or to there; nobody is told."""
        self._switch("link", "set", host, "down")
        try:
            yield
        finally:
            self._switch("link", "set", host, "up")

    @contextlib.contextmanager
    def cut_between(self, host: str, other: str) -> Iterator[None]:
        """What the one sends to the other is lost."""
        route = ("blackhole", f"{self.address(other)}/32")
        ip("-n", self._space(host), "route", "add", *route)
        try:
            yield
        finally:
            ip("-n", self._space(host), "route", "delete", *route)

    def _plug(self, port: str) -> None:
        self._switch("link", "set", port, "master", "br0")
        self._switch("link", "set", port, "up")

    def _switch(self, *arguments: str) -> None:
        ip("-n", self._space("switch"), *arguments)

    def _space(self, host: str) -> str:
        return f"{self._name}-{host}"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)


@contextlib.contextmanager
def lan(*hosts: str) -> Iterator[Lan]:
    """Raises NotAllowed."""
    made = Lan((os.getpid() + 25 * next(_made)) % 250 + 1)
    try:
        made.open()
        for host in hosts:
            made.add(host)
        yield made
    finally:
        made.close()
