"""Tinker-compatible sampling gateway: a raw ASGI application in front of vLLM."""

from importlib.metadata import version

from asgi_gateway.app import Gateway
from asgi_gateway.configuration import load
from asgi_gateway.descriptors import raise_descriptor_limit
from asgi_gateway.settings import Settings
from asgi_gateway.standalone import Standalone

__all__ = ["Gateway", "Settings", "__version__", "create_app"]

__version__ = version("asgi-gateway")


def create_app() -> Gateway:
    """The factory for ASGI servers, configured by ASGI_GATEWAY_* and ASGI_GATEWAY_CONFIG.

    While it is open in the main thread it stands in front of the server's handlers of SIGTERM and
    SIGINT (docs/servers.md); a `Gateway` of your own leaves them alone.

    Raises:
        SettingsError: every problem of the configuration at once.
        StateError: the journal cannot be used.
    """
    gateway = Standalone(load().settings)
    raise_descriptor_limit()
    return gateway
