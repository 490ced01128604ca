"""Reading the functions' replies. A server may be another's, hacked or broken: nothing is taken
that does not look as our functions write it.

Raises CorruptReply throughout; besides, what a reply itself says went wrong.
"""

import reprlib
from typing import Any, Final, get_args

from asgi_gateway.errors import Category, GatewayError, IllegalTransition, Overloaded, Unsupported
from asgi_gateway.shared.groups import group_of
from asgi_gateway.shared.library import MAX_CLONES
from asgi_gateway.shared.outcomes import (
    Accepted,
    Acknowledged,
    Adopted,
    Buried,
    Completions,
    CorruptReply,
    Counts,
    Entry,
    Fenced,
    Forgotten,
    Found,
    Moved,
    Swept,
)
from asgi_gateway.store.records import CANCELLED, Failure
from asgi_gateway.store.states import GONE, QUEUED, State

_STATES: Final = tuple(State)
_CATEGORIES: Final[dict[bytes, Category]] = {
    category.encode(): category for category in get_args(Category)
}
# Lua's numbers are exact up to here.
_MAX_NUMBER: Final = 2**53
_ADOPTED_PARTS: Final = 9


def accepted(reply: Any) -> Accepted:
    """Raises Unsupported, Overloaded, Fenced."""
    match reply:
        case [b"ok", request_id]:
            return Accepted(_id(request_id), True, QUEUED, "")
        case [b"existing", request_id, state, owner]:
            return Accepted(_id(request_id), False, _state(state), _text(owner))
        case [b"conflict", seq_id]:
            raise Unsupported(
                f"seq_id {_digits(seq_id)} of this sampling session was submitted before with"
                " another body"
            )
        case [b"full", b"in_flight", held, limit]:
            raise Overloaded(
                f"{_number(held)} samples in flight in its group, the limit is {_number(limit)}",
                "in_flight",
            )
        case [b"full", b"bytes", held, limit]:
            raise Overloaded(
                f"{_number(held)} bytes held in its group, the limit is {_number(limit)}", "bytes"
            )
    raise _refused(reply)


def moved(reply: Any) -> Moved:
    """Raises IllegalTransition, Fenced."""
    match reply:
        case [b"ok", state]:
            return Moved("ok", _state(state))
        case [b"late", state]:
            return Moved("late", _state(state))
        case [b"foreign", owner]:
            return Moved("foreign", owner=_text(owner))
        case [b"missing"]:
            return Moved("missing")
        case [b"bug", state]:
            raise IllegalTransition(f"an event that cannot come in state {_state(state).name}")
    raise _refused(reply)


def found(reply: Any) -> Found | None:
    match reply:
        case [b"missing"]:
            return None
        case [
            number,
            owner,
            session,
            seq_id,
            nbytes,
            text,
            category,
            delivered,
            accepted_ms,
            (bytes() | None) as result,
        ]:
            state = _state(number)
            failure = None
            if state is State.CANCELLED:
                failure = CANCELLED
            elif state is State.FAILED:
                failure = Failure(_text(text), _category(category))
            return Found(
                state,
                _text(owner),
                _text(session),
                _digits(seq_id),
                _number(nbytes),
                failure,
                _flag(delivered),
                _number(accepted_ms),
                result,
            )
    raise _refused(reply)


def completions(reply: Any) -> Completions:
    """Raises Unsupported."""
    match reply:
        case [b"clones"]:
            raise Unsupported(
                f"target.cloned_sampler_id: {MAX_CLONES} clones of this sampling session were"
                " polled, the limit"
            )
        case [int(cursor), *entries]:
            return Completions([_entry(entry) for entry in entries], _number(cursor))
    raise _refused(reply)


def acknowledged(reply: Any) -> Acknowledged:
    match reply:
        case [freed, told]:
            return Acknowledged(_number(freed), _number(told))
    raise _refused(reply)


def first_delivery(reply: Any) -> bool | None:
    """Whether it was; None where there is no outcome."""
    if type(reply) is not int or not -1 <= reply <= 1:
        raise _corrupt(reply)
    return None if reply < 0 else reply == 1


def swept(reply: Any) -> Swept:
    match reply:
        case [evicted, unfetched, notes, more]:
            return Swept(_number(evicted), _number(unfetched), _number(notes), _flag(more))
    raise _refused(reply)


def buried(reply: Any) -> Buried:
    """Raises Fenced where the adopter is."""
    match reply:
        case [left, lost, list(parts)] if len(parts) % _ADOPTED_PARTS == 0:
            return Buried(
                _number(left),
                _number(lost),
                [
                    _adopted(*parts[start : start + _ADOPTED_PARTS])
                    for start in range(0, len(parts), _ADOPTED_PARTS)
                ],
            )
    raise _refused(reply)


def forgotten(reply: Any) -> Forgotten:
    match reply:
        case [bytes(scan), ended] if scan.isdigit():
            return Forgotten("" if scan == b"0" else scan.decode(), _number(ended))
    raise _refused(reply)


def counts(reply: Any) -> Counts:
    match reply:
        case [_, _, _, _]:
            return Counts(*(0 if number is None else _digits(number) for number in reply))
    raise _refused(reply)


def result(reply: Any) -> bytes | None:
    if reply is None or type(reply) is bytes:
        return reply
    raise _corrupt(reply)


def _adopted(
    request_id: Any,
    session: Any,
    seq_id: Any,
    digest: Any,
    caller: Any,
    accepted_ms: Any,
    nbytes: Any,
    body: Any,
    meta: Any,
) -> Adopted:
    for value in (digest, body, meta):
        if type(value) is not bytes:
            raise _corrupt(value)
    return Adopted(
        _id(request_id),
        _text(session),
        _digits(seq_id),
        digest,
        _text(caller),
        _number(accepted_ms),
        _number(nbytes),
        body,
        meta,
    )


def _entry(entry: Any) -> Entry:
    if type(entry) is not bytes:
        raise _corrupt(entry)
    request_id, _, size = entry.rpartition(b":")
    return Entry(_id(request_id), None if size == b"-" else _digits(size))


def _id(value: Any) -> str:
    request_id = _text(value)
    if group_of(request_id) is None:
        raise _corrupt(value)
    return request_id


def _category(value: Any) -> Category:
    category = _CATEGORIES.get(value) if type(value) is bytes else None
    if category is None:
        raise _corrupt(value)
    return category


def _flag(value: Any) -> bool:
    return _number(value, 1) == 1


def _state(number: Any) -> State:
    return _STATES[_number(number, GONE)]


def _number(value: Any, most: int = _MAX_NUMBER) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise _corrupt(value)
    return value


def _digits(value: Any) -> int:
    if type(value) is not bytes or not value.isdigit() or len(value) > 20:
        raise _corrupt(value)
    return int(value)


def _text(value: Any) -> str:
    if type(value) is not bytes:
        raise _corrupt(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _corrupt(value) from None


def _refused(reply: Any) -> GatewayError:
    if reply == [b"fenced"]:
        return Fenced("this process was taken for dead, and its samples for lost")
    return _corrupt(reply)


def _corrupt(reply: Any) -> CorruptReply:
    return CorruptReply(f"the shared store answered {reprlib.repr(reply)}")
