"""Request ids that prove who issued them: epoch, counter, and a keyed MAC over both and the caller.

An id that is not held any more but carries a right MAC was issued here, so it answers 410 and the
SDK submits its sample again; 404 would end the caller's run. No tombstones are needed, restarts
included: with a key of this process alone, a well-formed id of another epoch cannot be checked and
is given the benefit of the doubt.
"""

import base64
import hashlib
import hmac
import itertools
import re
import secrets
from typing import Final

from asgi_gateway.errors import Gone, NotFound

_MAC_BYTES: Final = 12
# What every id on the wire must look like, ours or not.
_SHAPE: Final = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_OURS: Final = re.compile(r"([0-9a-f]{10})-([0-9a-f]{1,16})-([A-Za-z0-9_-]{16})\Z")


class Ids:
    """Issues and recognises the ids of one process (one epoch)."""

    def __init__(self, key: str | None = None) -> None:
        self._shared_key = key is not None
        seed = secrets.token_bytes(32) if key is None else key.encode()
        self._key = hashlib.sha256(seed).digest()
        self.epoch = secrets.token_hex(5)
        self._counter = itertools.count()

    def issue(self, caller: str) -> str:
        """A new request id for `caller`, at most 45 characters of `[A-Za-z0-9_-]`."""
        stem = f"{self.epoch}-{next(self._counter):x}"
        return f"{stem}-{self._mac(caller, stem)}"

    def missing(self, request_id: str, caller: str) -> Gone | NotFound:
        """The error for an id that is not held: Gone where we issued it to `caller`."""
        if not _SHAPE.match(request_id):
            return NotFound("request_id must be 1 to 128 characters of A-Z, a-z, 0-9, _ and -")
        parts = _OURS.match(request_id)
        if parts is not None:
            epoch, counter, mac = parts.groups()
            if hmac.compare_digest(mac, self._mac(caller, f"{epoch}-{counter}")):
                return Gone("this sample's result is no longer held; submit it again")
            if epoch != self.epoch and not self._shared_key:
                return Gone("this sample was accepted before a restart; submit it again")
        return NotFound("unknown request_id")

    def _mac(self, caller: str, stem: str) -> str:
        # The stem holds no NUL, so no caller name can imitate another pair.
        message = f"{stem}\0{caller}".encode()
        digest = hashlib.blake2b(message, key=self._key, digest_size=_MAC_BYTES).digest()
        return base64.urlsafe_b64encode(digest).decode()
