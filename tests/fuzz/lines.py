"""What others say and we write: one line in the logs each, printable, whatever it holds."""

import logging
import tempfile
import unicodedata
from pathlib import Path
from random import Random

import msgspec

from asgi_gateway.samplelog import SampleLog
from asgi_gateway.store.states import State
from tests.fuzz.junk import DEEP, FRAGMENTS, damage, text
from tests.fuzz.service import Service
from tests.fuzz.target import Target

_STATUSES = (200, 200, 302, 400, 400, 401, 404, 500, 502, 503)
_SHAPES = (
    '{"error":{"message":%s}}', '{"detail":%s}', '{"error":%s}', "%s", '{"choices":[%s]}',
    '{"choices":[{"index":0,"finish_reason":%s}]}', '{"id":%s}',
    '{"choices":[{"index":0,"finish_reason":"stop","token_ids":%s}]}',
)  # fmt: skip
MAX_LINE = 1500


class Lines(Target):
    """A case is a status, an equals sign, and the body of an upstream's answer."""

    name = "lines"
    share = 0.01

    def open(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "samples.jsonl"
        self.service = Service(log__samples=str(self._path))
        self._logged = _Kept()
        logging.getLogger("asgi_gateway").setLevel(logging.WARNING)
        logging.getLogger("asgi_gateway").addHandler(self._logged)

    def close(self) -> None:
        logging.getLogger("asgi_gateway").removeHandler(self._logged)
        self.service.close()
        self._folder.cleanup()

    def make(self, rng: Random) -> bytes:
        said = msgspec.json.encode(text(rng)).decode()
        body = (rng.choice(_SHAPES) % rng.choice((said, said, rng.choice(FRAGMENTS)))).encode()
        if rng.random() < 0.3:
            body = damage(rng, body)
        elif rng.random() < 0.1:
            body = rng.choice((text(rng), rng.choice(DEEP))).encode("utf-8", "surrogatepass")
        return b"%d=" % rng.choice(_STATUSES) + body

    def check(self, case: bytes) -> str:
        status, _, body = case.partition(b"=")
        service = self.service
        service.ready()
        self._logged.lines.clear()
        service.run(self._sample(int(status), body))
        for line in self._logged.lines:
            assert is_one_line(line), f"a line that is none: {line!r}"
            assert len(line) < MAX_LINE
        log = service.driven.gateway._outputs.samples
        assert isinstance(log, SampleLog)
        record = self._record
        if record.state > State.RUNNING:  # else it is tried again
            assert len(self._logged.lines) == 1
            if log.writer.queue:
                written = msgspec.json.encode(log.writer.queue[-1])
                assert is_one_line(written.decode())
                assert len(written) < MAX_LINE
        name = record.state.name.lower()
        service.run(self._forget())
        log.writer.queue.clear()
        return name

    async def _sample(self, status: int, body: bytes) -> None:
        service = self.service
        service.seq_id += 1
        promise = await service.driven.submit(service.seq_id)
        record = service.driven.gateway._store.find(promise.json()["request_id"])
        assert record is not None
        self._record = record
        service.upstream.sent[-1].answer(status, body)
        service.upstream.sent.clear()

    async def _forget(self) -> None:
        service = self.service
        service.driven.gateway._sampling.cancel(self._record)
        service.upstream.sent.clear()


def is_one_line(line: str) -> bool:
    """Neither an end of line nor anything that moves a terminal's cursor or turns text around."""
    return not any(
        unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")
        or c in "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
        for c in line
    )


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
