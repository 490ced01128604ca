"""What survives a restart: a journal of sessions and open sample ids, and the key of the ids.

Everything of it lies in `state.dir`, which one process owns at a time. Every error here is a
`StateError`: raised while opening, with a text for the operator; `serve` exits 2 on it. Once open,
nothing here raises for what the disk does.
"""

from asgi_gateway.errors import GatewayError


class StateError(GatewayError):
    """The state directory cannot be used as it is; the text names it and says what to do."""


class StateLocked(StateError):
    """Another process, or another gateway of this one, owns the directory."""


class StateVersion(StateError):
    """Written by a version of the gateway whose files this one cannot read; nothing was changed."""


class StateUnusable(StateError):
    """The operating system refused: no directory, no permission, no space."""


class KeyExposed(StateError):
    """Others than the owner could read the key, so ids signed with it prove nothing."""
