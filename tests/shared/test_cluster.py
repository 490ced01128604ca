"""Groups on the primaries of a cluster, while slots move and primaries go."""

import asyncio
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from asgi_gateway.shared.address import Server
from asgi_gateway.shared.errors import ServerError, Unreachable
from asgi_gateway.shared.refusals import pointed
from asgi_gateway.shared.slots import GROUPS, read, slot_of, slots_of_groups
from tests.shared.linked import Replies, linked, told, trouble_of
from tests.support.fake_valkey import FakeValkey, bulk, hello
from tests.support.valkey import ValkeyCluster, cluster, meet, valkey, wait_for
from tests.support.waiting import until


def key(group: int) -> str:
    return f"{{agw:{group:02x}}}:n"


def slot(group: int) -> int:
    return slots_of_groups("agw")[group]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ValkeyCluster]:
    with cluster(tmp_path) as servers:
        yield servers


@pytest.mark.system
async def test_every_group_is_asked_where_it_is(three: ValkeyCluster) -> None:
    first = three.servers[0]
    for group in (0, 1, 0x3F, 0xFF):
        assert first.run("CLUSTER", "KEYSLOT", key(group)) == str(slot(group))
    async with linked(three.url) as link:
        replies = Replies()
        for group in range(GROUPS):
            link.call(group, ["INCR", key(group)], replies.append)
        await told(replies, GROUPS)
        assert replies == [1] * GROUPS
        counts = [server.calls("incr") for server in three.servers]
        assert sum(counts) == GROUPS, "nobody was asked in vain"
        assert min(counts) > GROUPS // 6
        assert await link.ask(None, ["PING"]) == b"PONG"


@pytest.mark.system
async def test_one_host_of_the_url_is_enough(three: ValkeyCluster) -> None:
    gone = "127.0.0.1:1"
    async with linked(f"valkey+cluster://{gone},{three.servers[2].name}") as link:
        for group in range(0, GROUPS, 16):
            assert await link.ask(group, ["INCR", key(group)]) == 1


@pytest.mark.system
async def test_a_slot_that_moved_is_followed_and_remembered(three: ValkeyCluster) -> None:
    async with linked(three.url) as link:
        group = 5
        old = three.owner(slot(group))
        new = next(server for server in three.servers if server is not old)
        three.move(slot(group), new)
        replies = Replies()
        for _ in range(100):
            link.call(group, ["INCR", key(group)], replies.append)
        await told(replies, 100)
        assert replies == list(range(1, 101))
        assert new.calls("incr") == 100
        assert await link.ask(group, ["INCR", key(group)]) == 101
        assert old.rejected("incr") == 100, "only what was on its way was refused"


@pytest.mark.system
async def test_keys_of_no_group_are_followed_and_leave_the_map_alone(three: ValkeyCluster) -> None:
    async with linked(three.url) as link:
        asked = [server.calls("cluster|slots") for server in three.servers]
        for number in range(30):
            assert await link.ask(None, ["SET", f"lease:{number}", "1"]) == b"OK"
        assert sum(server.calls("set") for server in three.servers) == 30
        assert min(server.calls("set") for server in three.servers) > 0
        assert asked == [server.calls("cluster|slots") for server in three.servers]


@pytest.mark.system
async def test_a_slot_on_its_way_is_followed_command_by_command(three: ValkeyCluster) -> None:
    """Keys that are gone already are asked for at their new place, the others at the old one."""
    async with linked(three.url) as link:
        group = 5
        old = three.owner(slot(group))
        new = next(server for server in three.servers if server is not old)
        stays, goes = key(group) + "1", key(group) + "2"
        for name in (stays, goes):
            await link.ask(group, ["SET", name, "7"])
        number = str(slot(group))
        assert new.run("CLUSTER", "SETSLOT", number, "IMPORTING", three.id(old)) == "OK"
        assert old.run("CLUSTER", "SETSLOT", number, "MIGRATING", three.id(new)) == "OK"
        assert old.run("MIGRATE", "127.0.0.1", str(new.port), goes, "0", "5000") == "OK"
        replies = Replies()
        for _ in range(20):
            link.call(group, ["INCR", stays], replies.append)
            link.call(group, ["INCR", goes], replies.append)
        await told(replies, 40)
        assert sorted(replies) == sorted([*range(8, 28), *range(8, 28)])
        assert (old.calls("incr"), new.calls("incr")) == (20, 20)
        # Both in one command: neither place has them until the slot has moved.
        both = asyncio.ensure_future(link.ask(group, ["MGET", stays, goes]))
        await asyncio.sleep(0.2)
        assert not both.done()
        assert old.run("MIGRATE", "127.0.0.1", str(new.port), stays, "0", "5000") == "OK"
        three.move(slot(group), new)
        assert await both == [b"27", b"27"]
        assert link.up


@pytest.mark.system
async def test_slots_that_move_under_load_lose_and_double_nothing(three: ValkeyCluster) -> None:
    async with linked(three.url, timeout_s=10.0) as link:
        replies = Replies()
        counted = [0] * GROUPS
        for round_ in range(12):
            for group in range(GROUPS):
                link.call(group, ["INCR", key(group)], replies.append)
                counted[group] += 1
            if round_ % 3 == 1:
                moved = round_ * 7
                target = three.servers[round_ % 3]
                number = str(slot(moved))
                owner = next(s for s in three.servers if s.run("EXISTS", key(moved)) == "1")
                if owner is not target:
                    target.run("CLUSTER", "SETSLOT", number, "IMPORTING", three.id(owner))
                    owner.run("CLUSTER", "SETSLOT", number, "MIGRATING", three.id(target))
                    owner.run("MIGRATE", "127.0.0.1", str(target.port), key(moved), "0", "5000")
                    three.move(slot(moved), target)
            await asyncio.sleep(0.01)
        await told(replies, sum(counted), 15.0)
        assert set(replies.kinds) == {"int"}
        for group in range(GROUPS):
            assert await link.ask(group, ["GET", key(group)]) == str(counted[group]).encode()


@pytest.mark.system
async def test_a_primary_that_is_killed_is_replaced(three: ValkeyCluster, tmp_path: Path) -> None:
    first = three.servers[0]
    options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]
    with valkey(tmp_path, *options) as replica:
        meet(first, replica)
        wait_for(
            lambda: all(
                "cluster_known_nodes:4" in server.run("CLUSTER", "INFO")
                for server in (*three.servers, replica)
            ),
            "fourth member",
        )
        assert replica.run("CLUSTER", "REPLICATE", three.id(first)) == "OK"
        linked_up = functools.partial(replica.says, "link_status:up", "INFO", "replication")
        replica.process.wait_for(linked_up, "link to its primary")
        group = next(group for group in range(GROUPS) if three.owner(slot(group)) is first)
        other = next(group for group in range(GROUPS) if three.owner(slot(group)) is not first)
        async with linked(three.url, timeout_s=20.0) as link:
            assert await link.ask(group, ["INCR", key(group)]) == 1
            assert first.run("WAIT", "1", "5000") == "1"
            first.kill()
            await until(lambda: not link.up)
            asked = asyncio.ensure_future(link.ask(group, ["INCR", key(group)]))
            # The others' groups go on as long as the cluster lets them.
            assert await link.ask(other, ["PING"]) == b"PONG"
            assert await asked == 2
            assert replica.run("-c", "GET", key(group)) == "2"
            await until(lambda: link.up, 10.0)


@pytest.mark.system
async def test_a_cluster_without_all_slots_is_not_up(three: ValkeyCluster) -> None:
    group = 5
    for server in three.servers:
        server.run("CONFIG", "SET", "cluster-require-full-coverage", "no")
        server.run("CLUSTER", "DELSLOTS", str(slot(group)))
    async with linked(three.url, up=False, timeout_s=10.0) as link:
        assert await link.ask(6, ["INCR", key(6)]) == 1
        assert not link.up
        assert "slots that no server serves" in link.trouble
        asked = asyncio.ensure_future(link.ask(group, ["INCR", key(group)]))
        await asyncio.sleep(0.1)
        assert not asked.done()
        three.servers[0].run("CLUSTER", "ADDSLOTS", str(slot(group)))
        assert await asked == 1
        await until(lambda: link.up)


@pytest.mark.system
async def test_a_server_by_itself_is_no_cluster_and_the_reverse(
    three: ValkeyCluster, tmp_path: Path
) -> None:
    with valkey(tmp_path) as server:
        assert "is not a member of a cluster" in await trouble_of(
            server.url.replace("valkey", "valkey+cluster")
        )
    assert "is not a server by itself" in await trouble_of(three.servers[0].url)


@pytest.mark.parametrize("prefix", ["agw", "other", "ü"])
def test_groups_are_spread_over_the_slots(prefix: str) -> None:
    slots = slots_of_groups(prefix)
    assert len(set(slots)) > 240
    for third in range(3):
        inside = [slot for slot in slots if third * 5462 <= slot < (third + 1) * 5462]
        assert 50 < len(inside) < 120


def test_slots_are_those_of_the_specification() -> None:
    assert slot_of(b"123456789") == 0x31C3
    assert slot_of(b"") == 0


# --- what servers say ----------------------------------------------------------------------------

ASKED = Server("asked", 7)


def test_a_map_is_read() -> None:
    ranges = [
        [0, 5, [b"a", 1, b"id", []], [b"replica", 2, b"id"]],
        [6, 6, [b"", 2, b"id"]],
        [7, 8, [None, 3]],
        [9, 16383, [b"?", 4]],
    ]
    slots = read(ranges, ASKED)
    found = [slots.server(slot) for slot in (0, 5, 6, 8, 9)]
    assert found == [Server("a", 1), Server("a", 1), Server("asked", 2), Server("asked", 3), None]


@pytest.mark.parametrize(
    "reply",
    [
        b"OK",
        None,
        7,
        [7],
        [[0]],
        [[0, 1]],
        [[0, 1, []]],
        [[0, 1, [b"h"]]],
        [[0, 1, [b"h", b"1"]]],
        [[0, 1, [b"h", 0]]],
        [[0, 1, [b"h", 65536]]],
        [[1, 0, [b"h", 1]]],
        [[0, 16384, [b"h", 1]]],
        [[-1, 5, [b"h", 1]]],
        [[b"0", b"1", [b"h", 1]]],
        [[0, 1, [7, 1]]],
    ],
)
def test_a_map_of_another_form_is_refused(reply: object) -> None:
    with pytest.raises(Unreachable, match="cannot be read"):
        read(reply, ASKED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MOVED 3 h:1", (3, Server("h", 1))),
        ("MOVED 3 ::1:7000", (3, Server("::1", 7000))),
        ("ASK 16383 :5", (16383, Server("asked", 5))),
        ("MOVED 16384 h:1", None),
        ("MOVED 3 h:0", None),
        ("MOVED 3 h", None),
        ("MOVED x h:1", None),
        ("MOVED", None),
        ("MOVED 3 h:65536", None),
        ("MOVED \u0663 h:1", None),
    ],
)
def test_where_a_server_points(text: str, expected: object) -> None:
    assert pointed(ServerError(text), ASKED) == expected


def one_for_all(port: int) -> bytes:
    return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n" + bulk("127.0.0.1") + b":%d\r\n" % port


async def test_servers_that_point_at_each_other_for_ever_are_no_endless_work() -> None:
    async with FakeValkey().running() as one, FakeValkey().running() as other:
        for here, there in ((one, other), (other, one)):
            here.answers["HELLO"] = hello(mode="cluster")
            here.answers["CLUSTER"] = one_for_all(one.port)
            here.answers["GET"] = b"-MOVED 5 127.0.0.1:%d\r\n" % there.port
        async with linked(f"valkey+cluster://{one.name}", timeout_s=0.5) as link:
            replies = Replies()
            link.call(0, ["GET", "x"], replies.append)
            await told(replies, 1)
            assert replies.kinds == ["NotSent"]
            assert "MOVED" in str(replies[0])
            tries = [c for c in one.commands + other.commands if c[0] == b"GET"]
            assert 5 < len(tries) < 200


async def test_a_server_that_points_nowhere_costs_the_timeout() -> None:
    async with FakeValkey().running() as fake:
        fake.answers["HELLO"] = hello(mode="cluster")
        fake.answers["CLUSTER"] = one_for_all(fake.port)
        fake.answers["GET"] = b"-MOVED 99999 nowhere\r\n"
        async with linked(f"valkey+cluster://{fake.name}", timeout_s=0.5) as link:
            replies = Replies()
            link.call(0, ["GET", "x"], replies.append)
            await told(replies, 1)
            assert replies.kinds == ["NotSent"]


async def test_a_replica_that_the_map_calls_a_primary_is_not_used() -> None:
    async with FakeValkey().running() as fake:
        fake.answers["HELLO"] = hello(mode="cluster", role="replica")
        fake.answers["CLUSTER"] = one_for_all(fake.port)
        async with linked(f"valkey+cluster://{fake.name}", up=False) as link:
            await until(lambda: "is a replica" in link.trouble)
            assert not link.up
            fake.answers["HELLO"] = hello(mode="cluster")
            await until(lambda: link.up)


async def test_servers_named_without_end_are_not_all_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asgi_gateway.shared.cluster.MAX_NODES", 8)
    async with FakeValkey().running() as fake:
        ports = iter(range(20_000, 60_000))
        fake.answers["HELLO"] = hello(mode="cluster")
        fake.answers["CLUSTER"] = one_for_all(fake.port)
        fake.answers["GET"] = lambda _: b"-ASK 5 127.0.0.1:%d\r\n" % next(ports)
        async with linked(f"valkey+cluster://{fake.name}", timeout_s=0.5) as link:
            replies = Replies()
            for _ in range(50):
                link.call(0, ["GET", "x"], replies.append)
            await told(replies, 50)
            assert set(replies.kinds) == {"NotSent"}
            assert len(link._servers._nodes) <= 8  # type: ignore[union-attr]
