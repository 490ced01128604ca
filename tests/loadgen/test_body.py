"""Bodies and errors against what a real vLLM sent."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loadgen import answers
from loadgen.settings import Settings
from loadgen.upstream import Upstream, running

RECORDED = Path(__file__).parents[1] / "fixtures" / "vllm"
INDEX: dict[str, dict[str, Any]] = json.loads((RECORDED / "index.json").read_text())
PROMPT = [(i * 7919 + 13) % 121_000 for i in range(32)]

SAME_LENGTHS = [
    "completion_16tok_logprobs0_ids",
    "completion_1tok_logprobs0_ids",
    "completion_512tok_ids",
    "completion_512tok_logprobs0",
    "completion_512tok_logprobs0_astokenids",
    "completion_512tok_logprobs0_ids",
    "completion_512tok_logprobs0_ids_astokenids",
    "completion_512tok_logprobs0_ids_detokenizefalse",
    "completion_512tok_logprobs1_astokenids",
    "completion_512tok_logprobs1_ids",
    "completion_512tok_logprobs5_ids",
    "completion_512tok_plain",
    "completion_8192tok_logprobs0_ids",
    "completion_clamped_to_context",
    "completion_greedy",
    "completion_length",
    "completion_logprobs5",
    "completion_logprobs_false",
    "completion_logprobs_true",
    "completion_lora",
    "completion_max_tokens_null",
    "completion_max_tokens_omitted",
    "completion_model_omitted",
    "completion_n4_16tok",
    "completion_prompt_8192_astokenids",
    "completion_prompt_8192_logprobs0_ids",
    "completion_prompt_bools",
    "completion_prompt_logprobs0",
    "completion_prompt_logprobs0_1024",
    "completion_prompt_logprobs5",
    "completion_request_id_body",
    "completion_request_id_header",
    "completion_top_p_top_k_min_p",
    "completion_two_prompts_n2",
    "completion_unknown_fields",
]

SAME_MESSAGE = [
    "error_bad_json",
    "error_context_equal",
    "error_context_too_long",
    "error_empty_prompt_list",
    "error_empty_prompt_string",
    "error_greedy_n2",
    "error_logprobs_over_max",
    "error_logprobs_string",
    "error_max_tokens_string",
    "error_max_tokens_zero",
    "error_n_zero",
    "error_prompt_logprobs_stream",
    "error_prompt_missing",
    "error_temperature_above_2",
    "error_temperature_negative",
    "error_token_out_of_vocab",
    "error_top_p_zero",
    "error_wrong_content_type",
]

SAME_SHAPE = [
    # One line per alternative of a union, the limit once more, the names of other models.
    "error_prompt_floats",
    "error_token_negative",
    "error_seed_too_big",
    "error_unknown_model",
    "error_lora_unloaded_model",
]


@pytest.fixture
async def stand_in() -> AsyncIterator[Upstream]:
    async with running(Settings(port=0, models=("tiny",), loras=("rand",))) as server:
        yield server


def recorded(name: str) -> Any:
    path = RECORDED / INDEX[name]["file"]
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)


def expanded(request: dict[str, Any]) -> dict[str, Any]:
    """The request with `prompt(n)` written out as the recordings' README says."""
    prompt = request.get("prompt")
    if isinstance(prompt, str) and prompt.startswith("prompt("):
        count = int(prompt[len("prompt(") : -1])
        return request | {"prompt": [(i * 7919 + 13) % 121_000 for i in range(count)]}
    return request


async def post(
    stand_in: Upstream, body: bytes, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    headers = {"Content-Type": "application/json", **(headers or {})}
    async with (
        aiohttp.ClientSession() as session,
        session.post(stand_in.url + "/v1/completions", data=body, headers=headers) as answer,
    ):
        return answer.status, await answer.read()


async def ask(stand_in: Upstream, **fields: Any) -> dict[str, Any]:
    status, body = await post(stand_in, json.dumps({"prompt": PROMPT} | fields).encode())
    assert status == 200, body
    decoded: dict[str, Any] = json.loads(body)
    return decoded


def shape(value: Any, name: str = "") -> Any:
    """Keys in order and types at every level. Objects keyed by data keep their values' shapes."""
    if isinstance(value, dict):
        if name in ("top_logprobs[]", "prompt_logprobs[]"):
            return "map", {str(shape(item)) for item in value.values()}
        return [(key, shape(item, key)) for key, item in value.items()]
    if isinstance(value, list):
        return "list", {str(shape(item, f"{name}[]")) for item in value}
    return type(value).__name__


def lengths(body: dict[str, Any]) -> list[Any]:
    """Sizes of every array of every choice."""
    found: list[Any] = []
    for choice in body["choices"]:
        arrays = (choice["token_ids"], choice["prompt_logprobs"], choice["prompt_token_ids"])
        found += [None if array is None else len(array) for array in arrays]
        parts = choice["logprobs"] or {}
        found.append({name: len(part) for name, part in parts.items()})
    return found


@pytest.mark.parametrize("name", SAME_LENGTHS)
async def test_body_has_the_recorded_shape(stand_in: Upstream, name: str) -> None:
    entry = INDEX[name]
    raw = json.dumps(expanded(entry["request"])).encode()
    status, body = await post(stand_in, raw, entry["request_headers"])
    assert status == entry["status"]
    real, ours = recorded(name), json.loads(body)
    assert shape(ours) == shape(real)
    assert lengths(ours) == lengths(real)
    for usage in (real["usage"], ours["usage"]):
        usage["prompt_tokens_details"]["cached_tokens"] = 0
    assert ours["usage"] == real["usage"]
    for kept in ("object", "model", "service_tier", "metrics"):
        assert ours[kept] == real[kept]
    for ours_choice, real_choice in zip(ours["choices"], real["choices"], strict=True):
        for kept in ("index", "finish_reason", "stop_reason"):
            assert ours_choice[kept] == real_choice[kept]


@pytest.mark.parametrize(
    "name",
    ["completion_stop_string", "completion_stop_string_included", "completion_stop_token_id"],
)
async def test_stopped_body_has_the_recorded_shape(stand_in: Upstream, name: str) -> None:
    request = expanded(INDEX[name]["request"])
    ids = answers.tokens(request["prompt"], count=10, model="tiny", seed=1)
    stop: dict[str, Any] = {"stop": [answers.token_text(ids[9])]}
    if "stop_token_ids" in request:
        stop = {"stop_token_ids": [ids[9]]}
    real, ours = recorded(name), await ask(stand_in, **(request | stop))
    assert shape(ours) == shape(real)
    assert lengths(ours) == lengths(real)
    choice = ours["choices"][0]
    shown = 10 if name.endswith("included") else 9
    assert choice["text"] == answers.decode(ids[:shown])
    assert choice["token_ids"] == ids


async def test_eos_body_has_the_recorded_shape(stand_in: Upstream) -> None:
    request = expanded(INDEX["completion_eos"]["request"])
    prompt = [*request["prompt"], 151_933]
    real, ours = recorded("completion_eos"), await ask(stand_in, **(request | {"prompt": prompt}))
    assert shape(ours) == shape(real)
    choice = ours["choices"][0]
    assert choice["logprobs"]["tokens"][-1] == "<|endoftext|>"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    assert choice["token_ids"] == answers.sample(prompt, model="tiny", seed=1).token_ids
    shown = await ask(
        stand_in,
        **(request | {"prompt": prompt, "skip_special_tokens": False}),
        include_stop_str_in_output=True,
    )
    assert shown["choices"][0]["text"] == choice["text"] + "<|endoftext|>"


@pytest.mark.parametrize("fields", [{"logprobs": 0}, {"logprobs": 3}, {"prompt_logprobs": 4}])
async def test_bytes_are_as_python_writes_json(stand_in: Upstream, fields: dict[str, int]) -> None:
    """vLLM's own bodies pass this too: compact, UTF-8 unescaped, floats as their repr."""
    asked = {"prompt": PROMPT, "max_tokens": 3_000, "return_token_ids": True, **fields}
    _, body = await post(stand_in, json.dumps(asked).encode())
    again = json.dumps(json.loads(body), ensure_ascii=False, separators=(",", ":"))
    assert body.decode() == again
    real = (RECORDED / "completion_logprobs5.json").read_text()
    assert real == json.dumps(json.loads(real), ensure_ascii=False, separators=(",", ":"))


async def test_the_recorded_size_is_met(stand_in: Upstream) -> None:
    """84 bytes a token is what the gateway's decoder is measured against."""
    request = json.dumps(expanded(INDEX["completion_8192tok_logprobs0_ids"]["request"])).encode()
    _, body = await post(stand_in, request)
    assert 80 < len(body) / 8_192 < 88


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("k", [None, 0, 2])
async def test_body_says_what_the_answers_say(
    stand_in: Upstream, k: int | None, as_ids: bool
) -> None:
    prompts = [PROMPT, PROMPT[:7]]
    body = await ask(
        stand_in,
        prompt=prompts,
        n=3,
        max_tokens=40,
        seed=9,
        logprobs=k,
        return_token_ids=True,
        return_tokens_as_token_ids=as_ids,
    )
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    for index, choice in enumerate(body["choices"]):
        prompt, nth = prompts[index // 3], index % 3
        asked: dict[str, Any] = {"model": "tiny", "seed": 9, "choice": nth}
        expected = answers.sample(prompt, max_tokens=40, **asked)
        assert choice["token_ids"] == expected.token_ids
        assert choice["text"] == expected.text
        assert choice["prompt_token_ids"] == prompt
        if k is None:
            assert choice["logprobs"] is None
            continue
        parts = choice["logprobs"]
        assert parts["token_logprobs"] == expected.logprobs

        def name(token_id: int) -> str:
            return f"token_id:{token_id}" if as_ids else answers.token_text(token_id)

        names = [name(token_id) for token_id in expected.token_ids]
        assert parts["tokens"] == names
        assert parts["text_offset"] == [len("".join(names[:i])) for i in range(40)]
        tops = answers.top_logprobs(prompt, count=40, k=k, **asked)
        assert parts["top_logprobs"] == [{name(c.token_id): c.logprob for c in t} for t in tops]


async def test_prompt_logprobs_say_what_the_answers_say(stand_in: Upstream) -> None:
    body = await ask(stand_in, prompt_logprobs=3, n=2)
    expected = [
        entry
        and {
            str(c.token_id): {
                "logprob": c.logprob,
                "rank": c.rank,
                "decoded_token": answers.token_text(c.token_id),
            }
            for c in entry
        }
        for entry in answers.prompt_logprobs(PROMPT, k=3, model="tiny")
    ]
    assert [choice["prompt_logprobs"] for choice in body["choices"]] == [expected, expected]


async def test_a_string_prompt_is_its_bytes(stand_in: Upstream) -> None:
    body = await ask(stand_in, prompt=["hé", "a"], return_token_ids=True)
    assert [c["prompt_token_ids"] for c in body["choices"]] == [list("hé".encode()), [97]]


async def test_min_tokens_and_numbers_as_strings_are_taken(stand_in: Upstream) -> None:
    ids = answers.tokens(PROMPT, count=6, model="tiny", seed=3)
    body = await ask(
        stand_in,
        max_tokens="6",
        min_tokens=4.0,
        seed="3",
        temperature="0.5",
        ignore_eos="yes",
        stop=None,
        stop_token_ids=[ids[1]],
        return_token_ids=1,
    )
    assert body["choices"][0]["token_ids"] == ids


@pytest.mark.parametrize("name", SAME_MESSAGE + SAME_SHAPE)
async def test_error_is_the_recorded_one(stand_in: Upstream, name: str) -> None:
    entry = INDEX[name]
    request = entry["request"]
    raw = request.get("raw_body") or json.dumps(expanded(request))
    status, body = await post(stand_in, raw.encode(), entry["request_headers"])
    real, ours = recorded(name)["error"], json.loads(body)["error"]
    assert status == entry["status"]
    assert list(ours) == list(real)
    for field in ("type", "param", "code") + (("message",) if name in SAME_MESSAGE else ()):
        assert ours[field] == real[field]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1, [2]]}, "body.prompt.1"),
        ({"prompt": [[1], 2]}, "body.prompt.1"),
        ({"prompt": {"a": 1}}, "body.prompt"),
        ({"prompt": [[1, "x"]]}, "body.prompt.0.1"),
        ({"n": None}, "body.n"),
        ({"n": [1]}, "body.n"),
        ({"max_tokens": 1.5}, "body.max_tokens"),
        ({"temperature": "hot"}, "body.temperature"),
        ({"temperature": []}, "body.temperature"),
        ({"ignore_eos": "maybe"}, "body.ignore_eos"),
        ({"ignore_eos": []}, "body.ignore_eos"),
        ({"model": 3}, "body.model"),
        ({"model": "\ud800"}, "body.model"),
        ({"prompt": "\ud800"}, "body.prompt"),
        ({"temperature": "\ud800"}, "body.temperature"),
        ({"stop": [3]}, "body.stop.0"),
        ({"stop_token_ids": 3}, "body.stop_token_ids"),
        ({"seed": -(2**63) - 1}, "body.seed"),
    ],
)
async def test_wrong_types_are_named(
    stand_in: Upstream, fields: dict[str, object], param: str
) -> None:
    status, body = await post(stand_in, json.dumps({"prompt": PROMPT} | fields).encode())
    error = json.loads(body)["error"]
    assert (status, error["type"], error["param"]) == (400, "Bad Request", param)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [[1], []]},
        {"prompt": ["a", ""]},
        {"prompt": [2**63]},
        {"prompt": [2**70]},
        {"n": 20_000},
        {"echo": True},
        {"stream": True},
        {"logprobs": -2},
        {"logprobs": -1},
        {"prompt_logprobs": -2},
        {"prompt_logprobs": 21},
        {"top_k": -2},
        {"min_p": 1.5},
        {"repetition_penalty": 0},
        {"presence_penalty": 2.5},
        {"min_tokens": 17},
        {"stop": ""},
        {"stop": ["a", ""]},
    ],
)
async def test_values_out_of_range_are_refused(
    stand_in: Upstream, fields: dict[str, object]
) -> None:
    status, body = await post(stand_in, json.dumps({"prompt": PROMPT} | fields).encode())
    assert (status, json.loads(body)["error"]["type"]) == (400, "BadRequestError")


@pytest.mark.parametrize("raw", [b"", b"[]", b"3", b'"\xff"', b"[" * 100_000, b"9" * 5_000])
async def test_bodies_that_are_no_object_are_refused(stand_in: Upstream, raw: bytes) -> None:
    status, body = await post(stand_in, raw)
    assert (status, json.loads(body)["error"]["type"]) == (400, "Bad Request")


@pytest.mark.parametrize("name", ["endpoint_models", "endpoint_models_with_lora"])
async def test_models_have_the_recorded_shape(name: str) -> None:
    loras = ("rand",) if name.endswith("lora") else ()
    async with (
        running(Settings(port=0, models=("tiny",), loras=loras)) as server,
        aiohttp.ClientSession() as session,
        session.get(server.url + "/v1/models") as answer,
    ):
        ours = await answer.json()
    real = recorded(name)
    assert shape(ours) == shape(real)
    for mine, theirs in zip(ours["data"], real["data"], strict=True):
        for kept in ("id", "parent", "max_model_len", "owned_by"):
            assert mine[kept] == theirs[kept]
