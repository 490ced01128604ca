"""The flat table: path -> method, handler, body cap, what a key must be good for.

Misses are not-found and wrong method.
"""

from collections.abc import Iterator
from typing import Final

from asgi_gateway.access import visited
from asgi_gateway.access.keys import is_configured
from asgi_gateway.admin.handlers import AdminHandlers
from asgi_gateway.asgi import Call, Reply, json_reply
from asgi_gateway.caller import Access
from asgi_gateway.handlers import SamplingHandlers
from asgi_gateway.handshake import HandshakeHandlers
from asgi_gateway.openapi import Served, document
from asgi_gateway.protocol import API
from asgi_gateway.rest import Refusal, RestHandlers, refusals
from asgi_gateway.route import Handler, Match, Route
from asgi_gateway.settings import Settings

_BELOW_API: Final = f"{API}/"

# Where ids stand in a path below API: resource, id, part of it, a checkpoint's two-part id, action.
_ID_POSITIONS: Final = (1, 3, 4)
_MAX_SEGMENTS: Final = 6


class Table:
    """Exact paths in one dict; paths with ids in a second, where every id is a `*`."""

    def __init__(
        self,
        s: SamplingHandlers,
        h: HandshakeHandlers,
        settings: Settings,
        admin: AdminHandlers,
        rest: RestHandlers | None = None,
        save_weights: Handler | None = None,
    ) -> None:
        """What is None is left to the trainer or the inner application.

        save_weights: answers `save_weights_for_sampler` where a trainer is behind us.
        """
        self._parts = s, h, admin, rest, save_weights
        self._fill(settings)

    def reconfigure(self, settings: Settings) -> None:
        """Other limits of bodies, and what the handlers go by."""
        self._fill(settings)
        for handlers in self._parts[:3]:
            handlers.reconfigure(settings)

    def _fill(self, settings: Settings) -> None:
        s, h, admin, rest, save_weights = self._parts
        limits = settings.limits
        small = limits.body_bytes
        many = limits.retrieve_futures_body_bytes
        self._exact: dict[str, Match] = {}
        self._with_ids: dict[str, Route] = {}
        self._document: Reply | None = None
        keyed = is_configured(settings.access)
        # Whoever has no session can do nothing else: all other ids are below one.
        create_session = h.create_session if keyed else visited.own_pages_only(h.create_session)
        probes: tuple[tuple[str, Handler, Access], ...] = (
            ("/livez", h.livez, "none"),
            ("/readyz", h.readyz, "none"),
            (f"{API}/healthz", h.healthz, "none"),
            ("/metrics", h.metrics, "metrics"),
            ("/openapi.json", self.openapi, "sample"),
        )
        for path, probe, access in probes:
            self._add(path, Route("GET", probe, small, access))
        status_page: tuple[tuple[str, str, Handler, Access], ...] = (
            # The page holds no numbers; what it shows it asks for with a key.
            ("/admin", "GET", admin.page, "none"),
            ("/admin/state", "GET", admin.state, "admin"),
            ("/admin/drain", "POST", admin.drain, "admin"),
            ("/admin/upstream", "POST", admin.upstream, "admin"),
        )
        for path, method, handler, access in status_page:
            if not keyed:
                handler = visited.own_names_only(handler, settings.server.host)
                if path != "/admin":  # a link on another page may lead there
                    handler = visited.own_pages_only(handler)
            self._add(path, Route(method, handler, small, access))
        for path, method, handler, cap in (
            ("asample", "POST", s.asample, limits.asample_body_bytes),
            ("retrieve_future", "POST", s.retrieve_future, small),
            ("retrieve_futures", "POST", s.retrieve_futures, many),
            ("cancel_future", "POST", s.cancel_future, small),
            ("join_sampling_session", "POST", s.join_sampling_session, small),
            ("session_heartbeat", "POST", h.session_heartbeat, small),
            ("telemetry", "POST", h.telemetry, limits.telemetry_body_bytes),
            ("client/config", "POST", h.client_config, small),
            ("client/dynamic_config", "POST", h.dynamic_config, small),
            ("create_session", "POST", create_session, small),
            ("create_sampling_session", "POST", h.create_sampling_session, small),
            ("get_server_capabilities", "GET", h.server_capabilities, small),
            ("samplers/*", "GET", h.sampler, small),
            ("sessions/*/finish", "POST", h.finish_session, small),
        ):
            self._add(f"{API}/{path}", Route(method, handler, cap, "sample"))
        if save_weights is not None:
            route = Route("POST", save_weights, small, "sample")
            self._add(f"{API}/save_weights_for_sampler", route)
        if rest is not None:
            self._add_rest(rest, small)

    def _add_rest(self, r: RestHandlers, small: int) -> None:
        for path, method, handler in (
            ("training_runs", "GET", r.training_runs),
            ("training_runs/*", "GET", r.training_run),
            ("training_runs/*/checkpoints", "GET", r.run_checkpoints),
            ("checkpoints", "GET", r.checkpoints),
            ("weights_info", "POST", r.weights_info),
            ("sessions", "GET", r.sessions),
            ("sessions/*", "GET", r.session),
        ):
            self._add(f"{API}/{path}", Route(method, handler, small, "sample"))
        for path, refusal in refusals().items():
            self._add(f"{API}/{path}", Route(None, refusal, None, "sample"))

    def _add(self, path: str, route: Route) -> None:
        if "*" in path:
            self._with_ids[path] = route
        else:
            self._exact[path] = Match(route, "")

    def find(self, path: str) -> Match | None:
        """The route of a path and its first id."""
        match = self._exact.get(path)
        if match is not None or not path.startswith(_BELOW_API):
            return match
        segments = path[len(_BELOW_API) :].split("/", _MAX_SEGMENTS)
        tail = segments[1] if len(segments) > 1 else ""
        for position in _ID_POSITIONS:
            if position >= len(segments):
                break
            if not segments[position]:
                return None
            segments[position] = "*"
        route = self._with_ids.get(_BELOW_API + "/".join(segments))
        return None if route is None else Match(route, tail)

    def served(self) -> Iterator[Served]:
        """Every route by its path, with `{id}` for an id in it."""
        for path, match in self._exact.items():
            yield _served(path, match.route)
        for path, route in self._with_ids.items():
            yield _served(path.replace("*", "{id}"), route)

    async def openapi(self, _: Call) -> Reply:
        """This table as an OpenAPI document, rendered when it is first asked for."""
        if self._document is None:
            self._document = json_reply(document(self.served()))
        return self._document


def _served(path: str, route: Route) -> Served:
    refused = route.handler.text if isinstance(route.handler, Refusal) else None
    return Served(path, route.method, route.body_cap_bytes, refused, route.access)
