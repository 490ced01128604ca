"""A training script with the real tinker client: two runs side by side, every kind of save.

    TINKER_BASE_URL=... TINKER_API_KEY=tml-x python trainer_program.py

Prints one JSON object: what the SDK handed out. Does not sample, unless the answer is an error.
"""

import json
import os
import time
from typing import Any

import tinker
from tinker import types

WITHIN_S = 30.0
LENGTHS = [3, 2]


def datum(length: int) -> types.Datum:
    targets = types.TensorData(data=[*range(length)], dtype="int64", shape=[length])
    return types.Datum(
        model_input=types.ModelInput.from_ints([*range(length)]),
        loss_fn_inputs={"target_tokens": targets},
    )


def train(client: tinker.TrainingClient, steps: int) -> list[dict[str, Any]]:
    """Both requests of a step are under way before the first is waited for, as in the cookbook."""
    told = []
    for _ in range(steps):
        passed = client.forward_backward([datum(n) for n in LENGTHS], "cross_entropy")
        stepped = client.optim_step(types.AdamParams(learning_rate=1e-4))
        output = passed.result(WITHIN_S)
        told.append(
            {
                "logprobs": [[*one["logprobs"].data] for one in output.loss_fn_outputs],
                "metrics": output.metrics,
                "stepped": stepped.result(WITHIN_S).metrics,
            }
        )
    return told


def minted(client: tinker.TrainingClient, kind: types.SamplingClientKind) -> tinker.SamplingClient:
    return client.save_weights_and_get_sampling_client(kind=kind).result(WITHIN_S)


def sampler(client: tinker.SamplingClient) -> dict[str, str]:
    return {"id": client._sampling_session_id, "base_model": client._base_model}


def sampled(client: tinker.SamplingClient) -> str:
    """The error that a sample ends with, where nobody serves it."""
    prompt, parameters = types.ModelInput.from_ints([1, 2]), types.SamplingParams(max_tokens=1)
    try:
        client.sample(prompt, 1, parameters).result(WITHIN_S)
    except tinker.TinkerError as error:
        return type(error).__name__
    return "a sample"


def main() -> dict[str, Any]:
    began = time.monotonic()
    service = tinker.ServiceClient(user_metadata={"of": "the contract tests"})
    first = service.create_lora_training_client(base_model="stand-in", rank=8).result(WITHIN_S)
    second = service.create_lora_training_client(base_model="stand-in", rank=4).result(WITHIN_S)
    steps = {"first": train(first, 1), "second": train(second, 2)}
    named = first.save_weights_for_sampler("step-1").result(WITHIN_S).path
    by_path = service.create_sampling_client(model_path=named).result(WITHIN_S)
    snapshot, inflight = minted(first, "snapshot"), minted(second, "inflight")
    state = second.save_state("state-2").result(WITHIN_S).path
    rest = tinker.RestClient()
    resumed = service.create_training_client_from_state(state).result(WITHIN_S)
    ours = rest.list_checkpoints(first.model_id).result(WITHIN_S).checkpoints
    everybodys = rest.list_user_checkpoints().result(WITHIN_S)
    runs = rest.list_training_runs().result(WITHIN_S)
    info = rest.get_weights_info_by_tinker_path(state).result(WITHIN_S)
    capabilities = rest.get_server_capabilities().result(WITHIN_S)
    told = {
        "runs": {"first": first.model_id, "second": second.model_id, "resumed": resumed.model_id},
        "info": {
            "name": first.get_info().model_data.model_name,
            "rank": first.get_info().lora_rank,
        },
        "steps": steps,
        "named": named,
        "state": state,
        "samplers": {
            "by_path": sampler(by_path),
            "snapshot": sampler(snapshot),
            "inflight": sampler(inflight),
        },
        "sampled": sampled(snapshot),
        "checkpoints": [one.tinker_path for one in ours],
        "everybodys": [one.tinker_path for one in everybodys.checkpoints],
        "listed": [run.training_run_id for run in runs.training_runs],
        "lora_rank": info.lora_rank,
        "trainable": [model.trainable for model in capabilities.supported_models],
        "model_path": rest.get_sampler(sampler(snapshot)["id"]).result(WITHIN_S).model_path,
    }
    rest.delete_checkpoint_from_tinker_path(named).result(WITHIN_S)
    told["after_delete"] = [
        one.tinker_path
        for one in rest.list_checkpoints(first.model_id).result(WITHIN_S).checkpoints
    ]
    service.close("success").result(WITHIN_S)
    return {**told, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
    # Not through the interpreter's shutdown: with a RestClient's connections still open, the SDK's
    # native transport aborts in it (SIGABRT, about once in 50 runs of SDK 0.38 and pyqwest 0.12).
    os._exit(0)
