"""One JSON line per finished sample, for operators.

The event loop only fills a struct and appends it to a queue; the ticker wakes one thread, which
encodes and writes. Where the queue is full or the disk is, lines are dropped and counted: nothing
here holds the loop. A line never carries prompts, tokens, texts or keys, and of what an upstream
said only the status, since an error may quote the prompt that it refuses.
"""

import logging
import re
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from asgi_gateway.addresses import shown_url
from asgi_gateway.caller import DEFAULT
from asgi_gateway.clock import Clock
from asgi_gateway.linefile import LineFile
from asgi_gateway.metrics import Metrics
from asgi_gateway.settings import LogSettings, SettingsError
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import SUCCEEDED
from asgi_gateway.tracing.context import Trace

log = logging.getLogger(__name__)

# At most so many lines wait for the thread: 20 MB.
MAX_QUEUED: Final = 65_536
# Written at once. Encoding holds the interpreter's lock for about 0.1 ms of them, and the loop.
LINES_PER_WRITE: Final = 128
CLOSE_WITHIN_S: Final = 2.0
MAX_TEXT_CHARACTERS: Final = 300
_SHARES: Final = 1 << 32
# Where words begin that are not the gateway's own (upstream/verdict, codec/decode).
_FOREIGN: Final = re.compile(r"(?<=answered \d{3}): | \(it begins ")


class Line(msgspec.Struct, gc=False, omit_defaults=True):
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
    """Lines of one gateway. Opened and closed by the app; `settled` and `tick` are the loop's."""

    def __init__(
        self,
        settings: LogSettings,
        urls: Iterable[str],
        clock: Clock,
        model_of: Callable[[str], str | None],
    ) -> None:
        """model_of: the upstream's name for the weights of a sampling session.

        Raises:
            SettingsError: the file cannot be appended to.
        """
        self._file = LineFile(settings.samples)
        try:
            self._file.check()
        except OSError as error:
            problem = f"log.samples: cannot append to {settings.samples}: {error.strerror}"
            raise SettingsError([problem]) from error
        self._clock = clock
        self._model_of = model_of
        self._shown = {url: shown_url(url) for url in urls}
        self._slow_s = settings.slow_s
        self._chosen_below = round(settings.success_share * _SHARES)
        self._queue: deque[Line] = deque()
        self._encoder = msgspec.json.Encoder()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._failure: str | None = None
        # Each of the counters has one thread that adds to it.
        self.written = 0
        self._overflowed = 0
        self._unwritten = 0

    def __repr__(self) -> str:
        return f"<SampleLog {self._file!r}, {len(self._queue)} queued, {self.dropped} dropped>"

    @property
    def dropped(self) -> int:
        return self._overflowed + self._unwritten

    def add_to(self, metrics: Metrics) -> None:
        metrics.counter("log_written_total", "Sample lines written.", lambda: self.written)
        metrics.counter("log_dropped_total", "Sample lines not written.", lambda: self.dropped)

    def move(self, _: object, urls: Iterable[str]) -> None:
        """The upstreams are these from now on."""
        self._shown = {url: shown_url(url) for url in urls}

    # --- in the event loop -----------------------------------------------------------------------

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
        if len(self._queue) >= MAX_QUEUED:
            self._overflowed += 1
            return
        line = Line(
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
        self._queue.append(line)

    def _chosen(self, request_id: str) -> bool:
        """Whether a success is among those that are written: always the same for one id."""
        return self._chosen_below >= _SHARES or zlib.crc32(request_id.encode()) < self._chosen_below

    def tick(self) -> None:
        """Have the thread write what gathered since the last tick."""
        if self._queue:
            self._wake.set()

    # --- lifetime --------------------------------------------------------------------------------

    def open(self) -> None:
        self._thread = threading.Thread(target=self._run, name="asgi-gateway-log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is queued, for CLOSE_WITHIN_S at most; waits, so not for the event loop."""
        if self._thread is None:
            return
        self._closing = True
        self._wake.set()
        self._thread.join(CLOSE_WITHIN_S)
        if self._thread.is_alive():
            left = len(self._queue)
            self._queue.clear()
            self._overflowed += left
            log.warning("the sample log: %r is held; %d lines dropped", self._file, left)

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        closing = False
        while not closing:
            self._wake.wait()
            self._wake.clear()
            closing = self._closing
            while self._queue:
                self._write()
        self._file.close()

    def _write(self) -> None:
        """Write some lines; a failure is said once, and its end once."""
        lines: list[Line] = []
        try:
            while len(lines) < LINES_PER_WRITE:
                lines.append(self._queue.popleft())
        except IndexError:  # the loop only adds, and `close` only clears
            pass
        written = 0
        failure: Exception | None
        try:
            written, failure = self._file.append(self._encoder.encode_lines(lines))
        except (ValueError, TypeError, msgspec.MsgspecError) as error:
            failure = error  # a line that is no JSON must not end the thread
        self.written += written
        self._unwritten += len(lines) - written
        text = str(failure) if failure is not None else None
        if text is not None and self._failure is None:
            log.error(
                "the sample log: lines are dropped, %r cannot be written: %s", self._file, text
            )
        elif text is None and self._failure is not None:
            log.warning("the sample log: %r is written again", self._file)
        self._failure = text


def own_words(text: str) -> str:
    """A failure's text on one line and bounded, without what an upstream said."""
    foreign = _FOREIGN.search(text)
    text = text[: foreign.start()] if foreign is not None else text
    text = text[:MAX_TEXT_CHARACTERS]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
