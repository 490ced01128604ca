"""The files for several gateways against the gateway, the files for one, and each other."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asgi_gateway.configuration import load
from tests.support.processes import ROOT
from tests.support.shipped import (
    FOLDER,
    KNOWN,
    compose,
    default,
    flat,
    part,
    seconds,
    settings_of,
    size_bytes,
    unit,
    unit_config,
    valkey_config,
)
from tests.support.valkey import Valkey, valkey

PAGE = ROOT / "docs" / "scaling.md"
HAPROXY = FOLDER / "haproxy-several.cfg"
NGINX = FOLDER / "nginx-several.conf"
GATEWAYS = ("gateway-1", "gateway-2")


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = compose("compose.yaml", "compose.several.yaml")["services"]
    return found


def size_of(text: str) -> int:
    """4gb, or a number alone."""
    return size_bytes(text.removesuffix("b")) if text.endswith("b") else int(text)


# --- proxies --------------------------------------------------------------------------------------


def servers(path: Path) -> list[str]:
    return re.findall(r"^ +server (?:\w+ )?(10\.[\d.]+:\d+)", path.read_text(), re.MULTILINE)


def test_every_file_has_the_same_gateways(services: dict[str, Any]) -> None:
    addresses = [services[name]["networks"]["inside"]["ipv4_address"] for name in GATEWAYS]
    named = [f"{address}:8000" for address in addresses]
    assert servers(NGINX) == named
    assert servers(HAPROXY) == named * 2  # ready ones, and those alive
    config = unit_config("config-several.toml")
    assert f"{config['server.host']}:{config['server.port']}" in named


def test_a_drain_is_seen_before_submits_are_refused() -> None:
    """By as many checks as it takes, the last of which may have begun just before it."""
    text = r"default-server check inter (\d+)s fastinter (\d+)ms fall (\d+)"
    inter, fast, fall = map(int, re.findall(text, HAPROXY.read_text())[0])
    assert inter + fast / 1000 * (fall - 1) < default("drain.predrain_s") / 2


def test_silence_is_seen_before_the_sdk_gives_a_poll_up() -> None:
    limit = seconds(part(HAPROXY, r"timeout check (\d+s)$"))
    assert 2 * limit + 2 < 45 / 2


def test_nginx_waits_for_a_submit_longer_than_the_store_may_take() -> None:
    limit = part(NGINX, r"location / \{\n[^}]*proxy_read_timeout (\d+s);")
    assert 2 * default("store.timeout_s") < seconds(limit) < 45


def test_one_proxy_knows_what_the_other_knows() -> None:
    """What is not about several is as with one, line for line."""
    for one, more, differs in (
        ("haproxy.cfg", HAPROXY, ("server ", "timeout connect", "default_backend", "retries")),
        (
            "nginx.conf",
            NGINX,
            ("server ", "proxy_pass", "proxy_next", "proxy_connect", "upstream "),
        ),
    ):
        lines = {line.strip() for line in (FOLDER / one).read_text().splitlines()}
        kept = {line.strip() for line in more.read_text().splitlines()}
        for line in lines:
            if line and not line.startswith(("#", "backend", *differs)):
                assert line in kept, line


# --- compose --------------------------------------------------------------------------------------


def test_both_gateways_are_as_the_one_is_but_for_state(services: dict[str, Any]) -> None:
    alone = compose("compose.yaml")["services"]["gateway"]
    assert "gateway" not in services
    different = {"ports", "volumes", "networks", "depends_on", "environment"}
    for name in GATEWAYS:
        for key in alone.keys() - different:
            assert services[name][key] == alone[key], key
        assert not {"ports", "volumes"} & services[name].keys()
        added = services[name]["environment"].items() - alone["environment"].items()
        assert settings_of(dict(added)) == {"store.url": "valkey://valkey:6379/0"}
        assert alone["environment"].items() <= services[name]["environment"].items()


def test_all_that_talk_to_each_other_are_on_one_network(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert "inside" in service["networks"], name
    assert [name for name, service in services.items() if "ports" in service] == ["haproxy"]
    assert services["haproxy"]["ports"][0].endswith(":443")


def test_what_is_mounted_is_shipped(services: dict[str, Any]) -> None:
    for name in ("valkey", "haproxy"):
        source, target, _ = services[name]["volumes"][0].split(":")
        assert (FOLDER / source).is_file()
        assert target in (*services["valkey"]["command"], "/usr/local/etc/haproxy/haproxy.cfg")
    (secret,) = services["haproxy"]["secrets"]
    assert secret["target"] in HAPROXY.read_text()


def test_valkey_has_the_memory_that_it_may_take(services: dict[str, Any]) -> None:
    allowed = size_bytes(services["valkey"]["mem_limit"])
    assert allowed >= 2 * size_of(valkey_config()["maxmemory"])


# --- systemd --------------------------------------------------------------------------------------


def test_settings_are_spelt_as_the_gateway_does() -> None:
    assert unit_config("config-several.toml").keys() <= KNOWN


def test_the_configuration_is_taken(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    text = (FOLDER / "config-several.toml").read_text()
    file = tmp_path / "config.toml"
    file.write_text(text.replace("/etc/asgi-gateway/keys.toml", str(keys)))
    taken = load(environ={}, file=file).settings
    assert flat(tomllib.loads(text))["store.url"] == taken.store.url


def test_a_start_without_the_store_is_repeated() -> None:
    """Which ends with the status of a bad configuration."""
    assert unit()["RestartPreventExitStatus"] == ["2"]
    assert unit("several.conf")["RestartPreventExitStatus"] == [""]
    assert unit("several.conf")["StartLimitIntervalSec"] == ["0"]


# --- Valkey ---------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    """With the shipped file; the options that tests give come behind it."""
    file = tmp_path / "valkey.conf"
    file.write_text((FOLDER / "valkey.conf").read_text())
    with valkey(tmp_path, file=file) as started:
        yield started


@pytest.mark.system
def test_valkey_takes_every_line(server: Valkey) -> None:
    given = valkey_config()
    assert given["appendonly"] == "yes"
    assert given["maxmemory-policy"] == "noeviction"
    for name, value in given.items():
        if name in ("bind", "port", "save"):  # as the test has them
            continue
        held = server.run("CONFIG", "GET", name).splitlines()[-1]
        if name == "client-output-buffer-limit":
            assert "pubsub 67108864 16777216 30" in held
        elif name.startswith(("maxmemory", "auto-aof")) and value[0].isdigit():
            assert int(held) == size_of(value)
        else:
            assert held == value, name


@pytest.mark.system
def test_what_was_written_is_there_after_a_kill(server: Valkey) -> None:
    """A kill of the process, that is; of the machine `appendfsync` decides."""
    server.run("SET", "accepted", "yes")
    server.kill()
    server.start()
    assert server.run("GET", "accepted") == "yes"


def test_the_page_has_the_commands_of_the_file() -> None:
    commands = re.findall(
        r"^# {3}(\S.*)$", (FOLDER / "compose.several.yaml").read_text(), re.MULTILINE
    )
    assert commands
    for command in commands:
        assert f"\n    {command}\n" in PAGE.read_text(), command
