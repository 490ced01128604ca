"""The log of the process that `serve` is: where the standard library's loggers write, and how.

Not for a gateway that is a part of another application, whose logging is its host's.
"""

import logging
from datetime import UTC, datetime
from typing import Final

import msgspec

from asgi_gateway.settings import LogSettings, Settings
from asgi_gateway.textline import one_line, without_keys

MAX_MESSAGE_CHARACTERS: Final = 4096
# Of a traceback its end: there is what went wrong.
MAX_TRACEBACK_CHARACTERS: Final = 16_384


class Entry(msgspec.Struct, omit_defaults=True):
    """A line of the JSON log; fields without a value are left out."""

    time: datetime
    level: str
    logger: str
    message: str
    worker: int | None = None
    request_id: str | None = None
    exception: str | None = None


def entry(record: logging.LogRecord, worker: int | None = None) -> Entry:
    """What is said, bounded and without anything that ends a line or looks like a key.

    worker: which of several processes says it.
    """
    request_id = getattr(record, "request_id", None)
    return Entry(
        datetime.fromtimestamp(record.created, UTC),
        record.levelname.lower(),
        record.name,
        _shown(record.getMessage()),
        worker,
        str(request_id) if request_id is not None else None,
        _exception(record),
    )


class AsJson(logging.Formatter):
    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        return msgspec.json.encode(entry(record, self._worker)).decode()


class AsText(logging.Formatter):
    """A traceback follows on lines of its own, which are indented: none of them passes for another
    entry."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._by = "" if worker is None else f" [worker {worker}]"

    def format(self, record: logging.LogRecord) -> str:
        one = entry(record)
        time = one.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        text = f"{time} {record.levelname}{self._by} {one.logger}: {one.message}"
        if one.exception is not None:
            text += "".join(f"\n    {line}" for line in one.exception.split("\n"))
        return text


class ProcessLog:
    """Writes to standard error, in the form and from the level that is set, from `open` on.

    A program that has set up logging before it calls `serve` keeps what it has, as with
    `logging.basicConfig`.
    """

    def __init__(self, settings: LogSettings, worker: int | None = None) -> None:
        self._level = settings.level.upper()
        self._handler = logging.StreamHandler()
        form = AsJson if settings.format == "json" else AsText
        self._handler.setFormatter(form(worker))

    def open(self) -> None:
        logging.basicConfig(level=self._level, handlers=[self._handler])
        logging.captureWarnings(True)

    def reconfigure(self, settings: Settings) -> None:
        """See `reloads`."""
        root = logging.getLogger()
        if self._handler in root.handlers:
            root.setLevel(settings.log.level.upper())


def _shown(text: str) -> str:
    cut = one_line(without_keys(text[: 2 * MAX_MESSAGE_CHARACTERS]), MAX_MESSAGE_CHARACTERS)
    left = len(text) - MAX_MESSAGE_CHARACTERS
    return f"{cut} ({left} more characters)" if left > 0 else cut


def _exception(record: logging.LogRecord) -> str | None:
    parts = []
    if record.exc_info:
        parts.append(logging.Formatter().formatException(record.exc_info))
    if record.stack_info:
        parts.append(record.stack_info)
    if not parts:
        return None
    text = without_keys("\n".join(parts))[-MAX_TRACEBACK_CHARACTERS:]
    return "\n".join(one_line(line, MAX_TRACEBACK_CHARACTERS) for line in text.split("\n"))
