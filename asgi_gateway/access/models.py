"""Which models a key may use: base models by name, checkpoints by path or by run."""

from collections.abc import Iterable
from typing import Final

from asgi_gateway.caller import Caller
from asgi_gateway.errors import Forbidden, Malformed
from asgi_gateway.upstream.naming import Adapter, TinkerPath, parse

_SCHEME: Final = "tinker://"


def canonical(entry: str) -> str:
    """An entry of an allow-list as it is looked up. Raises ValueError."""
    if not entry or entry.strip() != entry:
        raise ValueError("models: an entry is empty or has blanks around it")
    if not entry.startswith(_SCHEME):
        if "*" in entry:
            raise ValueError(f"models: {entry!r:.200}: a base model is given by its whole name")
        return entry
    try:
        if entry.endswith("/*"):
            run = entry.removeprefix(_SCHEME).removesuffix("/*")
            return _all_of(parse(f"{_SCHEME}{run}/weights/x", "models").run)
        return str(parse(entry, "models"))
    except Malformed:
        raise ValueError(
            f"models: {entry!r:.200} is neither a base model's name, nor a tinker:// path, nor"
            " tinker://<run>/*"
        ) from None


def require(caller: Caller, base_model: str | None, model_path: str | None) -> None:
    """Whether a caller may sample from what it names; the path counts where both are given.

    Decided by the name alone and before anybody looks whether it is served, so that a refusal says
    nothing about what is.

    Raises:
        Forbidden: its key has a list of models, and this is not on it.
        Malformed: it is no path.
    """
    if caller.models is None:
        return
    if model_path is not None:
        if not may_use(caller, parse(model_path)):
            raise Forbidden(f"this API key may not use model_path {model_path!r:.200}")
    elif base_model is not None and base_model not in caller.models:
        raise Forbidden(f"this API key may not use base_model {base_model!r:.200}")


def may_use(caller: Caller, path: TinkerPath) -> bool:
    models = caller.models
    return models is None or _all_of(path.run) in models or str(path) in models


def usable(caller: Caller, adapters: Iterable[Adapter]) -> list[Adapter]:
    """Those that a caller may sample from, in their order."""
    return [adapter for adapter in adapters if may_use(caller, adapter.path)]


def _all_of(run: str) -> str:
    return f"{_SCHEME}{run}/*"
