"""Sources: flag over environment over file, and which names of the environment are ours."""

from pathlib import Path

import pytest

import asgi_gateway
from asgi_gateway.configuration import load
from asgi_gateway.settings import ServerSettings, Settings, SettingsError
from tests.support.settings_sources import Sources


@pytest.mark.parametrize(
    ("given", "expected", "source"),
    [
        ("", 30.0, None),
        ("file", 10.0, "file"),
        ("environment", 11.0, "environment"),
        ("flag", 12.0, "flag"),
        ("file environment", 11.0, "environment"),
        ("file flag", 12.0, "flag"),
        ("environment flag", 12.0, "flag"),
        ("file environment flag", 12.0, "flag"),
    ],
)
def test_flag_over_environment_over_file_over_default(
    sources: Sources, given: str, expected: float, source: str | None
) -> None:
    sources.toml = "[poll]\nhold_s = 10" if "file" in given else ""
    environ = {"ASGI_GATEWAY_POLL__HOLD_S": "11"} if "environment" in given else {}
    loaded = sources.load({"poll.hold_s": 12 if "flag" in given else None}, environ)
    assert loaded.settings.poll.hold_s == expected
    assert loaded.sources.get("poll.hold_s") == source


def test_the_order_is_field_by_field(sources: Sources) -> None:
    sources.toml = "[upstream]\nmax_connections = 1\nread_retries = 1\nconnect_timeout_s = 1"
    loaded = sources.load(
        {"upstream.connect_timeout_s": 3.0}, {"ASGI_GATEWAY_UPSTREAM__READ_RETRIES": "2"}
    )
    upstream = loaded.settings.upstream
    assert (upstream.max_connections, upstream.read_retries, upstream.connect_timeout_s) == (
        1,
        2,
        3,
    )
    assert loaded.sources == {
        "upstream.max_connections": "file",
        "upstream.read_retries": "environment",
        "upstream.connect_timeout_s": "flag",
    }


def test_the_file_is_named_by_argument_or_environment(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text("[poll]\nhold_s = 1")
    two.write_text("[poll]\nhold_s = 2")
    environ = {"ASGI_GATEWAY_CONFIG": str(one)}
    assert load(environ=environ).settings.poll.hold_s == 1
    assert load(environ=environ, file=two).settings.poll.hold_s == 2
    assert load(environ={"ASGI_GATEWAY_CONFIG": ""}).settings == Settings()


def test_create_app_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASGI_GATEWAY_UPSTREAM__URLS", "http://h:1,http://h:2")
    assert asgi_gateway.create_app().settings.upstream.urls == ("http://h:1", "http://h:2")
    monkeypatch.setenv("ASGI_GATEWAY_POLL__HOLD_S", "long")
    with pytest.raises(SettingsError, match="hold_s"):
        asgi_gateway.create_app()


def test_what_kubernetes_says_of_a_service_of_our_name_is_not_ours() -> None:
    environ = {
        "ASGI_GATEWAY_SERVICE_HOST": "10.0.0.7",
        "ASGI_GATEWAY_SERVICE_PORT": "8000",
        "ASGI_GATEWAY_SERVICE_PORT_HTTP": "8000",
        "ASGI_GATEWAY_PORT": "tcp://10.0.0.7:8000",
        "ASGI_GATEWAY_PORT_8000_TCP": "tcp://10.0.0.7:8000",
        "ASGI_GATEWAY_PORT_8000_TCP_ADDR": "10.0.0.7",
        "ASGI_GATEWAY_SERVER__PORT": "8001",
    }
    assert load(environ=environ).settings == Settings(server=ServerSettings(port=8001))
    with pytest.raises(SettingsError, match="portt"):
        load(environ={"ASGI_GATEWAY_PORTT": "1"})
