"""Without keys: what a page that somebody visits on this machine cannot ask of the gateway."""

import pytest

from tests.support.asgi_client import Response
from tests.support.gateway import Driven, driven
from tests.support.keyed import hashed, secret_of
from tests.support.upstream import FakeUpstream

CREATE, STATE, DRAIN = "/api/v1/create_session", "/admin/state", "/admin/drain"
CONFIRMED = {"X-Admin-Action": "confirmed"}
HERE = {"Host": "127.0.0.1:8000"}


async def look(gateway: Driven, path: str, headers: dict[str, str]) -> Response:
    return await gateway.client.start("GET", path, b"", headers).response()


@pytest.mark.parametrize(
    "told",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "null"},
    ],
)
async def test_a_page_of_another_origin_is_refused(
    upstream: FakeUpstream, told: dict[str, str]
) -> None:
    async with driven(upstream.url) as gateway:
        for path in (CREATE, DRAIN, "/admin/upstream"):
            refused = await gateway.client.post(path, {}, {**HERE, **CONFIRMED, **told})
            assert (refused.status, "page of another" in refused.json()["detail"]) == (403, True)
        looked = await look(gateway, STATE, {**HERE, **told})
        assert looked.status == 403
        assert not len(gateway.gateway._sessions)


@pytest.mark.parametrize("told", [{}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": "own"}])
async def test_our_own_page_and_what_is_no_browser_are_answered(
    upstream: FakeUpstream, told: dict[str, str]
) -> None:
    async with driven(upstream.url) as gateway:
        for host in ("127.0.0.1:8000", "[::1]:8000", "localhost", "LocalHost:8000"):
            own = {"Origin": f"http://{host}"} if "Origin" in told else told
            headers = {"Host": host, **own}
            assert (await gateway.client.post(CREATE, {"tags": []}, headers)).status == 200
            assert (await look(gateway, STATE, headers)).status == 200


async def test_a_name_made_to_mean_this_machine_is_refused(upstream: FakeUpstream) -> None:
    """DNS rebinding: Origin is Host, and Host is a name that the page's owner chose."""
    async with driven(upstream.url, server__host="Gateway.internal") as gateway:
        rebound = {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}
        for path in ("/admin", STATE):
            refused = await look(gateway, path, rebound)
            assert (refused.status, "evil.example" in refused.json()["detail"]) == (403, True)
        assert (await gateway.client.post(DRAIN, {}, {**rebound, **CONFIRMED})).status == 403
        for known in ("gateway.internal:8000", "10.0.0.1"):
            assert (await look(gateway, STATE, {"Host": known})).status == 200


async def test_a_link_may_lead_to_the_page(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        page = await look(gateway, "/admin", {**HERE, "Sec-Fetch-Site": "cross-site"})
        assert page.status == 200


async def test_with_keys_the_key_decides(upstream: FakeUpstream) -> None:
    keys = [f"somebody={hashed(secret_of('somebody'))}"]
    headers = {
        "X-API-Key": secret_of("somebody"),
        "Host": "gateway.example",
        "Sec-Fetch-Site": "cross-site",
        "Origin": "https://app.example",
    }
    async with driven(upstream.url, access__keys=keys) as gateway:
        assert (await gateway.client.post(CREATE, {"tags": []}, headers)).status == 200
