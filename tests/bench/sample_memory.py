"""Bytes that one waiting sample takes: asample handled in this process, nothing dispatched.

    python -m tests.bench.sample_memory --samples 131072
    python -m tests.bench.sample_memory --samples 131072 --state-dir DIR    with a journal
    python -m tests.bench.sample_memory --samples 16384 --trace             by line of the source

Resident memory before and after, from /proc. The bytes of the prompts, as the client wrote them
between the brackets, are shown apart: nothing can be smaller than they are.
"""

import argparse
import asyncio
import gc
import os
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec

from asgi_gateway import Gateway
from asgi_gateway.asgi import Call
from asgi_gateway.caller import DEFAULT
from asgi_gateway.serve import GC_THRESHOLDS
from asgi_gateway.upstream.catalog import Model
from tests.support.flood.samples import Samples
from tests.support.gateway import settings

PAGE = os.sysconf("SC_PAGE_SIZE")
SCOPE: dict[str, Any] = {"headers": [(b"x-stainless-package-version", b"0.38.0")]}
# Made before the first reading: tables that grow by doubling, code that is compiled when first run.
WARM_UP = 1000


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


async def never() -> Any:
    raise AssertionError("an asample does not ask for more")


async def measure(samples: int, prompt_tokens: int, trace: bool, **flags: Any) -> dict[str, float]:
    """The figures of one gateway that accepts `samples` of `prompt_tokens` each."""
    made = Samples(prompt_tokens, 16)
    # Nothing listens there; the one that is sent comes back in line after a pause.
    options = settings("http://127.0.0.1:9", upstream__max_connections=1, **flags)
    gateway = Gateway(options)
    async with gateway.running():
        session = gateway._sessions.create(DEFAULT.name, 0.0)
        model = Model(upstream_name="stand-in", base_model="stand-in", cache_salt="base")
        target = gateway._sessions.create_sampling(session, 0, model).sampling_session_id
        handlers = gateway._table.find("/api/v1/asample")
        assert handlers is not None
        handle = handlers.route.handler

        async def submit(first: int, count: int) -> None:
            for number in range(first, first + count):
                body = made.request(number, target, number)
                reply = await handle(Call(SCOPE, never, body, "", DEFAULT))
                assert reply.status == 200

        await submit(0, WARM_UP)
        gc.collect()
        gc.freeze()
        if trace:
            tracemalloc.start(1)
        before = rss_bytes()
        await submit(WARM_UP, samples)
        after = rss_bytes()
        if trace:
            taken = tracemalloc.take_snapshot()
            for line in taken.statistics("lineno")[:24]:
                frame = line.traceback[0]
                name = "/".join(Path(frame.filename).parts[-2:])
                print(
                    f"{line.size / samples:8.1f} {line.count / samples:6.2f}  {name}:{frame.lineno}"
                )
        first = made.request(WARM_UP, target, WARM_UP)
        prompt = first.partition(b'"tokens":[')[2].partition(b"]")[0]
        return {
            "samples": samples,
            "prompt_bytes": len(prompt),
            "bytes": (after - before) / samples,
            "bytes_beside_prompt": (after - before) / samples - len(prompt),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=131_072)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--state-dir")
    parser.add_argument("--trace", action="store_true")
    arguments = parser.parse_args()
    gc.set_threshold(*GC_THRESHOLDS)
    flags = {"state__dir": arguments.state_dir} if arguments.state_dir else {}
    figures = asyncio.run(
        measure(arguments.samples, arguments.prompt_tokens, arguments.trace, **flags)
    )
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main()
