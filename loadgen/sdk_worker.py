"""A process of real SDK clients: run as a file by any interpreter that has the tinker package.

    python loadgen/sdk_worker.py

It speaks the lines of `worker` (Order, ready, go, Progress, ended) and imports nothing but the
standard library and tinker, so that any release in any virtual environment will do. What each
sample was comes from FOLDER/PROCESS.todo, what became of it goes to FOLDER/PROCESS.records; results
are told as digests, which `sdk` compares with what they must be.
"""

import asyncio
import concurrent.futures
import inspect
import json
import os
import sys
import time
from array import array
from hashlib import blake2b
from pathlib import Path
from typing import Any

PROGRESS_S = 0.5
TICK_S = 0.05
STATUSES = {"BadRequestError": 400, "AuthenticationError": 401, "NotFoundError": 404}


class Load:
    """One process's samples and their records, by row."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.plan = order["plan"]
        stem = Path(order["folder"]) / str(order["process"])
        self.todo: dict[str, Any] = json.loads(stem.with_suffix(".todo").read_text())
        self.records_path = stem.with_suffix(".records")
        self.check_path = stem.with_suffix(".check")
        self.count: int = len(self.todo["numbers"])
        self.records: list[list[Any]] = [
            [0.0, 0.0, 0.0, "", 0, 0, "", ""] for _ in range(self.count)
        ]
        self.settled = self.failed = 0
        self.services: list[Any] = []
        self.samplers: list[Any] = []
        self.lags_s: list[float] = []
        self.late = 0
        self.late_max_s = 0.0

    async def prepare(self) -> None:
        import tinker

        plan = self.plan
        for _ in range(self.todo["sessions"]):
            service = tinker.ServiceClient(base_url=plan["url"], api_key=plan["api_key"])
            self.services.append(service)
            for _ in range(plan["clones"]):
                made = await asyncio.to_thread(
                    service.create_sampling_client, base_model=plan["model"]
                )
                self.samplers.append(await waited(made))

    async def drive(self, start: float, stopped: asyncio.Event) -> None:
        ticking = asyncio.create_task(self.tick())
        deadline = start + self.plan["within_s"]
        working = asyncio.create_task(self.all(start))
        stopping = asyncio.create_task(stopped.wait())
        left_s = max(0.0, deadline - time.monotonic())
        await asyncio.wait({working, stopping}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for task in (ticking, working, stopping):
            task.cancel()
        await asyncio.gather(ticking, working, stopping, return_exceptions=True)

    async def all(self, start: float) -> None:
        """Open loop by the planned times; closed by so many at a time."""
        planned = self.todo["planned"]
        if planned is not None:
            tasks = []
            for row in range(self.count):
                due = start + planned[row]
                if (wait_s := due - time.monotonic()) > 0:
                    await asyncio.sleep(wait_s)
                late_s = time.monotonic() - due
                if late_s > 0.05:
                    self.late += 1
                    self.late_max_s = max(self.late_max_s, late_s)
                tasks.append(asyncio.create_task(self.one(row, due)))
            await asyncio.gather(*tasks)
            return
        rows = iter(range(self.count))

        async def take(first: float | None) -> None:
            for row in rows:
                await self.one(row, first or time.monotonic())
                first = None

        most = self.todo["concurrency"] or self.count
        await asyncio.gather(*(take(start) for _ in range(min(most, self.count))))

    async def one(self, row: int, planned: float) -> None:
        from tinker import types

        record = self.records[row]
        record[0], record[1] = planned, time.monotonic()
        number, length = self.todo["numbers"][row], self.todo["prompts"][row]
        second, first = divmod(number, self.todo["per_id"])
        base = self.todo["first_id"]
        ids = [base + first, base + second, self.todo["third"], *self.todo["filler"][: length - 3]]
        prompt = types.ModelInput(chunks=[types.EncodedTextChunk(tokens=ids)])
        params = types.SamplingParams(max_tokens=self.todo["outputs"][row], temperature=1.0)
        sampler = self.samplers[row % len(self.samplers)]
        try:
            asked = sampler.sample(prompt=prompt, num_samples=1, sampling_params=params)
            result = await waited(asked)
            self.succeeded(record, result)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a release raises is its outcome
            said = f"{type(error).__name__}: {error}".replace(self.plan["api_key"], "***")
            record[3], record[7] = outcome_of(error), said[:200]
            self.failed += 1
        record[2] = time.monotonic()
        self.settled += 1

    def succeeded(self, record: list[Any], result: Any) -> None:
        sequence = result.sequences[0]
        logprobs = list(sequence.logprobs or ())
        tokens = array("i", list(sequence.tokens)).tobytes()
        state = blake2b(tokens, digest_size=8)
        record[3], record[4], record[5] = "succeeded", len(sequence.tokens), len(logprobs)
        record[6] = state.hexdigest()
        state.update(array("f", logprobs).tobytes())
        record[7] = state.hexdigest()

    async def tick(self) -> None:
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self.lags_s.append(max(0.0, time.monotonic() - due))

    def progress(self) -> str:
        said = {"t": time.monotonic(), "accepted": self.settled, "settled": self.settled}
        return json.dumps(said | {"failed": self.failed, "polls": 0, "cpu_s": time.process_time()})

    def save(self, wall_s: float, cpu_s: float) -> None:
        lags = sorted(self.lags_s) or [0.0]
        check = {
            "cpu": round(cpu_s / max(wall_s, 1e-3), 4),
            "starved": 0.0,
            "cpu_s": round(cpu_s, 4),
            "lag_p99_ms": round(lags[len(lags) * 99 // 100] * 1000, 2),
            "lag_max_ms": round(lags[-1] * 1000, 2),
            "late": self.late,
            "late_max_ms": round(self.late_max_s * 1000, 1),
            "descriptors_peak": len(list(Path("/proc/self/fd").iterdir())),
        }
        self.check_path.write_text(json.dumps(check))
        self.records_path.write_text(json.dumps({"sdk": version(), "records": self.records}))


async def waited(made: Any) -> Any:
    """What a release returns: the value, something to await, or a future of another thread."""
    if inspect.isawaitable(made):
        return await made
    if isinstance(made, concurrent.futures.Future):
        return await asyncio.wrap_future(made)
    return made


def outcome_of(error: BaseException) -> str:
    """As the ledger names it, from what releases have in common: a category or a status."""
    category = getattr(error, "category", None)
    if category is not None:
        return f"failed.{getattr(category, 'value', category)}".lower()
    status = getattr(error, "status_code", None) or STATUSES.get(type(error).__name__)
    return f"refused.{status or type(error).__name__}"


def version() -> str:
    import importlib.metadata

    return importlib.metadata.version("tinker")


def say(line: str) -> None:
    sys.__stdout__.write(line + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


async def report(load: Load) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        say(load.progress())


async def main() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    load = Load(json.loads(await lines.readline()))
    try:
        await load.prepare()
    except Exception as error:  # noqa: BLE001 - told to the parent
        say(f"error {type(error).__name__}: {error}".replace("\n", " "))
        return
    say("ready")
    command = (await lines.readline()).split()
    if len(command) != 2:
        return
    start = float(command[1])
    await asyncio.sleep(start - time.monotonic())
    stopped = asyncio.Event()

    async def listen() -> None:
        await lines.read()
        stopped.set()

    others = [asyncio.create_task(listen()), asyncio.create_task(report(load))]
    began, cpu_s = time.monotonic(), time.process_time()
    await load.drive(start, stopped)
    load.save(time.monotonic() - began, time.process_time() - cpu_s)
    for other in others:
        other.cancel()
    say(load.progress())
    say("ended")


if __name__ == "__main__":
    del sys.path[0]  # our folder, whose modules the SDK's dependencies must not meet
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    sys.stdout = sys.stderr  # what the SDK prints is not a line of ours
    asyncio.run(main())
    os._exit(0)  # the SDK's own threads may not end by themselves
