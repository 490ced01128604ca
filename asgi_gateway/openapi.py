"""The route table as an OpenAPI 3.1 document; what its messages look like is in `schemas`."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import msgspec

from asgi_gateway import protocol, replies
from asgi_gateway.errors import (
    GatewayError,
    Gone,
    Malformed,
    NotFound,
    Overloaded,
    TooLarge,
    Unready,
    Unsupported,
    UnsupportedEncoding,
)
from asgi_gateway.protocol import API
from asgi_gateway.schemas import components, reference


class Served(NamedTuple):
    """One route: `path` has `{id}` where an id is."""

    path: str
    method: str
    body_cap_bytes: int


class _Answer(NamedTuple):
    """An answer that is neither a 200 nor one of our errors."""

    status: int
    text: str
    kind: type[msgspec.Struct]


class _Operation(NamedTuple):
    """takes: the struct of the body. gives: the structs or media types of a 200. leads_to: what can
    be asked next, by a field of the 200 that the other operation takes."""

    summary: str
    takes: type[msgspec.Struct] | None
    gives: tuple[type[msgspec.Struct] | str, ...]
    errors: tuple[type[GatewayError], ...] = ()
    also: tuple[_Answer, ...] = ()
    leads_to: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


_PROTOBUF: Final = "application/x-protobuf"
_TEXT: Final = "text/plain"

# Errors whose response is the same wherever it occurs.
_ERRORS: Final[dict[type[GatewayError], str]] = {
    Malformed: "The body is not what the route takes; `detail` names field, value and limit.",
    NotFound: "An id that was never issued here, or whose session was finished.",
    Gone: "Issued here and no longer held; a sample is to be submitted again.",
    TooLarge: "The body is larger than the route takes.",
    UnsupportedEncoding: "The body has a Content-Encoding.",
    Unsupported: "Understood and refused by name, or a conflict with an earlier request.",
    Overloaded: "Full; repeat after a pause.",
    Unready: "Draining, or no upstream answers yet; repeat after a pause.",
}

_TRY_AGAIN: Final = _Answer(408, "Not finished at the end of the hold.", replies.TryAgain)
_UNREADY: Final = _Answer(503, "New samples should not come here now.", replies.Readiness)

_OPERATIONS: Final[dict[str, _Operation]] = {
    f"POST {API}/asample": _Operation(
        "Submit a sample",
        protocol.SampleRequest,
        (replies.Promise,),
        (NotFound, Unsupported, Overloaded, Unready),
        leads_to=(("retrieve_future", "request_id"), ("cancel_future", "request_id")),
        headers=(("X-Stainless-Package-Version", "The SDK's version; what `stop: []` means."),),
    ),
    f"POST {API}/retrieve_future": _Operation(
        "Wait for the result of one sample",
        protocol.RetrieveFuture,
        (_PROTOBUF, replies.SampleResult, replies.FailedSample, replies.MetadataOnly),
        (NotFound, Gone),
        (_TRY_AGAIN,),
    ),
    f"POST {API}/retrieve_futures": _Operation(
        "Wait for whatever settles in a sampling session",
        protocol.RetrieveFutures,
        (replies.CompletionPage,),
        (NotFound,),
    ),
    f"POST {API}/cancel_future": _Operation(
        "Cancel a sample", protocol.CancelFuture, (replies.Empty,), (NotFound,)
    ),
    f"POST {API}/join_sampling_session": _Operation(
        "Number a clone of a sampling client",
        protocol.JoinSamplingSession,
        (replies.SamplingSessionJoined,),
        (NotFound,),
    ),
    f"POST {API}/session_heartbeat": _Operation(
        "Say that a session lives",
        protocol.Heartbeat,
        (replies.HeartbeatSeen,),
        (NotFound, Gone),
    ),
    f"POST {API}/telemetry": _Operation("Accepted and dropped", None, (replies.Accepted,)),
    f"POST {API}/client/config": _Operation(
        "Flags for the SDK", protocol.ClientConfig, (replies.ClientFlags,)
    ),
    f"POST {API}/client/dynamic_config": _Operation(
        "Flags that the SDK refreshes", protocol.ClientConfig, (replies.DynamicFlags,)
    ),
    f"POST {API}/create_session": _Operation(
        "Begin a session",
        protocol.CreateSession,
        (replies.SessionCreated,),
        leads_to=(("create_sampling_session", "session_id"), ("session_heartbeat", "session_id")),
    ),
    f"POST {API}/create_sampling_session": _Operation(
        "Begin to sample from some weights",
        protocol.CreateSamplingSession,
        (replies.SamplingSessionCreated,),
        (NotFound, Gone, Unsupported, Unready),
        leads_to=(
            ("asample", "sampling_session_id"),
            ("join_sampling_session", "sampling_session_id"),
        ),
    ),
    f"POST {API}/sessions/{{id}}/finish": _Operation(
        "End a session and its work", protocol.FinishSession, (replies.Empty,), (NotFound,)
    ),
    f"GET {API}/samplers/{{id}}": _Operation(
        "The weights of a sampling session", None, (protocol.Sampler,), (NotFound,)
    ),
    f"GET {API}/get_server_capabilities": _Operation(
        "The models served", None, (protocol.Capabilities,), (Unready,)
    ),
    f"GET {API}/healthz": _Operation("Health as the SDK asks for it", None, (replies.Healthy,)),
    "GET /livez": _Operation("Whether the process serves", None, (replies.Healthy,)),
    "GET /readyz": _Operation(
        "Whether samples should come here", None, (replies.Readiness,), (), (_UNREADY,)
    ),
    "GET /metrics": _Operation("Prometheus text", None, (_TEXT,)),
    "GET /openapi.json": _Operation("This document", None, ("application/json",)),
}


def document(routes: Iterable[Served]) -> dict[str, Any]:
    """The document of these routes; every one of them must have its entry in the table above."""
    paths: dict[str, Any] = {}
    for route in routes:
        operation = _OPERATIONS[f"{route.method} {route.path}"]
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "asgi_gateway",
            "summary": "The sampling side of the Tinker API in front of vLLM.",
            "description": "Integers are written without fraction and exponent: 1, not 1.0 or 1e0.",
            "version": version("asgi-gateway"),
        },
        # No key is as good as any until keys are configured.
        "security": [{}, {"ApiKey": []}],
        "paths": paths,
        "components": {
            "schemas": components(),
            "responses": {error.__name__: _error(error) for error in _ERRORS},
            "securitySchemes": {"ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"}},
        },
    }


def _operation(route: Served, operation: _Operation) -> dict[str, Any]:
    words = route.path.removeprefix(API).replace("{id}", "").replace(".", "_").split("/")
    errors: list[type[GatewayError]] = [*operation.errors, TooLarge, UnsupportedEncoding]
    described: dict[str, Any] = {"operationId": "_".join(filter(None, words))}
    described["summary"] = operation.summary
    text = {"type": "string"}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "header", "description": meaning, "schema": text}
        for name, meaning in operation.headers
    ]
    if "{id}" in route.path:
        part = text | {"pattern": "^[^/]+$"}
        parameters.append({"name": "id", "in": "path", "required": True, "schema": part})
    if parameters:
        described["parameters"] = parameters
    if route.method == "POST":
        cap = f"At most {route.body_cap_bytes} bytes."
        described["requestBody"] = {"description": cap, **_body(operation.takes)}
        if operation.takes is not None:
            errors.append(Malformed)
    described["responses"] = {
        "200": {
            "description": "Done.",
            "content": _content(operation.gives),
            **_links(operation.leads_to),
        },
        **{
            str(answer.status): {"description": answer.text, "content": _content((answer.kind,))}
            for answer in operation.also
        },
        **{
            str(error.status): {"$ref": f"#/components/responses/{error.__name__}"}
            for error in sorted(errors, key=lambda error: error.status)
        },
    }
    return described


def _body(takes: type[msgspec.Struct] | None) -> dict[str, Any]:
    """A body of one type; without one anything goes, nothing too."""
    if takes is None:
        return {"required": False, "content": {"application/json": {"schema": {}}}}
    schema = reference(takes.__name__)
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _content(gives: tuple[type[msgspec.Struct] | str, ...]) -> dict[str, Any]:
    """Media type -> schema; several JSON answers of one status are told apart by their keys."""
    content: dict[str, Any] = {kind: {} for kind in gives if isinstance(kind, str)}
    schemas = [reference(kind.__name__) for kind in gives if not isinstance(kind, str)]
    if schemas:
        schema = {"oneOf": schemas} if len(schemas) > 1 else schemas[0]
        content["application/json"] = {"schema": schema}
    return content


def _links(leads_to: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    links = {
        name: {"operationId": name, "requestBody": {field: f"$response.body#/{field}"}}
        for name, field in leads_to
    }
    return {"links": links} if links else {}


def _error(error: type[GatewayError]) -> dict[str, Any]:
    described = {"description": _ERRORS[error], "content": _content((replies.Error,))}
    if error.retry_after_s is not None:
        seconds = {"required": True, "schema": {"type": "integer", "minimum": 1}}
        described["headers"] = {"Retry-After": seconds}
    return described
