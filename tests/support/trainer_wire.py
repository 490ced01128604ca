"""The two protobuf messages of training, by hand: what comes in and what the SDK decodes.

Written from the field numbers in `tinker-protocol.md` and not with generated code, so that the
stand-in needs neither the SDK nor the gateway and can disagree with both.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT32 = 1  # DType


class Pass(NamedTuple):
    """A forward or forward-backward request; `lengths` is the number of targets of each datum."""

    model_id: str
    seq_id: int | None
    loss_fn: str
    forward_only: bool
    lengths: list[int]


def read_pass(body: bytes) -> Pass:
    """ForwardBackwardRequest.

    Raises:
        ValueError: it does not parse, or a datum has no target_tokens.
    """
    model_id, seq_id, loss_fn, forward_only = "", 0, "", False
    lengths = []
    for number, value in _fields(body):
        match number, value:
            case 1, bytes():
                model_id = value.decode()
            case 2, int():
                seq_id = value
            case 3, bytes():
                lengths.append(_targets(value))
            case 4, bytes():
                loss_fn = value.decode()
            case 6, int():
                forward_only = bool(value)
    return Pass(model_id, seq_id, loss_fn, forward_only, lengths)


def read_json_pass(request: dict[str, Any]) -> Pass:
    """The JSON form of SDKs before 0.25, `forward` included."""
    given = request.get("forward_backward_input") or request["forward_input"]
    lengths = [len(datum["loss_fn_inputs"]["target_tokens"]["data"]) for datum in given["data"]]
    return Pass(
        request["model_id"],
        request.get("seq_id"),
        given["loss_fn"],
        "forward_input" in request,
        lengths,
    )


def write_output(logprobs: list[list[float]], metrics: dict[str, float]) -> bytes:
    """ForwardBackwardOutput with one batched record."""
    data = b"".join(struct.pack(f"<{len(row)}f", *row) for row in logprobs)
    offsets = [0]
    for row in logprobs:
        offsets.append(offsets[-1] + 4 * len(row))
    tensor = (
        _bytes(1, data)
        + _bytes(2, struct.pack(f"<{len(offsets)}q", *offsets))
        + _varint(3, _FLOAT32)
    )
    record = (
        _bytes(1, b"ArrayRecord")
        + _bytes(2, _bytes(1, b"logprobs") + _bytes(2, tensor))
        + _varint(3, len(logprobs))
    )
    measured = b"".join(
        _bytes(3, _bytes(1, name.encode()) + b"\x11" + struct.pack("<d", value))
        for name, value in metrics.items()
    )
    return _bytes(1, b"ArrayRecord") + _bytes(2, record) + measured


def json_output(logprobs: list[list[float]], metrics: dict[str, float]) -> dict[str, Any]:
    """The same for SDKs that do not accept protobuf."""
    rows = [{"data": row, "dtype": "float32", "shape": [len(row)]} for row in logprobs]
    return {
        "loss_fn_output_type": "ArrayRecord",
        "loss_fn_outputs": [{"logprobs": row} for row in rows],
        "metrics": metrics,
    }


def _targets(datum: bytes) -> int:
    for number, entry in _fields(datum):
        if number == 2 and isinstance(entry, bytes):
            pair = dict(_fields(entry))
            if pair.get(1) == b"target_tokens" and isinstance(tensor := pair.get(2), bytes):
                dense = dict(_fields(tensor)).get(1, b"")
                if isinstance(dense, bytes):
                    return len(dense) // 8  # int64
    raise ValueError("a datum has no target_tokens")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _read_varint(message, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(message):
            raise ValueError("the message is cut off")
        yield number, message[at : at + size]
        at += size


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("the message is cut off")


def _write_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(number: int, value: bytes) -> bytes:
    return _write_varint(number << 3 | _BYTES) + _write_varint(len(value)) + value


def _varint(number: int, value: int) -> bytes:
    return _write_varint(number << 3 | _VARINT) + _write_varint(value)
