"""Replies of a server that is broken or hostile: an error of ours, never a wrong value."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgi_gateway.errors import IllegalTransition, Overloaded, Unsupported
from asgi_gateway.shared import replies
from asgi_gateway.shared.outcomes import CorruptReply, Entry, Fenced
from asgi_gateway.store.states import State

ID = b"0123456789-1e9-" + b"A" * 16
READERS: list[Callable[[Any], object]] = [
    replies.accepted,
    replies.moved,
    replies.found,
    replies.completions,
    replies.acknowledged,
    replies.first_delivery,
    replies.swept,
    replies.buried,
    replies.forgotten,
    replies.counts,
    replies.result,
]
FOUND = [0, b"owner", b"session", b"7", 40, b"", b"", 0, 1000, None]


def other(reply: list[Any], at: int, value: Any) -> list[Any]:
    return [*reply[:at], value, *reply[at + 1 :]]


NONE_OF_OURS: list[Any] = ["text", 7.5, {b"ok": 1}, True, [[]]]
CORRUPT: list[tuple[Callable[[Any], object], Any]] = [
    *((reader, reply) for reader in READERS for reply in NONE_OF_OURS),
    *((reader, []) for reader in READERS),
    (replies.accepted, [b"ok", b"../etc"]),
    (replies.accepted, [b"ok", 7]),
    (replies.accepted, [b"ok", b"\xff" * 30]),
    (replies.accepted, [b"ok", ID, 1]),
    (replies.accepted, [b"existing", ID, 6, b"owner"]),
    (replies.accepted, [b"existing", ID, -1, b"owner"]),
    (replies.accepted, [b"existing", ID, True, b"owner"]),
    (replies.accepted, [b"full", b"patience", 1, 1]),
    (replies.accepted, [b"conflict", b"x"]),
    (replies.moved, [b"ok", b"1"]),
    (replies.moved, [b"ok", 99]),
    (replies.moved, [b"foreign", None]),
    *((replies.found, other(FOUND, at, None)) for at in range(9) if at not in (5, 6)),
    (replies.found, other(FOUND, 3, b"-7")),
    (replies.found, other(FOUND, 3, b"9" * 21)),
    (replies.found, other(FOUND, 4, 2**60)),
    (replies.found, other(FOUND, 7, 2)),
    (replies.found, other(FOUND, 9, 7)),
    (replies.found, other(other(FOUND, 0, 3), 6, b"nobody")),
    (replies.found, other(other(FOUND, 0, 3), 6, [])),
    (replies.completions, [5, ID]),
    (replies.completions, [5, ID + b":"]),
    (replies.completions, [5, ID + b":-1"]),
    (replies.completions, [5, b"id:7"]),
    (replies.completions, [5, 7]),
    (replies.completions, [-5, ID + b":7"]),
    (replies.completions, [True]),
    (replies.first_delivery, 2),
    (replies.swept, [1, 1, 1, 7]),
    (replies.buried, [0, 0, [ID]]),
    (replies.buried, [0, 0, [ID, b"s", b"1", None, b"c", 1, 1, b"body", b"meta"]]),
    (replies.forgotten, [b"next", 1]),
    (replies.forgotten, [0, 1]),
    (replies.counts, [b"1", b"1", b"x", b"1"]),
    (replies.result, [b"r"]),
]


@pytest.mark.parametrize(("reader", "reply"), CORRUPT)
def test_what_no_function_answers_is_refused(reader: Callable[[Any], object], reply: Any) -> None:
    with pytest.raises(CorruptReply):
        reader(reply)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.integers(),
    st.floats(),
    st.binary(max_size=20),
    st.text(max_size=5),
    st.sampled_from([b"ok", b"late", b"missing", b"fenced", b"full", b"bytes", ID, ID + b":7"]),
)
REPLIES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=9), max_leaves=20)


@given(st.sampled_from(READERS), REPLIES)
def test_any_reply_is_a_value_or_an_error_of_ours(
    reader: Callable[[Any], object], reply: Any
) -> None:
    try:
        value = reader(reply)
    except (CorruptReply, Fenced, IllegalTransition, Overloaded, Unsupported):
        return
    assert value is None or type(value).__module__.startswith(("asgi_gateway.", "builtins"))


def test_the_text_of_an_error_is_short() -> None:
    with pytest.raises(CorruptReply) as caught:
        replies.moved([b"x" * 10_000_000] * 1000)
    assert len(str(caught.value)) < 1000


def test_what_functions_answer_is_read() -> None:
    found = replies.found(FOUND)
    assert found is not None
    assert (found.state, found.seq_id, found.failure) == (State.QUEUED, 7, None)
    page = replies.completions([9, ID + b":12", ID + b":-"])
    assert page.entries == [Entry(ID.decode(), 12), Entry(ID.decode(), None)]
    with pytest.raises(Overloaded, match="7 samples in flight in its group, the limit is 7"):
        replies.accepted([b"full", b"in_flight", 7, 7])
    with pytest.raises(Fenced):
        replies.moved([b"fenced"])
