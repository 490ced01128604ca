"""Authentication at the application's edge, and the keys that it goes by.

What comes in as a secret is hashed, looked up and forgotten: nothing here keeps or logs one. Keys
in URLs are not read, since URLs are logged everywhere.
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from asgi_gateway.access import keys
from asgi_gateway.access.penalty import Penalty
from asgi_gateway.access.quota import Quota
from asgi_gateway.asgi import Scope
from asgi_gateway.caller import DEFAULT, Access, Caller
from asgi_gateway.clock import Clock
from asgi_gateway.errors import Forbidden, Unauthorized
from asgi_gateway.metrics import Metrics
from asgi_gateway.settings import AccessSettings, SettingsError

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
_BEARER: Final = b"bearer "


class Read(NamedTuple):
    """Keys that can be used, of these settings and of the file as it was at this stamp."""

    settings: AccessSettings
    stamp: tuple[int, int, int] | None
    keys: keys.Keys


class Door:
    """Lets callers in. One per gateway that has keys; without any there is none.

    Opened and closed by the app; `tick` and `reload` are the event loop's.
    """

    def __init__(self, settings: AccessSettings, clock: Clock) -> None:
        """Raises SettingsError where the keys cannot be used."""
        self._settings = settings
        self._seen = self._loaded = keys.stamp(settings.keys_file) if settings.keys_file else None
        self._keys = keys.load(settings)
        self._sha256 = hashlib.sha256()
        # Where X-API-Key was among the headers of the last request: the SDK has it in one place.
        self._position = 0
        self.quota = Quota()
        self.penalty = Penalty(clock)
        self._looked_at = clock.now()
        self._reloading: asyncio.Task[None] | None = None
        self._again = False
        self._failing: tuple[str, ...] | None = None
        self.unauthorized = 0
        self.forbidden = 0
        self.reloads = 0
        self.failed_reloads = 0

    def __repr__(self) -> str:
        return f"<Door {self._keys!r}>"

    def add_to(self, metrics: Metrics) -> None:
        metrics.gauge("keys", "API keys that are good now.", lambda: len(self._keys))
        metrics.gauge("access_held", "401 answers that are held now.", lambda: self.penalty.held)
        for name, text, read in (
            (
                "unauthorized",
                "Requests answered 401: no key, or a wrong one.",
                lambda: self.unauthorized,
            ),
            (
                "forbidden",
                "Requests answered 403: the key lacks the scope.",
                lambda: self.forbidden,
            ),
            ("reloads", "Times that the keys were read again and taken.", lambda: self.reloads),
            (
                "failed_reloads",
                "Times that the keys could not be used and stayed as they were.",
                lambda: self.failed_reloads,
            ),
        ):
            metrics.counter(f"access_{name}_total", text, read)

    # --- a request -------------------------------------------------------------------------------

    def enter(self, scope: Scope, needed: Access) -> Caller:
        """Who calls.

        Raises:
            Unauthorized: no key, or one that is not good. Which of both is not said.
            Forbidden: the key's scopes do not have what the route needs.
        """
        if needed == "none":
            return DEFAULT
        hashed = self._sha256.copy()  # half the time of a new one
        headers = scope["headers"]
        at = self._position
        if at < len(headers) and headers[at][0] == b"x-api-key":
            hashed.update(headers[at][1])
        else:
            hashed.update(self._secret(headers))
        digest = hashed.digest()
        key = self._keys.by_digest.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            self.unauthorized += 1
            raise Unauthorized("send an API key of this gateway as X-API-Key or as a Bearer token")
        if needed not in key.caller.grants:
            self.forbidden += 1
            raise Forbidden(f"this API key does not have the scope {needed!r}")
        return key.caller

    def _secret(self, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """What is sent as a key: X-API-Key, else a Bearer token, else nothing, which is no key.

        Most of what a request would cost here: the SDK sends 17 headers.
        """
        bearer = b""
        for position, (name, value) in enumerate(headers):
            if name == b"x-api-key":
                self._position = position
                return value
            if name == b"authorization":
                bearer = value
        return bearer[len(_BEARER) :].strip() if bearer[: len(_BEARER)].lower() == _BEARER else b""

    # --- the keys file ---------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Look about once a second whether the file is another one."""
        if now - self._looked_at < LOOK_EVERY_S or not self._settings.keys_file:
            return
        self._looked_at = now
        seen = keys.stamp(self._settings.keys_file)
        # Twice the same, or somebody is still writing it.
        if seen == self._seen and seen != self._loaded:
            self.reload()
        self._seen = seen

    def reload(self) -> None:
        """Read the file again in a thread; all of it counts, or what was there before."""
        if self._reloading is not None:
            self._again = True  # it may have been read before it changed
            return
        self._reloading = asyncio.create_task(self._reload())
        self._reloading.add_done_callback(self._reloaded)

    async def read(self, settings: AccessSettings) -> Read:
        """The keys as they are now, read in a thread.

        Raises:
            SettingsError: they cannot be used.
        """
        stamp = keys.stamp(settings.keys_file) if settings.keys_file else None
        try:
            return Read(settings, stamp, await asyncio.to_thread(keys.load, settings))
        except SettingsError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the keys of before stay
            # Its type alone: its text may quote the file.
            raise SettingsError([f"access.keys_file: {type(error).__name__}"]) from None

    def adopt(self, read: Read) -> None:
        """Go by other keys, perhaps of other settings."""
        self._take(read)
        if self._reloading is not None:
            self._again = True  # what it has read may be older

    async def _reload(self) -> None:
        path = self._settings.keys_file
        self._loaded = keys.stamp(path) if path else None
        try:
            read = await self.read(self._settings)
        except SettingsError as error:
            self._failed(error.problems)
            return
        if read.settings is self._settings:
            self._take(read)

    def _take(self, read: Read) -> None:
        self._failing = None
        self._settings, self._loaded, self._keys = read
        self.reloads += 1
        names = frozenset(key.caller.name for key in self._keys.by_digest.values())
        self.quota.forget_all_but(names)
        log.info("%d keys are good from now on", len(self._keys))

    def _failed(self, problems: tuple[str, ...]) -> None:
        self.failed_reloads += 1
        if problems != self._failing:
            self._failing = problems
            for problem in problems:
                log.error("the keys stay as they were: %s", problem)

    def _reloaded(self, _: object) -> None:
        self._reloading = None
        if self._again:
            self._again = False
            self.reload()

    async def close(self) -> None:
        if self._reloading is not None:
            self._again = False
            self._reloading.cancel()
            await asyncio.wait([self._reloading])
