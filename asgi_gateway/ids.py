"""Ids that prove who issued them: epoch, counter, and a MAC over both, a purpose and a caller.

A request id that is not held any more but carries a right MAC was issued here, so it answers 410
and the SDK submits its sample again; 404 would end the caller's run. No tombstones are needed,
restarts included: with a key of this process alone, a well-formed id of another epoch cannot be
checked and is given the benefit of the doubt.
"""

import binascii
import hashlib
import hmac
import itertools
import re
import secrets
from typing import Final

from asgi_gateway.errors import Foreign, Gone, NotFound

_MAC_BYTES: Final = 12
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
# What every request id on the wire must look like, ours or not.
_SHAPE: Final = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_OURS: Final = re.compile(r"([0-9a-f]{10})-([0-9a-f]{1,16})-([A-Za-z0-9_-]{16})\Z")

# How vLLM begins an answer: `cmpl-` and the X-Request-Id of the request that it answers.
_ANSWERED: Final = re.compile(
    rb'\s*\{\s*"id"\s*:\s*"cmpl-([0-9a-f]{10}-[0-9a-f]{1,16}-[A-Za-z0-9_-]{16})"'
)

REQUEST: Final = "request"
SESSION: Final = "session"
SAMPLER: Final = "sampler"


class Ids:
    """Issues and recognises the ids of one process (one epoch)."""

    def __init__(self, key: str | None = None) -> None:
        self._shared_key = key is not None
        seed = secrets.token_bytes(32) if key is None else key.encode()
        secret = hashlib.sha256(seed).digest()
        # Copied for every id: keying one anew costs as much as the rest of it.
        self._keyed = hashlib.blake2b(key=secret, digest_size=_MAC_BYTES)
        self.epoch = secrets.token_hex(5)
        self._counter = itertools.count()

    def issue(self, caller: str, purpose: str = REQUEST, group: int | None = None) -> str:
        """A new id for `caller`, at most 45 characters of `[A-Za-z0-9_-]`; no two are alike.

        group: 0..255, becomes the low byte of the counter.
        """
        count = next(self._counter)
        stem = f"{self.epoch}-{count if group is None else count << 8 | group:x}"
        return f"{stem}-{self._mac(caller, purpose, stem)}"

    def renew(self) -> None:
        """Another epoch, as of another process: the shared store took this one for dead."""
        self.epoch = secrets.token_hex(5)

    def rekey(self, key: bytes) -> None:
        """Go on with the key that several processes share. Ids of before are not known any more."""
        self._shared_key = True
        secret = hashlib.sha256(key).digest()
        self._keyed = hashlib.blake2b(key=secret, digest_size=_MAC_BYTES)

    def may_be_ours(self, identifier: str, caller: str, purpose: str) -> bool:
        """Whether we issued it to `caller`, or an earlier process may have whose key is gone."""
        parts = _OURS.match(identifier)
        if parts is None:
            return False
        epoch, counter, mac = parts.groups()
        if hmac.compare_digest(mac, self._mac(caller, purpose, f"{epoch}-{counter}")):
            return True
        return epoch != self.epoch and not self._shared_key

    def missing(self, request_id: str, caller: str) -> Gone | NotFound:
        """The error for a request id that is not held: Gone where we may have issued it."""
        if self.may_be_ours(request_id, caller, REQUEST):
            return Gone("this sample's result is no longer held; submit it again")
        if not _SHAPE.match(request_id):
            return NotFound("request_id must be 1 to 128 characters of A-Z, a-z, 0-9, _ and -")
        if _OURS.match(request_id):
            return NotFound("unknown request_id")
        return Foreign("unknown request_id")

    def _mac(self, caller: str, purpose: str, stem: str) -> str:
        # Stem and purpose hold no NUL, so no caller name can imitate another triple.
        mac = self._keyed.copy()
        mac.update(f"{stem}\0{purpose}\0{caller}".encode())
        return binascii.b2a_base64(mac.digest(), newline=False).translate(_URL_SAFE).decode()


def names_other_request(answer: bytes, request_id: str) -> bool:
    """Whether a completion says that it answers another request id of ours.

    Descriptors that are mixed up below us, as uvloop has done after a cancelled connect, would give
    one caller the sample of another; an upstream that names no id of ours says nothing.
    """
    if answer.startswith(f'{{"id":"cmpl-{request_id}"'.encode()):
        return False  # as vLLM writes it; the rest is for routers that write it anew
    named = _ANSWERED.match(answer)
    return named is not None and named[1] != request_id.encode()
