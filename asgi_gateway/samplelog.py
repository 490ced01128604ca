"""One JSON line per finished sample, for operators.

A line never carries prompts, tokens, texts or keys, and of what an upstream said only the status,
since an error may quote the prompt that it refuses.
"""

import re
import zlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

from asgi_gateway.addresses import shown_url
from asgi_gateway.caller import DEFAULT
from asgi_gateway.clock import Clock
from asgi_gateway.settings import LogSettings, Settings
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import SUCCEEDED
from asgi_gateway.textline import one_line
from asgi_gateway.tracing.context import Trace
from asgi_gateway.writer import Line, Writer

MAX_TEXT_CHARACTERS: Final = 300
_SHARES: Final = 1 << 32
# Where words begin that are not the gateway's own (upstream/verdict, codec/decode).
_FOREIGN: Final = re.compile(r"(?<=answered \d{3}): | \(it begins ")


class SampleLine(Line, gc=False, omit_defaults=True):
    """What is written of a sample; seconds to the microsecond, fields without a value left out."""

    time: datetime
    request_id: str
    sampling_session_id: str
    outcome: str
    prompt_tokens: int
    result_bytes: int
    attempts: int
    queued_s: float
    upstream_s: float
    model: str | None = None
    upstream: str | None = None
    category: str | None = None
    error: str | None = None
    caller: str | None = None
    trace_id: str | None = None


class SampleLog:
    """Which samples have a line, and what it says; the event loop's."""

    def __init__(
        self,
        settings: LogSettings,
        urls: Iterable[str],
        clock: Clock,
        model_of: Callable[[str], str | None],
        writer: Writer[Any],
    ) -> None:
        """model_of: the upstream's name for the weights of a sampling session."""
        self.writer = writer
        self._clock = clock
        self._model_of = model_of
        self._shown = {url: shown_url(url) for url in urls}
        self._take(settings)

    def _take(self, settings: LogSettings) -> None:
        self._slow_s = settings.slow_s
        self._chosen_below = round(settings.success_share * _SHARES)

    def reconfigure(self, settings: Settings) -> None:
        """Which lines are written from now on."""
        self._take(settings.log)

    def __repr__(self) -> str:
        return f"<SampleLog {self.writer!r}>"

    def move(self, _: object, urls: Iterable[str]) -> None:
        """The upstreams are these from now on."""
        self._shown = {url: shown_url(url) for url in urls}

    def settled(
        self,
        record: Record,
        outcome: str,
        queued_s: float,
        upstream_s: float,
        trace: Trace | None = None,
    ) -> None:
        """Queue the line of a sample; its times are of all its runs."""
        succeeded = record.state is SUCCEEDED and queued_s + upstream_s <= self._slow_s
        if succeeded and not self._chosen(record.request_id):
            return
        line = SampleLine(
            datetime.fromtimestamp(self._clock.wall_time(), UTC),
            record.request_id,
            record.sampling_session_id,
            outcome,
            record.prompt_tokens,
            len(record.result) if record.result is not None else 0,
            record.attempts,
            round(queued_s, 6),
            round(upstream_s, 6),
            self._model_of(record.sampling_session_id),
            self._shown.get(record.upstream),
        )
        if record.caller != DEFAULT.name:
            line.caller = record.caller
        if trace is not None:
            line.trace_id = trace.trace_id
        if record.failure is not None:
            line.category = record.failure.category
            line.error = own_words(record.failure.text)
        self.writer.put(line)

    def _chosen(self, request_id: str) -> bool:
        """Whether a success is among those that are written: always the same for one id."""
        return self._chosen_below >= _SHARES or zlib.crc32(request_id.encode()) < self._chosen_below


def own_words(text: str) -> str:
    """A failure's text on one line and bounded, without what an upstream said."""
    foreign = _FOREIGN.search(text)
    return one_line(text[: foreign.start()] if foreign is not None else text, MAX_TEXT_CHARACTERS)
