"""`make run`: a gateway, and a stand-in vLLM behind it where no real one is named.

Waits until both are ready, prints a snippet to paste, and stops both on Ctrl-C. Children die with
this process however it ends.
"""

import argparse
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

READY_WITHIN_S = 30.0
STOP_WITHIN_S = 5.0
# Nobody balances load over this gateway, and whoever presses Ctrl-C does not want to wait.
STOP_AT_ONCE = {"ASGI_GATEWAY_DRAIN__PREDRAIN_S": "0", "ASGI_GATEWAY_DRAIN__GRACE_S": "0"}
PR_SET_PDEATHSIG = 1
SNIPPET = Path(__file__).with_name("sample.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="where the gateway listens")
    parser.add_argument("--upstream", help="a real vLLM or vllm-router, e.g. http://host:8001")
    arguments = parser.parse_args()
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.default_int_handler)
    children: list[subprocess.Popen[str]] = []
    try:
        upstream = arguments.upstream
        if upstream is None:
            upstream = start(children, "loadgen", "upstream", "--port", "0")
        serve = ("serve", "--port", str(arguments.port), "--upstream", upstream)
        gateway = start(children, "asgi_gateway", *serve)
        print(f"gateway  {gateway}\nupstream {upstream}\n")
        print("In another terminal:\n")
        print(f"export TINKER_BASE_URL={gateway} TINKER_API_KEY=tml-local")
        print(f"{sys.executable} - <<'EOF'\n{SNIPPET.read_text()}EOF\n")
        print("Ctrl-C stops both.", flush=True)
        return wait(children)
    except KeyboardInterrupt:
        return 0
    except ChildProcessError as error:
        print(f"make run: {error}", file=sys.stderr)
        return 1
    finally:
        stop(children)


def start(children: list[subprocess.Popen[str]], *command: str) -> str:
    """Start `python -m command` and return the address from the line it prints once it accepts."""
    child = subprocess.Popen(
        [sys.executable, "-m", *command],
        env={**STOP_AT_ONCE, **os.environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,
        start_new_session=True,  # Ctrl-C reaches this process alone, which stops them in order
    )
    children.append(child)
    assert child.stdout is not None
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if select.select([child.stdout], [], [], 0.1)[0]:
            line = child.stdout.readline().strip()
            if " listening on " in line:
                return line.rpartition(" ")[2]
            if not line:
                raise ChildProcessError(f"{command[0]} ended with status {child.wait()}")
    raise ChildProcessError(f"{command[0]} was not ready within {READY_WITHIN_S:g} s")


def die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait(children: list[subprocess.Popen[str]]) -> int:
    """Return when a child ends by itself, which it should not."""
    pids = {child.pid: child for child in children}
    pid, status = os.wait()
    pids[pid].returncode = os.waitstatus_to_exitcode(status)
    raise ChildProcessError(f"{pids[pid].args!r} ended with status {pids[pid].returncode}")


def stop(children: list[subprocess.Popen[str]]) -> None:
    for child in reversed(children):
        if child.returncode is None:
            child.terminate()
            try:
                child.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


if __name__ == "__main__":
    raise SystemExit(main())
