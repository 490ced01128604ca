"""The real SDK and keys: a right one works, a wrong one fails at once on every route it uses.

| the SDK is told | what its user sees |
|---|---|
| 401 at the handshake | AuthenticationError at once |
| 401 on asample | AuthenticationError at once |
| 401 on a poll, single or batched | an error at once |
| 403, a model that the key may not use | PermissionDeniedError at once |
| 429 of the key's own limit | nothing; it waits and repeats |
"""

from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.contract.conftest import Start
from tests.contract.sdk import Traffic, assert_right, sdk_process
from tests.support.keyed import entries, hashed, secret_of
from tests.support.processes import Served, stand_in

pytestmark = pytest.mark.sdk

KEYS: dict[str, dict[str, object]] = {
    "alice": {},
    "narrow": {"models": ["another"]},
    "slow": {"max_in_flight": 2},
    "probe": {"scopes": ["metrics"]},
}


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with stand_in("--delay-s", "0.3") as url:
        yield url


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    file.write_text(entries(KEYS))
    return file


@pytest.fixture(scope="module")
def gateway(
    start: Start, upstream: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(entries(KEYS))
    with start(upstream, access__keys_file=file, poll__hold_s=5) as served:
        yield served


def error_of(answer: dict[str, dict[str, object]]) -> tuple[object, object]:
    return answer["error"]["type"], answer["error"].get("status_code")


def test_a_right_key_works_and_is_limited(gateway: Served) -> None:
    with sdk_process(TINKER_API_KEY=secret_of("slow")) as sdk:
        traffic = Traffic(gateway)
        cases = [{"prompt": [4, n], "params": {"max_tokens": 3}} for n in range(6)]
        for n, answer in enumerate(sdk.samples(gateway, cases)):
            assert_right(answer, [4, n], max_tokens=3)
        statuses = traffic.statuses("asample")
        assert statuses[200] == 6
        assert 1 <= statuses[429] <= 12, "a second apart"


@pytest.mark.parametrize(
    ("secret", "type_", "status"),
    [
        ("tml-wrong", "AuthenticationError", 401),
        (secret_of("probe"), "PermissionDeniedError", 403),
        (secret_of("narrow"), "PermissionDeniedError", 403),
    ],
)
def test_a_key_that_may_not_fails_at_once(
    gateway: Served, secret: str, type_: str, status: int
) -> None:
    """With telemetry on: what cannot be delivered must not hold the user's error either."""
    with sdk_process(TINKER_API_KEY=secret, TINKER_TELEMETRY="1") as sdk:
        traffic = Traffic(gateway)
        answer = sdk.ask("create", base_url=gateway.url, base_model="stand-in")
        assert error_of(answer) == (type_, status), answer
        assert answer["seconds"] < 8
        asked = {path: traffic.statuses(path) for path in traffic.paths()}
        assert sum(asked["client/config"].values()) <= 2, asked
        assert sum(count[status] for count in asked.values()) <= 4, asked


def test_a_key_that_is_taken_away_ends_what_its_client_asks_next(
    start: Start, upstream: str, keys: Path
) -> None:
    with (
        start(upstream, access__keys_file=keys) as gateway,
        sdk_process(TINKER_API_KEY=secret_of("alice")) as sdk,
    ):
        assert_right(sdk.sample(gateway, [1], params={"max_tokens": 2}), [1], max_tokens=2)
        keys.write_text(entries({"other": {"sha256": hashed("x")}}))
        gateway.process.wait_for(
            lambda: not works(gateway, secret_of("alice")),
            "reload",
        )
        traffic = Traffic(gateway)
        answer = sdk.sample(gateway, [1], params={"max_tokens": 2})
        assert error_of(answer) == ("AuthenticationError", 401)
        assert answer["seconds"] < 2
        assert traffic.statuses("asample") == {401: 1}
        answer = sdk.ask("retrieve", base_url=gateway.url, request_id="any")
        assert "401" in answer["error"]["message"]
        assert answer["seconds"] < 2
        assert traffic.statuses("retrieve_future") == {401: 1}


@pytest.mark.parametrize("batched", [False, True])
def test_a_key_that_is_taken_away_ends_a_poll(
    start: Start, keys: Path, tmp_path: Path, batched: bool
) -> None:
    settings = {
        "access__keys_file": keys,
        "poll__hold_s": 1,
        "state__dir": tmp_path / "state",
        "client__sample_use_retrieve_futures": str(batched).lower(),
    }
    with (
        stand_in("--delay-s", "60") as waiting,
        start(waiting, **settings) as gateway,
        sdk_process(TINKER_API_KEY=secret_of("alice")) as sdk,
    ):
        traffic = Traffic(gateway)
        case = {"prompt": [1], "params": {"max_tokens": 2}}
        sdk.send("samples", base_url=gateway.url, cases=[case])
        route = "retrieve_futures" if batched else "retrieve_future"
        gateway.process.wait_for(lambda: bool(traffic.statuses(route)), "poll")
        keys.write_text(entries({"other": {"sha256": hashed("x")}}))
        [answer] = sdk.answer()
        assert "401" in answer["error"]["message"], answer
        assert traffic.statuses(route)[401] == 1
        assert set(traffic.statuses("session_heartbeat")) <= {200, 401}


def works(served: Served, secret: str) -> bool:
    """At any of its processes, which are asked in turn."""
    return any(_works(served, secret) for _ in range(served.gateways))


def _works(served: Served, secret: str) -> bool:
    request = Request(f"{served.url}/api/v1/sessions", headers={"X-API-Key": secret})
    try:
        with urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except HTTPError:
        return False
