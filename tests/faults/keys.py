"""API keys that are guessed, and a file of keys that breaks."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from pathlib import Path
from typing import Final

from tests.faults.found import Found, Size
from tests.faults.judge import asked, counts, judged
from tests.faults.load import load, rate, until
from tests.support.processes import serve, stand_in
from tests.support.wire import wire

SECRET: Final = "tml-fault-suite-secret"


async def wrong_keys(size: Size) -> Found:
    """Guesses by the thousand beside a client with the right key."""
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    with (
        stand_in("--delay-s", "0.05") as vllm,
        serve(vllm, access__keys=f"ours={digest}") as gateway,
    ):
        flags = ("--style", "future", "--api-key", SECRET, *rate(50))
        async with load(gateway.url, vllm, 150, *flags) as running:
            guesses = size.samples * 2
            told: set[tuple[int, bytes]] = set()

            async def guess(number: int) -> None:
                async with wire(gateway.port) as link:
                    headers = {"X-API-Key": f"tml-guess-{number}"}
                    answer = await link.ask("POST", "/api/v1/client/config", {}, headers)
                told.add((answer.status, answer.body))

            for begin in range(0, guesses, 20):
                await asyncio.gather(*(guess(begin + n) for n in range(20)))
            result = await running.result()
        found = judged(result, asked([vllm]))
        found.injected = guesses
        found.needs(
            len(told) == 1 and next(iter(told))[0] == 401, f"guesses were told {sorted(told)[:3]}"
        )
        found.needs("tml-guess" not in gateway.process.stderr, "a guessed key is in the log")
        return found


async def broken_keys_file(size: Size) -> Found:
    """The file of keys becomes unreadable under load."""
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, stand_in() as vllm:
        file = Path(folder, "keys.toml")
        await asyncio.to_thread(file.write_text, f'[ours]\nsha256 = "{digest}"\n')
        with serve(vllm, access__keys_file=file) as gateway:
            flags = ("--style", "future", "--api-key", SECRET, *rate(50))
            async with load(gateway.url, vllm, 300, *flags) as running:
                await until(lambda: bool(counts(vllm)["statuses"]), "load")
                await asyncio.to_thread(file.write_text, "[ours\nsha256 = 12")
                result = await running.result()
            found = judged(result, asked([vllm]))
            found.injected = 1
            found.needs(gateway.process.status is None, "the gateway ended")
            failed = "the keys stay as they were" in gateway.process.stderr
            found.needs(failed, f"nothing is said of it: {gateway.process.stderr[-300:]!r}")
        return found
