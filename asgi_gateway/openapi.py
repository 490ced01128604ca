"""The route table as an OpenAPI 3.1 document.

What the routes are for is in `operations`, what their messages look like in `schemas`.
"""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec

from asgi_gateway import replies
from asgi_gateway.caller import Access
from asgi_gateway.errors import (
    Forbidden,
    GatewayError,
    Malformed,
    TooLarge,
    Unauthorized,
    UnsupportedEncoding,
)
from asgi_gateway.operations import ERRORS, MAX_LIMIT, MAX_OFFSET, OPERATIONS, Operation
from asgi_gateway.protocol import API
from asgi_gateway.schemas import components, reference


class Served(NamedTuple):
    """One route: `path` has `{id}` where an id is; `method` None is all of them."""

    path: str
    method: str | None
    body_cap_bytes: int | None
    refused: str | None
    access: Access


def document(routes: Iterable[Served]) -> dict[str, Any]:
    """The document of these routes; every one of them must have its entry in the table above."""
    paths: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for route in routes:
        if route.refused is not None:
            refused[route.path] = route.refused
        else:
            operation = OPERATIONS[f"{route.method} {route.path}"]
            method = str(route.method).lower()
            paths.setdefault(route.path, {})[method] = _operation(route, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "asgi_gateway",
            "summary": "The sampling side of the Tinker API in front of vLLM.",
            "description": "Integers are written without fraction and exponent: 1, not 1.0 or 1e0.",
            "version": version("asgi-gateway"),
        },
        # Where no key is configured, none is needed anywhere.
        "security": [{"ApiKey": []}, {"Bearer": []}, {}],
        "paths": paths,
        # Paths of the SDK that are answered with 422 and this text, whatever the method.
        "x-refused": refused,
        "components": {
            "schemas": components(),
            "responses": {error.__name__: _error(error) for error in ERRORS},
            "securitySchemes": {
                "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "Bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _operation(route: Served, operation: Operation) -> dict[str, Any]:
    words = route.path.removeprefix(API).replace("{id}", "by_id").replace(".", "_").split("/")
    errors: list[type[GatewayError]] = [*operation.errors, TooLarge, UnsupportedEncoding]
    described: dict[str, Any] = {"operationId": "_".join(filter(None, words))}
    described["summary"] = operation.summary
    if route.access == "none":
        described["security"] = []
    else:
        # For these schemes a requirement names roles since 3.1: the scope of the key.
        needed = [route.access]
        described["security"] = [{"ApiKey": needed}, {"Bearer": needed}, {}]
        errors += [Unauthorized, Forbidden]
    text = {"type": "string"}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "header", "description": meaning, "schema": text}
        for name, meaning in operation.headers
    ]
    if "{id}" in route.path:
        part = text | {"pattern": "^[^/]+$"}
        parameters.append({"name": "id", "in": "path", "required": True, "schema": part})
    if operation.listed:
        parameters += [_whole("limit", MAX_LIMIT), _whole("offset", MAX_OFFSET)]
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


def _whole(name: str, largest: int) -> dict[str, Any]:
    schema = {"type": "integer", "minimum": 0, "maximum": largest}
    return {"name": name, "in": "query", "schema": schema}


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
    described = {"description": ERRORS[error], "content": _content((replies.Error,))}
    if error.retry_after_s is not None:
        seconds = {"required": True, "schema": {"type": "integer", "minimum": 1}}
        described["headers"] = {"Retry-After": seconds}
    return described
