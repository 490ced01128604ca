"""New connections: socket, TLS, login, and whether the server is one of the kind that is wanted.

The driver package's own connections are for its own protocol and would keep the transport, so the
four commands of a login are asked here.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Final

from asgi_gateway.clock import Clock
from asgi_gateway.shared.address import Address, Login, Server
from asgi_gateway.shared.errors import ServerError, Unanswered, Unreachable
from asgi_gateway.shared.resp import Argument
from asgi_gateway.shared.wire import MAX_REPLY_BYTES, Wire
from asgi_gateway.textline import one_line

HIDDEN: Final = "(hidden)"
# Functions came with it.
OLDEST: Final = 7
# What `HELLO` calls a server by itself, a member of a cluster, a Sentinel.
_MODES: Final = {b"standalone": "one", b"cluster": "cluster", b"sentinel": "sentinel"}
_PRIMARY: Final = (b"master", b"primary")
_WANTED: Final = {
    "one": "a server by itself, as its URL says",
    "cluster": "a member of a cluster, as its URL says",
    "sentinel": "a Sentinel, as its URL says",
}


class Dialer:
    """Opens connections as an address says. credentials: asked before each login, where given."""

    def __init__(
        self,
        address: Address,
        *,
        timeout_s: float,
        clock: Clock,
        name: str,
        credentials: Callable[[], tuple[str, str]] | None = None,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        """name: what the server's list of clients calls us; of letters, digits and punctuation.

        Raises:
            BadUrl: the files for TLS cannot be used.
        """
        self.address = address
        self._timeout_s = timeout_s
        self._clock = clock
        self._name = name
        self._credentials = credentials
        self._max_reply_bytes = max_reply_bytes
        self._tls = address.tls.context() if address.tls is not None else None

    def __repr__(self) -> str:
        return f"<Dialer {self.address!r}>"

    async def primary(self, server: Server) -> Wire:
        """A connection to a server that takes writes.

        Raises:
            Unreachable: none within the timeout, or the server is another.
        """
        kind = "cluster" if self.address.kind == "cluster" else "one"
        return await self._opened(server, self._login(), kind, self.address.db, writes=True)

    async def member(self, server: Server) -> Wire:
        """A connection to any member of the cluster. Raises as `primary` does."""
        return await self._opened(server, self._login(), "cluster", 0, writes=False)

    async def sentinel(self, server: Server) -> Wire:
        """A connection to a Sentinel. Raises as `primary` does."""
        login = self.address.sentinel_login
        return await self._opened(server, login, "sentinel", 0, writes=False)

    async def answer(self, wire: Wire, *arguments: Argument) -> Any:
        """The reply to a question on a connection that is for nothing else. Raises as `primary`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await wire.ask(*arguments)
        except TimeoutError:
            text = f"no reply within {self._timeout_s:g} s"
        except (ServerError, Unanswered) as error:
            text = str(error).removeprefix(f"{wire.server}: ")
        raise Unreachable(f"{wire.server}: {text}")

    def _login(self) -> Login:
        if self._credentials is None:
            return self.address.login
        return Login(*self._credentials())

    async def _opened(
        self, server: Server, login: Login, kind: str, db: int, *, writes: bool
    ) -> Wire:
        try:
            async with asyncio.timeout(self._timeout_s):
                wire = await self._connected(server)
                try:
                    await _introduced(wire, login, self._name, kind, db, writes=writes)
                except BaseException:
                    wire.lose("it was not to be used")
                    raise
        except TimeoutError:
            text = f"no connection within {self._timeout_s:g} s"
        except (OSError, UnicodeError) as error:
            text = f"{type(error).__name__}: {error}"
        except (ServerError, Unanswered, Unreachable) as error:
            text = str(error).removeprefix(f"{server}: ")
        else:
            return wire
        raise Unreachable(f"{server}: {_without(login.password, text)}")

    async def _connected(self, server: Server) -> Wire:
        loop = asyncio.get_running_loop()
        make = functools.partial(Wire, server, self._clock, loop, self._max_reply_bytes)
        if server.port == 0:
            return (await loop.create_unix_connection(make, server.host))[1]
        return (await loop.create_connection(make, server.host, server.port, ssl=self._tls))[1]


async def _introduced(
    wire: Wire, login: Login, name: str, kind: str, db: int, *, writes: bool
) -> None:
    """Log in, and see that the server is the one that is wanted.

    Raises:
        Unreachable: it is not; ServerError, Unanswered: it says no.
    """
    hello: list[Argument] = ["HELLO", "2"]
    if login.password:
        hello += ["AUTH", login.username or "default", login.password]
    asked = [wire.ask(*hello, "SETNAME", name)]
    if db:
        asked.append(wire.ask("SELECT", db))
    # Refused while a server reads its data set from disk.
    asked.append(wire.ask("PING"))
    said = _fields((await asyncio.gather(*asked))[0])
    if _MODES.get(said.get(b"mode", b"")) != kind:
        raise Unreachable(f"is not {_WANTED[kind]}")
    if writes and said.get(b"role") not in _PRIMARY:
        raise Unreachable("is a replica, which takes no writes")
    version = said.get(b"version", b"")
    major = version.partition(b".")[0]
    if kind != "sentinel" and not (major.isdigit() and int(major[:6]) >= OLDEST):
        shown = one_line(version.decode("ascii", "replace"), 20)
        raise Unreachable(f"has version {shown!r}; it takes {OLDEST} or newer")


def _fields(reply: Any) -> dict[bytes, bytes]:
    """Those of a reply to HELLO whose values are strings."""
    if not isinstance(reply, list) or len(reply) % 2:
        raise Unreachable("does not answer HELLO as a server of this kind does")
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return {k: v for k, v in pairs if isinstance(k, bytes) and isinstance(v, bytes)}


def _without(password: str, text: str) -> str:
    """A server may quote what it does not understand."""
    text = text.replace(password, HIDDEN) if password else text
    return one_line(text.rstrip(": "), 300)
