"""A gateway in the test's loop together with the OpenAPI document that it serves."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from tests.support.asgi_client import Response
from tests.support.gateway import Driven, driven
from tests.support.json_schema import Validator


class Described(NamedTuple):
    gateway: Driven
    document: dict[str, Any]

    async def ask(
        self,
        route: str,
        body: object = b"",
        *,
        status: int,
        headers: dict[str, str] | None = None,
        **ids: str,
    ) -> Response:
        """Ask a route such as `POST /x/{id}` and hold its answer to the document."""
        method, template = route.split(" ")
        path = template.format(**ids)
        response = await self.gateway.client.start(method, path, body, headers).response()
        assert response.status == status, response.body
        self.conforms(route, response)
        return response

    def conforms(self, route: str, response: Response) -> None:
        """Fails where the document does not have this status, media type or shape of an answer."""
        method, path = route.split(" ")
        validator = Validator(self.document)
        answer = self.document["paths"][path][method.lower()]["responses"][str(response.status)]
        answer = validator.resolve(answer["$ref"]) if "$ref" in answer else answer
        kind = response.headers[b"content-type"].decode().partition(";")[0]
        schema = answer["content"][kind].get("schema", {})
        if kind == "application/json":
            assert validator.problems(response.json(), schema) == []
        for name in answer.get("headers", {}):
            assert response.headers[name.lower().encode()]


@contextlib.asynccontextmanager
async def described_gateway(url: str, **flags: Any) -> AsyncIterator[Described]:
    """After its handshake, where the upstream is there to make one."""
    async with driven(url, **flags) as gateway:
        if url:
            await gateway.handshake()
        served = await gateway.client.get("/openapi.json")
        assert served.status == 200
        yield Described(gateway, served.json())
