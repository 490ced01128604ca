"""The real tinker client in a process of its own, told what to do by JSON lines on stdin.

A line is `{"do": NAME, ...arguments}`; the answer is one JSON line on stdout. One process does many
cases, because importing the SDK and its first handshake take longer than most of them. What the SDK
raises is an answer too: `{"error": {"type", "message", ...}}`.

    echo '{"do": "capabilities"}' | TINKER_BASE_URL=... TINKER_API_KEY=tml-x python sdk_program.py
"""

import functools
import json
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import tinker
from tinker import types
from tinker.lib.api_future_impl import _APIFuture

WITHIN_S = 60.0
_services: dict[str | None, tinker.ServiceClient] = {}
_clients: dict[str, tinker.SamplingClient] = {}


def service(base_url: str | None) -> tinker.ServiceClient:
    if base_url not in _services:
        _services[base_url] = tinker.ServiceClient(base_url=base_url)
    return _services[base_url]


def client(
    base_url: str | None, base_model: str | None = "stand-in", **options: Any
) -> tinker.SamplingClient:
    key = json.dumps([base_url, base_model, options], sort_keys=True)
    if key not in _clients:
        made = service(base_url).create_sampling_client(base_model=base_model, **options)
        _clients[key] = made.result(WITHIN_S)
    return _clients[key]


def prompt_of(prompt: list[Any]) -> types.ModelInput:
    """Token ids, or several chunks of them."""
    if prompt and isinstance(prompt[0], list):
        return types.ModelInput(chunks=[types.EncodedTextChunk(tokens=part) for part in prompt])
    return types.ModelInput.from_ints(prompt)


def shown(response: Any) -> dict[str, Any]:
    return {
        "sequences": [
            {
                "tokens": one.tokens,
                "logprobs": one.logprobs,
                "stop_reason": one.stop_reason,
                "sequence_id": one.sequence_id,
                "topk": one.topk_logprobs,
                "dtypes": [str(array.dtype) for array in (one.tokens_np, one.logprobs_np)],
            }
            for one in response.sequences
        ],
        "prompt_logprobs": response.prompt_logprobs,
        "topk_prompt_logprobs": response.topk_prompt_logprobs,
    }


def failure(error: Exception) -> dict[str, Any]:
    told: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    for name in ("category", "status_code", "body"):
        if hasattr(error, name):
            told[name] = getattr(error, name)
    return {"error": told}


def attempted(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    began = time.monotonic()
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - what the SDK raises is what is asked for
        result = failure(error)
    return {**result, "seconds": time.monotonic() - began}


# --- commands -------------------------------------------------------------------------------------


def samples(
    cases: list[dict[str, Any]], base_url: str | None = None, **options: Any
) -> list[dict[str, Any]]:
    """All cases at once, answers in their order."""
    sampler = client(base_url, **options)
    futures = [
        sampler.sample(
            prompt_of(case.pop("prompt")),
            case.pop("n", 1),
            types.SamplingParams(**case.pop("params", {})),
            **case,
        )
        for case in cases
    ]
    return [attempted(functools.partial(_result, future)) for future in futures]


def _result(future: Any) -> dict[str, Any]:
    return shown(future.result(WITHIN_S))


def unsupported(base_url: str | None = None) -> dict[str, Any]:
    """What the SDK offers and this gateway does not, each by the name of its field."""
    plain = client(base_url)
    text = types.EncodedTextChunk(tokens=[1, 2, 3])
    one = types.SamplingParams(max_tokens=1)
    target = types.TensorData(data=[7, 8], dtype="int64", shape=[2, 1])
    image = types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=1)
    recording = client(base_url, record_stability_info=True)

    def sample(sampler: Any, chunks: list[Any], **fields: Any) -> Callable[[], Any]:
        return lambda: shown(
            sampler.sample(types.ModelInput(chunks=chunks), 1, one, **fields).result(WITHIN_S)
        )

    calls = {
        "record_stability_info": sample(recording, [text]),
        "prompt_alt_tokens_k": sample(plain, [text], prompt_alt_tokens_k=2),
        "target_prompt_logprobs": sample(plain, [text], target_prompt_logprobs=target),
        "image": sample(plain, [text, image]),
    }
    return {name: attempted(call) for name, call in calls.items()}


def compute_logprobs(
    prompt: list[int], base_url: str | None = None, last_n: int | None = None
) -> dict[str, Any]:
    return attempted(
        lambda: {
            "logprobs": client(base_url)
            .compute_logprobs(prompt_of(prompt), last_n)
            .result(WITHIN_S)
        }
    )


def create(base_url: str | None = None, **options: Any) -> dict[str, Any]:
    """A sampling client of a service client of its own."""
    made = tinker.ServiceClient(base_url=base_url)

    def call() -> dict[str, Any]:
        sampler = made.create_sampling_client(**options).result(WITHIN_S)
        return {"base_model": sampler.get_base_model()}

    return attempted(call)


def capabilities(base_url: str | None = None) -> dict[str, Any]:
    answer = service(base_url).get_server_capabilities()
    return {"models": [model.model_dump() for model in answer.supported_models]}


def foreign(base_url: str | None = None) -> dict[str, Any]:
    """Sampling in a session that the gateway never gave out."""
    holder = service(base_url).holder
    made = tinker.SamplingClient.create(
        holder, base_model="stand-in", sampling_session_id="sampler-never-issued"
    ).result(WITHIN_S)
    params = types.SamplingParams(max_tokens=1)
    return attempted(lambda: shown(made.sample(prompt_of([1]), 1, params).result(WITHIN_S)))


def retrieve(request_id: str, base_url: str | None = None) -> dict[str, Any]:
    """Poll for an id that no sample of ours has."""
    promise = types.UntypedAPIFuture(request_id=request_id)
    holder = service(base_url).holder

    def call() -> dict[str, Any]:
        future = _APIFuture(types.SampleResponse, holder, promise, time.time(), "Sample")
        return shown(future.result(WITHIN_S))

    return attempted(call)


def clone(prompt: list[int], max_tokens: int, base_url: str | None = None) -> dict[str, Any]:
    """A sample through a client rebuilt from another one's handle, as another process does it."""
    made = tinker.SamplingClient.from_sampler_handle(client(base_url).get_sampler_handle())
    params = types.SamplingParams(max_tokens=max_tokens)
    number = made._request_id_counter
    return {**shown(made.sample(prompt_of(prompt), 1, params).result(WITHIN_S)), "number": number}


def lifetime(base_url: str | None = None) -> dict[str, Any]:
    """A `with` block, what is refused after it, and close() by hand, twice."""
    params = types.SamplingParams(max_tokens=2)
    with tinker.ServiceClient(base_url=base_url) as first:
        sampler = first.create_sampling_client(base_model="stand-in").result(WITHIN_S)
        inside = shown(sampler.sample(prompt_of([1, 2]), 1, params).result(WITHIN_S))
        session_id = first.holder.get_session_id()
    second = tinker.ServiceClient(base_url=base_url)
    second.create_sampling_client(base_model="stand-in").result(WITHIN_S)
    for _ in range(2):
        second.close("errored", "a test").result(WITHIN_S)
    return {"inside": inside, "session_id": session_id}


COMMANDS: dict[str, Callable[..., Any]] = {
    "samples": samples,
    "unsupported": unsupported,
    "compute_logprobs": compute_logprobs,
    "create": create,
    "capabilities": capabilities,
    "foreign": foreign,
    "retrieve": retrieve,
    "clone": clone,
    "lifetime": lifetime,
}


def main() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = COMMANDS[command.pop("do")](**command)
        except Exception as error:  # noqa: BLE001 - the next command may still work
            traceback.print_exc()
            answer = failure(error)
        sys.stdout.write(json.dumps(answer, default=str) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
