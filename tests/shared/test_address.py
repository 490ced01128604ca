import pytest

from asgi_gateway.shared.address import Address, Login, Server, Tls, parse
from asgi_gateway.shared.dialer import Dialer
from asgi_gateway.shared.errors import BadUrl
from asgi_gateway.shared.link import Link
from tests.support.clock import ManualClock

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("valkey://h", Address("one", (Server("h", 6379),))),
        ("redis://h:1/", Address("one", (Server("h", 1),))),
        ("valkey://[::1]:7000/3", Address("one", (Server("::1", 7000),), db=3)),
        ("redis://h?db=2", Address("one", (Server("h", 6379),), db=2)),
        ("valkey://:p@h", Address("one", (Server("h", 6379),), Login("", "p"))),
        ("valkey://u:p%40%2F:x@h", Address("one", (Server("h", 6379),), Login("u", "p@/:x"))),
        ("valkeys://h", Address("one", (Server("h", 6379),), tls=Tls())),
        (
            "rediss://h?ssl_ca_certs=/ca.pem&ssl_check_hostname=false",
            Address("one", (Server("h", 6379),), tls=Tls("/ca.pem", check_hostname=False)),
        ),
        ("unix:///run/a%20b.sock", Address("one", (Server("/run/a b.sock", 0),))),
        (
            "unix:///run/v.sock?db=1&username=u&password=p",
            Address("one", (Server("/run/v.sock", 0),), Login("u", "p"), db=1),
        ),
        (
            "valkey+sentinel://u:p@a,b:1/store/2?sentinel_password=q",
            Address(
                "sentinel",
                (Server("a", 26379), Server("b", 1)),
                Login("u", "p"),
                Login("", "q"),
                db=2,
                service="store",
            ),
        ),
        (
            "rediss+cluster://a:1,b:2/0",
            Address("cluster", (Server("a", 1), Server("b", 2)), tls=Tls()),
        ),
    ],
)
def test_what_a_url_names(url: str, expected: Address) -> None:
    assert parse(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://h",
        "valkey+other://h",
        "valkey://",
        f"valkey://:{SECRET}@",
        f"valkey://:{SECRET}@h:0",
        f"valkey://:{SECRET}@h:65536",
        f"valkey://:{SECRET}@h:x",
        f"valkey://:{SECRET}@a,b",
        f"valkey://{SECRET}@h",
        f"valkey://:a/{SECRET}@h",
        f"valkey://:a?{SECRET}@h",
        f"valkey://:a#{SECRET}@h",
        f"valkey://:{SECRET}@h/x",
        f"valkey://:{SECRET}@h/1/2",
        f"valkey://:{SECRET}@h/1?db=1",
        f"valkey://h?password={SECRET}&password={SECRET}",
        f"valkey://:{SECRET}@h?password={SECRET}",
        f"valkey://h?{SECRET}",
        f"valkey://h?{SECRET}=1",
        f"valkey://:{SECRET}@h?ssl_ca_certs=/ca.pem",
        f"valkeys://:{SECRET}@h?ssl_check_hostname=no",
        f"valkey+sentinel://:{SECRET}@h",
        f"valkey+sentinel://:{SECRET}@h/s/1/2",
        f"valkey+cluster://:{SECRET}@h/1",
        f"unix://{SECRET}",
        f"unix://:{SECRET}@",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(BadUrl) as caught:
        parse(url)
    assert SECRET not in str(caught.value)


def test_nothing_shows_a_password() -> None:
    url = f"valkey+sentinel://user:{SECRET}@a,b/store?sentinel_password={SECRET}"
    address = parse(url)
    link = Link(url, timeout_s=1, max_waiting=1, max_waiting_bytes=1, clock=ManualClock())
    dialer = Dialer(address, timeout_s=1, clock=ManualClock(), name="x")
    shown = " ".join(map(repr, [address, address.login, address.sentinel_login, link, dialer]))
    assert SECRET not in shown
    assert "sentinel a:26379,b:26379" in shown


def test_certificates_that_cannot_be_read_are_told_at_once() -> None:
    with pytest.raises(BadUrl, match="TLS files"):
        Link(
            "valkeys://h?ssl_ca_certs=/nowhere.pem",
            timeout_s=1,
            max_waiting=1,
            max_waiting_bytes=1,
            clock=ManualClock(),
        )
