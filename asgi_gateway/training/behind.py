"""What answers the requests that are not the gateway's."""

from asgi_gateway.asgi import App
from asgi_gateway.clock import Clock
from asgi_gateway.settings import Settings
from asgi_gateway.training.embedded import Embedded
from asgi_gateway.training.proxy import Proxy
from asgi_gateway.training.trainer import Trainer, over


def what_is_behind(
    settings: Settings, inner: App | None, clock: Clock
) -> tuple[App | None, Trainer | None]:
    """Who answers what is not ours, and whether it is a trainer that owns the sessions.

    Raises:
        ValueError: settings that contradict each other.
    """
    training = settings.training
    if training.url is not None:
        if inner is not None:
            raise ValueError("training.url and an inner application exclude each other")
        proxy = Proxy(training.url)
        return proxy, Trainer(over(proxy), clock)
    if training.embedded:
        if inner is None:
            raise ValueError("training.embedded needs an inner application")
        return inner, Trainer(Embedded(inner).ask, clock)
    return inner, None
