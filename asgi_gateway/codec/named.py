"""Token ids out of `"token_id:N"` strings, without an object per token."""

from typing import Any, Final

import numpy as np
import simdjson

from asgi_gateway.codec import Int32s
from asgi_gateway.codec.values import MAX_INT32
from asgi_gateway.errors import Unreadable

_COLON_TO_MINUS: Final = bytes.maketrans(b":", b"-")


def named_ids_in(piece: bytes, parser: simdjson.Parser) -> Int32s:
    """The ids of a list of such strings, given as its JSON text without blanks, int32.

    The text without its digits must be what vLLM writes. The colon becomes a minus sign, behind
    which a number's digits all stand, or there is none.

    Raises:
        Unreadable: another text.
        ValueError: an id that is no JSON integer.
    """
    frame = piece.translate(None, b"0123456789")
    count = (len(frame) - 1) // len(b'"token_id:",')
    if frame != b'["token_id:"' + b',"token_id:"' * (count - 1) + b"]":
        raise Unreadable("tokens are not all of the form token_id:N")
    numbers: Any = parser.parse(piece.translate(_COLON_TO_MINUS, b'"token_id'))
    wide = np.frombuffer(numbers.as_buffer(of_type="i"), np.int64)
    if wide.size != count or int(wide.min()) < -MAX_INT32:
        raise Unreadable(f"a token id is outside 0 to {MAX_INT32}")
    return -wide.astype(np.int32)
