"""Writes docs/http.md from the OpenAPI document that the gateway serves.

    python docs/http_routes.py [--check]

With --check nothing is written: it says where the page is stale, exit status 1.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from generated import run, stale

from asgi_gateway import Gateway, Settings
from asgi_gateway.openapi import Served, document
from asgi_gateway.settings import UpstreamSettings

PAGE = Path(__file__).resolve().with_name("http.md")
API = "/api/v1/"
# Answers of every route that asks for a key, and of every route that reads a body.
COMMON = {"401", "403", "413", "415"}

HEAD = """\
# HTTP

Written by `docs/http_routes.py` from the OpenAPI document of a gateway without a trainer, which
serves it as `GET /openapi.json`. What happens behind the routes is [behaviour](behaviour.md).

One method belongs to a path: another one is 405, a path that nobody has 404. Bodies are JSON, never
compressed (415), whatever their Content-Type says. Keys go into `X-API-Key` or
`Authorization: Bearer`; where [none is configured](access.md#without-keys) no route asks for one.

"""

SDKS = """\
## For the SDK

Answers beside the 200 that every route may give: 401 and 403 where it asks for a key, 413 and 415
where it takes a body.

"""

OPERATORS = """
## For operators

"""

STATUSES = """
## Statuses

An error at the door has a status and `{"detail": TEXT}`. A sample that failed is no error at the
door but a result: 200, with `error` and `category`.

| status | says | the SDK |
|---|---|---|
"""

# What SDK 0.38 does; tests/contract holds each of them.
REACTIONS = {
    "400": "raises `BadRequestError` at once",
    "401": "raises `AuthenticationError` at once",
    "403": "raises `PermissionDeniedError` at once",
    "404": "raises `NotFoundError`: the run ends",
    "408": "polls again at once",
    "410": "submits the sample again",
    "413": "raises at once",
    "415": "raises at once; it never compresses",
    "422": "raises `UnprocessableEntityError` at once",
    "429": "waits and submits again, for as long as it takes",
    "503": "repeats with back-off, for five minutes",
}

REFUSED = """
## Refused by name

Calls of the SDK that are answered 422, with the same text for every method. With a trainer behind,
or an inner application, these paths are theirs.

| path below `/api/v1` | text |
|---|---|
"""

MESSAGES = """
## Messages

Fields that are not listed are ignored in requests. Integers are written plainly: 1, not 1.0.
"""


def page() -> str:
    settings = Settings(upstream=UpstreamSettings(urls=("http://127.0.0.1:8001",)))
    served = list(Gateway(settings)._table.served())
    described = document(served)
    caps = {
        getattr(settings.limits, name): f"limits.{name}"
        for name in settings.limits.__struct_fields__
        if name.endswith("body_bytes")
    }
    routes = [route for route in served if route.refused is None]
    sdks = [route for route in routes if route.path.startswith(API)]
    others = [route for route in routes if not route.path.startswith(API)]
    return "".join(
        (
            HEAD,
            SDKS,
            *table(sdks, described, caps),
            OPERATORS,
            *table(others, described, caps),
            STATUSES,
            *statuses(described),
            REFUSED,
            *refused(described),
            MESSAGES,
            *messages(described),
        )
    )


def table(
    routes: Iterable[Served], described: dict[str, Any], caps: dict[int, str]
) -> Iterator[str]:
    yield "| route | what for | scope | takes | at most, bytes | 200 | else |\n"
    yield "|---|---|---|---|---|---|---|\n"
    for route in routes:
        operation = described["paths"][route.path][str(route.method).lower()]
        body = operation.get("requestBody")
        takes = cap = ""
        if body is not None:
            takes = kinds(body["content"]) or "anything"
            cap = f"{route.body_cap_bytes:,}, `{caps[int(route.body_cap_bytes or 0)]}`"
        answers = operation["responses"]
        rest = ", ".join(sorted(answers.keys() - COMMON - {"200"}))
        yield (
            f"| `{route.method} {route.path}` | {operation['summary']} | {route.access} | {takes}"
            f" | {cap} | {kinds(answers['200'].get('content', {}))} | {rest} |\n"
        )


def kinds(content: dict[str, Any]) -> str:
    """The messages of a body, JSON by name and others by media type."""
    found = []
    for media, inside in content.items():
        schema = inside.get("schema")
        if schema:
            found += [linked(one["$ref"]) for one in schema.get("oneOf", [schema])]
        elif media != "application/json":
            found.append(f"`{media}`")
    return ", ".join(found)


def linked(reference: str) -> str:
    name = reference.rpartition("/")[2]
    return f"[{name}](#{name.lower()})"


def statuses(described: dict[str, Any]) -> Iterator[str]:
    """Every status that a route answers with, and its texts in the order of the routes."""
    texts: dict[str, list[str]] = {}
    shared = described["components"]["responses"]
    for methods in described["paths"].values():
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                if "$ref" in answer:
                    answer = shared[answer["$ref"].rpartition("/")[2]]
                found = texts.setdefault(status, [])
                if answer["description"] not in found:
                    found.append(answer["description"])
    for status in sorted(texts.keys() - {"200"}):
        yield f"| {status} | {' '.join(texts[status])} | {REACTIONS[status]} |\n"


def refused(described: dict[str, Any]) -> Iterator[str]:
    for path, text in described["x-refused"].items():
        yield f"| `{path.removeprefix(API)}` | {text} |\n"


def messages(described: dict[str, Any]) -> Iterator[str]:
    """Every struct that a route takes or gives, and those inside them."""
    schemas = described["components"]["schemas"]
    wanted = list(dict.fromkeys(references(described["paths"], schemas)))
    for name in sorted(wanted):
        schema = schemas[name]
        yield f"\n### {name}\n\n"
        if text := schema.get("description"):
            yield words(text) + "\n"
        needed = schema.get("required", ())
        rows = [
            f"| `{field}` | {of(inner)} | {'yes' if field in needed else ''}"
            f" | {words(inner.get('description', ''))} |\n"
            for field, inner in schema.get("properties", {}).items()
        ]
        if rows:
            yield ("\n" if text else "") + "| field | type | always | |\n|---|---|---|---|\n"
            yield from rows
        elif not text:
            yield of(schema) + "\n"


def words(text: str) -> str:
    """On one line, and no markup of HTML."""
    return " ".join(text.split()).replace("<", "&lt;")


def references(
    node: Any, schemas: dict[str, Any], seen: frozenset[str] = frozenset()
) -> Iterator[str]:
    if isinstance(node, list):
        for inner in node:
            yield from references(inner, schemas, seen)
    elif isinstance(node, dict):
        name = str(node.get("$ref", ""))
        if name.startswith("#/components/schemas/"):
            short = name.rpartition("/")[2]
            if short not in seen:
                yield short
                yield from references(schemas[short], schemas, seen | {short})
        for key, inner in node.items():
            if key not in ("x-refused", "if", "then"):
                yield from references(inner, schemas, seen)


def of(schema: dict[str, Any]) -> str:
    """A type in words."""
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(of(one) for one in schema[several])
    if "$ref" in schema:
        return linked(schema["$ref"])
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"`{json.dumps(value)}`" for value in values)
    kind = schema.get("type", "anything")
    if kind == "array":
        inner = [of(one) for one in schema.get("prefixItems", ())] or [of(schema.get("items", {}))]
        return f"list of {', '.join(inner)}{bounds(schema, 'Items')}"
    if kind == "object" and "additionalProperties" in schema:
        inner = schema["additionalProperties"]
        return f"object of {of(inner)}" if isinstance(inner, dict) else "object"
    if kind == "string":
        return f"string{bounds(schema, 'Length')}"
    return f"{kind}{bounds(schema, 'imum')}"


def bounds(schema: dict[str, Any], what: str) -> str:
    low, high = schema.get(f"min{what}"), schema.get(f"max{what}")
    above = schema.get("exclusiveMinimum")
    if low is None and high is None and above is None:
        return ""
    if above is not None:
        return f", above {above}" + ("" if high is None else f", at most {high}")
    if low is None:
        return f", at most {high}"
    return f", from {low}" + ("" if high is None else f" to {high}")


def problems() -> list[str]:
    """That the page is stale, if it is."""
    return stale(PAGE, page())


if __name__ == "__main__":
    raise SystemExit(run(PAGE, page, problems))
