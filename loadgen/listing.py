"""The body of `GET /v1/models`."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from loadgen.settings import Settings


def models_json(settings: Settings, *, created: int) -> bytes:
    """Base models, then adapters with the first model as their parent; `created` in seconds."""
    parent = settings.models[0]
    cards = [_card(name, None, settings.max_model_len, created) for name in settings.models]
    cards += [_card(name, parent, None, created) for name in settings.loras]
    return msgspec.json.encode({"object": "list", "data": cards})


def _card(name: str, parent: str | None, length: int | None, created: int) -> dict[str, object]:
    permission = {
        "id": f"modelperm-{blake2b(name.encode(), digest_size=8).hexdigest()}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": name,
        "parent": parent,
        "max_model_len": length,
        "permission": [permission],
    }
