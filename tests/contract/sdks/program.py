"""Any listed tinker release in a process of its own, told what to do by JSON lines on stdin.

A line is `{"do": NAME, ...arguments}`, the answer one JSON line on stdout; what the SDK raises is
an answer too. It imports nothing but the SDK and looks at what a release has, not at its number.

    echo '{"do": "about"}' | TINKER_API_KEY=tml-x .../sdk-0.18.2/bin/python program.py
"""

import asyncio
import inspect
import json
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import tinker
from tinker import types

WITHIN_S = 60.0
PARAMETERS = inspect.signature(tinker.SamplingClient.sample).parameters
_services: dict[str, Any] = {}
_clients: dict[str, Any] = {}
_kept: dict[str, Any] = {}


def waited(future: Any) -> Any:
    """Releases differ in what they return at once and what as a future or a coroutine."""
    if inspect.isawaitable(future) and not hasattr(future, "result"):
        return asyncio.run(_awaited(future))
    return future.result(WITHIN_S) if hasattr(future, "result") else future


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def service(base_url: str) -> Any:
    if base_url not in _services:
        _services[base_url] = tinker.ServiceClient(base_url=base_url)
    return _services[base_url]


def client(base_url: str, **options: Any) -> Any:
    """A sampling client of the stand-in's base model, or of what the options say."""
    options = options or {"base_model": "stand-in"}
    key = json.dumps([base_url, options], sort_keys=True)
    if key not in _clients:
        _clients[key] = waited(service(base_url).create_sampling_client(**options))
    return _clients[key]


def prompt_of(prompt: list[Any]) -> Any:
    """Of token ids, or of several chunks of them."""
    chunks = prompt if isinstance(prompt[0], list) else [prompt]
    return types.ModelInput(chunks=[types.EncodedTextChunk(tokens=part) for part in chunks])


def sample(sampler: Any, case: dict[str, Any]) -> Any:
    """The future of a sample; a case has the prompt, `n`, `params` and the SDK's own options."""
    case = dict(case)
    prompt = prompt_of(case.pop("prompt"))
    n, params = case.pop("n", 1), types.SamplingParams(**case.pop("params", {}))
    return sampler.sample(prompt, n, params, **case)


def listed(value: Any) -> Any:
    return None if value is None else list(value)


def shown(response: Any) -> dict[str, Any]:
    """Everything of a sample's result; what the release does not know is None."""
    sequences = [
        {
            "tokens": listed(one.tokens),
            "logprobs": listed(one.logprobs),
            "stop_reason": one.stop_reason,
            "sequence_id": getattr(one, "sequence_id", None),
            "topk": getattr(one, "topk_logprobs", None),
            "dtypes": [
                None if array is None else str(array.dtype)
                for array in (getattr(one, "tokens_np", None), getattr(one, "logprobs_np", None))
            ],
        }
        for one in response.sequences
    ]
    return {
        "sequences": sequences,
        "prompt_logprobs": listed(response.prompt_logprobs),
        "topk_prompt_logprobs": response.topk_prompt_logprobs,
    }


def attempted(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    began = time.monotonic()
    try:
        answer = call()
    except Exception as error:  # noqa: BLE001 - what the SDK raises is what is asked for
        told: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
        for name in ("category", "status_code"):
            if hasattr(error, name):
                told[name] = getattr(error, name)
        answer = {"error": told}
    return {**answer, "seconds": time.monotonic() - began}


# --- commands -------------------------------------------------------------------------------------


def about() -> dict[str, Any]:
    """The release, and which of the features that came with time it has."""
    config = getattr(types, "ClientConfigResponse", None)
    dynamic = getattr(types, "ClientDynamicConfigResponse", None)
    flags = {*getattr(config, "model_fields", ()), *getattr(dynamic, "model_fields", ())}
    submit = inspect.signature(tinker.SamplingClient._send_asample_request)
    has = {
        "protobuf": hasattr(tinker, "proto"),
        "resubmits under its seq_id": "request_id" in submit.parameters,
        "cancels": "sample_cancel_enabled" in flags,
        "sequence ids": "sample_sequence_ids" in types.UntypedAPIFuture.model_fields,
        "polls in batches": "sample_use_retrieve_futures" in flags,
        "closes": hasattr(tinker.ServiceClient, "close"),
        "top-k of the sample": "topk_sample_logprobs" in PARAMETERS,
        "last prompt logprobs": "prompt_logprobs_last_n" in PARAMETERS,
        "handles": hasattr(tinker.SamplingClient, "get_sampler_handle"),
    }
    return {"version": tinker.__version__, "has": sorted(name for name in has if has[name])}


def samples(base_url: str, cases: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """All cases at once, answers in their order."""
    sampler = client(base_url, **options)
    futures = [sample(sampler, case) for case in cases]
    return [attempted(lambda future=future: shown(waited(future))) for future in futures]  # type: ignore[misc]


def compute_logprobs(base_url: str, prompt: list[int], **options: Any) -> dict[str, Any]:
    sampler = client(base_url)
    return attempted(
        lambda: {"logprobs": waited(sampler.compute_logprobs(prompt_of(prompt), **options))}
    )


def base_model(base_url: str, **options: Any) -> dict[str, Any]:
    return attempted(lambda: {"base_model": waited(client(base_url, **options).get_base_model())})


def _in_pool(task: tuple[Any, dict[str, Any]]) -> dict[str, Any]:
    sampler, case = task
    return {
        **attempted(lambda: shown(waited(sample(sampler, case)))),
        "clone": sampler._request_id_counter // 10**9,
        "pid": os.getpid(),
    }


def pool(base_url: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each case in a worker process, through a pickled copy of the client."""
    sampler = client(base_url)
    with multiprocessing.get_context("spawn").Pool(2) as workers:
        return workers.map(_in_pool, [(sampler, case) for case in cases], 1)


def handle(base_url: str, case: dict[str, Any]) -> dict[str, Any]:
    """A sample through a client that was rebuilt from another one's handle."""
    made = tinker.SamplingClient.from_sampler_handle(client(base_url).get_sampler_handle())
    return _in_pool((made, case))


def start(base_url: str, case: dict[str, Any]) -> None:
    _kept["started"] = sample(client(base_url), case)


def cancel() -> bool:
    """Cancel what was started."""
    started = _kept.pop("started")
    future = started.future() if callable(getattr(started, "future", None)) else started
    return bool(future.cancel())


def lifetime(base_url: str, case: dict[str, Any]) -> dict[str, Any]:
    """A sample in a `with` block, and close() by hand, twice."""
    with tinker.ServiceClient(base_url=base_url) as first:
        sampler = waited(first.create_sampling_client(base_model="stand-in"))
        inside = shown(waited(sample(sampler, case)))
        sessions = [first.holder.get_session_id()]
    second = tinker.ServiceClient(base_url=base_url)
    waited(second.create_sampling_client(base_model="stand-in"))
    sessions.append(second.holder.get_session_id())
    for _ in range(2):
        waited(second.close("errored", "a test"))
    return {"inside": inside, "sessions": sessions}


COMMANDS: dict[str, Callable[..., Any]] = {
    "about": about,
    "samples": samples,
    "compute_logprobs": compute_logprobs,
    "base_model": base_model,
    "pool": pool,
    "handle": handle,
    "start": start,
    "cancel": cancel,
    "lifetime": lifetime,
}


def main() -> None:
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = COMMANDS[command.pop("do")](**command)
        except Exception as error:  # noqa: BLE001 - the next command may still work
            traceback.print_exc()
            answer = {"error": {"type": type(error).__name__, "message": str(error)}}
        sys.stdout.write(json.dumps(answer, default=str) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
