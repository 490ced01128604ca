"""Where `serve` may listen without keys, and the command that makes one."""

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asgi_gateway.__main__ import main
from asgi_gateway.access import bind
from asgi_gateway.access.keys import load
from asgi_gateway.settings import AccessSettings
from tests.support.gateway import settings
from tests.support.keyed import entries, hashed

SECRET = "tml-0123456789abcdefghij"
LOOPBACK = ["127.0.0.1", "127.0.0.2", "127.255.255.254", "127.1", "::1", "localhost", "LocalHost"]
LOOPBACK += ["::ffff:127.0.0.1", "0:0:0:0:0:0:0:1", "2130706433"]
BEYOND = ["0.0.0.0", "::", "", "0", "10.0.0.1", "126.255.255.255", "128.0.0.1", "203.0.113.7"]
BEYOND += ["::2", "::ffff:10.0.0.1", "fe80::1", "example.org", "localhost.example.org", "a" * 300]
BEYOND += ["127.0.0.1.example.org", "\x00", "é"]


@pytest.mark.parametrize("host", LOOPBACK)
def test_this_machine_alone(host: str) -> None:
    assert bind.is_loopback(host)
    assert list(bind.problems(settings("http://h:1", server__host=host))) == []


@pytest.mark.parametrize("host", BEYOND)
def test_beyond_this_machine(host: str) -> None:
    assert not bind.is_loopback(host)
    [problem] = bind.problems(settings("http://h:1", server__host=host))
    assert problem.startswith(f"server.host = {host!r}: ")
    assert "access.keys_file" in problem
    assert "--insecure" in problem
    for meant in (
        {"server__insecure": True},
        {"access__keys": [f"a={hashed('x')}"]},
        {"access__keys_file": "/keys.toml"},
    ):
        assert list(bind.problems(settings("http://h:1", server__host=host, **meant))) == []


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def run(*argv: str, given: str | None = "") -> tuple[int, str, str]:
        """given: standard input; None is a terminal."""
        stdin = io.StringIO(given or "")
        monkeypatch.setattr(stdin, "isatty", lambda: given is None)
        monkeypatch.setattr(sys, "stdin", stdin)
        status = main(list(argv))
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("given", [SECRET, f"{SECRET}\n", f"  {SECRET}\r\nmore\n"])
def test_a_secret_that_is_given(cli: Cli, given: str) -> None:
    assert cli("hash-key", "alice", given=given) == (
        0,
        f'[alice]\nsha256 = "{hashed(SECRET)}"\n',
        "",
    )


@pytest.mark.parametrize("argv", [["--new"], []])
def test_a_new_secret(cli: Cli, tmp_path: Path, argv: list[str]) -> None:
    """On a terminal without being asked; the SDK takes it, and the entry fits the file."""
    status, out, err = cli("hash-key", "team.a", *argv, given=None)
    assert status == 0
    match = re.fullmatch(r"the key, shown this once: (tml-[A-Za-z0-9_-]{43})\n", err)
    assert match is not None
    assert match[1] not in out
    file = tmp_path / "keys.toml"
    file.write_text(out)
    [(digest, key)] = load(AccessSettings(keys_file=str(file))).by_digest.items()
    assert (digest.hex(), key.caller.name) == (hashed(match[1]), "team.a")


def test_a_key_that_the_sdk_does_not_take(cli: Cli) -> None:
    status, out, err = cli("hash-key", "x", given="sk-0123456789abcdefghij")
    assert (status, out.splitlines()[0]) == (0, "[x]")
    assert "tml-" in err


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("x", ""),
        ("x", "tml-012345678901234"),
        ("x", f"{SECRET} {SECRET}"),
        ("x", f"{SECRET}é"),
        ("x", f"{SECRET}\x07"),
        ("a b", SECRET),
        ("", SECRET),
    ],
)
def test_a_key_that_is_none(cli: Cli, name: str, given: str) -> None:
    status, out, err = cli("hash-key", name, given=given)
    assert (status, out) == (2, "")
    assert err.startswith("asgi-gateway: ")
    assert SECRET not in err


def test_check_config_reads_the_keys(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    config = tmp_path / "gateway.toml"
    config.write_text(
        f'[upstream]\nurls = ["http://h:1"]\n[access]\nkeys_file = "{file}"\n'
        f'[server]\nhost = "0.0.0.0"\n'
    )
    status, _, err = cli("check-config", "--config", str(config))
    assert (status, err.count("\n")) == (2, 1)
    assert f"cannot read {file}" in err
    file.write_text(entries({"alice": {}}))
    assert cli("check-config", "--config", str(config))[0] == 0


def test_insecure_is_a_flag_and_a_setting(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = ["check-config", "--host", "0.0.0.0", "--upstream", "http://h:1"]
    assert cli(*usual)[0] == 2
    assert cli(*usual, "--insecure")[0] == 0
    monkeypatch.setenv("ASGI_GATEWAY_SERVER__INSECURE", "true")
    assert cli(*usual)[0] == 0


def test_show_config_hides_digests_and_passwords(cli: Cli, monkeypatch: Any) -> None:
    monkeypatch.setenv("ASGI_GATEWAY_ACCESS__KEYS", f"alice={hashed(SECRET)}")
    status, out, _ = cli("show-config", "--upstream", "http://user:canary@h:1/v")
    assert status == 0
    assert "access.keys = (hidden)  # environment" in out
    assert "upstream.urls = ('http://h:1/v',)  # flag" in out
    assert "canary" not in out
    assert hashed(SECRET) not in out
