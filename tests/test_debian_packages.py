"""What `make test-system` does about Debian packages that are missing."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "debian_packages.sh"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine's programs: all but valgrind, and whoever runs it is root."""
    for name in (
        "setarch",
        "chromium",
        "nginx",
        "haproxy",
        "systemd-analyze",
        "prometheus",
        "initdb",
        "redis-server",
        "redis-cli",
        "redis-sentinel",
    ):
        program(tmp_path, name, "")
    program(tmp_path, "id", "echo 0")
    for name in ("rm", "chmod"):
        program(tmp_path, name, f'exec /bin/{name} "$@"')
    return tmp_path


def program(machine: Path, name: str, text: str) -> None:
    path = machine / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run(machine: Path) -> tuple[int, str]:
    done = subprocess.run(
        ["/bin/sh", SCRIPT],
        env={"PATH": str(machine), "POLICY_RC_D": str(machine / "policy-rc.d")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_nothing_is_said_where_nothing_is_missing(machine: Path) -> None:
    program(machine, "valgrind", "")
    assert run(machine) == (0, "")


def test_who_is_not_root_is_told_what_to_install(machine: Path) -> None:
    program(machine, "id", "echo 1000")
    program(machine, "apt-get", "exit 0")
    expected = "Debian packages are missing: valgrind; as root: apt-get install valgrind\n"
    assert run(machine) == (1, expected)


def test_root_without_apt_is_told_as_well(machine: Path) -> None:
    status, said = run(machine)
    assert (status, "missing: valgrind;" in said) == (1, True)


def test_root_gets_them_installed(machine: Path) -> None:
    # Installs what its last argument names, once lists were fetched; that may fail, too.
    program(
        machine,
        "apt-get",
        f"""case "$*" in
*update) exit 100 ;;
*install*valgrind) : > {machine}/valgrind; /bin/chmod +x {machine}/valgrind ;;
*) exit 2 ;;
esac""",
    )
    assert run(machine) == (0, "installing Debian packages: valgrind\n")
    assert run(machine) == (0, "")


def test_no_server_is_started_by_an_installation(machine: Path) -> None:
    """Debian asks policy-rc.d, and 101 forbids it."""
    policy, seen = machine / "policy-rc.d", machine / "seen"
    program(machine, "apt-get", f'{policy} nginx start; echo "$?" >> {seen}')
    run(machine)
    assert set(seen.read_text().split()) == {"101"}
    assert not policy.exists()
    policy.write_text("the machine's own\n")
    run(machine)
    assert policy.read_text() == "the machine's own\n"


def test_a_failed_installation_is_told(machine: Path) -> None:
    program(machine, "apt-get", "exit 100")
    status, said = run(machine)
    assert status == 1
    assert said.endswith("apt-get could not install: valgrind\n")
