"""`asgi-gateway serve` on one port for several lives: killed or stopped, and started again."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import Process, Served, environment, free_port


class Supervised(Served):
    """A gateway that comes back on the same port; `process` is its present life, `lives` all."""

    def __init__(self, upstream: str, state_dir: Path | None, settings: dict[str, object]) -> None:
        """state_dir: None keeps nothing, so that a restart forgets everything."""
        self._upstream = upstream
        # A change counts from the next life on.
        self.settings: dict[str, object] = {"state__dir": state_dir or "", **settings}
        self.port = free_port()
        super().__init__("serve", self.port, self.begun(upstream, self.port, self.settings))
        self.lives = [self.process]
        self.process.first_line()

    @staticmethod
    def begun(upstream: str, port: int, settings: dict[str, object]) -> Process:
        """A process that may yet refuse to serve."""
        command = [sys.executable, "-m", "asgi_gateway", "serve", "--port", str(port)]
        return Process([*command, "--upstream", upstream], environment(**settings))

    def kill(self) -> None:
        """As the kernel does it: no handler runs, nothing is written any more."""
        self.process.kill()

    def stop(self) -> None:
        """As a supervisor does it; returns when the process is gone."""
        self.process.terminate()
        assert self.process.wait() == 0, self.process.story()

    def start(self) -> None:
        """The next life; returns when it accepts."""
        self.process = self.begun(self._upstream, self.port, self.settings)
        self.lives.append(self.process)
        self.process.first_line()

    def stories(self) -> str:
        """What all lives said."""
        return "\n".join(life.story() for life in self.lives)

    def warnings(self) -> str:
        """The stderr of all lives."""
        return "".join(life.stderr for life in self.lives)

    def close(self) -> None:
        for life in self.lives:
            life.close()


@contextlib.contextmanager
def supervised(upstream: str, state_dir: Path | None, **settings: object) -> Iterator[Supervised]:
    """A gateway in its first life."""
    started = Supervised(upstream, state_dir, settings)
    try:
        yield started
    finally:
        started.close()
