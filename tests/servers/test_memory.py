"""A gateway that the kernel allows little memory: it sheds, is not killed, and recovers."""

import asyncio

import msgspec
import pytest

from tests.support.cgroup import limited_to
from tests.support.processes import environment, process
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.wire import Remote

pytestmark = pytest.mark.servers

MIB = 1 << 20
LIMIT = 150 * MIB
TOKENS = b"1234567890," * 60_000 + b"1"  # 660 KB
AT_ONCE = 6


async def test_a_flood_of_large_prompts(upstream: FakeUpstream) -> None:
    release = asyncio.Event()

    async def held(_: Request) -> Raw:
        await release.wait()
        return answer(200, completion([1, 2], [-1.0, -2.0]))

    upstream.script = held
    with limited_to(LIMIT) as group:
        if isinstance(group, str):
            # Only a machine that lets nobody make a group has a reason.
            assert "denied" in group or "Read-only" in group or "No such file" in group, group
            pytest.skip(f"no control group can be made here: {group}")
        command = ["-m", "asgi_gateway", "serve", "--port", "0", "--upstream", upstream.url]
        settings = environment(store__max_bytes=10**10, state__dir="", upstream__max_connections=4)
        with process(group.inside(command), settings) as gateway:
            port = int(gateway.first_line().rsplit(":", 1)[1])
            remote = Remote(port)
            await remote.handshake()
            assert (await remote.metrics())["memory_limit_bytes"] == LIMIT
            chunk = {"type": "encoded_text", "tokens": msgspec.Raw(b"[" + TOKENS + b"]")}
            prompt = {"chunks": [chunk]}
            ids: list[str] = []
            refused = 0

            async def flood() -> None:
                nonlocal refused
                while refused < 24:
                    body = remote.sample(prompt=prompt)
                    try:
                        said = await remote.post("/api/v1/asample", body)
                    except (ConnectionError, asyncio.IncompleteReadError):
                        refused += 1
                        continue
                    if said.status == 200:
                        ids.append(said.json()["request_id"])
                        continue
                    assert said.status == 429, said.body
                    assert "bytes of memory are in use" in said.json()["detail"]
                    refused += 1

            await asyncio.gather(*(flood() for _ in range(AT_ONCE)))
            assert len(ids) > 10
            assert gateway.status is None, gateway.story()
            assert group.killed == 0
            assert (await remote.get("/readyz")).status == 503
            release.set()
            polls = [await remote.poll(request_id) for request_id in ids]
            # At the highest levels results are dropped; their clients submit them again.
            assert {said.status for said in polls} <= {200, 410}
            target = {"sampling_session_id": remote.sampling_session_id}
            acknowledged = {"target": target, "timeout": 0, "retrieved_request_ids": ids}
            assert (await remote.post("/api/v1/retrieve_futures", acknowledged)).status == 200
            await remote.until(lambda now: now["memory_level"] == 0)
            await remote.submit()
            assert group.killed == 0
            assert gateway.status is None
