"""What the tests of the SDK matrix share: versions and poll styles, a client, the stand-in."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import pytest

from loadgen import answers
from loadgen.faults import Fault
from tests.contract.sdk import Sdk, Traffic, fault, got, metrics, right, sdk_process
from tests.contract.sdks import install
from tests.support.processes import Served, under
from tests.support.relay import Relay, Reply, relay

PROGRAM = Path(__file__).with_name("program.py")
ADAPTER = "run-1_ckpt-9"
HOLD_S = 1
INLINE_BYTES = 32_768
"""Larger results are announced first: those of more than 4,096 tokens."""

# The first listed version of each feature; `about` in the program must say the same.
SINCE = {
    "protobuf": "0.18.2",
    "resubmits under its seq_id": "0.25.0",
    "cancels": "0.26.0",
    "sequence ids": "0.26.0",
    "polls in batches": "0.30.4",
    "closes": "0.30.4",
    "top-k of the sample": "0.30.4",
    "handles": "0.38.0",
    "last prompt logprobs": "0.38.0",
}


class Combination(NamedTuple):
    version: str
    style: str

    def __str__(self) -> str:
        return "-".join(self)

    def at_least(self, version: str) -> bool:
        return install.VERSIONS.index(self.version) >= install.VERSIONS.index(version)


def combinations() -> list[Combination]:
    """Every version in the variable SDKS, or every one there is, in its poll styles."""
    asked = os.environ.get("SDKS", "").split() or install.VERSIONS
    if unknown := set(asked) - set(install.VERSIONS):
        raise LookupError(f"SDKS: no {', '.join(unknown)} among {', '.join(install.VERSIONS)}")
    singles = [Combination(version, "single") for version in install.VERSIONS if version in asked]
    return [
        made
        for single in singles
        for made in (single, single._replace(style="batched"))
        if made.style == "single" or made.at_least(SINCE["polls in batches"])
    ]


class StandIn:
    """`loadgen upstream` with a barrier."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._post("release")

    def _post(self, path: str) -> None:
        with urlopen(Request(f"{self.url}/{path}", b"", method="POST"), timeout=5) as answer:
            answer.read()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Nothing is answered meanwhile."""
        self._post("hold")
        try:
            yield
        finally:
            self._post("release")

    def running(self) -> int:
        """Completions that have a slot."""
        found = metrics(self.url)
        return int(sum(v for k, v in found.items() if k.startswith("vllm:num_requests_running")))


class Client:
    """One SDK in one poll style, with a gateway of its own, which it can reach over a relay too."""

    def __init__(
        self, made: Combination, sdk: Sdk, gateway: Served, relay: Relay, upstream: StandIn
    ) -> None:
        self.made = made
        self.sdk = sdk
        self.gateway = gateway
        self.relay = relay
        self.upstream = upstream
        # In front of prompts that faults are counted by: those of two clients are never the same.
        self.number = combinations().index(made)
        self.since_start = Traffic(gateway)
        self._has = set(sdk.ask("about")["has"])

    def has(self, feature: str) -> bool:
        """Whether this SDK has it, which the SDK itself must confirm."""
        listed = self.made.at_least(SINCE[feature])
        assert (feature in self._has) == listed, f"{feature}: {sorted(self._has)}"
        return listed

    def needs(self, feature: str) -> None:
        if not self.has(feature):
            pytest.skip("this SDK release does not have the feature")

    @property
    def polls(self) -> str:
        return "retrieve_futures" if self.made.style == "batched" else "retrieve_future"

    def ask(self, do: str, *, relayed: bool = False, **arguments: Any) -> Any:
        url = self.relay.url if relayed else self.gateway.url
        return self.sdk.ask(do, base_url=url, **arguments)

    def sample(self, prompt: list[Any], *, relayed: bool = False, **case: Any) -> dict[str, Any]:
        [answer] = self.ask("samples", relayed=relayed, cases=[{"prompt": prompt, **case}])
        assert isinstance(answer, dict)
        return answer

    def relayed_sample(self, prompt: list[int], **case: Any) -> tuple[dict[str, Any], Reply]:
        """A sample over the relay, and the reply that brought its result."""
        self.relay.replies.clear()
        answer = self.sample(prompt, relayed=True, **case)
        replies = [one for one in self.relay.replies if one.target == "/api/v1/retrieve_future"]
        assert len(replies) == 1
        return answer, replies[0]

    def fault(self, kind: Fault, *more: int) -> list[int]:
        return fault(kind, self.number, *more)

    def assert_right(
        self, answer: dict[str, Any], prompt: list[int], *, n: int = 1, **parameters: Any
    ) -> None:
        """Bit for bit what the stand-in gives, in the types that this SDK promises."""
        assert "error" not in answer, answer
        sequences = answer["sequences"]
        assert len(sequences) == n
        for choice, sequence in enumerate(sequences):
            assert got(sequence) == right(answers.sample(prompt, choice=choice, **parameters))
        ids = {sequence["sequence_id"] for sequence in sequences}
        assert (ids == {None}) != self.has("sequence ids")
        assert len(ids) == n or ids == {None}


@contextlib.contextmanager
def running(made: Combination, upstream: StandIn, state: Path) -> Iterator[Client]:
    """A gateway as `serve` sets it up for batched polls, or without a journal, and its client."""
    if not install.installed(made.version):
        pytest.fail(f"SDK {made.version} is not installed: make sdk-matrix", pytrace=False)
    settings: dict[str, Any] = {"poll__hold_s": HOLD_S, "poll__inline_bytes": INLINE_BYTES}
    if made.style == "batched":
        settings["state__dir"] = state
    python = install.interpreter(made.version)
    with (
        under("uvicorn", upstream.url, **settings) as gateway,
        relay(gateway.port) as between,
        sdk_process(PROGRAM, python=python, TINKER_TELEMETRY="1") as sdk,
    ):
        yield Client(made, sdk, gateway, between, upstream)
        assert "Traceback" not in gateway.process.stderr, gateway.process.stderr
        assert "bug" not in gateway.process.stderr, gateway.process.stderr


class Support:
    """Results of a run, kept in the file that docs/sdk-support.md is made from."""

    def __init__(self) -> None:
        self.cases: dict[str, str] = {}
        self.sdks: dict[str, dict[str, dict[str, str]]] = {}
        self.methods: dict[str, dict[str, str]] = {}

    def add(self, made: Combination, case: str, title: str, result: str) -> None:
        self.cases[case] = title
        self.sdks.setdefault(made.version, {}).setdefault(made.style, {})[case] = result

    def merge_into(self, path: Path) -> None:
        """What this run did not do stays; versions and cases that are no more go."""
        told = json.loads(path.read_text()) if path.exists() else {"sdks": {}, "methods": {}}
        sdks = {**told["sdks"], **self.sdks}
        merged = {
            "newest": install.NEWEST,
            "cases": self.cases or told["cases"],
            "sdks": {version: sdks[version] for version in install.VERSIONS if version in sdks},
            "methods": self.methods or told["methods"],
        }
        path.write_text(json.dumps(merged, indent=1, ensure_ascii=False) + "\n")
