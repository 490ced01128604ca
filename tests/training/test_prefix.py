import pytest

from asgi_gateway.errors import Malformed
from asgi_gateway.training.prefix import Prefix


@pytest.mark.parametrize(
    ("base", "scope", "expected"),
    [
        ("http://t:1", {"raw_path": b"/a%2Fb"}, "http://t:1/a%2Fb"),
        ("http://t:1/", {"raw_path": b"/a"}, "http://t:1/a"),
        (
            "https://t/p/q/",
            {"raw_path": b"/a/", "query_string": b"x=%2F"},
            "https://t/p/q/a/?x=%2F",
        ),
        ("http://t", {"raw_path": b"//evil.example/a"}, "http://t//evil.example/a"),
        ("http://t", {"raw_path": b"/a/../%2e%2e/b"}, "http://t/a/../%2e%2e/b"),
        ("http://t", {"raw_path": b"/caf\xc3\xa9"}, "http://t/caf%C3%A9"),
        ("http://[::1]:8000", {"raw_path": b"/a"}, "http://[::1]:8000/a"),
        # A server that gives no raw path.
        ("http://t", {"path": "/a b/é"}, "http://t/a%20b/%C3%A9"),
        ("http://t", {"path": "/a", "raw_path": None}, "http://t/a"),
        # Mounted below a root path, which the trainer knows nothing of.
        ("http://t/p", {"root_path": "/gw", "raw_path": b"/gw/a%2Fb"}, "http://t/p/a%2Fb"),
        ("http://t", {"root_path": "/gw/", "raw_path": b"/gw"}, "http://t/"),
        ("http://t", {"root_path": "/gw", "raw_path": b"/gwent/a"}, "http://t/gwent/a"),
        ("http://t", {"root_path": "/a b", "raw_path": b"/a%20b/c"}, "http://t/c"),
    ],
)
def test_where_a_request_goes(base: str, scope: dict[str, object], expected: str) -> None:
    assert str(Prefix(base).target(scope)) == expected


@pytest.mark.parametrize("target", [b"*", b"", b"evil.example:80", b"http://evil.example/"])
def test_what_is_no_path_goes_nowhere(target: bytes) -> None:
    with pytest.raises(Malformed, match="is not a path"):
        Prefix("http://t").target({"raw_path": target})


@pytest.mark.parametrize(
    "url",
    ["", "t:1", "ftp://t", "http://", "http://u:p@t", "http://t/?q=1", "http://t/#f", "unix:/s"],
)
def test_urls_that_cannot_be_a_base(url: str) -> None:
    with pytest.raises(ValueError, match=r"training\.url"):
        Prefix(url)
