"""Which of the upstreams' models a client's model name or path stands for, and what it is told."""

import hashlib

import msgspec

from asgi_gateway.clock import Clock
from asgi_gateway.errors import Malformed, NotFound
from asgi_gateway.protocol import SupportedModel
from asgi_gateway.settings import ModelSettings, Settings
from asgi_gateway.upstream.client import Client, ServedModel
from asgi_gateway.upstream.listing import Listing
from asgi_gateway.upstream.naming import Adapter, Naming, TinkerPath, is_hub_name, parse


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
    """Base models by their public names, checkpoints by their tinker:// paths."""

    def __init__(
        self, client: Client, urls: tuple[str, ...], settings: ModelSettings, clock: Clock
    ):
        """Raises SettingsError for names and paths that cannot be used."""
        self._client = client
        self._listing = Listing(client, urls, clock, self._listed)
        self._take(settings)
        self._only_base: ServedModel | None = None

    def _take(self, settings: ModelSettings) -> None:
        self._naming = Naming(settings)
        self._max_context_length = settings.max_context_length
        # Public name -> the upstream's.
        self._configured = {
            name: upstream or name
            for name, _, upstream in (entry.partition("=") for entry in settings.base)
        }
        self._bases = dict(self._configured)

    def reconfigure(self, settings: Settings) -> None:
        """Other names, for samplers that are made from now on.

        Raises:
            SettingsError: names and paths that cannot be used; nothing is changed then.
        """
        self._take(settings.models)
        self._client.reconfigure(settings.upstream)
        self._listed()

    def __repr__(self) -> str:
        return f"<Catalog {len(self._bases)} base, {self._listing!r}>"

    def _listed(self) -> None:
        """Take in what the upstreams say now."""
        bases = [model for model in self._listing.served.values() if model.parent is None]
        loaded_from = {model.root or model.id for model in bases}
        self._only_base = bases[0] if len(loaded_from) == 1 else None
        if not self._configured:
            self._bases = {}
            for model in bases:
                public = _public(model)
                self._bases[model.id if public in self._bases else public] = model.id

    @property
    def known(self) -> bool:
        """Whether any upstream has answered."""
        return bool(self._listing.served)

    async def refresh(self) -> None:
        """Ask every upstream what it serves."""
        await self._listing.refresh()

    def refresh_soon(self) -> None:
        """Begin to ask unless that was done a moment ago, and wait for nothing."""
        self._listing.refresh_soon()

    def move(self, urls: tuple[str, ...], _: object = None) -> None:
        """The upstreams are these from now on."""
        self._listing.move(urls)

    async def close(self) -> None:
        """Stop asking."""
        await self._listing.close()

    # --- a client's name -> weights --------------------------------------------------------------

    async def resolve(
        self, base_model: str | None, model_path: str | None, *, trusted: bool = False
    ) -> Model:
        """The weights that a client means; the path wins where both are given.

        trusted: the path comes from the trainer that wrote it; the upstream need not list it yet.

        Raises:
            Malformed: a name or path that is not served; the text says what is.
            Unready: no upstream has said what it serves.
        """
        if model_path is not None:
            return await self._resolve_path(model_path, base_model, trusted)
        if base_model is None:
            raise Malformed("base_model or model_path is needed")
        await self._listing.look_for(lambda: self._base(base_model) is not None)
        served = self._base(base_model)
        if served is None:
            raise Malformed(self._not_served(base_model))
        # A configured name is the operator's word for where the tokenizer is.
        public = base_model if self._configured else self._base_model(served, base_model)
        return Model(served.id, public, _salt(served.id))

    async def _resolve_path(self, text: str, base_model: str | None, trusted: bool) -> Model:
        path = parse(text, "model_path")
        if trusted and (base_model is not None or self._only_base is not None):
            # Its first samples need not wait for a list that will name it, or not, a moment later.
            self._listing.refresh_soon()
            served = self._served(path)
        else:
            served = await self._find(path)
        if served is not None:
            base = self._base_model(served, base_model)
        elif not trusted:
            raise Malformed(self._not_loaded("model_path", path))
        elif base_model is not None:
            base = base_model
        elif self._only_base is not None:
            base = self._base_model(self._only_base)
        else:
            raise Malformed(f"the base model of {path} is not known; give base_model too")
        return Model(self._naming.adapter(path), base, _salt(str(path)), text)

    async def _find(self, path: TinkerPath) -> ServedModel | None:
        await self._listing.look_for(lambda: self._served(path) is not None)
        return self._served(path)

    def _served(self, path: TinkerPath) -> ServedModel | None:
        return self._listing.served.get(self._naming.adapter(path))

    def lists(self, model_path: str) -> bool:
        """Whether an upstream lists the weights at a path, as far as is known now.

        Raises:
            Malformed: it is no such path.
        """
        return self._served(parse(model_path)) is not None

    def _not_loaded(self, field: str, path: TinkerPath) -> str:
        adapter = self._naming.adapter(path)
        return f"{field} {path} needs the adapter {adapter!r:.500}, which no upstream lists"

    def _base(self, name: str) -> ServedModel | None:
        """The base model that clients call `name`, where an upstream lists it."""
        if self._configured:
            return self._listing.served.get(self._configured.get(name, ""))
        # The upstream's own name is good too where it is not the public one.
        served = self._listing.served.get(self._bases.get(name, name))
        return served if served is not None and served.parent is None else None

    def _not_served(self, base_model: str) -> str:
        text = f"base_model {base_model!r:.200} is not served here"
        if base_model in self._configured:
            return f"{text}: no upstream lists {self._configured[base_model]!r:.200}"
        if base_model in self._listing.served and not self._configured:
            paths = "".join(f" {path}" for path in self._naming.paths(base_model)[:1])
            return f"{text}: it is an adapter, ask for it by model_path{paths}"
        return f"{text}; served: {', '.join(self.names()) or 'nothing'}"

    def _base_model(self, served: ServedModel, asked: str | None = None) -> str:
        """What clients call the base model of an upstream's entry: a hub name where one is known.

        asked: the client's own word for it, which decides between names of the same thing and
        stands in where the upstream gives none.
        """
        base = served.parent or served.id
        public = [name for name, upstream in self._bases.items() if upstream == base]
        if asked in public:
            return str(asked)
        public.sort(key=is_hub_name, reverse=True)
        if served.parent is None and asked and not (public and is_hub_name(public[0])):
            # Whole weights of a checkpoint do not say which base model they were made from.
            return asked
        if public:
            return public[0]
        if is_hub_name(base) or self._only_base is None or served.parent is None:
            return base
        return self._base_model(self._only_base)

    # --- what is served --------------------------------------------------------------------------

    async def adapters(self, run: str | None = None) -> list[Adapter]:
        """What can be sampled from by path: all, or what belongs to one run, oldest first.

        Raises:
            Unready: no upstream has said what it serves.
        """
        if run is None:
            await self._listing.fresh()
        else:
            await self._listing.look_for(lambda: bool(self._adapters(run)))
        return self._adapters(run)

    def _adapters(self, run: str | None) -> list[Adapter]:
        found = [
            self._adapter(path, model)
            for name, model in self._listing.served.items()
            if model.parent is not None or self._naming.tabled(name)
            for path in self._naming.paths(name, run)
        ]
        # Stable: upstreams list their adapters in the order in which they were loaded.
        return sorted(found, key=lambda adapter: adapter.since)

    async def adapter(self, path: TinkerPath) -> Adapter:
        """The weights behind a path.

        Raises:
            NotFound: no upstream lists them.
            Unready: no upstream has said what it serves.
        """
        served = await self._find(path)
        if served is None:
            raise NotFound(self._not_loaded("tinker_path", path))
        return self._adapter(path, served)

    def _adapter(self, path: TinkerPath, served: ServedModel) -> Adapter:
        return Adapter(
            path=path,
            upstream_name=served.id,
            base_model=self._base_model(served),
            is_lora=served.parent is not None,
            since=self._listing.since[served.id],
        )

    def max_context(self, upstream_name: str) -> int | None:
        """Tokens that prompt and completion may have together; None where nobody says."""
        model = self._listing.served.get(upstream_name, self._only_base)
        if model is not None and model.max_model_len is None and model.parent is not None:
            model = self._listing.served.get(model.parent, self._only_base)
        if model is not None and model.max_model_len is not None:
            return model.max_model_len
        return self._max_context_length

    def names(self) -> list[str]:
        """The names that clients may ask for as base models."""
        return sorted(self._bases)

    def supported(self) -> list[SupportedModel]:
        """The base models, as `get_server_capabilities` lists them."""
        return [
            SupportedModel(
                model_name=name,
                max_context_length=self.max_context(self._bases[name]),
                sampleable=self._bases[name] in self._listing.served,
                trainable=False,
            )
            for name in self.names()
        ]


def _public(model: ServedModel) -> str:
    """A base model's name for clients where none is configured: a hub name if it has one."""
    if not is_hub_name(model.id) and model.root is not None and is_hub_name(model.root):
        return model.root
    return model.id


def _salt(weights: str) -> str:
    """Different for different weights, and hexadecimal: vLLM 0.32 refuses a salt of more than 128
    characters, or with a slash, a backslash or an @ in it, as paths and hub names have."""
    return hashlib.blake2b(weights.encode(), digest_size=16).hexdigest()
