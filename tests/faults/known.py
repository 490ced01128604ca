"""Settings of the gateway that a row would like shorter than their defaults."""

from __future__ import annotations

from asgi_gateway.configuration import leaves
from asgi_gateway.settings import Settings

_PATHS = {path.replace(".", "__") for path, _ in leaves(Settings)}


def where_known(**settings: object) -> dict[str, object]:
    """Those of them that this gateway has; a row holds, later, with the defaults too."""
    return {name: value for name, value in settings.items() if name in _PATHS}
