"""The document says which routes there are and what they take, and nothing else."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asgi_gateway import protocol
from asgi_gateway.errors import Malformed, Unsupported
from asgi_gateway.openapi import Served, document
from asgi_gateway.protocol import SampleRequest, reader
from asgi_gateway.upstream.request import build
from tests.support.described import Described, described_gateway
from tests.support.json_schema import Validator
from tests.support.upstream import FakeUpstream

API = "/api/v1"
FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
async def described(upstream: FakeUpstream) -> AsyncIterator[Described]:
    async with described_gateway(upstream.url) as gateway:
        yield gateway


# --- the document itself -------------------------------------------------------------------------


async def test_its_paths_and_methods_are_the_route_table(described: Described) -> None:
    table = described.gateway.gateway._table
    served = list(table.served())
    routes = {(s.path, str(s.method).lower()) for s in served if s.refused is None}
    paths = described.document["paths"]
    assert routes == {(path, method) for path in paths for method in paths[path]}
    for path, method in routes:
        match = table.find(path.replace("{id}", "x"))
        assert match is not None
        assert str(match.route.method).lower() == method
    refused = {s.path: s.refused for s in served if s.refused is not None}
    assert refused == described.document["x-refused"]
    assert len(routes) + len(refused) == len(served)


async def test_what_it_lists_as_refused_is_refused(described: Described) -> None:
    refused = described.document["x-refused"]
    assert f"{API}/forward_backward" in refused
    for path, text in refused.items():
        for method in ("GET", "POST", "DELETE"):
            answer = await described.gateway.client.start(
                method, path.replace("{id}", "x"), b"{}"
            ).response()
            assert (answer.status, answer.json()["detail"]) == (422, text)


async def test_every_reference_in_it_stands_for_something(described: Described) -> None:
    validator = Validator(described.document)
    references = list(_values(described.document, "$ref"))
    for mapping in _values(described.document, "mapping"):
        references += mapping.values()
    assert len(references) > 60
    for reference in references:
        assert isinstance(validator.resolve(reference), dict)


async def test_its_links_lead_to_operations_that_take_the_field(described: Described) -> None:
    operations = {
        operation["operationId"]: operation
        for methods in described.document["paths"].values()
        for operation in methods.values()
    }
    assert len(operations) == sum(map(len, described.document["paths"].values()))
    links = [link for links in _values(described.document, "links") for link in links.values()]
    assert len(links) == 6
    for link in links:
        content = operations[link["operationId"]]["requestBody"]["content"]
        taken = Validator(described.document).resolve(content["application/json"]["schema"]["$ref"])
        assert set(link["requestBody"]) <= set(taken["properties"])


async def test_it_is_rendered_once(described: Described) -> None:
    table = described.gateway.gateway._table
    await described.ask("GET /openapi.json", status=200)
    rendered = table._document
    await described.ask("GET /openapi.json", status=200)
    assert table._document is rendered


async def test_each_route_says_which_key_it_takes(described: Described) -> None:
    schemes = described.document["components"]["securitySchemes"]
    assert schemes["ApiKey"] == {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    assert schemes["Bearer"] == {"type": "http", "scheme": "bearer"}
    for served in described.gateway.gateway._table.served():
        if served.refused is None:
            paths = described.document["paths"]
            operation = paths[served.path][str(served.method).lower()]
            needed = [served.access]
            expected = [{"ApiKey": needed}, {"Bearer": needed}, {}]
            assert operation["security"] == ([] if served.access == "none" else expected)
            assert ("401" in operation["responses"]) == (served.access != "none")


def test_a_route_without_an_entry_is_an_error() -> None:
    with pytest.raises(KeyError):
        document([Served("/new", "GET", 1, None, "none")])


def _values(node: object, key: str) -> Iterator[Any]:
    if isinstance(node, dict):
        if key in node:
            yield node[key]
        for value in node.values():
            yield from _values(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from _values(value, key)


# --- what it says of requests --------------------------------------------------------------------


async def test_bodies_of_the_real_sdks_fit(described: Described) -> None:
    recordings = json.loads((FIXTURES / "tinker_sdk_requests.json").read_text())["recordings"]
    fitting = 0
    for request in (request for recording in recordings for request in recording["requests"]):
        operation = described.document["paths"].get(request["path"], {}).get("post")
        if operation is None or request["path"] == f"{API}/telemetry":
            continue
        kinds = {chunk.get("type", "encoded_text") for chunk in _chunks(request["body"])}
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        problems = Validator(described.document).problems(request["body"], schema)
        refused = kinds - {"encoded_text"} or _REFUSED & _sent(request["body"])
        assert bool(problems) == bool(refused), (request, problems)
        fitting += not problems
    assert fitting > 20


_REFUSED = {"target_prompt_logprobs", "prompt_alt_tokens_k", "record_stability_info"}


def _chunks(body: Any) -> list[dict[str, Any]]:
    return (body or {}).get("prompt", {}).get("chunks", []) if isinstance(body, dict) else []


def _sent(body: dict[str, Any]) -> set[str]:
    return {name for name, value in body.items() if value}


BOUNDS = [
    (struct, field, keyword)
    for struct, field, keywords in (
        ("SampleRequest", "num_samples", ("minimum", "maximum")),
        ("SampleRequest", "topk_prompt_logprobs", ("minimum", "maximum")),
        ("SampleRequest", "topk_sample_logprobs", ("minimum", "maximum")),
        ("SampleRequest", "prompt_logprobs_last_n", ("minimum", "maximum")),
        ("SampleRequest", "seq_id", ("minimum", "maximum")),
        ("SamplingParams", "max_tokens", ("minimum", "maximum")),
        ("SamplingParams", "seed", ("minimum", "maximum")),
        ("SamplingParams", "temperature", ("minimum", "maximum")),
        ("SamplingParams", "top_k", ("minimum", "maximum")),
        ("SamplingParams", "top_p", ("exclusiveMinimum", "maximum")),
    )
    for keyword in keywords
]


@pytest.mark.parametrize(("struct", "field", "keyword"), BOUNDS)
async def test_a_range_is_the_one_that_is_enforced(
    described: Described, struct: str, field: str, keyword: str
) -> None:
    schema = described.document["components"]["schemas"][struct]["properties"][field]
    (bound,) = _values(schema, keyword)
    outward = -1 if "inimum" in keyword else 1
    strict = keyword.startswith("exclusive")
    _build(struct, field, bound + 0.5 if strict else bound)
    with pytest.raises(Malformed, match=field):
        _build(struct, field, bound if strict else bound + outward)


async def test_every_range_of_a_sample_is_tried_here(described: Described) -> None:
    schemas = described.document["components"]["schemas"]
    tried = {(struct, field, keyword) for struct, field, keyword in BOUNDS}
    said = {
        (struct, field, keyword)
        for struct in ("SampleRequest", "SamplingParams")
        for field, schema in schemas[struct]["properties"].items()
        for keyword in ("minimum", "maximum", "exclusiveMinimum")
        for _ in _values({k: v for k, v in schema.items() if field != "stop"}, keyword)
    }
    refused = {("SampleRequest", "prompt_alt_tokens_k", k) for k in ("minimum", "maximum")}
    assert said - refused == tried


def _build(struct: str, field: str, value: float) -> None:
    body: dict[str, Any] = {
        "sampling_session_id": "s",
        "seq_id": 0,
        "prompt": {"chunks": [{"tokens": [1]}]},
        "prompt_logprobs": True,
        "sampling_params": {},
    }
    (body if struct == "SampleRequest" else body["sampling_params"])[field] = value
    if field != "max_tokens":
        body["sampling_params"]["max_tokens"] = 1
    request: SampleRequest = reader(SampleRequest)(msgspec.json.encode(body))
    build(request, model="m", cache_salt="s", max_context=None, empty_stop_ends_nothing=True)


REFUSED_CHUNKS: dict[str, dict[str, Any]] = {
    "ImageChunk": {"data": "aGk=", "format": "png", "expected_tokens": 3},
    "ImageAssetPointerChunk": {"location": "https://h/i.png", "format": "jpeg"},
    "DmelChunk": {"dmel": "AAEC"},
}


@pytest.mark.parametrize("name", REFUSED_CHUNKS)
async def test_a_chunk_listed_as_refused_is_refused(described: Described, name: str) -> None:
    schemas = described.document["components"]["schemas"]
    validator = Validator(described.document)
    chunk = REFUSED_CHUNKS[name]
    kind = schemas[name]["properties"]["type"]["enum"][0]
    assert {"$ref": f"#/components/schemas/{name}"} in schemas["Chunk"]["x-refused"]
    assert validator.problems({"type": kind, **chunk}, schemas[name]) == []
    assert validator.problems({"type": kind, **chunk}, schemas["Chunk"])
    for sent in (chunk, {"type": kind, **chunk}):
        refused = await described.gateway.submit(prompt={"chunks": [sent]})
        assert refused.status == 422
        assert kind in refused.json()["detail"]


async def test_the_chunks_have_every_field_that_is_read(described: Described) -> None:
    schemas = described.document["components"]["schemas"]
    names = ["Chunk", *REFUSED_CHUNKS]
    said = {field for name in names for field in schemas[name]["properties"]}
    assert said >= set(protocol.Chunk.__struct_fields__)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target_prompt_logprobs", {"data": [1, 2], "dtype": "int64", "shape": [2, 1]}),
        ("prompt_alt_tokens_k", 1),
        ("record_stability_info", True),
    ],
)
async def test_a_field_that_is_refused_does_not_fit(
    described: Described, field: str, value: object
) -> None:
    schema = described.document["components"]["schemas"]["SampleRequest"]["properties"][field]
    validator = Validator(described.document)
    assert validator.problems(value, schema)
    assert validator.problems(None, schema) == []
    with pytest.raises(Unsupported, match=field):
        build(
            reader(SampleRequest)(msgspec.json.encode(_sample() | {field: value})),
            model="m",
            cache_salt="s",
            max_context=None,
            empty_stop_ends_nothing=True,
        )


def _sample(**fields: Any) -> dict[str, Any]:
    return {
        "sampling_session_id": "s",
        "seq_id": 0,
        "prompt": {"chunks": [{"tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 2},
        **fields,
    }
