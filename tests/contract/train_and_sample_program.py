"""Train, save, sample, twice, two runs side by side: a whole RL script through one base URL.

    TINKER_BASE_URL=... TINKER_API_KEY=tml-x python train_and_sample_program.py

Prints one JSON object: which weights each sampler had, and what it sampled.
"""

import json
import os
import time
from typing import Any

import tinker
from tinker import types

WITHIN_S = 60.0
PROMPT = [11, 12, 13]


def datum() -> types.Datum:
    targets = types.TensorData(data=[0, 1, 2], dtype="int64", shape=[3])
    return types.Datum(
        model_input=types.ModelInput.from_ints([0, 1, 2]),
        loss_fn_inputs={"target_tokens": targets},
    )


def step(client: tinker.TrainingClient) -> None:
    passed = client.forward_backward([datum()], "cross_entropy")
    stepped = client.optim_step(types.AdamParams(learning_rate=1e-4))
    passed.result(WITHIN_S)
    stepped.result(WITHIN_S)


def sampled(sampler: tinker.SamplingClient) -> dict[str, Any]:
    params = types.SamplingParams(max_tokens=4, seed=7)
    prompt = types.ModelInput.from_ints(PROMPT)
    (sequence,) = sampler.sample(prompt, 1, params).result(WITHIN_S).sequences
    return {"id": sampler._sampling_session_id, "tokens": list(sequence.tokens)}


def main() -> dict[str, Any]:
    began = time.monotonic()
    service = tinker.ServiceClient()
    runs = [
        service.create_lora_training_client(base_model="stand-in", rank=8).result(WITHIN_S)
        for _ in range(2)
    ]
    told: list[dict[str, Any]] = []
    for iteration in range(2):
        for run in runs:
            step(run)
        minted = [run.save_weights_and_get_sampling_client().result(WITHIN_S) for run in runs]
        for run, sampler in zip(runs, minted, strict=True):
            told.append({"run": run.model_id, "kind": "minted", **sampled(sampler)})
        for run in runs:
            path = run.save_weights_for_sampler(f"step-{iteration}").result(WITHIN_S).path
            sampler = service.create_sampling_client(model_path=path).result(WITHIN_S)
            told.append({"run": run.model_id, "kind": "named", "path": path, **sampled(sampler)})
    base = service.create_sampling_client(base_model="stand-in").result(WITHIN_S)
    told.append({"kind": "base", **sampled(base)})
    return {"samples": told, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
    # Not through the interpreter's shutdown, in which the SDK's native transport may abort while
    # connections are open (SIGABRT, about once in 50 runs of SDK 0.38 and pyqwest 0.12).
    os._exit(0)
