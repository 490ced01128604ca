"""What weights are called: the client's tinker:// paths and the upstream's adapter names. Pure.

A path becomes an adapter's name by the table of the settings, else by the rule. The other way round
tells which paths stand for what an upstream lists.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from asgi_gateway.errors import Malformed
from asgi_gateway.settings import ModelSettings, SettingsError

# No slash, percent, blank, control or non-ASCII character, and no leading dot: a part means the
# same in a URL, a file name and a log line. Run ids made by the SDK hold colons. The lengths keep
# a whole path within vLLM's limit for a cache salt.
_RUN: Final = r"[A-Za-z0-9_-][A-Za-z0-9._:-]{0,199}"
_CHECKPOINT: Final = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}"
_KIND: Final = "weights|sampler_weights"
_PATH: Final = re.compile(
    rf"tinker://(?P<run>{_RUN})/((?P<kind>{_KIND})/|(?!({_KIND})$))(?P<checkpoint>{_CHECKPOINT})"
)
# The same for a JSON Schema, whose expressions have no names for groups.
PATTERN: Final = rf"^tinker://{_RUN}/(({_KIND})/)?{_CHECKPOINT}$"
_PLACEHOLDERS: Final = {"model_id": _RUN, "checkpoint_id": _CHECKPOINT, "kind": _KIND}
_BRACED: Final = re.compile(r"\{([^{}]*)\}")
# <org>/<model>, perhaps <org>/<model>/<variant>, perhaps :<anything>. The SDK cuts both off before
# it asks the Hugging Face hub for a tokenizer.
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(/[\w.-]+)?(:.*)?", re.ASCII)


class TinkerPath(msgspec.Struct, frozen=True):
    """`tinker://<run>/<kind>/<checkpoint>`, the way the SDK names saved weights.

    SkyRL's server leaves `sampler_weights` out of the paths that it gives.
    """

    run: str
    kind: str
    checkpoint: str

    def __str__(self) -> str:
        return f"tinker://{self.run}/{self.kind}/{self.checkpoint}"


class Adapter(msgspec.Struct, frozen=True):
    """Weights that can be sampled from: listed by an upstream and known by a path.

    base_model is what clients call it; `since` is the wall time at which the gateway first saw it.
    """

    path: TinkerPath
    upstream_name: str
    base_model: str
    is_lora: bool
    since: float


def parse(text: str, field: str = "model_path") -> TinkerPath:
    """A path in the SDK's own form, or in SkyRL's, which means the same with less.

    field: what the text came in, for the error.

    Raises:
        Malformed: anything else.
    """
    match = _PATH.fullmatch(text)
    if match is None or ".." in text:
        raise Malformed(
            f"{field} {text!r:.200} is not of the form tinker://<run>/weights/<checkpoint> or"
            " tinker://<run>/sampler_weights/<checkpoint>, each part of letters, digits, '.', '_'"
            " and '-', in a run also ':'"
        )
    return TinkerPath(match["run"], match["kind"] or "sampler_weights", match["checkpoint"])


def is_hub_name(name: str) -> bool:
    """Whether the SDK can find a tokenizer by this name of a base model."""
    return _HUB_NAME.fullmatch(name) is not None


class Naming:
    """The mapping of one configuration."""

    def __init__(self, settings: ModelSettings) -> None:
        """Raises SettingsError where `problems` finds any."""
        found = tuple(problems(settings))
        if found:
            raise SettingsError(found)
        self._template = settings.adapter_name
        table = settings.adapters.items()
        self._table = {parse(path, "models.adapters"): name for path, name in table}
        # Without both parts in its name an adapter does not say which checkpoint it is.
        self._two_way = {"model_id", "checkpoint_id"} <= set(_BRACED.findall(self._template))

    def adapter(self, path: TinkerPath) -> str:
        """The upstream's name of the weights at a path."""
        name = self._table.get(path)
        return self._by_rule(path) if name is None else name

    def tabled(self, adapter: str) -> bool:
        """Whether the table names a path for it, so that it counts whatever its form."""
        return adapter in self._table.values()

    def paths(self, adapter: str, run: str | None = None) -> list[TinkerPath]:
        """The paths of a run, or without one the usual paths, that `adapter` stands for.

        A name can be read in several ways: `a_b_c` is checkpoint `c` of run `a_b` as well as `b_c`
        of `a`. The usual reading is the first; a client that names its run means its own.
        """
        listed = [
            path
            for path, name in self._table.items()
            if name == adapter and (run is None or path.run == run)
        ]
        if listed or not self._two_way or (run is not None and not re.fullmatch(_RUN, run)):
            return listed
        match = _pattern(self._template, run).fullmatch(adapter)
        if match is None or ".." in adapter:
            return []
        parts = match.groupdict()
        path = TinkerPath(
            run=parts.get("model_id", run or ""),
            kind=parts.get("kind", "sampler_weights"),
            checkpoint=parts["checkpoint_id"],
        )
        return [path] if self.adapter(path) == adapter else []

    def _by_rule(self, path: TinkerPath) -> str:
        # No part of a path holds braces, so one replacement cannot make another placeholder.
        return (
            self._template.replace("{model_id}", path.run)
            .replace("{checkpoint_id}", path.checkpoint)
            .replace("{kind}", path.kind)
        )


def problems(settings: ModelSettings) -> Iterator[str]:
    """What is wrong with the settings of models, one line each."""
    template = settings.adapter_name
    used = _BRACED.findall(template)
    known = ", ".join(f"{{{name}}}" for name in _PLACEHOLDERS)
    for name in used:
        if name not in _PLACEHOLDERS:
            yield f"models.adapter_name: unknown placeholder {{{name}}}; known are {known}"
    if "{" in _BRACED.sub("", template) or "}" in _BRACED.sub("", template):
        yield f"models.adapter_name: {template!r} has a brace without its pair"
    elif not used:
        yield f"models.adapter_name: {template!r} has no placeholder; known are {known}"
    for path, name in settings.adapters.items():
        try:
            parse(path, "path")
        except Malformed as error:
            yield f"models.adapters: {error}"
        if not name:
            yield f"models.adapters: {path} has no upstream name"


def _pattern(template: str, run: str | None) -> re.Pattern[str]:
    """Adapter names that the rule gives, of one run or any, with a group per placeholder."""
    pieces = _BRACED.split(template)
    pattern, seen = "", set[str]()
    for position, piece in enumerate(pieces):
        if position % 2 == 0:
            pattern += re.escape(piece)
        elif piece == "model_id" and run is not None:
            pattern += re.escape(run)
        elif piece in seen:
            pattern += f"(?P={piece})"
        else:
            seen.add(piece)
            pattern += f"(?P<{piece}>{_PLACEHOLDERS[piece]})"
    return re.compile(pattern)
