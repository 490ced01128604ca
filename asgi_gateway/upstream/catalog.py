"""What the upstreams serve, and which of it a client's model name stands for."""

import asyncio
import logging
import re
from typing import Final

import msgspec

from asgi_gateway.clock import Clock
from asgi_gateway.errors import Malformed, Unavailable, Unready
from asgi_gateway.protocol import SupportedModel
from asgi_gateway.settings import ModelSettings
from asgi_gateway.upstream.client import Client, ServedModel
from asgi_gateway.upstream.request import MAX_SALT_CHARACTERS

log = logging.getLogger(__name__)

# A name that was just looked up and not found is not asked for again sooner.
MIN_REFRESH_S: Final = 2.0
# tinker://<run>/<anything>/<checkpoint>, or without the middle.
_SAMPLER_PATH: Final = re.compile(
    r"tinker://(?P<run>[A-Za-z0-9._:-]+)/(?:[A-Za-z0-9._-]+/)*(?P<checkpoint>[A-Za-z0-9._-]+)\Z"
)


class Model(msgspec.Struct, frozen=True, gc=False):
    """Weights that a sampling session samples from.

    upstream_name: what vLLM calls them. base_model: a hub repository id, which the SDK loads its
    tokenizer from. cache_salt: keeps vLLM's prefix cache of other weights apart.
    """

    upstream_name: str
    base_model: str
    cache_salt: str
    model_path: str | None = None


class Catalog:
    """The upstreams' model lists, asked for at start and again for a name that is not known."""

    def __init__(
        self, client: Client, urls: tuple[str, ...], settings: ModelSettings, clock: Clock
    ):
        self._client = client
        self._urls = urls
        self._clock = clock
        self._max_context_length = settings.max_context_length
        # Public name -> the upstream's.
        self._configured = {
            name: upstream or name
            for name, _, upstream in (entry.partition("=") for entry in settings.base)
        }
        self._served: dict[str, ServedModel] = {}
        self._asked_at: float | None = None
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def known(self) -> bool:
        """Whether any upstream has answered."""
        return bool(self._served)

    async def refresh(self) -> None:
        """Ask every upstream once; callers that come meanwhile share the answer."""
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self._ask_all())
            self._refreshing.add_done_callback(self._refreshed)
        await asyncio.shield(self._refreshing)

    def _refreshed(self, _: object) -> None:
        self._refreshing = None

    async def _ask_all(self) -> None:
        self._asked_at = self._clock.now()
        answers = await asyncio.gather(
            *(self._client.models(url) for url in self._urls), return_exceptions=True
        )
        served: dict[str, ServedModel] = {}
        for answer in answers:
            if isinstance(answer, Unavailable):
                log.warning("no model list: %s", answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                served |= {model.id: model for model in answer}
        if served:
            self._served = served

    async def resolve(
        self, base_model: str | None, model_path: str | None, *, trusted: bool = False
    ) -> Model:
        """The weights that a client means; the path wins where both are given.

        trusted: the path comes from the trainer that wrote it; the upstream need not list it yet.

        Raises:
            Malformed: a name that is not served; the text says which are.
            Unready: no upstream has said what it serves.
        """
        if model_path is not None:
            return await self._resolve_path(model_path, base_model, trusted)
        if base_model is None:
            raise Malformed("base_model or model_path is needed")
        name = self._configured.get(base_model, base_model)
        await self._ensure(name)
        if name not in self._served:
            served = ", ".join(self.names()) or "nothing"
            raise Malformed(f"base_model {base_model!r:.200} is not served here; served: {served}")
        return Model(name, base_model, _salt(base_model))

    async def _resolve_path(self, path: str, base_model: str | None, trusted: bool) -> Model:
        match = _SAMPLER_PATH.match(path)
        if match is None:
            raise Malformed(
                f"model_path {path!r:.200} is not of the form tinker://<run>/<kind>/<checkpoint>"
            )
        name = f"{match['run']}_{match['checkpoint']}"
        await self._ensure(name)
        served = self._served.get(name)
        if served is None and not trusted:
            raise Malformed(
                f"model_path {path!r:.200} needs the adapter {name!r:.200} on the upstream,"
                " which has not loaded it"
            )
        base = base_model or self._public_name(served.parent if served is not None else None)
        if base is None:
            raise Malformed(f"the base model of {path!r:.200} is not known; give base_model too")
        return Model(name, base, _salt(path), path)

    async def _ensure(self, name: str) -> None:
        """Ask again for a name that is not in the list, at most every MIN_REFRESH_S."""
        if name in self._served:
            return
        fresh = self._asked_at is not None and self._clock.now() - self._asked_at < MIN_REFRESH_S
        if not fresh or self._refreshing is not None:
            await self.refresh()
        if not self._served:
            raise Unready("no upstream has said which models it serves yet")

    def max_context(self, upstream_name: str) -> int | None:
        """Tokens that prompt and completion may have together; None where nobody says."""
        model = self._served.get(upstream_name)
        while model is not None:
            if model.max_model_len is not None:
                return model.max_model_len
            model = self._served.get(model.parent) if model.parent else None
        return self._max_context_length

    def names(self) -> list[str]:
        """The names that clients may ask for as base models."""
        if self._configured:
            return sorted(self._configured)
        return sorted(name for name, model in self._served.items() if model.parent is None)

    def supported(self) -> list[SupportedModel]:
        """The base models, as `get_server_capabilities` lists them."""
        return [
            SupportedModel(
                model_name=name,
                max_context_length=self.max_context(self._configured.get(name, name)),
                sampleable=True,
                trainable=False,
            )
            for name in self.names()
        ]

    def _public_name(self, upstream_name: str | None) -> str | None:
        for public, upstream in self._configured.items():
            if upstream == upstream_name:
                return public
        bases = self.names()
        if upstream_name in bases:
            return upstream_name
        return bases[0] if len(bases) == 1 else None


def _salt(weights: str) -> str:
    return weights[-MAX_SALT_CHARACTERS:]
