"""A bounded queue that the event loop fills, and one thread that takes it elsewhere.

The loop only appends; the ticker wakes the thread. Where the queue is full, or its end takes
nothing, items are dropped and counted: nothing here holds the loop.
"""

import logging
import threading
from collections import deque
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from asgi_gateway.linefile import LineFile

log = logging.getLogger(__name__)

# At most so many lines wait for the thread: 20 MB.
MAX_QUEUED: Final = 65_536
# Written at once. Encoding holds the interpreter's lock for about 0.1 ms of them, and the loop.
LINES_PER_WRITE: Final = 128
CLOSE_WITHIN_S: Final = 2.0

T = TypeVar("T")


class Sink(Protocol[T]):
    """Where things go; in the thread alone."""

    def write(self, items: list[T]) -> tuple[int, Exception | None]:
        """How many arrived, and why not all did."""

    def close(self) -> None:
        """Nothing more comes."""


class Writer(Generic[T]):
    """`put` and `tick` are the loop's. Opened and closed by whoever made it."""

    def __init__(
        self, name: str, sink: Sink[T], *, most: int = MAX_QUEUED, at_once: int = LINES_PER_WRITE
    ) -> None:
        """name: of what is written, for the log: "the sample log"."""
        self.name = name
        self.queue: deque[T] = deque()
        self._sink = sink
        self._most = most
        self._at_once = at_once
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._failure: str | None = None
        # Each of the counters has one thread that adds to it.
        self.written = 0
        self._overflowed = 0
        self._unwritten = 0

    def __repr__(self) -> str:
        return f"<Writer of {self.name}, {len(self.queue)} queued, {self.dropped} dropped>"

    @property
    def dropped(self) -> int:
        return self._overflowed + self._unwritten

    # --- in the event loop -----------------------------------------------------------------------

    def put(self, item: T) -> None:
        if len(self.queue) >= self._most:
            self._overflowed += 1
        else:
            self.queue.append(item)

    def tick(self) -> None:
        """Have the thread write what gathered since the last tick."""
        if self.queue:
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
            left = len(self.queue)
            self.queue.clear()
            self._overflowed += left
            log.warning("%s: %r is held; %d dropped", self.name, self._sink, left)

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        closing = False
        while not closing:
            self._wake.wait()
            self._wake.clear()
            closing = self._closing
            while self.queue:
                self._write()
        self._sink.close()

    def _write(self) -> None:
        """Write some; a failure is said once, and its end once."""
        items: list[T] = []
        try:
            while len(items) < self._at_once:
                items.append(self.queue.popleft())
        except IndexError:  # the loop only adds, and `close` only clears
            pass
        written = 0
        failure: Exception | None
        try:
            written, failure = self._sink.write(items)
        except Exception as error:  # noqa: BLE001 - one that cannot be written must not end the thread
            failure = error
        self.written += written
        self._unwritten += len(items) - written
        text = (str(failure) or type(failure).__name__) if failure is not None else None
        if text is not None and self._failure is None:
            log.error("%s: dropping, %r cannot be written: %s", self.name, self._sink, text)
        elif text is None and self._failure is not None:
            log.warning("%s: %r is written again", self.name, self._sink)
        self._failure = text


class Line(msgspec.Struct, gc=False, omit_defaults=True):
    """What is encoded as one line."""

    def prepare(self) -> None:
        """In the thread, before: what the loop need not do."""


class Lines:
    """A file of JSON lines."""

    def __init__(self, file: LineFile) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()

    def __repr__(self) -> str:
        return repr(self._file)

    def write(self, items: list[Line]) -> tuple[int, Exception | None]:
        for item in items:
            item.prepare()
        return self._file.append(self._encoder.encode_lines(items))

    def close(self) -> None:
        self._file.close()
