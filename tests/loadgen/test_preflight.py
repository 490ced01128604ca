"""Preflight: the arithmetic on made-up limits, the reading on a made-up tree, and this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.limits import UNLIMITED, Limits, NoSuchProcess, ServerLimits, read_limits
from loadgen.plan import Length, Plan
from loadgen.preflight import Setting, lines, memory, preflight
from loadgen.results import Check, Preflight
from loadgen.schedule import connections, in_flight, source_addresses

GIB = 1 << 30
FULL = 131_072


def plan(**fields: Any) -> Plan:
    made = Plan(scenario="full", url="http://127.0.0.1:1", samples=FULL, **fields)
    return Plan(
        **{name: getattr(made, name) for name in Plan.__struct_fields__}
        | {"source_addresses": source_addresses(made)}
    )


def limits(**fields: Any) -> Limits:
    usual = Limits(
        nofile=20_000,
        nr_open=1_048_576,
        can_raise=False,
        ports=28_232,
        somaxconn=4_096,
        memory=24 * GIB,
    )
    return usual._replace(**fields)


def find(found: Preflight, who: str, name: str) -> Check:
    (check,) = (c for c in found.checks if (c.who, c.name) == (who, name))
    return check


def test_batched_polls_fit_where_a_descriptor_per_sample_does_not() -> None:
    assert preflight(plan(), limits()).ok
    found = preflight(plan(style="future"), limits())
    short = find(found, "client", "descriptors")
    assert short.needed == connections(plan(style="future")) + 64
    assert (short.available, short.ok, short.remedy) == (20_000, False, None)
    assert found.proposal == "--processes 7"
    again = preflight(plan(style="future", processes=7, sessions=7), limits())
    assert again.ok


def test_a_server_that_is_short_gets_batched_polls_proposed() -> None:
    server = ServerLimits(pid=77, soft=1_024, hard=20_000, open_now=20)
    found = preflight(plan(style="future"), limits(server=server))
    short = find(found, "server", "descriptors")
    assert short.needed == connections(plan(style="future")) + 2_048 + 20 + 64
    assert short.remedy is None
    assert found.proposal is None, "a soft limit of 1,024 is less than the upstream alone takes"
    found = preflight(plan(style="future"), limits(server=server._replace(soft=20_000)))
    assert found.proposal == "--style futures"


def test_a_soft_limit_is_raised_by_its_owner() -> None:
    server = ServerLimits(pid=77, soft=1_024, hard=20_000, open_now=20)
    short = find(preflight(plan(), limits(server=server)), "server", "descriptors")
    assert not short.ok
    assert short.remedy == f"prlimit --pid 77 --nofile={short.needed:.0f}:20000"


def test_a_hard_limit_is_raised_by_root_and_the_kernels_limit_before_it() -> None:
    big = plan(style="future")
    needed = connections(big) + 64
    raised = find(preflight(big, limits(can_raise=True)), "client", "descriptors")
    assert raised.remedy == f"sudo prlimit --pid $$ --nofile={needed}:{needed}"
    kernel = find(preflight(big, limits(can_raise=True, nr_open=65_536)), "client", "descriptors")
    assert kernel.remedy == f"sudo sysctl -w fs.nr_open={needed} && {raised.remedy}"


def test_several_server_processes_share_the_connections() -> None:
    server = ServerLimits(pid=77, soft=20_000, hard=20_000, open_now=20)
    big = plan(style="future", processes=8, sessions=8)
    assert not preflight(big, limits(server=server), Setting(server_processes=1)).ok
    assert preflight(big, limits(server=server), Setting(server_processes=8)).ok


def test_ports_count_per_source_address() -> None:
    one = Plan(scenario="full", url="http://h:1", samples=40_000, style="future", processes=4)
    short = find(preflight(one, limits(), Setting(local=False)), "client", "ports")
    assert (short.ok, short.needed) == (False, connections(one))
    assert short.remedy == 'sudo sysctl -w net.ipv4.ip_local_port_range="1024 65534"'
    two = Plan(
        scenario="full",
        url="http://h:1",
        samples=40_000,
        style="future",
        processes=4,
        source_addresses=["10.0.0.1", "10.0.0.2"],
    )
    assert find(preflight(two, limits(), Setting(local=False)), "client", "ports").ok


def test_the_backlog_takes_what_connects_at_once() -> None:
    wide = plan(processes=16, sessions=16)
    short = find(preflight(wide, limits()), "machine", "backlog")
    assert short.needed == 16 * (400 + 64) + 16
    assert short.remedy is not None
    assert f"somaxconn={short.needed:.0f}" in short.remedy
    remote = preflight(wide, limits(), Setting(local=False))
    assert not any(check.name == "backlog" for check in remote.checks)


def test_memory_grows_with_what_is_held_and_fewer_samples_are_proposed() -> None:
    short_answers, long_answers = (plan(output_tokens=Length(low=n, high=n)) for n in (16, 8_192))
    grown = memory(long_answers, Setting()) - memory(short_answers, Setting())
    assert grown >= FULL * 8_000 * 8
    found = preflight(long_answers, limits(memory=4 * GIB))
    assert not find(found, "machine", "memory").ok
    assert found.proposal is not None
    words = found.proposal.split()
    assert words[0] == "--samples"
    fewer = Plan(
        scenario="full",
        url="http://127.0.0.1:1",
        samples=int(words[1]),
        output_tokens=Length(low=8_192, high=8_192),
    )
    assert preflight(fewer, limits(memory=4 * GIB)).ok
    assert 10_000 < fewer.samples < FULL


def test_an_open_loop_holds_what_arrives_while_a_poll_lasts() -> None:
    """Not all of an hour: a soak of 360,000 samples at 100 a second needs 4,500 connections."""
    soak = Plan(
        scenario="soak",
        url="http://127.0.0.1:1",
        samples=360_000,
        style="future",
        arrivals="poisson",
        rate=100.0,
        output_tokens=Length(low=16, high=2_048),
    )
    assert in_flight(soak) == 4_500
    found = preflight(soak, limits(memory=4 * GIB))
    assert found.ok, found
    assert find(found, "client", "descriptors").needed == 4_500 + soak.submitters + 4 + 64
    assert in_flight(msgspec.structs.replace(soak, samples=99)) == 99


def test_nothing_is_proposed_where_nothing_fits() -> None:
    found = preflight(plan(), limits(memory=1 << 20))
    assert (found.ok, found.proposal) == (False, None)
    assert lines(found)[-1] == "No plan of this kind fits here."


def tree(root: Path, **files: str) -> Path:
    usual = {
        "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "proc/sys/net/ipv4/ip_local_reserved_ports": "8080,40000-40009,60990-61010\n",
        "proc/sys/fs/nr_open": "1048576\n",
        "proc/sys/net/core/somaxconn": "4096\n",
        "proc/self/limits": "Limit  Soft  Hard  Units\nMax open files  1024  20000  files\n",
        "proc/self/status": "Name:\tx\nCapBnd:\t000001fffeffffff\n",
        "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    2048 kB\n",
        "proc/self/cgroup": "0::/a/b\n",
        "proc/7/limits": "Max open files  256  unlimited  files\n",
        "proc/7/fd/0": "",
        "proc/7/fd/1": "",
    }
    for name, text in (usual | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_limits_are_read(tmp_path: Path) -> None:
    found = read_limits(7, tree(tmp_path))
    assert found == Limits(
        nofile=20_000,
        nr_open=1_048_576,
        can_raise=False,
        ports=28_232 - 10 - 10,
        somaxconn=4_096,
        memory=2_048 * 1_024,
        server=ServerLimits(7, 256, UNLIMITED, 2),
    )


def test_a_capability_in_the_bounding_set_can_be_had(tmp_path: Path) -> None:
    root = tree(tmp_path, **{"proc/self/status": "CapBnd:\t0000000001000000\n"})
    assert read_limits(None, root).can_raise


def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/a"
    root = tree(
        tmp_path,
        **{
            f"{group}/memory.max": "1000000",
            f"{group}/memory.current": "400000",
            f"{group}/b/memory.max": "max",
            f"{group}/b/memory.current": "400000",
        },
    )
    assert read_limits(None, root).memory == 600_000


def test_control_groups_of_version_one(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory"
    root = tree(
        tmp_path,
        **{
            "proc/self/cgroup": "4:cpu,memory:/not/here\n0::/\n",
            f"{group}/memory.limit_in_bytes": "1500000",
            f"{group}/memory.usage_in_bytes": "500000",
        },
    )
    assert read_limits(None, root).memory == 1_000_000


def test_nobodys_pid_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoSuchProcess, match="--server-pid 8"):
        read_limits(8, tree(tmp_path))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadgen", "preflight", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_command_says_what_is_missing_and_exits_2() -> None:
    fits = run("-n", "8", "--submitters", "2", "--fetchers", "2", "--server-pid", str(os.getpid()))
    assert fits.stderr == ""
    assert "ok    client   descriptors" in fits.stdout
    assert "server   descriptors" in fits.stdout
    short = run("-n", "4000000", "--style", "future")
    assert short.returncode == 2
    assert "SHORT client   descriptors" in short.stdout
    assert "missing" in short.stdout
    as_json = json.loads(run("-n", "4000000", "--style", "future", "--json").stdout)
    assert as_json["ok"] is False
    assert {check["name"] for check in as_json["checks"]} >= {"descriptors", "ports", "memory"}
    nobody = run("--server-pid", "99999999")
    assert nobody.returncode == 2
    assert "--server-pid 99999999" in nobody.stderr
