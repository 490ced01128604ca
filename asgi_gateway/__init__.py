"""Tinker-compatible sampling gateway: a raw ASGI application in front of vLLM."""

from importlib.metadata import version

from asgi_gateway.app import Gateway
from asgi_gateway.settings import Settings, load

__all__ = ["Gateway", "Settings", "__version__", "create_app"]

__version__ = version("asgi-gateway")


def create_app() -> Gateway:
    """The factory for ASGI servers, configured by ASGI_GATEWAY_* and ASGI_GATEWAY_CONFIG.

    Raises:
        SettingsError: every problem of the configuration at once.
    """
    return Gateway(load().settings)
