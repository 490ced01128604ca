"""Values: their types as each source writes them, and their ranges."""

from typing import Any

import pytest

from asgi_gateway.configuration import load
from tests.support.settings_sources import Sources, value_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://a:1", ("http://a:1",)),
        ("http://a:1,http://b:2", ("http://a:1", "http://b:2")),
        (" http://a:1 , http://b:2 ,", ("http://a:1", "http://b:2")),
        ("", ()),
    ],
)
def test_lists_in_the_environment_are_separated_by_commas(
    text: str, expected: tuple[str, ...]
) -> None:
    loaded = load(environ={"ASGI_GATEWAY_UPSTREAM__URLS": text})
    assert loaded.settings.upstream.urls == expected


def test_lists_in_the_file_and_from_flags(sources: Sources) -> None:
    sources.toml = '[upstream]\nurls = ["http://a:1", "http://b:2"]'
    loaded = sources.load({"models.base": ["one", "two=2"]})
    assert loaded.settings.upstream.urls == ("http://a:1", "http://b:2")
    assert loaded.settings.models.base == ("one", "two=2")


def test_environment_text_becomes_the_fields_type() -> None:
    loaded = load(
        environ={
            "ASGI_GATEWAY_UPSTREAM__MAX_CONNECTIONS": "7",
            "ASGI_GATEWAY_POLL__HOLD_S": "2.5",
            "ASGI_GATEWAY_MISSING_LOGPROBS": "nan",
            "ASGI_GATEWAY_STORE__MAX_BYTES": "1000",
            "ASGI_GATEWAY_ID_KEY": "1234567890123456",
            "asgi_gateway_poll__hold_s": "not ours: names are matched by case",
            "PATH": "/bin",
        }
    )
    got = loaded.settings
    assert got.upstream.max_connections == 7
    assert got.poll.hold_s == 2.5
    assert got.missing_logprobs == "nan"
    assert got.store.max_bytes == 1000
    assert got.id_key == "1234567890123456"


def test_a_file_keeps_its_types(sources: Sources) -> None:
    sources.toml = "[upstream]\nmax_connections = 7.5"
    (problem,) = sources.problems()
    assert problem.startswith("file: upstream.max_connections = 7.5: ")
    sources.toml = "[upstream]\nurls = [1]"
    (problem,) = sources.problems()
    assert problem.startswith("file: upstream.urls = [1]: ")


OUT_OF_RANGE = [
    ("server.port", -1),
    ("server.port", 65_536),
    ("server.backlog", 0),
    ("server.keepalive_s", 0),
    ("upstream.max_connections", 0),
    ("upstream.connect_timeout_s", 0),
    ("upstream.read_timeout_s", -1),
    ("upstream.keepalive_s", -0.5),
    ("upstream.unavailable_grace_s", -1),
    ("upstream.read_retries", -1),
    ("upstream.poison_after", -1),
    ("state.fsync", "always"),
    ("limits.retrieve_futures_body_bytes", 0),
    ("upstream.affinity", "prompt"),
    ("store.completed_ttl_s", 0),
    ("store.retrieved_ttl_s", 0),
    ("store.max_in_flight", 0),
    ("store.max_bytes", 0),
    ("poll.hold_s", 0),
    ("poll.hold_s", 40.5),
    ("poll.hold_s", float("nan")),
    ("poll.wakes_per_turn", 0),
    ("session.timeout_s", 0),
    ("session.retention_s", 0),
    ("client.sample_max_concurrent_requests", 0),
    ("models.max_context_length", 0),
    ("limits.asample_body_bytes", 0),
    ("missing_logprobs", "zero"),
    ("id_key", "fifteen letters"),
    ("upstream.max_connections", True),
]


@pytest.mark.parametrize(("path", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused(sources: Sources, path: str, value: Any) -> None:
    (problem,) = sources.problems({path: value})
    assert problem.startswith(f"flag: {path} = ")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("server.port", 0),
        ("server.port", 65_535),
        ("upstream.keepalive_s", 0),
        ("upstream.unavailable_grace_s", 0),
        ("poll.hold_s", 40),
        ("upstream.max_connections", 1),
        ("id_key", "sixteen letters."),
    ],
)
def test_the_ends_of_a_range_are_in_it(path: str, value: Any) -> None:
    assert value_of(load({path: value}, {}).settings, path) == value
