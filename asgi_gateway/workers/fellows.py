"""The other workers: what each answers to the others, and what all of them together answer.

A question is one line over a Unix socket, its answer all until the end of the connection. The
worker that is asked by a client asks the others, waits for them for a second at most and adds.
"""

import asyncio
import logging
import os
import stat
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from asgi_gateway.admin.messages import DrainUpstream
from asgi_gateway.errors import GatewayError
from asgi_gateway.metrics import Metrics
from asgi_gateway.workers import exposition
from asgi_gateway.workers.folder import Dead, Folder
from asgi_gateway.workers.overview import together
from asgi_gateway.workers.told import Told

log = logging.getLogger(__name__)

WITHIN_S: Final = 1.0
_METRICS: Final = b"metrics"
_STATE: Final = b"state"
_UPSTREAM: Final = b"upstream "
_NAMES: Final = msgspec.json.Decoder(DrainUpstream)


class Fellows:
    """Of one worker, within its event loop."""

    def __init__(
        self,
        told: Told,
        metrics: Metrics,
        own_state: Callable[[], Awaitable[bytes]],
        drain_upstream: Callable[[str, bool], None],
    ) -> None:
        """own_state: `/admin/state` of this process. drain_upstream: in this process."""
        self.folder = Folder(told.folder)
        self._serial = told.serial
        self._count = told.count
        self._metrics = metrics
        self._own_state = own_state
        self._drain_upstream = drain_upstream
        self._server: asyncio.AbstractServer | None = None
        self._adding: asyncio.Task[bytes] | None = None
        self._dead = Dead()
        self._answered = 1
        metrics.gauge("workers", "Processes on the port that there should be.", lambda: self._count)
        metrics.gauge(
            "workers_answered",
            "Processes that this scrape is the sum of; of those that did not answer within"
            f" {WITHIN_S:g} s only what they had counted before.",
            lambda: self._answered,
        )
        metrics.counter(
            "worker_deaths_total",
            "Processes of serve that ended untold and were replaced.",
            lambda: self._dead.deaths,
        )

    def __repr__(self) -> str:
        return f"<Fellows of {self._serial}, {self._answered} answered>"

    # --- lifetime --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Answer the others. Raises OSError."""
        path = str(self.folder.socket(self._serial))
        self._server = await asyncio.start_unix_server(self._answer, path)
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)  # noqa: PTH101 - nobody else can look in anyway

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def unlink(self) -> None:
        """As the supervisor does where there is one."""
        self.folder.socket(self._serial).unlink(missing_ok=True)

    def keep(self) -> None:
        """What was counted here, for those that stay."""
        self.folder.keep(self._serial, self._metrics.render())

    # --- answers to the others -------------------------------------------------------------------

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(2 * WITHIN_S):
                question = (await reader.readline()).rstrip(b"\n")
                writer.write(await self._answer_to(question))
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # who asked has gone
        except Exception:
            log.exception("bug while answering another worker")
        finally:
            writer.close()

    async def _answer_to(self, question: bytes) -> bytes:
        if question == _METRICS:
            return self._metrics.render()
        if question == _STATE:
            return await self._own_state()
        if question.startswith(_UPSTREAM):
            asked = _NAMES.decode(question.removeprefix(_UPSTREAM))
            try:
                self._drain_upstream(asked.upstream, asked.draining)
            except GatewayError as error:  # this worker does not know it
                log.warning("another worker asked: %s", error)
        return b""

    # --- questions to the others -----------------------------------------------------------------

    async def metrics(self) -> bytes:
        """The metrics of all. Whoever comes meanwhile has the same."""
        if self._adding is None:
            self._adding = asyncio.create_task(self._add())
            self._adding.add_done_callback(self._added)
        # Its maker may leave; the others still wait for it.
        return await asyncio.shield(self._adding)

    def _added(self, _: object) -> None:
        self._adding = None

    async def _add(self) -> bytes:
        answers = await self._ask(_METRICS)
        others = {serial: text for serial, text in answers.items() if text}
        counted = await asyncio.to_thread(self._exchange, answers, self._metrics.render())
        # The dead last, see `Folder.bury`.
        self._dead = self.folder.dead()
        gone = set(self._dead.serials)
        self._answered = 1 + len(others.keys() - gone)
        total = exposition.read(self._metrics.render())
        exposition.add(total, exposition.read(self._dead.text.encode()), gauges=False)
        for texts, gauges in ((others, True), (counted, False)):
            for serial, text in texts.items():
                if serial not in gone:
                    exposition.add(total, exposition.read(text), gauges=gauges)
                    await asyncio.sleep(0)  # 0.4 ms each, and more with many upstreams
        return exposition.write(total.values())

    def _exchange(self, answers: Mapping[int, bytes | None], own: bytes) -> dict[int, bytes]:
        """Keep what is about to be shown; returns what those had counted that did not answer."""
        counted = {}
        for serial, text in {**answers, self._serial: own}.items():
            if text:
                self.folder.keep(serial, text)
            else:
                counted[serial] = self.folder.kept(serial)
        return counted

    async def state(self) -> bytes:
        """`/admin/state` of all."""
        own, answers = await asyncio.gather(self._own_state(), self._ask(_STATE))
        others = [text for text in answers.values() if text]
        return await together(own, others, self._count)

    async def tell_upstream(self, url: str, draining: bool) -> None:
        """What an operator decided holds in each."""
        await self._ask(_UPSTREAM + msgspec.json.encode(DrainUpstream(url, draining)))

    async def _ask(self, question: bytes) -> dict[int, bytes | None]:
        """The answer of each other worker, None where there was none in time."""
        serials = [serial for serial in self.folder.serials() if serial != self._serial]
        answers = await asyncio.gather(*(self._one(serial, question) for serial in serials))
        return dict(zip(serials, answers, strict=True))

    async def _one(self, serial: int, question: bytes) -> bytes | None:
        writer = None
        try:
            async with asyncio.timeout(WITHIN_S):
                path = str(self.folder.socket(serial))
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(question + b"\n")
                return await reader.read()
        except (OSError, TimeoutError):
            return None
        finally:
            if writer is not None:
                writer.close()
