"""Other settings for a gateway that runs: all of what changed, or nothing.

What may change is marked in the schema (`settings.section.Reloads`). Whoever keeps a value of such
a setting is one of the parts, and takes the new tree in `reconfigure`: in one turn of the loop, so
that no request meets half of it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from asgi_gateway import validity
from asgi_gateway.access.door import Door
from asgi_gateway.access.keys import is_configured
from asgi_gateway.clock import Clock
from asgi_gateway.configuration import changes, shown
from asgi_gateway.errors import Unready
from asgi_gateway.metrics import Metrics
from asgi_gateway.settings import Settings, SettingsError

log = logging.getLogger(__name__)


class Part(Protocol):
    """Keeps values of settings that reload."""

    def reconfigure(self, settings: Settings) -> None:
        """Go by these from now on. They are valid, and it must not fail; a second time with the
        settings of before takes it back."""


class Reloads:
    """settings: those in effect."""

    def __init__(
        self,
        settings: Settings,
        parts: Iterable[Part | None],
        door: Door | None,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self._parts = [part for part in parts if part is not None]
        self._door = door
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self.taken = self.refused = 0
        self._taken_at = clock.wall_time()
        for name, text, read in (
            ("reloads", "Times that changed settings were taken.", lambda: self.taken),
            (
                "reload_failures",
                "Times that changed settings were refused, all of them.",
                lambda: self.refused,
            ),
        ):
            metrics.counter(f"config_{name}_total", text, read)
        name, text = (
            "config_last_reload_timestamp_seconds",
            "When settings were taken last, at the start or later, Unix time.",
        )
        metrics.gauge(name, text, lambda: self._taken_at)

    def __repr__(self) -> str:
        return f"<Reloads {self.taken} taken, {self.refused} refused>"

    def add(self, part: Part) -> None:
        """One more to be told."""
        self._parts.append(part)

    async def take(self, settings: Settings, may: Callable[[], None]) -> tuple[str, ...]:
        """Put other settings into effect; returns which of them are others than before.

        may: asked when they are about to be; what it raises leaves all as before.

        Raises:
            SettingsError: every problem, and every setting that only a restart changes; then all
                are as before.
        """
        async with self._one_at_a_time:
            try:
                return await self._take(settings, may)
            except BaseException:
                self.refused += 1
                raise

    async def _take(self, settings: Settings, may: Callable[[], None]) -> tuple[str, ...]:
        before = self.settings
        problems = [*_needs_restart(before, settings), *validity.problems(settings)]
        keys = None
        if self._door is not None and is_configured(settings.access):
            try:
                keys = await self._door.read(settings.access)
            except SettingsError as error:
                problems += error.problems
        if problems:
            raise SettingsError(problems)
        may()
        try:
            for part in self._parts:
                part.reconfigure(settings)
        except Exception:
            for part in self._parts:
                part.reconfigure(before)
            raise
        if self._door is not None and keys is not None:
            self._door.adopt(keys)
        self.settings = settings
        self.taken += 1
        self._taken_at = self._clock.wall_time()
        changed = list(changes(before, settings))
        said = ", ".join(f"{p} from {shown(p, a)} to {shown(p, b)}" for p, a, b in changed)
        log.warning("the settings were read again: %s", said or "they are the same")
        return tuple(path for path, *_ in changed)

    async def read_again(self, read: Callable[[], Settings], may: Callable[[], None]) -> None:
        """Take what `read` returns, which runs in a thread; what is wrong is logged, as one error.

        It raises SettingsError where it has no settings to return.
        """
        try:
            settings = await asyncio.to_thread(read)
        except SettingsError as error:
            self.refused += 1
            _say(error.problems)
            return
        except Exception:
            self.refused += 1
            log.exception("bug while the settings were read again; they stay as they were")
            return
        try:
            await self.take(settings, may)
        except SettingsError as error:
            _say(error.problems)
        except Unready as error:
            log.info("the settings stay as they were: %s", error)
        except Exception:
            log.exception("bug while settings were changed; they stay as they were")


class Reloadable:
    """A gateway's own part of it."""

    settings: Settings
    _door: Door | None
    _reloads: Reloads
    _closed: bool

    async def reload(self, settings: Settings) -> tuple[str, ...]:
        """Put other settings into effect, within the gateway's event loop; what runs goes on.

        All of them or none. docs/settings.md says which may change. The keys file is read again
        too. Returns the dotted paths of what is different now.

        Raises:
            SettingsError: every problem, and every setting that only a restart changes.
            Unready: it was closed.
        """
        self._require_not_closed()
        changed = await self._reloads.take(settings, self._require_not_closed)
        self.settings = self._reloads.settings
        return changed

    async def read_again(self, read: Callable[[], Settings]) -> None:
        """The same with what `read` returns; what is wrong with it is logged and not raised."""
        if not self._closed:
            await self._reloads.read_again(read, self._require_not_closed)
            self.settings = self._reloads.settings

    def _require_not_closed(self) -> None:
        if self._closed:
            raise Unready("this gateway was closed")

    def told(self, part: Part) -> None:
        """One more that keeps values of settings."""
        self._reloads.add(part)

    def reload_keys(self) -> None:
        """Read the keys file again now; within the gateway's event loop."""
        if self._door is not None:
            self._door.reload()


def _needs_restart(before: Settings, after: Settings) -> Iterator[str]:
    for path, old, new in changes(before, after, reloadable=False):
        yield f"{path}: from {shown(path, old)} to {shown(path, new)} needs a restart"
    if is_configured(before.access) is not is_configured(after.access):
        yield "access.keys_file, access.keys: whether keys are asked for at all needs a restart"


def _say(problems: Iterable[Any]) -> None:
    log.error("the settings stay as they were: %s", "; ".join(problems))
