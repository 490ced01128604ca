"""URLs of a shared store: one server, Sentinels that know it, or a cluster.

valkey://user:password@host:6379/0            also redis://; with TLS valkeys://, rediss://
unix:///run/valkey.sock?db=0&password=...
valkey+sentinel://user:password@host,host:26379/service/0
valkey+cluster://user:password@host:6379,host:6379
"""

import re
import ssl
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

from asgi_gateway.shared.errors import BadUrl

Kind = Literal["one", "sentinel", "cluster"]

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
_SCHEME: Final = re.compile(r"(?:valkey|redis)(s?)(?:\+(sentinel|cluster))?|unix")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]\s]+))(?::(\d{1,5}))?")
# Options by what they need; the names are those of the usual clients.
_LOGIN: Final = {"username", "password", "db"}
_TLS: Final = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"}
_SENTINEL: Final = {"sentinel_username", "sentinel_password"}


class Server(NamedTuple):
    """Where one listens; a path with port 0 is a Unix socket."""

    host: str
    port: int

    def __str__(self) -> str:
        if self.port == 0:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Login(NamedTuple):
    username: str
    password: str

    def __repr__(self) -> str:
        return f"<Login of {self.username or 'the default user'}>"


NOBODY: Final = Login("", "")


class Tls(msgspec.Struct, frozen=True):
    """Files in PEM; without `ca_certs` the machine's own are trusted."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Reads files.

        Raises:
            BadUrl: one that cannot be used.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_certs)
            if self.certfile is not None:
                context.load_cert_chain(self.certfile, self.keyfile)
        except (OSError, ValueError) as error:
            raise BadUrl(f"the store's TLS files cannot be used: {error}") from None
        context.check_hostname = self.check_hostname
        return context


class Address(msgspec.Struct, frozen=True):
    """kind: what `servers` are. service: what Sentinels call the one that is wanted."""

    kind: Kind
    servers: tuple[Server, ...]
    login: Login = NOBODY
    sentinel_login: Login = NOBODY
    db: int = 0
    service: str = ""
    tls: Tls | None = None

    def __repr__(self) -> str:
        names = ",".join(map(str, self.servers))
        return f"<Address {self.kind} {names}{', TLS' if self.tls else ''}>"


def parse(url: str) -> Address:
    """What a URL names.

    Raises:
        BadUrl: it cannot be read; the text quotes no password.
    """
    scheme, separator, rest = url.partition("://")
    known = _SCHEME.fullmatch(scheme)
    if not separator or known is None:
        raise BadUrl("store.url begins with valkey://, valkeys://, unix:// or the like of them")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    if "#" in url or "@" in path or "@" in query:
        raise BadUrl("in store.url a password must have / ? # @ as %2F %3F %23 %40")
    kind: Kind = "one" if known[2] is None else "sentinel" if known[2] == "sentinel" else "cluster"
    tls = bool(known[1])
    allowed = {*_LOGIN, *(_TLS if tls else ()), *(_SENTINEL if kind == "sentinel" else ())}
    options = _options(query, allowed)
    userinfo, _, hosts = authority.rpartition("@")
    service, db = "", options.get("db", "")
    if scheme == "unix":
        servers: tuple[Server, ...] = (Server(unquote(slash + path), 0),)
        if hosts or not path:
            raise BadUrl("store.url with unix:// has three slashes and a path")
    else:
        port = SENTINEL_PORT if kind == "sentinel" else PORT
        servers = tuple(_server(host, port) for host in hosts.split(","))
        service, db = _named(kind, path, db)
    if kind == "one" and len(servers) > 1:
        raise BadUrl("several hosts in store.url need valkey+sentinel:// or valkey+cluster://")
    return Address(
        kind=kind,
        servers=servers,
        login=_login(userinfo, options),
        sentinel_login=Login(
            options.get("sentinel_username", ""), options.get("sentinel_password", "")
        ),
        db=_database(kind, db),
        service=service,
        tls=_tls(options) if tls else None,
    )


def _options(query: str, allowed: set[str]) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise BadUrl("after ? in store.url come options as name=value&name=value") from None
    options = dict(pairs)
    if len(options) < len(pairs):
        raise BadUrl("store.url has an option twice")
    if not options.keys() <= allowed:
        # Not what it is called: it may be the end of a password that was not escaped.
        raise BadUrl(f"store.url has another option than {', '.join(sorted(allowed))}")
    return options


def _server(text: str, port: int) -> Server:
    found = _HOST.fullmatch(text)
    if found is None:
        raise BadUrl("store.url has a host that cannot be read; is the password escaped?")
    number = int(found[3]) if found[3] is not None else port
    if not 0 < number < 65_536:
        raise BadUrl("store.url has a port that cannot be connected to")
    return Server(unquote(found[1] or found[2]), number)


def _named(kind: Kind, path: str, db: str) -> tuple[str, str]:
    """Service and database out of a path."""
    parts = [unquote(part) for part in path.strip("/").split("/") if part]
    service = ""
    if kind == "sentinel":
        if not parts:
            raise BadUrl("store.url with Sentinels ends with /SERVICE, as they call it")
        service = parts.pop(0)
    if len(parts) > 1 or (parts and db):
        raise BadUrl("store.url has more in its path than a database")
    return service, parts[0] if parts else db


def _database(kind: Kind, text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise BadUrl("the database in store.url is a number")
    if kind == "cluster" and int(text):
        raise BadUrl("a cluster has database 0 only")
    return int(text)


def _login(userinfo: str, options: dict[str, str]) -> Login:
    username, separator, password = userinfo.partition(":")
    if userinfo and not separator:
        raise BadUrl("store.url has a user without a password: USER:PASSWORD@ or :PASSWORD@")
    if userinfo and ("username" in options or "password" in options):
        raise BadUrl("store.url has a login before its host and another in its options")
    return Login(
        unquote(username) or options.get("username", ""),
        unquote(password) or options.get("password", ""),
    )


def _tls(options: dict[str, str]) -> Tls:
    check = options.get("ssl_check_hostname", "true").lower()
    if check not in ("true", "false"):
        raise BadUrl("ssl_check_hostname in store.url is true or false")
    return Tls(
        options.get("ssl_ca_certs"),
        options.get("ssl_certfile"),
        options.get("ssl_keyfile"),
        check == "true",
    )
