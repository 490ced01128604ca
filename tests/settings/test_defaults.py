"""The settings where nothing is given."""

from typing import Any

import pytest

from asgi_gateway.configuration import leaves, load
from asgi_gateway.settings import Settings
from tests.support.settings_sources import value_of

# docs: contracts, "Settings"; those that exist.
CONTRACT: dict[str, Any] = {
    "upstream.urls": (),
    "upstream.max_connections": 2048,
    "upstream.connect_timeout_s": 60.0,
    "upstream.read_timeout_s": 2048.0,
    "upstream.unavailable_grace_s": 300.0,
    "upstream.read_retries": 0,
    "upstream.poison_after": 3,
    "upstream.affinity": "sample",
    "store.completed_ttl_s": 2048.0,
    "store.retrieved_ttl_s": 300.0,
    "store.max_in_flight": 262_144,
    "poll.hold_s": 30.0,
    "session.timeout_s": 300.0,
    "session.retention_s": 86_400.0,
    "missing_logprobs": "fail",
    "state.dir": None,
    "state.fsync": "none",
    "training.url": None,
    "limits.retrieve_futures_body_bytes": 16 << 20,
    "limits.asample_body_bytes": 32 << 20,
    "limits.telemetry_body_bytes": 256 << 10,
    "limits.body_bytes": 64 << 10,
    "server.host": "127.0.0.1",
    "server.port": 8000,
}


@pytest.mark.parametrize("path", CONTRACT)
def test_the_default_is_the_contracts(path: str) -> None:
    assert value_of(load(environ={}).settings, path) == CONTRACT[path]


def test_defaults_have_no_source() -> None:
    loaded = load(environ={})
    assert loaded.settings == Settings()
    assert loaded.sources == {}


def test_an_idle_upstream_connection_is_dropped_before_vllm_drops_it() -> None:
    assert 0 < Settings().upstream.keepalive_s < 5


def test_a_poll_is_answered_before_the_sdk_and_common_proxies_cut_it() -> None:
    assert Settings().poll.hold_s < 45


def test_every_section_is_reached_by_leaves() -> None:
    paths = dict(leaves(Settings))
    assert set(CONTRACT) <= set(paths)
    assert all(value_of(Settings(), path) is not Ellipsis for path in paths)


def test_settings_are_frozen() -> None:
    made = Settings()
    with pytest.raises(AttributeError):
        made.missing_logprobs = "nan"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        made.poll.hold_s = 1.0  # type: ignore[misc]
