"""A sample's request as the SDK sends it, and what the gateway makes of it for an upstream."""

import json
from typing import Any

import msgspec
import pytest

from asgi_gateway.errors import Malformed, RequestError
from asgi_gateway.protocol import Reader, SampleRequest
from asgi_gateway.upstream.request import UpstreamRequest, build

CONTEXT = 4096
TOP = 2**31 - 1
READ = Reader(msgspec.json.Decoder(SampleRequest))


def envelope(**fields: Any) -> dict[str, Any]:
    """A sample as SDK 0.38 sends it; None leaves a field out."""
    whole = {
        "num_samples": 1,
        "prompt": {"chunks": [{"tokens": [1, 2, 3, 4], "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": 8, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
        "sampling_session_id": "ss-0",
        "seq_id": 0,
        "prompt_logprobs": False,
        "topk_prompt_logprobs": 0,
        "topk_sample_logprobs": 0,
        "prompt_alt_tokens_k": 0,
        "record_stability_info": False,
        "type": "sample",
        **fields,
    }
    return {name: value for name, value in whole.items() if value is not None}


def made(body: bytes | dict[str, Any], **options: Any) -> UpstreamRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return build(
        READ(data),
        **{
            "model": "base",
            "cache_salt": "salt",
            "max_context": CONTEXT,
            "empty_stop_ends_nothing": True,
            **options,
        },
    )


def sent(body: bytes | dict[str, Any], **options: Any) -> dict[str, Any]:
    """The upstream's JSON, which has no key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        assert len(fields) == len(pairs)
        return fields

    whole = json.loads(made(body, **options).body, object_pairs_hook=once)
    assert isinstance(whole, dict)
    return whole


def params(**fields: Any) -> dict[str, Any]:
    return envelope(sampling_params={"max_tokens": 8, **fields})


def with_tokens(raw: str) -> bytes:
    """A body with this text as the token list of its only chunk."""
    mark = '"tokens": [1, 2, 3, 4]'
    text = json.dumps(envelope())
    assert mark in text
    return text.replace(mark, f'"tokens": {raw}').encode()


def refused(
    body: bytes | dict[str, Any],
    kind: type[RequestError] = Malformed,
    match: str | None = None,
    **options: Any,
) -> str:
    with pytest.raises(kind, match=match) as caught:
        made(body, **options)
    assert caught.type is kind
    text = str(caught.value)
    assert text
    assert len(text) < 500
    return text
