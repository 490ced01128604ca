"""The newest tinker SDK in a process of its own: calls any one public method when told to.

A line on stdin is `{"of": CLASS, "method": NAME, "arguments": [...]}`, the answer one JSON line
with `seconds` and `returned`, the type, or `error` and `message`. `"$name"` among the arguments
stands for one of THINGS. Reads TINKER_BASE_URL, TINKER_API_KEY, BASE_MODEL and TOKENIZERS.

    echo '{"of": "RestClient", "method": "list_sessions", "arguments": []}' | python ...
"""

import asyncio
import inspect
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import tinker
from tinker import types
from tinker.lib.api_future_impl import QueueState

WITHIN_S = 30.0


@cache
def service() -> tinker.ServiceClient:
    return tinker.ServiceClient(project_id="a project, which copy_weights needs")


@cache
def sampler() -> tinker.SamplingClient:
    return service().create_sampling_client(base_model=os.environ["BASE_MODEL"]).result(WITHIN_S)


def future() -> Any:
    return sampler().sample(prompt(), 1, types.SamplingParams(max_tokens=2))


def prompt() -> types.ModelInput:
    return types.ModelInput.from_ints([5, 6, 7])


OBJECTS: dict[str, Callable[[], Any]] = {
    "SamplingClient": sampler,
    "ServiceClient": service,
    "RestClient": cache(tinker.RestClient),
    "APIFuture": future,
}
THINGS: dict[str, Callable[[], Any]] = {
    "holder": lambda: service().holder,
    "prompt": prompt,
    "params": lambda: types.SamplingParams(max_tokens=2),
    "handle": lambda: sampler().get_sampler_handle(),
    "session": lambda: service().holder.get_session_id(),
    "sampler": lambda: sampler()._sampling_session_id,
    "active": lambda: QueueState.ACTIVE,
    "search": types.SessionSearchRequest,
}


def argument(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("$"):
        return THINGS[value[1:]]()
    return value


async def awaited(found: Any) -> Any:
    return await found


def called(of: str, method: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    found = getattr(OBJECTS[of](), method)
    if callable(found):
        found = found(*map(argument, arguments), **{k: argument(v) for k, v in keywords.items()})
    if inspect.iscoroutine(found):
        return asyncio.run(awaited(found))
    return found.result(WITHIN_S) if hasattr(found, "result") else found


def main() -> None:
    warnings.simplefilter("ignore")
    # Tokenizers are looked for below the working folder before the hub is asked.
    os.chdir(os.environ["TOKENIZERS"])
    for line in sys.stdin:
        told = json.loads(line)
        began = time.monotonic()
        try:
            result = called(told["of"], told["method"], told["arguments"], told.get("keywords", {}))
            answer = {"returned": type(result).__name__}
        except Exception as error:  # noqa: BLE001 - what the SDK raises is the answer
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps({**answer, "seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
