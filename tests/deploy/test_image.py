"""The Containerfile's own commands, run here, and what they install, run as the image runs it.

There is no container runtime: paths of the image are moved below a folder, and what the runtime
would add is made by hand: a root file system that is read-only, a user without rights.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Process, environment, process
from tests.support.shipped import (
    Instruction,
    compose,
    image_environment,
    only,
    sent_to_the_build,
    stages,
)
from tests.support.wire import Remote

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

USER = 10001
# `path` and all above it read-only, but for one folder; then somebody else without any right.
AS_IN_A_CONTAINER = """
set -e
mount --bind "$STATE" "$STATE"
mount -o remount,bind,ro /
mount | awk '$3 == "/tmp" || $3 == "/var" || $3 == "/home" {print $3}' | while read -r other; do
    mount -o remount,bind,ro "$other"
done
! touch "$STATE/../written" 2>/dev/null
exec setpriv --reuid USER --regid USER --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all "$@"
""".replace("USER", str(USER))


class Image:
    """A folder in place of the image's root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def moved(self, text: str) -> str:
        """The image's paths below the folder."""
        return re.sub(r"(?<![\w./])/(app|build|state)\b", rf"{self.root}/\1", text)

    def command(self, words: list[str]) -> list[str]:
        return [self.moved(word) for word in words]

    def build(self) -> None:
        """COPY and RUN of the first stage, in order."""
        source = self.root / "src"
        programs = self.root / "programs"
        for folder in (source, programs):
            folder.mkdir()
        for name, call in (("python", ""), ("pip", "-m pip ")):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {call}"$@"\n')
            (programs / name).chmod(0o755)
        environ = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        for step in stages()[0]:
            if step.name == "COPY":
                copy(step, source)
            elif step.name == "RUN":
                done = subprocess.run(
                    ["/bin/sh", "-c", self.moved(step.rest)],
                    cwd=source,
                    env=environ,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=300,
                )
                assert done.returncode == 0, f"{step.rest}\n{done.stdout}\n{done.stderr}"


def copy(step: Instruction, target: Path) -> None:
    *sources, below = step.words
    for source in sources:
        path = ROOT / source
        if path.is_file():
            shutil.copy(path, target / below)
        else:
            shutil.copytree(
                path,
                target / below,
                ignore=lambda folder, names: [
                    n
                    for n in names
                    if not sent_to_the_build(str(Path(folder, n).relative_to(ROOT)))
                ],
            )


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    # Not below pytest's folder, which only its owner may enter.
    with tempfile.TemporaryDirectory(prefix="gateway-image-") as name:
        root = Path(name)
        root.chmod(0o755)
        made = Image(root)
        made.build()
        yield made


def test_the_core_is_installed_and_no_more(image: Image) -> None:
    (site,) = (image.root / "app/lib").glob("python3*/site-packages")
    held = {path.name.split("-")[0].lower() for path in site.glob("*.dist-info")}
    assert {"asgi_gateway", "aiohttp", "uvloop", "msgspec"} <= held
    assert not held & {"tinker", "transformers", "pytest", "mypy", "hatchling", "pip", "rich"}
    assert (site / "asgi_gateway/py.typed").is_file()
    assert not (site / "tests").exists()


def test_it_is_what_is_imported(image: Image) -> None:
    done = subprocess.run(
        [
            *image.command(["/app/bin/python"]),
            "-c",
            "import asgi_gateway as a; print(a.__file__, a.__version__)",
        ],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"{image.root}/app/lib/")
    help_text = subprocess.run(
        image.command(["/app/bin/asgi-gateway", "--help"]),
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    ).stdout
    assert help_text.startswith("usage: asgi-gateway")


@pytest.fixture
def stand_in(image: Image) -> Iterator[str]:
    """The stand-in of the compose override, on a port of its own."""
    service = compose("compose.stand-in.yaml")["services"]["vllm"]
    words = image.command([*service["entrypoint"], *service["command"]])
    words[words.index("--host") + 1] = "127.0.0.1"
    words[words.index("--port") + 1] = "0"
    with process(words) as started:
        yield started.first_line().rpartition(" ")[2]


def contained(image: Image, upstream: str, state: Path) -> list[str]:
    """The image's entry point and command, in a file system that is read-only but for `state`."""
    final = stages()[-1]
    words = image.command([*only(final, "ENTRYPOINT").words, *only(final, "CMD").words])
    words += ["--host", "127.0.0.1", "--port", "0", "--upstream", upstream]
    return [
        *("unshare", "--mount", "--propagation", "private"),
        *("env", f"STATE={state}", "sh", "-c", AS_IN_A_CONTAINER, "sh"),
        *words,
    ]


def healthy(image: Image, port: int) -> bool:
    """The image's HEALTHCHECK, asked once."""
    words = image.command(only(stages()[-1], "HEALTHCHECK").words)
    words[-1] = words[-1].replace(":8000/", f":{port}/")
    return subprocess.run(words, check=False, capture_output=True, timeout=60).returncode == 0


async def test_a_sample_with_nothing_to_write_to_but_its_state(image: Image, stand_in: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system read-only")
    state = image.root / "volume"
    state.mkdir()
    os.chown(state, USER, USER)
    environ = {
        name: value
        for name, value in image_environment().items()
        if name not in ("PATH", "HOME", "ASGI_GATEWAY_STATE__DIR")
    }
    environ |= {"HOME": str(state)} | environment(state__dir=state)
    with process(contained(image, stand_in, state), environ) as started:
        port = int(started.first_line().rpartition(":")[2])
        assert status_of(started, "Uid") == {str(USER)}
        assert status_of(started, "CapEff") == {"0000000000000000"}
        remote = Remote(port)
        await remote.handshake()
        answer = await remote.poll(await remote.submit())
        assert answer.status == 200
        assert healthy(image, port)
        started.signal(signal.SIGTERM)
        assert started.wait(90) == 0, started.story()
        assert not healthy(image, port)
    assert {path.stat().st_uid for path in state.iterdir()} == {USER}


def status_of(started: Process, field: str) -> set[str]:
    """A field of the process's status; `sh` has become it by exec."""
    text = Path(f"/proc/{started.pid}/status").read_text()
    found = re.findall(rf"^{field}:\t(.*)$", text, re.MULTILINE)
    return set(found[0].split())
