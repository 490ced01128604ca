"""What a gateway writes for its operators beside its log: samples, requests, spans."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from asgi_gateway.accesslog import AccessLog
from asgi_gateway.clock import Clock
from asgi_gateway.linefile import LineFile
from asgi_gateway.metrics import Metrics
from asgi_gateway.samplelog import SampleLog
from asgi_gateway.settings import Settings, SettingsError
from asgi_gateway.tracing.starting import PER_EXPORT, traces
from asgi_gateway.tracing.traces import SpanTraces
from asgi_gateway.writer import Lines, Writer

TICKS_PER_EXPORT: Final = 10


class Outputs:
    """Each is None, or does nothing, where it is not configured. `open`, `tick` and `close` are the
    app's."""

    def __init__(
        self, settings: Settings, clock: Clock, model_of: Callable[[str], str | None]
    ) -> None:
        """model_of: the upstream's name for the weights of a sampling session.

        Raises:
            SettingsError: a file cannot be appended to, or spans cannot be made.
        """
        log = settings.log
        self._writers: dict[str, Writer[Any]] = {}
        self.samples = (
            SampleLog(log, settings.upstream.urls, clock, model_of, self._lines("samples", log))
            if log.samples
            else None
        )
        self.access = AccessLog(log, clock, self._lines("access", log)) if log.access else None
        self.traces = traces(settings, clock, model_of)
        self._spans = self.traces.writer if isinstance(self.traces, SpanTraces) else None
        self._ticks = 0

    def __repr__(self) -> str:
        return f"<Outputs {list(self._writers.values())!r}>"

    def add_to(self, metrics: Metrics) -> None:
        lines = list(self._writers.values())
        if lines:
            _count(metrics, "log", "Lines of the sample and access logs", "written", lines)
        if self._spans is not None:
            _count(metrics, "traces", "Samples whose spans were", "sent", [self._spans])

    def reconfigure(self, settings: Settings) -> None:
        """See `reloads`."""
        for part in (self.samples, self.access, self.traces):
            if part is not None:
                part.reconfigure(settings)

    def open(self) -> None:
        for writer in self._all():
            writer.open()

    def tick(self) -> None:
        """Called ten times a second."""
        for writer in self._writers.values():
            writer.tick()
        if self._spans is not None:
            # Each time is a request to the collector.
            self._ticks += 1
            if self._ticks >= TICKS_PER_EXPORT or len(self._spans.queue) >= PER_EXPORT:
                self._ticks = 0
                self._spans.tick()

    def _all(self) -> list[Writer[Any]]:
        return [*self._writers.values(), *([self._spans] if self._spans is not None else [])]

    async def close(self) -> None:
        """Write what is queued, for a moment at most."""
        for writer in self._all():
            await asyncio.to_thread(writer.close)

    def _lines(self, what: str, log: Any) -> Writer[Any]:
        """One writer for each target, or the lines of two would meet in the middle of a pipe."""
        target = getattr(log, what)
        if target not in self._writers:
            file = LineFile(target)
            try:
                file.check()
            except OSError as error:
                problem = f"log.{what}: cannot append to {target}: {error.strerror}"
                raise SettingsError([problem]) from error
            self._writers[target] = Writer(f"log.{what}", Lines(file))
        return self._writers[target]


def _count(metrics: Metrics, name: str, what: str, done: str, writers: list[Writer[Any]]) -> None:
    def written() -> int:
        return sum(one.written for one in writers)

    def dropped() -> int:
        return sum(one.dropped for one in writers)

    metrics.counter(f"{name}_written_total", f"{what} {done}.", written)
    metrics.counter(f"{name}_dropped_total", f"{what} dropped: not {done}.", dropped)
