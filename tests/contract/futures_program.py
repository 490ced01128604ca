"""The SDK's process for what takes several steps: futures that are given up, clients that travel.

    python -m tests.contract.futures_program

Speaks as `sdk_program.py` does and knows its commands too.
"""

import asyncio
import base64
import multiprocessing
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import tinker
from tinker import types

from tests.contract import sdk_program
from tests.contract.sdk_program import WITHIN_S, attempted, client, prompt_of, service, shown

_futures: dict[str, list[Any]] = {}


def submitted(sampler: tinker.SamplingClient, cases: list[dict[str, Any]]) -> list[Any]:
    return [
        sampler.sample(prompt_of(case["prompt"]), 1, types.SamplingParams(**case["params"]))
        for case in cases
    ]


def answered(future: Any) -> dict[str, Any]:
    return attempted(lambda: shown(future.result(WITHIN_S)))


# --- futures --------------------------------------------------------------------------------------


def start(name: str, cases: list[dict[str, Any]], base_url: str) -> dict[str, Any]:
    """Submit and keep the futures; a name that is used again begins anew."""
    _futures[name] = submitted(client(base_url), cases)
    return {}


def cancel(name: str, count: int) -> dict[str, Any]:
    """future.cancel() on the first of them, which are dropped."""
    given_up, _futures[name] = _futures[name][:count], _futures[name][count:]
    return {"cancelled": [future.future().cancel() for future in given_up]}


def give_up(name: str, count: int, timeout_s: float) -> dict[str, Any]:
    """Await the first of them with a limit that is too short for them."""
    given_up, _futures[name] = _futures[name][:count], _futures[name][count:]

    async def wait() -> list[Any]:
        waiting = [future.result_async(timeout_s) for future in given_up]
        return await asyncio.gather(*waiting, return_exceptions=True)

    return {"raised": [type(one).__name__ for one in asyncio.run(wait())]}


def collect(name: str) -> list[dict[str, Any]]:
    return [answered(future) for future in _futures.pop(name)]


def close(base_url: str) -> dict[str, Any]:
    service(base_url).close("success").result(WITHIN_S)
    return {}


# --- clients that travel --------------------------------------------------------------------------


def carry(base_url: str, **options: Any) -> dict[str, Any]:
    """A client in both forms in which it can be given to another process."""
    sampler = client(base_url, **options)
    return {
        "pickle": base64.b64encode(pickle.dumps(sampler)).decode(),
        "handle": sampler.get_sampler_handle(),
    }


def restored(form: str, data: str) -> tinker.SamplingClient:
    if form == "handle":
        return tinker.SamplingClient.from_sampler_handle(data)
    sampler: tinker.SamplingClient = pickle.loads(base64.b64decode(data))
    return sampler


def sampled(form: str, data: str, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client sampled that came from elsewhere, and which clone it is."""
    sampler = restored(form, data)
    found = [answered(future) for future in submitted(sampler, cases)]
    return {"clone": sampler._cloned_sampler_id, "answers": found}


def pool(
    form: str, data: str, batches: list[list[dict[str, Any]]], workers: int
) -> list[dict[str, Any]]:
    """The same in a pool of processes, one batch after the other for whoever is free."""
    with multiprocessing.get_context("spawn").Pool(workers) as processes:
        return processes.map(partial(sampled, form, data), batches, chunksize=1)


def sampled_from(
    sampling_session_id: str, cases: list[dict[str, Any]], base_url: str
) -> list[dict[str, Any]]:
    """What a sampler sampled of which only the id is known."""
    made = tinker.SamplingClient.create(
        service(base_url).holder, sampling_session_id=sampling_session_id
    )
    return [answered(future) for future in submitted(made.result(WITHIN_S), cases)]


# --- a whole run ----------------------------------------------------------------------------------


def carry_minted(base_url: str) -> dict[str, Any]:
    """The client of a save, pickled."""
    run = service(base_url).create_lora_training_client("stand-in", rank=8).result(WITHIN_S)
    sampler = run.save_weights_and_get_sampling_client().result(WITHIN_S)
    return {
        "run": run.model_id,
        "sampler": sampler._sampling_session_id,
        "pickle": base64.b64encode(pickle.dumps(sampler)).decode(),
    }


def train_and_sample(base_url: str, rounds: int, count: int) -> list[dict[str, Any]]:
    """An RL run: a step, a save, `count` samples from it, in every round."""
    run = service(base_url).create_lora_training_client("stand-in", rank=8).result(WITHIN_S)
    target = types.TensorData(data=[1, 2, 3], dtype="int64", shape=[3])
    datum = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3]), loss_fn_inputs={"target_tokens": target}
    )
    told = []
    for number in range(rounds):
        passed = run.forward_backward([datum], "cross_entropy")
        stepped = run.optim_step(types.AdamParams(learning_rate=1e-4))
        passed.result(WITHIN_S)
        stepped.result(WITHIN_S)
        sampler = run.save_weights_and_get_sampling_client().result(WITHIN_S)
        cases = [
            {"prompt": [number, n], "params": {"max_tokens": 3, "seed": n}} for n in range(count)
        ]
        found = [answered(future) for future in submitted(sampler, cases)]
        told.append({"sampler": sampler._sampling_session_id, "answers": found})
    return told


COMMANDS: dict[str, Callable[..., Any]] = {
    "start": start,
    "cancel": cancel,
    "give_up": give_up,
    "collect": collect,
    "close": close,
    "carry": carry,
    "sampled": sampled,
    "pool": pool,
    "sampled_from": sampled_from,
    "carry_minted": carry_minted,
    "train_and_sample": train_and_sample,
}


if __name__ == "__main__":
    sdk_program.COMMANDS.update(COMMANDS)
    sdk_program.main()
