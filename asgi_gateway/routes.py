"""The flat table: path -> method, handler, body cap. Misses are not-found and wrong method."""

from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from asgi_gateway.asgi import Call, Reply, json_reply
from asgi_gateway.handlers import SamplingHandlers
from asgi_gateway.handshake import HandshakeHandlers
from asgi_gateway.openapi import Served, document
from asgi_gateway.protocol import API
from asgi_gateway.settings import LimitSettings

Handler = Callable[[Call], Awaitable[Reply]]


class Route(NamedTuple):
    method: str
    handler: Handler
    body_cap_bytes: int


class Match(NamedTuple):
    route: Route
    tail: str


class Table:
    """Exact paths in one dict; the two routes with an id in the path by prefix and suffix."""

    def __init__(self, s: SamplingHandlers, h: HandshakeHandlers, limits: LimitSettings) -> None:
        small = limits.body_bytes
        many = limits.retrieve_futures_body_bytes
        self._exact: dict[str, Match] = {
            path: Match(Route(method, handler, cap), "")
            for path, method, handler, cap in (
                (f"{API}/asample", "POST", s.asample, limits.asample_body_bytes),
                (f"{API}/retrieve_future", "POST", s.retrieve_future, small),
                (f"{API}/retrieve_futures", "POST", s.retrieve_futures, many),
                (f"{API}/cancel_future", "POST", s.cancel_future, small),
                (f"{API}/join_sampling_session", "POST", s.join_sampling_session, small),
                (f"{API}/session_heartbeat", "POST", h.session_heartbeat, small),
                (f"{API}/telemetry", "POST", h.telemetry, limits.telemetry_body_bytes),
                (f"{API}/client/config", "POST", h.client_config, small),
                (f"{API}/client/dynamic_config", "POST", h.dynamic_config, small),
                (f"{API}/create_session", "POST", h.create_session, small),
                (f"{API}/create_sampling_session", "POST", h.create_sampling_session, small),
                (f"{API}/get_server_capabilities", "GET", h.server_capabilities, small),
                (f"{API}/healthz", "GET", h.healthz, small),
                ("/livez", "GET", h.livez, small),
                ("/readyz", "GET", h.readyz, small),
                ("/metrics", "GET", h.metrics, small),
                ("/openapi.json", "GET", self.openapi, small),
            )
        }
        self._with_id: tuple[tuple[str, str, Route], ...] = (
            (f"{API}/samplers/", "", Route("GET", h.sampler, small)),
            (f"{API}/sessions/", "/finish", Route("POST", h.finish_session, small)),
        )
        self._document: Reply | None = None

    def find(self, path: str) -> Match | None:
        match = self._exact.get(path)
        if match is not None:
            return match
        for prefix, suffix, route in self._with_id:
            if path.startswith(prefix) and path.endswith(suffix):
                tail = path[len(prefix) : len(path) - len(suffix)]
                if tail and "/" not in tail:
                    return Match(route, tail)
        return None

    def served(self) -> Iterator[Served]:
        """Every route by its path, with `{id}` for the id in it."""
        for path, match in self._exact.items():
            yield Served(path, match.route.method, match.route.body_cap_bytes)
        for prefix, suffix, route in self._with_id:
            yield Served(f"{prefix}{{id}}{suffix}", route.method, route.body_cap_bytes)

    async def openapi(self, _: Call) -> Reply:
        """This table as an OpenAPI document, rendered when it is first asked for."""
        if self._document is None:
            self._document = json_reply(document(self.served()))
        return self._document
