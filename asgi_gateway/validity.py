"""What is wrong with settings whose types are right: for any gateway, and for `serve`."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from asgi_gateway import shareable
from asgi_gateway.access import bind, keys
from asgi_gateway.addresses import fault_of
from asgi_gateway.clock import SystemClock
from asgi_gateway.configuration import shown
from asgi_gateway.settings import MEMORY, Settings, TrainingSettings
from asgi_gateway.sources import configured as sources
from asgi_gateway.tracing import starting
from asgi_gateway.training.prefix import Prefix
from asgi_gateway.upstream import naming

NO_UPSTREAM: Final = (
    "no upstream: say where vLLM listens, with --upstream http://HOST:PORT,"
    " ASGI_GATEWAY_UPSTREAM__URLS or upstream.urls in a file"
)


def problems(settings: Settings) -> Iterator[str]:
    """What no gateway could use, one line each; keys are looked at where they are read."""
    for url in settings.upstream.urls:
        if fault := fault_of(url):
            yield f"upstream.urls: {shown('upstream.urls', url)} {fault}"
    yield from sources.problems(settings.upstream, SystemClock())
    yield from naming.problems(settings.models)
    yield from shareable.problems(settings)


def problems_of_serve(settings: Settings, wrong: Collection[str] = ()) -> list[str]:
    """All that `serve` would refuse but for what this machine lacks.

    wrong: settings whose values could not be taken; nothing is said of what depends on them.
    """
    found: list[str] = []

    def say(paths: Iterable[str], said: Iterable[str]) -> None:
        if not any(path in wrong for path in paths):
            found.extend(said)

    given = settings.upstream.urls or settings.upstream.source
    upstreams = ("upstream.urls", "upstream.source")
    say(upstreams, () if given else [NO_UPSTREAM])
    # Each is looked at by itself, so a default in the place of one that is wrong does no harm.
    say([], problems(settings))
    say(["training.url", "training.embedded"], _problems_of_training(settings.training))
    say(["server.host"], _problems_of_host(settings.server.host))
    say(["server.workers", "store.url"], _problems_of_workers(settings))
    access = ("access.keys", "access.keys_file")
    say(access, keys.problems(settings.access))
    say(["tracing.otlp", "tracing.endpoint"], starting.problems(settings.tracing))
    say([*access, "server.host", "server.insecure"], bind.problems(settings))
    return found


def _problems_of_host(host: str) -> Iterator[str]:
    try:
        host.encode("idna")  # as it is looked up
    except UnicodeError as error:
        yield f"server.host = {host!r}: {error}"


def _problems_of_workers(settings: Settings) -> Iterator[str]:
    workers = settings.server.workers
    if workers > 1 and settings.store.url == MEMORY:
        yield (
            f'server.workers = {workers} with store.url = "{MEMORY}": each process would know its'
            " own samples only; set store.url to a Valkey that they share, or server.workers to 1"
        )


def _problems_of_training(training: TrainingSettings) -> Iterator[str]:
    if training.url is not None:
        if fault := fault_of(training.url):
            yield f"training.url: {shown('training.url', training.url)} {fault}"
        else:
            try:
                Prefix(training.url)
            except ValueError as error:
                yield str(error)
    if training.embedded:
        yield "training.embedded: there is no inner application here, only in Gateway()"
