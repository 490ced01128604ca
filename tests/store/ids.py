"""Request ids of the shape that all of ours have, each in the group of its session."""

import itertools

from asgi_gateway.shared.groups import group_of_session, numbered

EPOCH = "0123456789"
_counter = itertools.count(1)


def made_id(sampling_session_id: str, epoch: str = EPOCH) -> str:
    number = numbered(next(_counter), group_of_session(sampling_session_id))
    return f"{epoch}-{number:x}-{'A' * 16}"
