"""Finishing a session ends what it has, and nothing else."""

import asyncio

from tests.support.asgi_client import turns
from tests.support.gateway import Driven
from tests.support.held import Held
from tests.support.routes import (
    API,
    assert_error,
    assert_json,
    finished,
)
from tests.support.upstream import FakeUpstream


async def test_finish_ends_the_session(gateway: Driven, upstream: FakeUpstream) -> None:
    done = (await gateway.submit(0)).json()["request_id"]
    assert (await gateway.poll(done).response()).status == 200
    held = Held(upstream)
    running = (await gateway.submit(1)).json()["request_id"]
    await held.running(2)
    parked = gateway.poll(running)
    await turns()

    assert_json(await finished(gateway))
    assert_error(await parked.response(), 410)
    assert_error(await gateway.poll(running).response(), 410)
    assert_error(await gateway.poll(done).response(), 410)
    assert_error(await gateway.submit(2), 404, "finished")
    assert_error(await gateway.submit(0), 404, "finished")
    heartbeat = await gateway.client.post(
        f"{API}/session_heartbeat", {"session_id": gateway.session_id}
    )
    assert_error(heartbeat, 410)
    assert_error(await gateway.client.get(f"{API}/samplers/{gateway.sampling_session_id}"), 404)
    async with asyncio.timeout(2):
        await upstream.requests[1].hung_up.wait()


async def test_finishing_again_is_fine(gateway: Driven) -> None:
    assert (await finished(gateway)).status == 200
    assert (await finished(gateway)).status == 200


async def test_finishing_a_session_never_issued_is_404(gateway: Driven) -> None:
    assert_error(await gateway.client.post(f"{API}/sessions/session-x/finish"), 404)


async def test_finish_leaves_other_sessions_alone(gateway: Driven, upstream: FakeUpstream) -> None:
    held = Held(upstream)
    other = (await gateway.submit()).json()["request_id"]
    await held.running()
    await gateway.handshake()
    await finished(gateway)
    held.release()
    assert (await gateway.poll(other).response()).status == 200
