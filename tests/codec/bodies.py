"""Invented completion bodies, right ones that a test then damages."""

import json
from typing import Any

PROMPT = [7, 8, 9]


def choice(index: int = 0, **fields: Any) -> dict[str, Any]:
    """Three tokens with top-k rows and a scored prompt of three, as vLLM writes them for k = 2."""
    return {
        "index": index,
        "text": "a[b",
        "logprobs": {
            "text_offset": [0, 1, 2],
            "token_logprobs": [-1.5, -0.25, -9999.0],
            "tokens": ["a", "[", "b"],
            "top_logprobs": [
                {"token_id:11": -1.5, "token_id:21": -0.5, "token_id:31": -0.75},
                {"token_id:12": -0.25, "token_id:22": -1.75},
                {"token_id:13": -9999.0, "token_id:23": -0.125, "token_id:33": -3.0},
            ],
        },
        "finish_reason": "stop",
        "stop_reason": 13,
        "token_ids": [11 + index, 12 + index, 13 + index],
        "prompt_logprobs": [
            None,
            {
                "8": {"logprob": -5.5, "rank": 40, "decoded_token": "x"},
                "80": {"logprob": -0.5, "rank": 1, "decoded_token": "y"},
                "81": {"logprob": -0.625, "rank": 2, "decoded_token": "z"},
            },
            {
                "9": {"logprob": -1.25, "rank": 2, "decoded_token": None},
                "90": {"logprob": -1.0, "rank": 1, "decoded_token": None},
            },
        ],
        "prompt_token_ids": PROMPT,
        **fields,
    }


def document(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A whole answer; one choice where none is given."""
    listed = list(choices or [choice()])
    usage = {
        "prompt_tokens": len(PROMPT),
        "completion_tokens": sum(_length(one) for one in listed),
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    return {"id": "cmpl-1", "choices": listed, "usage": usage, **fields}


def _length(choice: dict[str, Any]) -> int:
    """Of what is left of a choice's tokens."""
    logprobs = choice.get("logprobs")
    tokens = choice.get("token_ids", logprobs.get("tokens") if type(logprobs) is dict else None)
    return len(tokens) if type(tokens) is list else 0


def body(*choices: dict[str, Any], **fields: Any) -> bytes:
    """`document` as compact JSON."""
    return dumps(document(*choices, **fields))


def dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
