"""The flat table: path -> method, handler, body cap. Misses are not-found and wrong method."""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from asgi_gateway.asgi import Call, Reply
from asgi_gateway.handlers import SamplingHandlers
from asgi_gateway.handshake import HandshakeHandlers
from asgi_gateway.settings import LimitSettings

API: Final = "/api/v1"

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

    def __init__(
        self,
        s: SamplingHandlers,
        h: HandshakeHandlers,
        limits: LimitSettings,
        save_weights: Handler | None = None,
    ) -> None:
        """save_weights: answers `save_weights_for_sampler` where a trainer is behind us."""
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
                ("/metrics", "GET", h.metrics, small),
            )
        }
        if save_weights is not None:
            saves = Route("POST", save_weights, small)
            self._exact[f"{API}/save_weights_for_sampler"] = Match(saves, "")
        self._with_id: tuple[tuple[str, str, Route], ...] = (
            (f"{API}/samplers/", "", Route("GET", h.sampler, small)),
            (f"{API}/sessions/", "/finish", Route("POST", h.finish_session, small)),
        )

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
