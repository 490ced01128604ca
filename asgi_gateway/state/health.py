"""Whether what is appended survives, when to try again where it does not, and what the log says."""

import logging
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

# A disk that takes every write and fails every sync costs a whole copy, and leaves a file, each
# time: then it is tried at every 16th call.
_LONGEST_WAIT: Final = 16


class Health:
    """failed: why what is appended now may not survive; None while it does.

    write_failures: writes, syncs and copies that failed.
    """

    def __init__(self, directory: Path) -> None:
        self.failed: str | None = None
        self.write_failures = 0
        self._directory = directory
        self._closed = False
        self._gave_up = False
        # In calls of `retry`: until the next attempt, and from the next failure to one.
        self._left = 0
        self._wait = 1

    def __repr__(self) -> str:
        return f"<Health {self.failed or 'good'}, {self.write_failures} failures>"

    @property
    def may_try(self) -> bool:
        """Whether a copy may be attempted now."""
        return self._left == 0 and not self._closed

    def fail(self, reason: str) -> None:
        """Events are lost from now on, until a new copy is complete."""
        if self.failed is None:
            log.error(
                "the journal in %s failed, what comes now does not survive a restart: %s",
                self._directory,
                reason,
            )
        self.failed = reason
        self._count()

    def give_up(self, reason: str) -> None:
        """A copy could not be made; the journal is as good as it was before."""
        if self.failed is None and not self._gave_up:
            log.error("cannot compact the journal in %s: %s", self._directory, reason)
        self._gave_up = True
        self._count()

    def copied(self) -> None:
        """A copy is complete."""
        if self.failed is not None:
            log.warning("the journal in %s is whole again", self._directory)
        self.failed = None
        self._gave_up = False
        self._wait = 1

    def retry(self) -> None:
        """One unit of waiting is over."""
        self._left = max(0, self._left - 1)

    def close(self) -> None:
        """No attempt from now on."""
        self._closed = True

    def _count(self) -> None:
        self.write_failures += 1
        self._left = self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
