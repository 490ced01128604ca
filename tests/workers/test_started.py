"""How several processes start, and how they refuse to."""

import fcntl
import os
import socket
import sys
from pathlib import Path

import pytest

from asgi_gateway.workers.told import slots
from tests.support.processes import environment, free_port, process
from tests.support.upstream import FakeUpstream
from tests.support.workers import SUPERVISED, ended, on, starting, workers

pytestmark = pytest.mark.servers

COMMAND = [sys.executable, "-m", "asgi_gateway"]
NOWHERE = "http://127.0.0.1:1"


async def test_one_line_says_that_all_accept(upstream: FakeUpstream) -> None:
    with workers(upstream.url, 3, server__backlog=128) as served:
        members = served.accepting()
        assert [member.slot for member in members] == [0, 1, 2]
        for member in members:
            async with on(served, member) as client:
                assert (await client.poll(await client.submit())).status == 200
        served.process.terminate()
        assert await ended(served.process) == 0
        assert served.process.stdout == f"asgi-gateway listening on {served.url}\n"
        assert served.process.stderr == ""


async def test_an_id_of_one_is_known_to_be_ours_by_the_other(upstream: FakeUpstream) -> None:
    """They have one key: 404 would end the caller's run, 410 has it submit the sample again."""
    with workers(upstream.url) as served:
        one, two = served.members()
        async with on(served, one) as client, on(served, two) as other:
            request_id = await client.submit()
            assert (await other.poll(request_id)).status == 410
            forged = request_id[:-1] + ("A" if request_id[-1] != "A" else "B")
            assert (await other.poll(forged)).status == 404


async def test_each_has_a_journal_of_its_own(upstream: FakeUpstream, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    port = free_port()
    sessions = {}
    with workers(upstream.url, port=port, state__dir=folder) as served:
        for member in served.members():
            async with on(served, member) as client:
                sessions[member.slot] = client.session_id
        served.process.terminate()
        assert await ended(served.process) == 0
    assert {path.name for path in folder.iterdir()} == {"key", "worker-0", "worker-1"}
    with workers(upstream.url, port=port, state__dir=folder) as served:
        for member in served.members():
            async with on(served, member) as client:
                body = {"session_id": sessions[member.slot]}
                assert (await client.post("/api/v1/session_heartbeat", body)).status == 200


def test_the_journals_that_were_written_last_are_gone_on_with(tmp_path: Path) -> None:
    assert slots(None, 3) == [0, 1, 2]
    assert slots(str(tmp_path / "absent"), 2) == [0, 1]
    for at, slot in enumerate((1, 0, 2)):
        journal = tmp_path / f"worker-{slot}" / "journal-000001.log"
        journal.parent.mkdir()
        journal.touch()
        os.utime(journal, (1000 + at, 1000 + at))
    (tmp_path / "worker-7").mkdir()
    (tmp_path / "worker-x").mkdir()
    assert slots(str(tmp_path), 2) == [0, 2]
    assert slots(str(tmp_path), 1) == [2]
    assert slots(str(tmp_path), 4) == [0, 1, 2, 3]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_several_without_a_store_that_they_share_are_refused(command: str) -> None:
    flags = ["--workers", "2", "--port", "0", "--upstream", NOWHERE]
    with process([*COMMAND, command, *flags]) as refused:
        assert refused.wait() == 2
        assert refused.stderr == (
            'asgi-gateway: server.workers = 2 with store.url = "memory": each process would know'
            " its own samples only; set store.url to a Valkey that they share, or server.workers"
            " to 1\n"
        )
        assert refused.stdout == ""


def test_one_is_not_refused() -> None:
    flags = ["--workers", "1", "--port", "0", "--upstream", NOWHERE]
    with process([*COMMAND, "check-config", *flags]) as checked:
        assert checked.wait() == 0, checked.story()


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with starting(NOWHERE, port=port) as refused:
            assert refused.wait() == 2
            assert refused.stderr.startswith(f"asgi-gateway: cannot listen on 127.0.0.1:{port}: ")
            assert refused.stderr.count("\n") == 1, "no worker was started"


def test_a_worker_that_cannot_start_ends_all_with_its_status(tmp_path: Path) -> None:
    """And the one that could."""
    journal = tmp_path / "worker-1"
    journal.mkdir(mode=0o700)
    with (journal / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with starting(NOWHERE, state__dir=tmp_path, server__backlog=128) as refused:
            assert refused.wait() == 2, refused.story()
            said = f"asgi-gateway: {journal} is in use by another gateway (process unknown)"
            assert said in refused.stderr
            assert refused.stdout == ""
            assert "Traceback" not in refused.stderr
            with pytest.raises(ProcessLookupError):
                os.killpg(refused.pid, 0)


NO_PROGRAM = """
import sys
from asgi_gateway.configuration import load
from asgi_gateway.workers.supervisor import supervise
settings = load({"server.port": 0, "server.workers": 2, "upstream.urls": ["http://127.0.0.1:1"]})
sys.exit(supervise(settings.settings, ["/nonexistent/python"]))
"""


def test_a_system_that_starts_no_process() -> None:
    with process([sys.executable, "-c", NO_PROGRAM]) as refused:
        assert refused.wait() == 1, refused.story()
        assert "worker 0 cannot be started: [Errno 2] No such file or directory" in refused.stderr
        assert refused.stdout == ""


def test_a_state_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with starting(NOWHERE, state__dir=tmp_path / "file" / "state") as refused:
        assert refused.wait() == 2
        assert "cannot be used" in refused.stderr


def test_no_folder_for_temporary_files(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    environ = {**environment(upstream__urls=NOWHERE), "TMPDIR": str(long)}
    with process([sys.executable, "-c", SUPERVISED, "2", "0"], environ) as refused:
        assert refused.wait() == 2
        assert "too long; set TMPDIR" in refused.stderr
    assert not list(long.iterdir())


def test_what_a_supervisor_says_is_not_for_others() -> None:
    flags = ["--port", "0", "--upstream", NOWHERE, "--as-worker", "{}"]
    with process([*COMMAND, "serve", *flags]) as refused:
        assert refused.wait() == 2
        assert refused.stderr.startswith("asgi-gateway: --as-worker is for the processes of")
