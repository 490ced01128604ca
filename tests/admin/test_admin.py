"""What the status page is told, and its two actions."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from asgi_gateway.admin import overview
from asgi_gateway.standalone import Standalone
from tests.support.asgi_client import AsgiClient, Response
from tests.support.clock import ManualClock
from tests.support.gateway import Driven, driven, settings
from tests.support.held import Held
from tests.support.upstream import FakeUpstream, Raw, Request, answer
from tests.support.waiting import until

CONFIRMED = {"X-Admin-Action": "confirmed"}


async def state(gateway: Driven) -> dict[str, Any]:
    answered = await gateway.client.get("/admin/state")
    assert answered.status == 200
    told: dict[str, Any] = answered.json()
    return told


async def test_it_says_where_samples_are_and_who_holds_them(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with driven(upstream.url, upstream__max_connections=2) as gateway:
        await gateway.handshake()
        ids = [(await gateway.submit(n)).json()["request_id"] for n in range(5)]
        await held.running(2)
        told = await state(gateway)
        assert told["samples"] == {"queued": 3, "running": 2, "undelivered": 0, "held": 5}
        (holder,) = told["holders"]
        assert holder["sampling_session_id"] == gateway.sampling_session_id
        assert (holder["caller"], holder["model"]) == ("default", "stand-in")
        assert (holder["queued"], holder["running"], holder["succeeded"]) == (3, 2, 0)
        assert holder["bytes"] == gateway.gateway._store.charged_bytes
        (there,) = told["upstreams"]
        assert there == {
            "name": upstream.url.removeprefix("http://"),
            "state": "up",
            "in_flight": 2,
            "draining": False,
        }
        held.release()
        for request_id in ids:
            assert (await gateway.poll(request_id).response()).status == 200
        await gateway.advance(2)
        told = await state(gateway)
        assert told["outcomes"]["succeeded"] == 5
        assert told["samples"] == {"queued": 0, "running": 0, "undelivered": 0, "held": 5}
        timing = told["timings"]["accept to settlement"]
        assert sum(timing["counts"]) == 5
        assert len(timing["counts"]) == len(told["bounds_s"]) + 1
        assert (told["ready"], told["reasons"], told["draining"]) == (True, [], False)


async def test_recent_failures_have_our_words_only(upstream: FakeUpstream) -> None:
    async def refuse(_: Request) -> Raw:
        return answer(400, {"error": {"message": "the prompt 'canary' is bad"}})

    upstream.script = refuse
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        ids = [(await gateway.submit(n)).json()["request_id"] for n in range(60)]
        await until(lambda: not gateway.gateway._store.in_flight)
        told = await state(gateway)
        assert [one["request_id"] for one in told["recent"]] == ids[:-51:-1]
        one = told["recent"][0]
        assert (one["outcome"], one["category"]) == ("failed", "user")
        assert one["error"] == "the upstream answered 400"
        assert one["time"] == pytest.approx(gateway.clock.wall_time(), abs=1)


async def test_nothing_secret_is_shown(upstream: FakeUpstream) -> None:
    url = upstream.url.replace("http://", "http://user:c@canary@") + "/?token=canary"
    async with driven(url, id_key="canary of the ids") as gateway:
        answered = await gateway.client.get("/admin/state")
        assert b"canary" not in answered.body
        shown = {one["path"]: one["value"] for one in answered.json()["settings"]}
        assert shown["id_key"] == "(hidden)"
        assert shown["upstream.max_connections"] == "2048"
        changed = [one["path"] for one in answered.json()["settings"] if not one["is_default"]]
        assert changed == ["upstream.urls", "id_key"]


async def test_those_who_look_within_a_second_share_one_look(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "RECORDS_PER_SLICE", 2)
    Held(upstream)
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        for number in range(7):
            await gateway.submit(number)
        several = await asyncio.gather(*(gateway.client.get("/admin/state") for _ in range(5)))
        assert len({one.body for one in several}) == 1
        (holder,) = several[0].json()["holders"]
        assert holder["queued"] + holder["running"] == 7
        await gateway.submit(7)
        assert (await gateway.client.get("/admin/state")).body == several[0].body
        await gateway.advance(1)
        assert (await state(gateway))["samples"]["held"] == 8


async def test_the_page_runs_and_loads_nothing_but_itself(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        page = await gateway.client.get("/admin")
        assert page.headers[b"content-type"] == b"text/html; charset=utf-8"
        policy = page.headers[b"content-security-policy"].decode()
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "frame-ancestors 'none'" in policy
        text = page.body.decode()
        assert "http" not in text.replace("http-equiv", "")
        assert "innerHTML" not in text


# --- actions --------------------------------------------------------------------------------------


async def act(gateway: Driven, path: str, body: object, **headers: str) -> Response:
    return await gateway.client.post(path, body, {**CONFIRMED, **headers})


async def test_an_upstream_is_drained_and_taken_back_by_its_name(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        name = (await state(gateway))["upstreams"][0]["name"]
        done = await act(gateway, "/admin/upstream", {"upstream": name, "draining": True})
        assert done.status == 200
        await gateway.advance(1)
        told = await state(gateway)
        assert told["upstreams"][0]["state"] == "draining"
        assert not told["ready"]
        assert (await gateway.submit()).status == 429
        await act(gateway, "/admin/upstream", {"upstream": name, "draining": False})
        assert (await gateway.submit()).status == 200
        unknown = await act(gateway, "/admin/upstream", {"upstream": "x", "draining": True})
        assert (unknown.status, name in unknown.json()["detail"]) == (404, True)


@pytest.mark.parametrize("value", [None, "yes"])
async def test_a_visited_page_cannot_act(upstream: FakeUpstream, value: str | None) -> None:
    """Without a key nothing but this header tells our page from any other."""
    headers = {"X-Admin-Action": value} if value is not None else {}
    async with driven(upstream.url) as gateway:
        name = (await state(gateway))["upstreams"][0]["name"]
        for path, body in (
            ("/admin/upstream", {"upstream": name, "draining": True}),
            ("/admin/drain", {}),
        ):
            refused = await gateway.client.post(path, body, headers)
            assert (refused.status, "x-admin-action" in refused.json()["detail"]) == (400, True)
        assert not gateway.gateway.fleet.upstreams[0].draining


async def test_an_embedded_gateway_ends_no_process(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        refused = await act(gateway, "/admin/drain", {})
        assert refused.status == 422
        assert "host" in refused.json()["detail"]


async def test_a_drain_is_a_sigterm_once(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent: list[int] = []
    gateway = Standalone(settings(upstream.url), clock=ManualClock(), signals=False)
    monkeypatch.setattr("os.kill", lambda _, number: sent.append(number))
    async with gateway.running():
        client = AsgiClient(gateway)
        assert (await client.post("/admin/drain", {}, CONFIRMED)).status == 200
        assert sent == [signal.SIGTERM]
        gateway.drain(lambda: None)
        assert (await client.post("/admin/drain", {}, CONFIRMED)).status == 200
        assert sent == [signal.SIGTERM]
        assert (await client.get("/admin/state")).json()["draining"]
