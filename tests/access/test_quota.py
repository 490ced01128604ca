"""Each caller's own limits: at one less, at the limit, one above; and that the counts are right."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asgi_gateway.access.quota import Bucket, Limited, Quota
from asgi_gateway.caller import Caller
from tests.support.asgi_client import turns
from tests.support.held import Held, metric
from tests.support.keyed import As, Keyed, entries, keyed
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.waiting import until


def caller(**limits: Any) -> Caller:
    return Caller(name="alice", grants=frozenset({"sample"}), **limits)


# --- in flight ------------------------------------------------------------------------------------


async def test_max_in_flight(upstream: FakeUpstream, tmp_path: Path) -> None:
    held = Held(upstream)
    keys = {"alice": {"max_in_flight": 3}, "bob": {"max_in_flight": 1}, "probe": {}}
    async with keyed(upstream.url, tmp_path, keys) as gateway:
        alice, bob = gateway.caller("alice"), gateway.caller("bob")
        await alice.handshake()
        await bob.handshake()
        ids = [await alice.accepted(n) for n in range(3)]
        refused = await alice.submit(3)
        assert refused.status == 429
        assert refused.headers[b"retry-after"] == b"1"
        assert refused.json() == {
            "detail": "3 samples in flight, the limit of this API key (max_in_flight)"
        }
        assert await alice.accepted(2) == ids[2], "a repeat is no new sample"
        await bob.accepted(0)
        assert (await bob.submit(1)).status == 429
        # One less makes room for one.
        assert (await alice.post("cancel_future", {"request_id": ids[0]})).status == 200
        await alice.accepted(3)
        assert (await alice.submit(4)).status == 429
        held.release()
        for request_id in ids[1:]:
            assert (await alice.poll(request_id).response()).status == 200
        await alice.accepted(4)
        assert gateway.gateway.gateway._metrics.refusals["key_in_flight"] == 3


async def test_a_change_of_the_limit_counts_at_once(upstream: FakeUpstream, tmp_path: Path) -> None:
    """Also below what is in flight."""
    Held(upstream)
    async with keyed(upstream.url, tmp_path, {"alice": {}}) as gateway:
        alice = gateway.caller("alice")
        await alice.handshake()
        ids = [await alice.accepted(n) for n in range(3)]
        gateway.file.write_text(entries({"alice": {"max_in_flight": 2}}))
        gateway.gateway.gateway.reload_keys()
        await until(lambda: gateway.door.reloads)
        assert (await alice.submit(3)).status == 429
        for request_id in ids[:2]:
            assert (await alice.submit(3)).status == 429
            await alice.post("cancel_future", {"request_id": request_id})
        await alice.accepted(3)


# --- a second -------------------------------------------------------------------------------------


async def test_max_requests_per_s(upstream: FakeUpstream, tmp_path: Path) -> None:
    keys = {"alice": {"max_requests_per_s": 0.25, "burst": 3}, "bob": {}}
    async with keyed(upstream.url, tmp_path, keys) as gateway:
        alice, bob = gateway.caller("alice"), gateway.caller("bob")
        await alice.handshake()
        await bob.handshake()
        for n in range(3):
            await alice.accepted(n)
        refused = await alice.submit(3)
        assert refused.status == 429
        assert refused.headers[b"retry-after"] == b"4"
        text = "0.25 submits a second, the limit of this API key (max_requests_per_s)"
        assert refused.json() == {"detail": text}
        await alice.accepted(0)  # a repeat
        for n in range(9):
            await bob.accepted(n)
        gateway.gateway.clock.advance(3.99)
        assert (await alice.submit(3)).status == 429
        gateway.gateway.clock.advance(0.02)
        await alice.accepted(3)
        assert (await alice.submit(4)).status == 429


async def test_a_refusal_for_another_reason_takes_no_token(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    Held(upstream)
    keys = {"alice": {"max_requests_per_s": 0.1, "burst": 2, "max_in_flight": 1}}
    async with keyed(upstream.url, tmp_path, keys) as gateway:
        alice = gateway.caller("alice")
        await alice.handshake()
        request_id = await alice.accepted(0)
        for _ in range(3):
            assert (await alice.submit(1)).status == 429
        await alice.post("cancel_future", {"request_id": request_id})
        await alice.accepted(1)


@given(
    rate=st.floats(0.01, 1000),
    burst=st.integers(1, 50),
    waits=st.lists(st.floats(0, 20), max_size=60),
)
def test_a_bucket_never_gives_more_than_its_rate(
    rate: float, burst: int, waits: list[float]
) -> None:
    now, given_, bucket = 100.0, 0, Bucket(burst, 100.0)
    for wait in waits:
        now += wait
        wait_s = bucket.take(rate, burst, now)
        given_ += not wait_s
        assert given_ <= burst + (now - 100.0) * rate + 1e-6
        if wait_s:
            # What it says is true: then, and not much earlier.
            assert bucket.take(rate, burst, now + wait_s * 0.99 - 1e-9)
            now += wait_s
            assert not bucket.take(rate, burst, now + 1e-6)
            given_ += 1


def test_a_change_of_the_rate_keeps_what_was_taken() -> None:
    quota = Quota()
    slow, fast = (caller(max_requests_per_s=rate, burst=1) for rate in (0.1, 10.0))
    quota.check(slow, 0.0)
    with pytest.raises(Limited):
        quota.check(slow, 1.0)
    quota.forget_all_but(frozenset({"alice"}))
    quota.check(fast, 1.1)
    quota.forget_all_but(frozenset())
    quota.check(slow, 1.1)  # a key that was gone begins anew


# --- the counts -----------------------------------------------------------------------------------

OF_CLIENTS = ["submit", "submit", "submit", "again", "cancel", "finish", "acknowledge"]
OF_OTHERS = ["answer", "fault", "abort", "lapse", "pass", "overdue"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(OF_CLIENTS + OF_OTHERS),
        st.sampled_from(("alice", "bob")),
        st.integers(0, 30),
    ),
    max_size=25,
)


class Scripted:
    """Holds samples until told how each ends."""

    def __init__(self, upstream: FakeUpstream) -> None:
        upstream.script = self._script
        self.waiting: list[asyncio.Future[Raw]] = []

    async def _script(self, _: Request) -> Raw:
        ending: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self.waiting.append(ending)
        return await ending

    def end(self, raw: Raw) -> None:
        while self.waiting:
            ending = self.waiting.pop(0)
            if not ending.done():
                ending.set_result(raw)
                return


ENDINGS = {
    "answer": answer(200, completion([11, 12], [-1.0, -2.0])),
    "fault": answer(400, {"message": "no"}),
    "abort": Raw(b"", "reset"),
}


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_the_counts_are_those_of_the_store(
    tmp_path: Path, steps: list[tuple[str, str, int]]
) -> None:
    asyncio.run(counted(tmp_path, steps))


async def counted(tmp_path: Path, steps: list[tuple[str, str, int]]) -> None:
    keys = {"alice": {"max_in_flight": 4}, "bob": {}}
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(FakeUpstream().running())
        script = Scripted(upstream)
        flags = {"upstream__max_connections": 3, "session__timeout_s": 50}
        gateway = await stack.enter_async_context(keyed(upstream.url, tmp_path, keys, **flags))
        callers = {name: gateway.caller(name) for name in keys}
        ids: dict[str, list[str]] = {name: [] for name in keys}
        for one in callers.values():
            await one.handshake()
        for step, name, number in steps:
            await take(step, gateway, callers[name], number, ids[name], script)
            await turns(4)
            check(gateway)
        for _ in range(len(ENDINGS) * 10):
            script.end(ENDINGS["answer"])
            await turns(4)
            check(gateway)
    check(gateway)
    assert gateway.quota._in_flight == {}, "closing settles what is left"


async def take(
    step: str, gateway: Keyed, caller: As, number: int, ids: list[str], script: Scripted
) -> None:
    chosen = ids[number % len(ids)] if ids else "none"
    if step == "submit":
        answered = await caller.submit(number)
        if answered.status == 200:
            ids.append(answered.json()["request_id"])
    elif step == "again":
        await caller.submit(number // 4)
    elif step == "cancel":
        await caller.post("cancel_future", {"request_id": chosen})
    elif step == "acknowledge":
        target = {"type": "sampling_session", "sampling_session_id": caller.sampler}
        body = {"target": target, "retrieved_request_ids": ids, "timeout": 0}
        await caller.post("retrieve_futures", body)
    elif step == "finish":
        await caller.post(f"sessions/{caller.session_id}/finish", {"reason": {"type": "success"}})
        caller.session_id = ""
        await caller.handshake()
    elif step == "lapse":
        await gateway.gateway.advance(51)
    elif step == "pass":
        await gateway.gateway.advance(2)
    elif step == "overdue":
        for _ in range(3):
            await gateway.gateway.advance(2050)
    else:
        script.end(ENDINGS[step])


def check(gateway: Keyed) -> None:
    open_ = Counter(record.caller for record in gateway.gateway.gateway._store.unfinished())
    assert gateway.quota._in_flight == dict(open_)


async def test_samples_of_an_earlier_process_are_not_counted_until_they_come_again(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    Held(upstream)
    keys, flags = {"alice": {"max_in_flight": 2}}, {"state__dir": str(tmp_path / "state")}
    async with keyed(upstream.url, tmp_path, keys, **flags) as gateway:
        alice = gateway.caller("alice")
        await alice.handshake()
        ids = [await alice.accepted(n) for n in range(2)]
    async with keyed(upstream.url, tmp_path, keys, **flags) as gateway:
        again = gateway.caller("alice")
        again.session_id, again.sampler = alice.session_id, alice.sampler
        check(gateway)
        assert gateway.quota.in_flight("alice") == 0
        assert await again.accepted(1) == ids[1], "revived under its id"
        assert (await again.poll(ids[0]).response()).status == 410
        await again.accepted(2)
        assert (await again.submit(3)).status == 429
        check(gateway)


async def test_the_metrics_have_no_names(upstream: FakeUpstream, tmp_path: Path) -> None:
    keys = {"alice": {"scopes": ["sample", "metrics"]}}
    async with keyed(upstream.url, tmp_path, keys) as gateway:
        await gateway.caller("alice").handshake()
        text = (await gateway.caller("alice").get("/metrics")).body
        assert metric(text, "keys") == 1
        assert b"alice" not in text
