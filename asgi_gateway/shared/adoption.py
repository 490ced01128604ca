"""What of a sample is kept for another process to run, and the record that is made of it there."""

from typing import Final

import msgspec

from asgi_gateway.codec import Want
from asgi_gateway.shared.outcomes import Adopted
from asgi_gateway.store.records import Record


class Meta(msgspec.Struct, frozen=True, array_like=True):
    """Of the record, beside the upstream request and what the shared store knows anyway."""

    want: Want
    prompt_tokens: int
    reserve_bytes: int


def kept(record: Record) -> tuple[bytes, bytes]:
    """Body and meta."""
    meta = Meta(record.want, record.prompt_tokens, record.reserve_bytes)
    return record.body or b"", _ENCODER.encode(meta)


def adopted(found: Adopted, now: float) -> Record | None:
    """A QUEUED record; None where what was kept is another version's and cannot be read."""
    try:
        meta = _DECODER.decode(found.meta)
    except msgspec.MsgspecError:
        return None
    return Record(
        request_id=found.request_id,
        caller=found.caller,
        sampling_session_id=found.sampling_session_id,
        seq_id=found.seq_id,
        digest=found.digest,
        want=meta.want,
        prompt_tokens=meta.prompt_tokens,
        reserve_bytes=meta.reserve_bytes,
        body=found.body,
        accepted_at=now,
    )


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Meta)
