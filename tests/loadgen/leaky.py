"""A small server of the sampling routes that is not ours, and that leaks where it is told to.

    python -m tests.loadgen.leaky '{"lose": 10}'

Every N-th accepted sample, counted from one:

lose       never completes                  twin       gets the id of the sample before it
swap       gets the result of sample 1      again      is reported again in each later page
short      one logprob too few              ragged     tokens that are no whole number of items
gone       answers 410 once                 fail       ends with an error of category user
refuse     its submit answers 422           flaky      its submit answers 500 once
busy       its submit answers 429 once      bare       its submit answers an empty 400 once
announce   is announced with its size       poll       its poll answers 503, then 429, then 400

`poison` is the status that batched polls answer once `poison_at` samples have come. `batched` says
whether client/config offers batched polls; `hold_s` how long polls are held.
"""

import argparse
import asyncio
import itertools
import json
from array import array
from typing import Any

from aiohttp import web

from loadgen import answers
from loadgen.sampling_pb2 import STOP_REASON_LENGTH, SampledSequence, SampleResponse


class Leaky:
    """`leaks` is kind -> N."""

    def __init__(self, leaks: dict[str, int], *, batched: bool, hold_s: float) -> None:
        self.leaks = leaks
        self.batched = batched
        self.hold_s = hold_s
        self.ordinals: dict[tuple[str, int], int] = {}
        self.sessions = itertools.count(1)
        self.results: dict[str, bytes | dict[str, str] | None] = {}
        self.given: dict[tuple[str, int], str] = {}
        self.gone_once: set[str] = set()
        self.announced: set[str] = set()
        self.statuses: dict[str, list[int]] = {}
        self.completions: list[dict[str, Any]] = []
        self.repeated: list[dict[str, Any]] = []
        self.first: bytes | None = None
        self.last_id = ""
        self.moved = asyncio.Condition()

    def leaks_at(self, kind: str, ordinal: int) -> bool:
        every = self.leaks.get(kind, 0)
        return bool(every) and ordinal % every == 0

    async def config(self, request: web.Request) -> web.Response:
        return web.json_response({"sample_use_retrieve_futures": self.batched})

    async def session(self, request: web.Request) -> web.Response:
        return web.json_response({"session_id": f"s{next(self.sessions)}"})

    async def sampling_session(self, request: web.Request) -> web.Response:
        return web.json_response({"sampling_session_id": f"t{next(self.sessions)}"})

    async def asample(self, request: web.Request) -> web.Response:
        body = await request.json()
        key = (body["sampling_session_id"], body["seq_id"])
        first = key not in self.ordinals
        ordinal = self.ordinals.setdefault(key, len(self.ordinals) + 1)
        if self.leaks_at("refuse", ordinal):
            return web.json_response({"detail": "not this one"}, status=422)
        if first and self.leaks_at("flaky", ordinal):
            return web.json_response({"detail": "try again"}, status=500)
        if first and self.leaks_at("busy", ordinal):
            return web.json_response({"detail": "full"}, status=429)
        if first and self.leaks_at("bare", ordinal):
            return web.Response(status=400)
        if key not in self.given:
            self.given[key] = await self.accept(body, ordinal)
        request_id = self.given[key]
        return web.json_response({"request_id": request_id, "sample_sequence_ids": ["0"]})

    async def accept(self, body: dict[str, Any], ordinal: int) -> str:
        if self.leaks_at("twin", ordinal) and self.last_id:
            return self.last_id
        self.last_id = request_id = f"r{ordinal}"
        if self.leaks_at("lose", ordinal):
            self.results[request_id] = None
            return request_id
        if self.leaks_at("fail", ordinal):
            self.results[request_id] = {"error": "as asked", "category": "user"}
        else:
            self.results[request_id] = self.result(body, ordinal)
        if self.leaks_at("gone", ordinal):
            self.gone_once.add(request_id)
        if self.leaks_at("announce", ordinal):
            self.announced.add(request_id)
        if self.leaks_at("poll", ordinal):
            self.statuses[request_id] = [503, 429, 400]
        completion = {"state": "finished", "request_id": request_id}
        async with self.moved:
            self.completions.append(completion)
            if self.leaks_at("again", ordinal):
                self.repeated.append(completion)
            self.moved.notify_all()
        return request_id

    def result(self, body: dict[str, Any], ordinal: int) -> bytes:
        prompt = body["prompt"]["chunks"][0]["tokens"]
        count = body["sampling_params"]["max_tokens"]
        tokens = array("i", answers.tokens(prompt, count=count)).tobytes()
        logprobs = array("f", answers.logprobs(prompt, count=count)).tobytes()
        if self.leaks_at("short", ordinal):
            logprobs = logprobs[4:]
        if self.leaks_at("ragged", ordinal):
            tokens = tokens[1:]
        sequence = SampledSequence(stop_reason=STOP_REASON_LENGTH, tokens=tokens, logprobs=logprobs)
        made = SampleResponse(sequences=[sequence]).SerializeToString()
        if self.first is None:
            self.first = made
        return self.first if self.leaks_at("swap", ordinal) else made

    async def retrieve_future(self, request: web.Request) -> web.Response:
        asked = await request.json()
        request_id = asked["request_id"]
        if left := self.statuses.get(request_id):
            return web.json_response({"detail": "not now"}, status=left.pop(0))
        if request_id in self.gone_once:
            self.gone_once.discard(request_id)
            return web.json_response({"detail": "gone"}, status=410)
        found = self.results.get(request_id)
        if found is None:
            await asyncio.sleep(self.hold_s)
            return web.json_response({"type": "try_again", "request_id": request_id}, status=408)
        if isinstance(found, dict):
            return web.json_response(found)
        if request_id in self.announced and asked["allow_metadata_only"]:
            size = {"status": "complete_metadata", "response_payload_size": len(found)}
            return web.json_response(size)
        return web.Response(body=found, content_type="application/x-protobuf")

    async def retrieve_futures(self, request: web.Request) -> web.Response:
        if len(self.ordinals) >= self.leaks.get("poison_at", 1 << 30):
            return web.json_response({"detail": "who?"}, status=self.leaks["poison"])
        cursor = (await request.json())["prev_cursor"]
        async with self.moved:
            try:
                async with asyncio.timeout(self.hold_s):
                    await self.moved.wait_for(lambda: len(self.completions) > cursor)
            except TimeoutError:
                pass
            page = [*self.repeated, *self.completions[cursor:]]
            if len(self.completions) == cursor:
                page = []
            return web.json_response({"completions": page, "cursor": len(self.completions)})

    async def empty(self, request: web.Request) -> web.Response:
        return web.json_response({})


def app(leaky: Leaky) -> web.Application:
    made = web.Application()
    made.router.add_post("/api/v1/client/config", leaky.config)
    made.router.add_post("/api/v1/create_session", leaky.session)
    made.router.add_post("/api/v1/create_sampling_session", leaky.sampling_session)
    made.router.add_post("/api/v1/asample", leaky.asample)
    made.router.add_post("/api/v1/retrieve_future", leaky.retrieve_future)
    made.router.add_post("/api/v1/retrieve_futures", leaky.retrieve_futures)
    made.router.add_post("/api/v1/session_heartbeat", leaky.empty)
    made.router.add_post("/api/v1/sessions/{id}/finish", leaky.empty)
    return made


async def serve(leaky: Leaky) -> None:
    runner = web.AppRunner(app(leaky))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    host, port = runner.addresses[0][:2]
    print(f"leaky listening on http://{host}:{port}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("leaks", type=json.loads)
    parser.add_argument("--batched", action="store_true")
    parser.add_argument("--hold-s", type=float, default=0.2)
    arguments = parser.parse_args()

    async def run() -> None:
        await serve(Leaky(arguments.leaks, batched=arguments.batched, hold_s=arguments.hold_s))

    asyncio.run(run())


if __name__ == "__main__":
    main()
