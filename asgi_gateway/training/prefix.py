"""Where a request goes: the trainer's base URL, its path prefix, and the path as it was sent."""

from urllib.parse import quote

from yarl import URL

from asgi_gateway.addresses import shown_url
from asgi_gateway.asgi import Scope
from asgi_gateway.errors import Malformed


class Prefix:
    """A base URL that paths are put behind, undecoded and unnormalised.

    `http://host:8000/trainer/` and the path `/api/v1/a%2Fb` make
    `http://host:8000/trainer/api/v1/a%2Fb`.

    Raises:
        ValueError: not an http(s) URL, or one with credentials, a query or a fragment.
    """

    __slots__ = ("base", "path")

    def __init__(self, url: str) -> None:
        wrong = f"training.url must be an http or https URL, not {shown_url(url)!r}"
        try:
            base = URL(url)
        except ValueError:
            raise ValueError(wrong) from None  # its text may quote a part of a password
        if base.scheme not in ("http", "https") or not base.host:
            raise ValueError(wrong)
        if base.raw_user or base.raw_password or base.raw_query_string or base.raw_fragment:
            raise ValueError("training.url takes no credentials, query or fragment")
        self.base = base
        self.path = base.raw_path.rstrip("/")

    def __repr__(self) -> str:
        return f"<Prefix {self.base}>"

    def target(self, scope: Scope) -> URL:
        """The URL of a request, without what `root_path` says the application is mounted at.

        Raises:
            Malformed: a request target that is no path (`OPTIONS *`).
        """
        raw = scope.get("raw_path")
        path = quote(scope["path"]) if raw is None else _ascii(raw)  # raw_path is optional
        return self.join(_below(path, scope.get("root_path", "")), scope.get("query_string", b""))

    def join(self, path: str, query: bytes = b"") -> URL:
        """The URL of an encoded path.

        Raises:
            Malformed: it does not start with a slash, so it could change the host.
        """
        if not path.startswith("/"):
            raise Malformed(f"the request target {path!r:.200} is not a path")
        return URL.build(
            scheme=self.base.scheme,
            authority=self.base.raw_authority,
            path=self.path + path,
            query_string=_ascii(query),
            encoded=True,
        )


def _below(path: str, root: str) -> str:
    """Cut at a segment boundary; servers differ in whether the root is encoded in `raw_path`."""
    for mounted in (root.rstrip("/"), quote(root.rstrip("/"))):
        if mounted and path.startswith(mounted) and path[len(mounted) :][:1] in ("", "/"):
            return path[len(mounted) :] or "/"
    return path


def _ascii(raw: bytes) -> str:
    """As it was sent; bytes that no URL may hold are escaped, for aiohttp would re-encode them."""
    return "".join(chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in raw)
