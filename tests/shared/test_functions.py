"""What the functions promise beyond the machine's reach: bounds, time-outs, memory, torn data."""

from typing import Any

import pytest
from valkey.exceptions import OutOfMemoryError, ResponseError

from asgi_gateway.errors import Unsupported
from asgi_gateway.shared import library
from asgi_gateway.shared.groups import group_of_session, tags
from asgi_gateway.shared.outcomes import Accepted, Fenced
from asgi_gateway.shared.verbs import ADOPTED_BYTES, PER_CALL, Verbs
from asgi_gateway.store.records import Failure
from asgi_gateway.store.states import State
from tests.shared.server import LIFETIMES, Blocking, redis_server, run
from tests.store.ids import EPOCH, made_id

pytestmark = pytest.mark.system

SESSION, OTHER_EPOCH = "sampler-1", "ffffffffff"
GROUP = group_of_session(SESSION)
TAG = tags("agw")[GROUP].decode()
NOW = 1_700_000_000_000


def new_verbs(client: Any, epoch: str = EPOCH) -> Verbs:
    return Verbs(Blocking(client), LIFETIMES, epoch=epoch)


@pytest.fixture
def verbs(client: Any) -> Verbs:
    return new_verbs(client)


def accept(
    verbs: Verbs,
    seq_id: int = 0,
    *,
    now: int | None = NOW,
    nbytes: int = 40,
    body: bytes | None = None,
    digest: bytes = b"d" * 16,
) -> Accepted:
    command = verbs.accept(
        made_id(SESSION, verbs.epoch),
        now,
        sampling_session_id=SESSION,
        seq_id=seq_id,
        digest=digest,
        caller="caller",
        nbytes=nbytes,
        adoptable=None if body is None else (body, b"meta"),
    )
    return run(verbs, command)


def succeeded(
    verbs: Verbs, seq_id: int = 0, *, now: int | None = NOW, result: bytes = b"result"
) -> str:
    request_id = accept(verbs, seq_id, now=now).request_id
    assert run(verbs, verbs.succeed(request_id, now, result, start=True)).outcome == "ok"
    return request_id


def forget(verbs: Verbs, *, told: bool, accepted_by: int = NOW, limit: int = PER_CALL) -> int:
    """How many calls it took."""
    scan, calls = "", 0
    while scan or not calls:
        command = verbs.forget(
            SESSION, NOW, told=told, accepted_by=accepted_by, scan=scan, limit=limit
        )
        scan, calls = run(verbs, command).scan, calls + 1
    return calls


def found_state(verbs: Verbs, request_id: str) -> State | None:
    found = run(verbs, verbs.look(request_id, "caller", watch=False))
    return None if found is None else found.state


# --- the same sample again ----------------------------------------------------------------------


def test_a_lost_sample_is_another_processs_under_its_old_id(client: Any, verbs: Verbs) -> None:
    """Then the epoch in an id does not name its owner."""
    first = accept(verbs).request_id
    run(verbs, verbs.evict(first, NOW, told=False))
    other = new_verbs(client, OTHER_EPOCH)
    again = accept(other)
    assert (again.fresh, again.request_id) == (True, first)
    found = run(verbs, verbs.look(first, "caller", watch=False))
    assert found is not None
    assert (found.state, found.owner) == (State.QUEUED, OTHER_EPOCH)
    moved = run(verbs, verbs.start(first, NOW))
    assert (moved.outcome, moved.owner) == ("foreign", OTHER_EPOCH)
    assert run(other, other.start(first, NOW)).outcome == "ok"


def test_a_lost_sample_is_not_taken_for_another_body(verbs: Verbs) -> None:
    run(verbs, verbs.evict(accept(verbs, 2**63 - 1).request_id, NOW, told=False))
    with pytest.raises(Unsupported, match=f"seq_id {2**63 - 1} "):
        accept(verbs, 2**63 - 1, digest=b"other")


# --- bounds -------------------------------------------------------------------------------------


def test_clients_that_poll_each_sample_leave_nothing(client: Any, verbs: Verbs) -> None:
    ids = [succeeded(verbs, seq_id) for seq_id in range(20)]
    log = f"{TAG}:l:{SESSION}:0"
    assert client.zcard(log) == 20
    for number, request_id in enumerate(ids):
        assert run(verbs, verbs.look(request_id, "caller", watch=True)) is not None
        run(verbs, verbs.delivered(request_id, NOW))
        if number % 2:
            (command,) = verbs.acknowledge([request_id], "caller")
            assert run(verbs, command).freed == 1
    assert client.zcard(log) == 10
    assert run(verbs, verbs.sweep(GROUP, NOW + LIFETIMES.delivered - 1)).evicted == 0
    assert run(verbs, verbs.sweep(GROUP, NOW + LIFETIMES.delivered)).evicted == 10
    assert client.keys("*") == []


def test_who_never_comes_back_for_a_log_is_one_of_few(client: Any, verbs: Verbs) -> None:
    most = library.MAX_WATCHERS
    epochs = [f"{number:010x}" for number in range(most + 9)]
    request_id = accept(verbs).request_id
    for epoch in epochs:
        other = new_verbs(client, epoch)
        for _ in range(2):
            run(other, other.page(SESSION, 0, 0, 10, NOW, watch=True))
            run(other, other.look(request_id, "caller", watch=True))
    expected = " ".join(epochs[-most:]).encode()
    assert client.hget(f"{TAG}:b:{SESSION}", "w0") == expected
    assert client.hget(f"{TAG}:s:{request_id}", "wa") == expected


def test_the_clones_of_a_session_are_limited(client: Any, verbs: Verbs) -> None:
    for clone in range(library.MAX_CLONES):
        run(verbs, verbs.page(SESSION, clone, 0, 10, NOW, watch=False))
    with pytest.raises(Unsupported, match="4096 clones"):
        run(verbs, verbs.page(SESSION, 2**40, 0, 10, NOW, watch=False))
    run(verbs, verbs.page(SESSION, 5, 0, 10, NOW, watch=False))
    with pytest.raises(Unsupported, match="0 or more"):
        verbs.page(SESSION, -1, 0, 10, NOW, watch=False)
    forget(verbs, told=True)
    assert client.keys("*") == []


def test_a_large_session_is_forgotten_in_steps_and_what_came_later_stays(
    client: Any, verbs: Verbs
) -> None:
    for seq_id in range(700):
        if seq_id % 2:
            accept(verbs, seq_id)
        else:
            succeeded(verbs, seq_id)
    later = [accept(verbs, 700, now=NOW + 1).request_id, succeeded(verbs, 701, now=NOW + 1)]
    assert forget(verbs, told=True, limit=64) > 5
    assert {key.decode() for key in client.keys(f"{TAG}:s:*")} == {
        f"{TAG}:s:{request_id}" for request_id in later
    }
    page = run(verbs, verbs.page(SESSION, 0, 0, 10, NOW, watch=False))
    assert [entry.request_id for entry in page.entries] == [later[1]]
    counts = run(verbs, verbs.counts(GROUP))
    assert (counts.unfinished, counts.settled, counts.nbytes) == (1, 1, 40 + len(b"result"))
    forget(verbs, told=True, accepted_by=NOW + 1)
    assert client.keys("*") == []


def test_a_lapsed_session_leaves_notes(client: Any, verbs: Verbs) -> None:
    ids = [accept(verbs, 0).request_id, succeeded(verbs, 1)]
    for _ in range(2):
        forget(verbs, told=False)
        assert [found_state(verbs, request_id) for request_id in ids] == [State.GONE] * 2
    page = run(verbs, verbs.page(SESSION, 0, 0, 10, NOW, watch=False))
    assert {entry.request_id for entry in page.entries} == set(ids)
    assert run(verbs, verbs.sweep(GROUP, NOW + LIFETIMES.lost)).notes == 2
    forget(verbs, told=True)
    assert client.keys("*") == []


def test_what_is_lost_keeps_its_position(verbs: Verbs) -> None:
    ids = [succeeded(verbs, seq_id) for seq_id in range(3)]
    before = run(verbs, verbs.page(SESSION, 0, 0, 2, NOW, watch=False))
    assert run(verbs, verbs.evict(ids[1], NOW, told=False)).outcome == "ok"
    again = run(verbs, verbs.page(SESSION, 0, 0, 2, NOW, watch=False))
    assert again.cursor == before.cursor
    assert [entry.request_id for entry in again.entries] == ids[:2]
    assert [entry.nbytes for entry in again.entries] == [6, None]


def test_positions_never_come_twice(verbs: Verbs) -> None:
    """A log that was forgotten begins above what any client of it can have been given."""
    succeeded(verbs)
    first = run(verbs, verbs.page(SESSION, 0, 0, 10, NOW, watch=False))
    for seq_id in range(1, 50):
        succeeded(verbs, seq_id)
    last = run(verbs, verbs.page(SESSION, 0, first.cursor, 100, NOW, watch=False))
    forget(verbs, told=True)
    new = succeeded(verbs, 0, now=NOW + 1)
    again = run(verbs, verbs.page(SESSION, 0, last.cursor, 10, NOW + 1, watch=False))
    assert [entry.request_id for entry in again.entries] == [new]
    assert last.cursor < again.cursor < 2**53


# --- whose it is --------------------------------------------------------------------------------


def test_only_its_owner_runs_a_sample_and_anybody_may_end_it(client: Any, verbs: Verbs) -> None:
    other, heard = new_verbs(client, OTHER_EPOCH), client.pubsub()
    heard.subscribe(f"agw:to:{EPOCH}", f"agw:to:{OTHER_EPOCH}")
    ours, theirs = accept(verbs).request_id, succeeded(verbs, 1)
    for command in (
        other.start(ours, NOW),
        other.succeed(ours, NOW, b"r", start=True),
        other.fail(ours, NOW, Failure("no", "user")),
        other.evict(ours, NOW, told=False),
        other.evict(ours, NOW, told=True),
    ):
        assert run(other, command).outcome == "foreign"
    assert found_state(verbs, ours) is State.QUEUED
    assert run(other, other.cancel(ours, NOW, "another")).outcome == "missing"
    assert run(other, other.cancel(ours, NOW, "caller")).outcome == "ok"
    assert run(verbs, verbs.succeed(ours, NOW, b"r")).outcome == "late"
    assert run(other, other.evict(theirs, NOW, told=False)).outcome == "ok"
    heard.ping()
    messages = []
    while (message := heard.get_message(timeout=5))["type"] != "pong":
        if message["type"] == "message":
            messages.append((message["channel"].decode(), message["data"].decode()))
    heard.close()
    assert messages == [(f"agw:to:{EPOCH}", f"c{ours}")]


# --- a dead owner -------------------------------------------------------------------------------


def test_who_is_buried_in_steps_is_fenced_at_once(client: Any, verbs: Verbs) -> None:
    ids = [accept(verbs, seq_id).request_id for seq_id in range(10)]
    survivor = new_verbs(client, OTHER_EPOCH)
    buried = run(survivor, survivor.bury(GROUP, EPOCH, NOW, 3))
    assert (buried.left, buried.lost, buried.adopted) == (7, 3, [])
    for request_id in ids:
        with pytest.raises(Fenced):
            run(verbs, verbs.succeed(request_id, NOW, b"late", start=True))
    with pytest.raises(Fenced):
        accept(verbs, 11)
    assert run(survivor, survivor.bury(GROUP, EPOCH, NOW, 100)).left == 0
    assert {found_state(survivor, request_id) for request_id in ids} == {State.GONE}
    counts = run(survivor, survivor.counts(GROUP))
    assert (counts.unfinished, counts.lost, counts.nbytes) == (0, 10, 0)


def test_what_is_adopted_comes_with_its_body_in_bounded_replies(client: Any, verbs: Verbs) -> None:
    body = b"b" * (1 << 20)
    ids = {accept(verbs, seq_id, body=body).request_id for seq_id in range(7)}
    bare = accept(verbs, 7).request_id
    run(verbs, verbs.start(min(ids), NOW, reserve_bytes=100))
    heir = new_verbs(client, OTHER_EPOCH)
    adopted, lost, calls = [], 0, 0
    while True:
        buried = run(heir, heir.bury(GROUP, EPOCH, NOW, adopt=True))
        assert sum(len(each.body) for each in buried.adopted) <= ADOPTED_BYTES + len(body)
        adopted += buried.adopted
        lost, calls = lost + buried.lost, calls + 1
        if not buried.left:
            break
    assert calls >= 2
    assert {each.request_id for each in adopted} == ids
    assert {(each.body, each.meta, each.nbytes) for each in adopted} == {(body, b"meta", 40)}
    assert lost == 1
    assert found_state(heir, bare) is State.GONE
    assert run(heir, heir.counts(GROUP)).nbytes == 7 * 40
    for request_id in ids:
        assert run(heir, heir.succeed(request_id, NOW, b"r", start=True)).outcome == "ok"
        assert not client.hexists(f"{TAG}:s:{request_id}", "bd"), "a body is kept until it settles"


def test_a_buried_epoch_may_be_used_again_when_its_fence_is_over(verbs: Verbs) -> None:
    run(verbs, verbs.bury(GROUP, EPOCH, NOW))
    run(verbs, verbs.sweep(GROUP, NOW + LIFETIMES.fence - 1))
    with pytest.raises(Fenced):
        accept(verbs)
    run(verbs, verbs.sweep(GROUP, NOW + LIFETIMES.fence))
    assert accept(verbs).fresh


# --- time and memory ----------------------------------------------------------------------------


def test_the_servers_own_time_is_taken_where_none_is_given(client: Any, verbs: Verbs) -> None:
    request_id = succeeded(verbs, now=None)
    seconds, _ = client.time()
    found = run(verbs, verbs.look(request_id, "caller", watch=False))
    assert found is not None
    assert abs(found.accepted_ms - seconds * 1000) < 60_000
    due_at = client.zscore(f"{TAG}:x", request_id)
    assert abs(due_at - LIFETIMES.undelivered - seconds * 1000) < 60_000
    assert run(verbs, verbs.sweep(GROUP, None)).evicted == 0


def test_result_bytes_go_by_themselves_where_nobody_sweeps(client: Any, verbs: Verbs) -> None:
    request_id = succeeded(verbs)
    key = f"{TAG}:r:{request_id}"
    assert LIFETIMES.keep // 2 < client.pttl(key) <= LIFETIMES.keep
    client.pexpire(key, 1000)
    run(verbs, verbs.delivered(request_id, NOW))
    assert client.pttl(key) > LIFETIMES.keep // 2
    run(verbs, verbs.page(SESSION, 0, 0, 10, NOW, watch=False))
    assert client.pttl(f"{TAG}:b:{SESSION}") > LIFETIMES.keep // 2


def test_a_result_is_read_whole_or_in_parts(verbs: Verbs) -> None:
    result = bytes(range(256)) * 50
    request_id = succeeded(verbs, result=result)
    assert run(verbs, verbs.result(request_id)) == result
    parts = [run(verbs, verbs.result(request_id, at, 5000)) for at in range(0, 15_000, 5000)]
    assert b"".join(part or b"" for part in parts) == result
    assert run(verbs, verbs.result(made_id(SESSION))) is None


def test_a_full_server_refuses_what_grows_and_lets_go_of_the_rest() -> None:
    with redis_server("--maxmemory-policy", "noeviction") as client:
        verbs = new_verbs(client)
        done, open_ = succeeded(verbs), accept(verbs, 1).request_id
        run(verbs, verbs.start(open_, NOW))
        client.config_set("maxmemory", 1)
        with pytest.raises(OutOfMemoryError):
            accept(verbs, 2)
        with pytest.raises(OutOfMemoryError):
            run(verbs, verbs.succeed(open_, NOW, b"r" * 1000))
        assert found_state(verbs, open_) is State.RUNNING
        assert run(verbs, verbs.evict(open_, NOW, told=False)).outcome == "ok"
        page = run(verbs, verbs.page(SESSION, 0, 0, 10, NOW, watch=True))
        assert [entry.nbytes for entry in page.entries] == [6, None]
        assert run(verbs, verbs.delivered(done, NOW)) is True
        assert run(verbs, verbs.sweep(GROUP, NOW + LIFETIMES.delivered)).evicted == 1
        for command in verbs.acknowledge([done, open_], "caller"):
            assert run(verbs, command).told == 1
        forget(verbs, told=True)
        assert client.keys("*") == []


# --- torn data ----------------------------------------------------------------------------------


def test_books_heal_where_the_server_evicted_samples(client: Any, verbs: Verbs) -> None:
    settled = [succeeded(verbs, seq_id) for seq_id in range(3)]
    running = [accept(verbs, seq_id).request_id for seq_id in range(3, 6)]
    client.delete(*(f"{TAG}:s:{request_id}" for request_id in settled[:2] + running[:2]))
    assert found_state(verbs, settled[0]) is None
    for _ in range(2):
        moved = run(verbs, verbs.succeed(running[0], NOW, b"r", start=True))
        assert moved.outcome == "missing"
    assert run(verbs, verbs.counts(GROUP)).unfinished == 2
    assert accept(verbs, 0).fresh, "the index leads nowhere"
    other = new_verbs(client, OTHER_EPOCH)
    buried = run(other, other.bury(GROUP, EPOCH, NOW))
    assert (buried.left, buried.lost) == (0, 2)
    for later in (LIFETIMES.undelivered, LIFETIMES.undelivered + LIFETIMES.lost):
        run(verbs, verbs.sweep(GROUP, NOW + later))
    counts = run(verbs, verbs.counts(GROUP))
    assert (counts.unfinished, counts.settled, counts.lost, counts.nbytes) == (0, 0, 0, 0)


def test_arguments_that_are_none_change_nothing(client: Any, verbs: Verbs) -> None:
    request_id = accept(verbs).request_id
    run(verbs, verbs.start(request_id, NOW))
    before = {key: client.dump(key) for key in client.keys("*")}
    tag = TAG.encode()
    for function, args in (
        ("accept", [made_id(SESSION), EPOCH, "x", SESSION, 5, b"d", "c", 1, 0, 0]),
        ("accept", [made_id(SESSION), EPOCH, 1, SESSION, 5, b"d", "c", "x", 0, 0]),
        ("succeed", [request_id, EPOCH, 1, "2", "", "x", 1, 0, b"r", ""]),
        ("move", [request_id, EPOCH, 1, "9", "", 1, 1, 0, b"r", ""]),
        ("move", [request_id, EPOCH, 1, "", "", 1, 1, 0, "x", ""]),
        ("page", [SESSION, "0", "x", 1, "", 1, 1]),
        ("page", [SESSION, "0", 1, 1, "", 1, "x"]),
        ("delivered", [request_id, 1, "x", 1]),
        ("sweep", [1, 1, "x", 1]),
        ("bury", [EPOCH, 1, 1, "x", "", 1]),
        ("forget", [SESSION, EPOCH, 1, 1, 1, "0", 1, "x"]),
    ):
        with pytest.raises(ResponseError):
            client.execute_command("FCALL", f"{library.VERB_PREFIX}{function}", 1, tag, *args)
    assert {key: client.dump(key) for key in client.keys("*")} == before


def test_the_server_of_these_tests_refuses_keys_of_two_slots(client: Any) -> None:
    """So what passes here keeps to the rules of a cluster."""
    script = "#!lua\nredis.call('SET', KEYS[1], 1) return redis.call('SET', '{a}' .. KEYS[1], 1)"
    with pytest.raises(ResponseError, match="slot"):
        client.eval(script, 1, "{b}")


def test_a_failure_text_is_kept_even_where_it_is_no_text(verbs: Verbs) -> None:
    request_id = accept(verbs).request_id
    run(verbs, verbs.fail(request_id, NOW, Failure("bad \ud800 thing é", "user")))
    found = run(verbs, verbs.look(request_id, "caller", watch=False))
    assert found is not None
    assert found.failure == Failure("bad ? thing é", "user")
