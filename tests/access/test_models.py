"""A key's list of models: what is not on it is refused by name, and not listed."""

from pathlib import Path
from typing import Any

import pytest

from asgi_gateway.access.models import canonical
from tests.support.keyed import API, As, keyed
from tests.support.upstream import FakeUpstream

MODELS: dict[str, Any] = {
    "object": "list",
    "data": [
        {"id": "org/base", "max_model_len": 4096, "parent": None},
        {"id": "org/other", "max_model_len": 4096, "parent": None},
        *({"id": f"{run}_{n}", "parent": "org/base"} for run in ("a", "b") for n in (1, 2)),
    ],
}
KEYS: dict[str, dict[str, object]] = {
    "all": {},
    "some": {"models": ["org/base", "tinker://a/*", "tinker://b/sampler_weights/2"]},
    "none": {"models": ["absent"]},
}
GOOD = ["tinker://a/sampler_weights/1", "tinker://a/sampler_weights/2", "tinker://a/2"]
GOOD += ["tinker://b/sampler_weights/2", "tinker://b/2", "tinker://a/weights/1"]
BAD = ["tinker://b/sampler_weights/1", "tinker://b/weights/2", "tinker://ab/weights/1"]
# Not served, and not told apart from what is.
BAD += ["tinker://c/weights/1"]


async def refused(caller: As, **model: str) -> None:
    [(field, value)] = model.items()
    answer = await caller.create(**model)
    assert answer.status == 403
    assert answer.json() == {"detail": f"this API key may not use {field} {value!r}"}


async def test_samplers_and_weights_info(upstream: FakeUpstream, tmp_path: Path) -> None:
    upstream.models = MODELS
    async with keyed(upstream.url, tmp_path, KEYS) as gateway:
        everything, some, none = (gateway.caller(name) for name in KEYS)
        assert (await some.create(base_model="org/base")).status == 200
        await refused(some, base_model="org/other")
        await refused(some, base_model="absent")
        await refused(none, base_model="org/base")
        for path in GOOD:
            assert (await some.create(model_path=path)).status == 200, path
            assert (await some.post("weights_info", {"tinker_path": path})).status == 200
            await refused(none, model_path=path)
        for path in BAD:
            await refused(some, model_path=path)
            told = await some.post("weights_info", {"tinker_path": path})
            assert told.status == 403
        # The path is what counts where both are given.
        both = await some.create(model_path=BAD[0], base_model="org/base")
        assert both.status == 403
        assert (await everything.create(model_path=BAD[0])).status == 200
        assert (await some.create(model_path="tinker://x")).status == 400
        assert (await some.create()).status == 400


async def test_lists_show_what_may_be_used(upstream: FakeUpstream, tmp_path: Path) -> None:
    upstream.models = MODELS
    async with keyed(upstream.url, tmp_path, KEYS) as gateway:
        seen: dict[str, Any] = {}
        for name in KEYS:
            caller = gateway.caller(name)
            supported = (await caller.get(f"{API}/get_server_capabilities")).json()
            runs = (await caller.get(f"{API}/training_runs")).json()
            listed = (await caller.get(f"{API}/checkpoints")).json()
            assert listed["cursor"]["total_count"] == len(listed["checkpoints"])
            assert {run["model_owner"] for run in runs["training_runs"]} <= {name}
            seen[name] = (
                [model["model_name"] for model in supported["supported_models"]],
                sorted(run["training_run_id"] for run in runs["training_runs"]),
                sorted(one["tinker_path"] for one in listed["checkpoints"]),
            )
        a = [f"tinker://a/sampler_weights/{n}" for n in (1, 2)]
        b = [f"tinker://b/sampler_weights/{n}" for n in (1, 2)]
        assert seen["all"] == (["org/base", "org/other"], ["a", "b"], a + b)
        assert seen["some"] == (["org/base"], ["a", "b"], [*a, b[1]])
        assert seen["none"] == ([], [], [])


async def test_a_run_of_others_is_like_none(upstream: FakeUpstream, tmp_path: Path) -> None:
    upstream.models = MODELS
    async with keyed(upstream.url, tmp_path, KEYS) as gateway:
        caller = gateway.caller("none")
        for tail in ("", "/checkpoints"):
            of_others = await caller.get(f"{API}/training_runs/a{tail}")
            unknown = await caller.get(f"{API}/training_runs/c{tail}")
            assert of_others.status == unknown.status == 404
            assert of_others.body == unknown.body.replace(b"'c'", b"'a'")
        some = (await gateway.caller("some").get(f"{API}/training_runs/b/checkpoints")).json()
        assert [one["checkpoint_id"] for one in some["checkpoints"]] == ["sampler_weights/2"]


@pytest.mark.parametrize(
    ("entry", "looked_up"),
    [
        ("org/model", "org/model"),
        ("tinker://r/*", "tinker://r/*"),
        ("tinker://weights/*", "tinker://weights/*"),
        ("tinker://r:1/*", "tinker://r:1/*"),
        ("tinker://r/c", "tinker://r/sampler_weights/c"),
    ],
)
def test_an_entry(entry: str, looked_up: str) -> None:
    assert canonical(entry) == looked_up


@pytest.mark.parametrize(
    "entry", ["", " a", "a ", "*", "org/*", "tinker://", "tinker://*", "tinker:///*"]
)
def test_an_entry_that_is_none(entry: str) -> None:
    with pytest.raises(ValueError, match="models: "):
        canonical(entry)


@pytest.mark.parametrize("entry", ["tinker://r/weights/*", "tinker://r*/*", "tinker://../*"])
def test_a_pattern_of_another_form(entry: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        canonical(entry)
