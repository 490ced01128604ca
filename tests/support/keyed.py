"""A gateway that asks for keys, and its callers."""

import contextlib
import hashlib
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.asgi_client import Connection, Response
from tests.support.gateway import Driven, driven

API = "/api/v1"


def secret_of(name: str) -> str:
    return f"tml-secret-of-{name}-0123456789"


def hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def entries(keys: Mapping[str, Mapping[str, object]]) -> str:
    """The text of a keys file: names and what is said of each beside its digest."""
    lines: list[str] = []
    for name, fields in keys.items():
        lines.append(f"[{name}]")
        told = {"sha256": hashed(secret_of(name)), **fields}
        # TOML writes these values as JSON does.
        lines += [f"{field} = {json.dumps(value)}" for field, value in told.items()]
    return "\n".join(lines) + "\n"


class As:
    """One caller's client."""

    def __init__(self, gateway: Driven, secret: str) -> None:
        self.gateway = gateway
        self.headers = {"X-API-Key": secret, "Accept": "application/x-protobuf"}
        self.session_id = ""
        self.sampler = ""
        self._numbers = itertools.count()

    def start(self, method: str, path: str, body: bytes | object = b"") -> Connection:
        return self.gateway.client.start(method, path, body, self.headers)

    async def get(self, path: str) -> Response:
        return await self.start("GET", path).response()

    async def post(self, path: str, body: bytes | object = b"{}") -> Response:
        return await self.start("POST", f"{API}/{path}", body).response()

    async def create(self, **model: Any) -> Response:
        """A sampling session in this caller's session."""
        if not self.session_id:
            self.session_id = (await self.post("create_session", {"tags": []})).json()["session_id"]
        body = {"session_id": self.session_id, "sampling_session_seq_id": next(self._numbers)}
        return await self.post("create_sampling_session", body | model)

    async def handshake(self) -> None:
        made = await self.create(base_model="stand-in")
        assert made.status == 200, made.body
        self.sampler = made.json()["sampling_session_id"]

    async def submit(self, seq_id: int) -> Response:
        return await self.post("asample", sample(self.sampler, seq_id))

    async def accepted(self, seq_id: int) -> str:
        answer = await self.submit(seq_id)
        assert answer.status == 200, answer.body
        request_id: str = answer.json()["request_id"]
        return request_id

    def poll(self, request_id: str) -> Connection:
        return self.start("POST", f"{API}/retrieve_future", {"request_id": request_id})


def sample(sampler: str, seq_id: int) -> dict[str, Any]:
    return {
        "sampling_session_id": sampler,
        "seq_id": seq_id,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 2},
    }


class Keyed:
    def __init__(self, gateway: Driven, file: Path) -> None:
        self.gateway = gateway
        self.file = file

    def caller(self, name: str) -> As:
        return As(self.gateway, secret_of(name))

    @property
    def door(self) -> Any:
        return self.gateway.gateway._door

    @property
    def quota(self) -> Any:
        return self.door.quota


@contextlib.asynccontextmanager
async def keyed(
    url: str, folder: Path, keys: Mapping[str, Mapping[str, object]], **flags: Any
) -> AsyncIterator[Keyed]:
    """keys: name -> fields of its table; the secret is `secret_of(name)`."""
    file = folder / "keys.toml"
    file.write_text(entries(keys))
    async with driven(url, access__keys_file=str(file), **flags) as gateway:
        yield Keyed(gateway, file)
