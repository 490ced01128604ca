"""Field report 3.06: the default descriptor limit."""

import resource
import subprocess
import sys

import pytest

from tests.support.processes import serve, stand_in

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from asgi_gateway.__main__ import main
from asgi_gateway.descriptors import raise_descriptor_limit
if "--show" in sys.argv:
    print(raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))
else:
    sys.exit(main(["serve", "--port", "0", "--upstream", "http://127.0.0.1:9"]))
"""


def run(soft: int, hard: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIMITED.format(soft=soft, hard=hard), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_soft_limit_is_raised_at_start() -> None:
    assert run(256, 4096, "--show").stdout.split("\n")[0] == "4096 (4096, 4096)"


def test_a_hard_limit_that_cannot_hold_the_connections_is_refused_with_the_numbers() -> None:
    refused = run(256, 1024)
    assert refused.returncode == 2
    for word in ("1024", "2048", "2176", "LimitNOFILE", "upstream.max_connections"):
        assert word in refused.stderr, refused.stderr


@pytest.mark.servers
def test_serve_runs_with_the_raised_limit() -> None:
    with stand_in() as upstream, serve(upstream) as served:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with open(f"/proc/{served.process.pid}/limits") as limits:
            (line,) = [line for line in limits if line.startswith("Max open files")]
        assert line.split()[3:5] == [str(hard), str(hard)]
