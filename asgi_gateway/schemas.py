"""JSON Schemas of every message, from the structs that decode requests and encode answers.

What a struct cannot say is added here: raw fields, the ranges that `upstream/request` enforces (its
messages name them, so they are no constraints of the structs), and what is understood only to be
refused by name. That is listed under `x-refused` and left out of what is accepted, so that nobody
generates a client which sends it.
"""

from typing import Any, Final

import msgspec

from asgi_gateway import protocol, replies
from asgi_gateway.admin import messages
from asgi_gateway.upstream.naming import PATTERN
from asgi_gateway.upstream.prompt import MAX_PROMPTS, MAX_TOKEN_ID
from asgi_gateway.upstream.request import (
    MAX_LAST_N,
    MAX_SEED,
    MAX_SEQUENCES,
    MAX_TEMPERATURE,
    MAX_TOKENS,
    MAX_TOP_K,
    MAX_TOPK,
)

Schema = dict[str, Any]

PREFIX: Final = "#/components/schemas/"
_NUMBERS: Final = ("integer", "number")


def reference(name: str) -> Schema:
    return {"$ref": PREFIX + name}


def components() -> dict[str, Schema]:
    """Every message by the name of its struct, and what is written by hand beside them."""
    structs = [
        kind
        for module in (protocol, replies, messages)
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind.__module__ == module.__name__
        and not name.startswith("_")
        and kind is not protocol.Reader
    ]
    _, schemas = msgspec.json.schema_components(structs, ref_template=PREFIX + "{name}")
    for struct, fields in _FIELDS.items():
        for field, keywords in fields.items():
            _add(schemas[struct]["properties"][field], keywords)
    for struct, keywords in _STRUCTS.items():
        schemas[struct] |= keywords
    return {**schemas, **_BY_HAND}


def _add(schema: Schema, keywords: Schema) -> None:
    """Bounds join the number that a field may be; all else joins the field, beside null too."""
    numbers = [branch for branch in schema.get("anyOf", [schema]) if branch.get("type") in _NUMBERS]
    for keyword, value in keywords.items():
        bound = keyword.lower().endswith(("minimum", "maximum"))
        (numbers[0] if bound else schema)[keyword] = value


_TOKENS: Final[Schema] = {
    "description": "Token ids, passed to the upstream as they are.",
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID},
}
_BASE64: Final[Schema] = {"type": "string", "contentEncoding": "base64"}
_INDICES: Final[Schema] = {"type": ["array", "null"], "items": {"type": "integer"}}
_IMAGE: Final[Schema] = {
    "format": {"enum": ["png", "jpeg"]},
    "expected_tokens": {"type": ["integer", "null"], "minimum": 0},
}


def _chunk(kind: str, text: str, needed: str, **fields: Schema) -> Schema:
    return {
        "title": kind,
        "description": text,
        "type": "object",
        "properties": {"type": {"enum": [kind, None]}, **fields},
        "required": [needed],
    }


_BY_HAND: Final[dict[str, Schema]] = {
    "Chunk": {
        **_chunk("encoded_text", "One piece of a prompt.", "tokens", tokens=_TOKENS),
        "x-refused": [
            reference("ImageChunk"),
            reference("ImageAssetPointerChunk"),
            reference("DmelChunk"),
        ],
    },
    "ImageChunk": _chunk("image", "Refused with 422.", "data", data=_BASE64, **_IMAGE),
    "ImageAssetPointerChunk": _chunk(
        "image_asset_pointer",
        "Refused with 422.",
        "location",
        location={"type": "string"},
        **_IMAGE,
    ),
    "DmelChunk": _chunk("dmel", "Audio. Refused with 422.", "dmel", dmel=_BASE64),
    "Tensor": {
        "title": "Tensor",
        "description": "Numbers with a shape; compressed sparse rows where indices are given.",
        "type": "object",
        "properties": {
            "data": {"type": "array", "items": {"type": "number"}},
            "dtype": {"enum": ["int64", "float32"]},
            "shape": _INDICES,
            "sparse_crow_indices": _INDICES,
            "sparse_col_indices": _INDICES,
        },
        "required": ["data", "dtype"],
    },
}

_TOPK: Final[Schema] = {"minimum": 0, "maximum": MAX_TOPK}
_STOP_ID: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}
_STOP_TEXT: Final[Schema] = {"type": "string", "minLength": 1}

# Struct -> field -> keywords.
_FIELDS: Final[dict[str, dict[str, Schema]]] = {
    "Prompt": {
        "chunks": {
            "description": "Pieces in order, with at least one token in all.",
            "contains": {"properties": {"tokens": {"minItems": 1}}},
        },
    },
    "SamplingParams": {
        "max_tokens": {
            "minimum": 1,
            "maximum": MAX_TOKENS,
            "description": "Absent: the rest of the context.",
        },
        "seed": {"minimum": -MAX_SEED - 1, "maximum": MAX_SEED},
        "stop": {
            "anyOf": [
                _STOP_TEXT,
                {"type": "array", "items": _STOP_TEXT},
                {"type": "array", "items": _STOP_ID},
                {"type": "null"},
            ],
            "description": "Texts or token ids, not both. An empty list means no stop at all, EOS"
            " included, for clients that say SDK 0.38 or newer, and nothing for older ones.",
        },
        "temperature": {"minimum": 0, "maximum": MAX_TEMPERATURE},
        "top_k": {"minimum": -1, "maximum": MAX_TOP_K},
        "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    },
    "SampleRequest": {
        "seq_id": {
            "description": "With the sampling session, names this sample: a repeat with the same"
            " body gets the same ids, another body 422.",
        },
        "num_samples": {
            "minimum": 1,
            "maximum": MAX_SEQUENCES,
            "description": f"At temperature 0 at most {MAX_PROMPTS}.",
        },
        "topk_prompt_logprobs": _TOPK,
        "topk_sample_logprobs": _TOPK,
        "prompt_logprobs_last_n": {
            "minimum": 1,
            "maximum": MAX_LAST_N,
            "description": "Earlier positions are NaN. Needs prompt_logprobs or"
            " topk_prompt_logprobs.",
        },
        "target_prompt_logprobs": {"type": "null", "x-refused": [reference("Tensor")]},
        "prompt_alt_tokens_k": {"minimum": 0, "maximum": 0},
        "record_stability_info": {"enum": [False, None]},
    },
    "RetrieveFuture": {"request_id": {"pattern": "^[A-Za-z0-9_-]{1,128}$"}},
    "PollTarget": {"type": {"const": "sampling_session"}},
    "WeightsInfoRequest": {"tinker_path": {"pattern": PATTERN}},
    "CreateSamplingSession": {
        "model_path": {
            "pattern": PATTERN,
            "description": "tinker://<run>/<kind>/<checkpoint>; wins over base_model.",
        },
    },
}

_LAST_N: Final = "prompt_logprobs_last_n"

# Struct -> keywords about several of its fields.
_STRUCTS: Final[dict[str, Schema]] = {
    "SampleRequest": {
        "if": {"properties": {_LAST_N: {"type": "integer"}}, "required": [_LAST_N]},
        "then": {
            "anyOf": [
                {"properties": {name: rule}, "required": [name]}
                for name, rule in (
                    ("prompt_logprobs", {"const": True}),
                    ("topk_prompt_logprobs", {"type": "integer", "minimum": 1}),
                )
            ]
        },
    },
    "CreateSamplingSession": {
        "anyOf": [
            {"properties": {name: {"type": "string"}}, "required": [name]}
            for name in ("base_model", "model_path")
        ],
    },
}
