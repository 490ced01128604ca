"""The link before Debian's redis-server: logins, TLS, sockets, and what becomes of one."""

import asyncio
import time
from pathlib import Path

import pytest

from asgi_gateway.shared.errors import ServerError, Unanswered
from tests.shared.linked import Replies, linked, told, trouble_of
from tests.support.certificate import self_signed
from tests.support.processes import free_port
from tests.support.valkey import replica_of, valkey
from tests.support.waiting import until

pytestmark = pytest.mark.system

SECRET = "s3cret-word"
# At least half a second, in which clients are heard.
KEYS = 5000
SLOW_LOADING = ("--key-load-delay", "100", "--loading-process-events-interval-bytes", "1024")


async def test_commands_and_their_replies_keep_their_order(tmp_path: Path) -> None:
    with valkey(tmp_path) as server:
        async with linked(server.url) as link:
            replies = Replies()
            for number in range(5000):
                link.call(number % 256, ["ECHO", number], replies.append)
            link.call(None, ["LPOP", "nothing"], replies.append)
            await told(replies, 5001)
            assert replies == [*(str(number).encode() for number in range(5000)), None]
            assert server.clients("asgi-gateway") == 1


async def test_large_and_binary_values(tmp_path: Path) -> None:
    value = bytes(range(256)) * 40_000
    with valkey(tmp_path) as server:
        async with linked(server.url, timeout_s=10.0) as link:
            assert await link.ask(0, ["SET", b"\0\r\n", value]) == b"OK"
            assert await link.ask(0, ["STRLEN", b"\0\r\n"]) == len(value)
            assert await link.ask(0, ["GET", b"\0\r\n"]) == value


async def test_the_database_of_the_url_is_used(tmp_path: Path) -> None:
    with valkey(tmp_path) as server:
        async with linked(f"{server.url}/3") as link:
            await link.ask(0, ["SET", "x", "1"])
            assert server.run("-n", "3", "GET", "x") == "1"
            assert server.run("GET", "x") == ""
        assert "DB index is out of range" in await trouble_of(f"{server.url}/99")


async def test_passwords(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with valkey(tmp_path) as server:
        server.run("ACL", "SETUSER", "gateway", "on", f">{SECRET}", "~*", "&*", "+@all")
        server.run("CONFIG", "SET", "requirepass", SECRET + "2")
        at = f"127.0.0.1:{server.port}"
        for good in (f"valkey://:{SECRET}2@{at}", f"valkey://gateway:{SECRET}@{at}"):
            async with linked(good) as link:
                assert await link.ask(0, ["PING"]) == b"PONG"
        troubles = [await trouble_of(f"valkey://gateway:{SECRET}x@{at}")]
        troubles += [await trouble_of(f"valkey://{at}")]
        assert "WRONGPASS" in troubles[0]
        assert "NOAUTH" in troubles[1]
        assert SECRET not in "".join(troubles) + caplog.text


async def test_a_password_that_is_set_right_later_is_enough(tmp_path: Path) -> None:
    with valkey(tmp_path) as server:
        server.run("CONFIG", "SET", "requirepass", "another")
        server.password = "another"
        async with linked(f"valkey://:{SECRET}@{server.name}", up=False, timeout_s=5.0) as link:
            await until(lambda: "WRONGPASS" in link.trouble)
            server.run("CONFIG", "SET", "requirepass", SECRET)
            assert await link.ask(0, ["PING"]) == b"PONG"


async def test_unix_sockets(tmp_path: Path) -> None:
    path = tmp_path / "v.sock"
    with valkey(tmp_path, "--unixsocket", str(path)) as server:
        async with linked(f"unix://{path}?db=2") as link:
            assert await link.ask(0, ["SET", "x", "1"]) == b"OK"
            assert server.run("-n", "2", "GET", "x") == "1"
        assert "No such file" in await trouble_of(f"unix://{path}.gone")


async def test_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "localhost")
    port = free_port()
    options = ["--tls-port", str(port), "--tls-auth-clients", "optional"]
    options += ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    options += ["--tls-ca-cert-file", str(certificate)]
    with valkey(tmp_path, *options) as server:
        trusted = f"ssl_ca_certs={certificate}"
        url = f"valkeys://localhost:{port}?{trusted}"
        async with linked(url, timeout_s=5.0) as link:
            value = b"x" * 3_000_000
            assert await link.ask(0, ["SET", "x", value]) == b"OK"
            assert await link.ask(0, ["GET", "x"]) == value
        assert "CERTIFICATE_VERIFY_FAILED" in await trouble_of(f"valkeys://localhost:{port}")
        wrong_name = f"valkeys://127.0.0.1:{port}?{trusted}"
        assert "IP address mismatch" in await trouble_of(wrong_name)
        async with linked(f"{wrong_name}&ssl_check_hostname=false", timeout_s=5.0) as link:
            assert await link.ask(0, ["PING"]) == b"PONG"
        # A port without TLS.
        assert await trouble_of(f"valkeys://localhost:{server.port}?{trusted}")
        # A client's own certificate.
        server.run("CONFIG", "SET", "tls-auth-clients", "yes")
        assert await trouble_of(url)
        with_its_own = f"{url}&ssl_certfile={certificate}&ssl_keyfile={key}"
        async with linked(with_its_own, timeout_s=5.0) as link:
            assert await link.ask(0, ["PING"]) == b"PONG"


async def test_a_server_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    with valkey(tmp_path) as server:
        async with linked(server.url, timeout_s=10.0) as link:
            replies = Replies()
            with server.frozen():
                for _ in range(1000):
                    link.call(0, ["INCR", "x"], replies.append)
                await asyncio.sleep(0.05)  # they are sent
                assert replies == []
            # What the thawed server answers before it is killed are replies.
            server.kill()
            await told(replies, 1000)
            assert set(replies.kinds) <= {"int", "Unanswered"}
            assert not link.up
            asked = asyncio.ensure_future(link.ask(0, ["INCR", "y"]))
            await asyncio.sleep(0.1)
            server.start()
            assert await asked == 1
            assert link.up


async def test_a_server_killed_while_commands_are_in_flight(tmp_path: Path) -> None:
    """Each ends in exactly one way; those that were answered were done, in order."""
    with valkey(tmp_path) as server:
        async with linked(server.url, timeout_s=10.0) as link:
            replies = Replies()
            called = 0
            while len(replies) < 500:
                for _ in range(50):
                    link.call(0, ["INCR", "x"], replies.append)
                    called += 1
                await asyncio.sleep(0)
            for _ in range(2000):
                link.call(0, ["INCR", "x"], replies.append)
                called += 1
            await asyncio.sleep(0)
            server.kill()
            await told(replies, called)
            assert len(replies) == called
            numbers = [reply for reply in replies if isinstance(reply, int)]
            assert numbers == list(range(1, len(numbers) + 1))
            lost = [reply for reply in replies if not isinstance(reply, int)]
            assert {type(reply) for reply in lost} <= {Unanswered}
            server.start()
            await until(lambda: link.up, 10.0)


async def test_a_frozen_server_ends_commands_after_the_timeout(tmp_path: Path) -> None:
    with valkey(tmp_path) as server:
        async with linked(server.url) as link:
            with server.frozen():
                began = time.monotonic()
                with pytest.raises(Unanswered):
                    await link.ask(0, ["INCR", "x"])
                assert 1.0 <= time.monotonic() - began < 2.5
                assert not link.up
                replies = Replies()
                link.call(0, ["INCR", "x"], replies.append)
                await told(replies, 1)
                assert replies.kinds == ["NotSent"]
            # What was unanswered may have been done: it was. What was not sent was not.
            assert await link.ask(0, ["GET", "x"]) == b"1"


async def test_a_slow_command_holds_others_and_no_longer(tmp_path: Path) -> None:
    with valkey(tmp_path) as server:
        async with linked(server.url, timeout_s=3.0) as link:
            replies = Replies()
            link.call(0, ["DEBUG", "SLEEP", "1"], replies.append)
            link.call(0, ["GET", "x"], replies.append)
            assert await told(replies, 2) == [b"OK", None]


async def test_a_function_that_runs_too_long_is_waited_for(tmp_path: Path) -> None:
    """BUSY: nothing was done, so it is tried again until the function has ended."""
    loop = "local n = redis.call('TIME'); repeat local t = redis.call('TIME') until t[1] - n[1] > 1"
    with valkey(tmp_path, "--busy-reply-threshold", "50") as server:
        async with linked(server.url, timeout_s=8.0) as link, linked(server.url) as other:
            replies = Replies()
            other.call(0, ["EVAL", loop, "0"], replies.append)
            await asyncio.sleep(0.3)
            assert "BUSY" in server.run("GET", "x")
            assert await link.ask(0, ["INCR", "x"]) == 1
            assert server.run("GET", "x") == "1"
            await until(lambda: len(replies) == 1)


async def test_a_server_that_reads_its_data_from_disk_is_waited_for(tmp_path: Path) -> None:
    with valkey(tmp_path) as server:
        server.run("DEBUG", "POPULATE", str(KEYS), "key", "100")
        server.run("SAVE")
        server.kill()
        server.options = SLOW_LOADING
        server.launch()
        async with linked(server.url, up=False, timeout_s=20.0) as link:
            await until(lambda: "LOADING" in link.trouble, 10.0)
            assert not link.up
            assert await link.ask(0, ["DBSIZE"]) == KEYS


async def test_loading_in_the_middle_is_waited_for(tmp_path: Path) -> None:
    """A server told to load again refuses with LOADING on connections that stand."""
    with valkey(tmp_path) as server:
        server.run("DEBUG", "POPULATE", str(KEYS), "key", "100")
        server.run("CONFIG", "SET", "key-load-delay", "100")
        server.run("CONFIG", "SET", "loading-process-events-interval-bytes", "1024")
        async with linked(server.url, timeout_s=20.0) as link:
            reload = asyncio.create_task(asyncio.to_thread(server.run, "DEBUG", "RELOAD"))
            await until(lambda: server.says("LOADING", "GET", "x"), 10.0)
            assert await link.ask(0, ["DBSIZE"]) == KEYS
            assert await reload == "OK"
            assert server.rejected("dbsize") >= 2


async def test_a_full_server_is_told_apart(tmp_path: Path) -> None:
    with valkey(tmp_path, "--maxmemory", "2mb", "--maxmemory-policy", "noeviction") as server:
        async with linked(server.url) as link:
            replies = Replies()
            for number in range(100):
                link.call(0, ["SET", str(number), b"x" * 100_000], replies.append)
            await told(replies, 100)
            refused = replies[-1]
            assert isinstance(refused, ServerError)
            assert refused.code == "OOM"
            assert link.up


async def test_a_replica_is_not_used(tmp_path: Path) -> None:
    with valkey(tmp_path) as primary, replica_of(primary, tmp_path) as replica:
        assert "is a replica" in await trouble_of(replica.url)


async def test_a_server_that_becomes_a_replica_is_left(tmp_path: Path) -> None:
    """What it refused is done when it is a primary again; nothing is told to have failed."""
    with valkey(tmp_path) as primary, valkey(tmp_path) as server:
        async with linked(server.url, timeout_s=10.0) as link:
            # Without the kick of clients that a change of role may bring.
            server.run("REPLICAOF", "127.0.0.1", str(primary.port))
            replies = Replies()
            for _ in range(100):
                link.call(0, ["INCR", "x"], replies.append)
            await until(lambda: "replica" in link.trouble)
            assert not link.up
            assert replies == []
            server.run("REPLICAOF", "NO", "ONE")
            await told(replies, 100)
            assert replies == list(range(1, 101))


async def test_a_client_that_the_server_ends_comes_back(tmp_path: Path) -> None:
    with valkey(tmp_path) as server:
        async with linked(server.url) as link:
            assert server.run("CLIENT", "KILL", "TYPE", "normal") != "0"
            await until(lambda: not link.up)
            assert await link.ask(0, ["PING"]) == b"PONG"
