"""Whether the store of such settings is shared, and may be. Pure."""

from collections.abc import Iterator

from asgi_gateway.settings import MEMORY, Settings


def is_shared(settings: Settings) -> bool:
    return settings.store.url != MEMORY


def problems(settings: Settings) -> Iterator[str]:
    training = settings.training
    if is_shared(settings) and (training.url is not None or training.embedded):
        # Samplers that a trainer makes, and the order of its requests, are known to one gateway.
        name = "training.url" if training.url is not None else "training.embedded"
        yield (
            f"{name} and store.url: a gateway in front of a trainer cannot share its store with"
            " others; leave one of the two out"
        )
