"""Recorded answers of real vLLM and vllm-router servers, with the request of each."""

import functools
import gzip
import json
from pathlib import Path
from typing import Any

import msgspec

FIXTURES = Path(__file__).parent.parent / "fixtures"
_FOLDERS = (FIXTURES / "vllm", FIXTURES / "vllm" / "router")


class Recorded(msgspec.Struct, frozen=True):
    """One exchange: `request` is the JSON that was sent, `path` the URL's."""

    name: str
    file: Path
    method: str
    path: str
    status: int
    request: dict[str, Any]

    @property
    def body(self) -> bytes:
        data = self.file.read_bytes()
        return gzip.decompress(data) if self.file.suffix == ".gz" else data

    @property
    def is_completion(self) -> bool:
        """Whether it answers a request of the kind that the gateway sends."""
        return (
            (self.method, self.path) == ("POST", "/v1/completions")
            and not self.request.get("stream")
            and "raw_body" not in self.request
        )

    @property
    def prompts(self) -> int:
        """How many prompts the request had."""
        prompt = self.request["prompt"]
        nested = isinstance(prompt, list) and prompt and isinstance(prompt[0], list)
        return len(prompt) if nested else 1

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its (first) prompt; `prompt(n)` in the index stands for n of them."""
        prompt = self.request["prompt"]
        if isinstance(prompt, str):
            return int(prompt.removeprefix("prompt(").removesuffix(")"))
        return len(prompt[0]) if self.prompts > 1 else len(prompt)

    def __repr__(self) -> str:
        return self.name


@functools.cache
def recordings() -> dict[str, Recorded]:
    """All of them by name."""
    return {
        name: Recorded(
            name=name,
            file=folder / entry["file"],
            method=entry["method"],
            path=entry["path"],
            status=entry["status"],
            request=entry["request"] or {},
        )
        for folder in _FOLDERS
        for name, entry in json.loads((folder / "index.json").read_bytes()).items()
    }


def sdk_samples() -> list[tuple[str, dict[str, Any]]]:
    """(SDK version, body) of every asample request that real SDKs sent."""
    document = json.loads((FIXTURES / "tinker_sdk_requests.json").read_bytes())
    return [
        (recording["sdk"], request["body"])
        for recording in document["recordings"]
        for request in recording["requests"]
        if request["path"] == "/api/v1/asample"
    ]
