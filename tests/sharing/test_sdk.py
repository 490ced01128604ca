"""Gateways that die and come back in turn while the real SDK samples through both.

Every sample is right, and its user sees a pause at most.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest

from tests.contract.sdk import FUTURES, Sdk, assert_right, metrics, sdk_process, wait_until
from tests.support.processes import stand_in
from tests.support.sharing import AsOne, as_one

pytestmark = [pytest.mark.sdk, pytest.mark.system]

SAMPLES: Final = 400
SLOTS: Final = 50
DELAY_S: Final = 0.4


@pytest.fixture(scope="module")
def sdk() -> Iterator[Sdk]:
    with sdk_process(*FUTURES) as running:
        yield running


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    with stand_in("--delay-s", str(DELAY_S)) as url:
        yield url


def seen(vllm: str) -> dict[str, int]:
    """Request ids at the stand-in, and how often each came."""
    with urlopen(f"{vllm}/requests", timeout=5) as answer:
        ids: dict[str, int] = json.load(answer)
        return ids


def cases() -> list[dict[str, Any]]:
    return [{"prompt": [n, 7], "params": {"max_tokens": 3, "seed": n}} for n in range(SAMPLES)]


def settings(batched: bool) -> dict[str, object]:
    return {
        "client__sample_use_retrieve_futures": batched,
        "upstream__max_connections": SLOTS,
        "poll__hold_s": 5,
    }


def assert_all_right(found: list[dict[str, Any]]) -> None:
    for answer, case in zip(found, cases(), strict=True):
        assert_right(answer, case["prompt"], **case["params"])


def more_come(running: AsOne, vllm: str, count: int) -> None:
    before = len(seen(vllm))
    running.process.wait_for(lambda: len(seen(vllm)) >= before + count, "samples under way", 60)


@pytest.mark.parametrize("batched", [True, False])
def test_gateways_are_killed_in_turn(sdk: Sdk, vllm: str, tmp_path: Path, batched: bool) -> None:
    with as_one(vllm, tmp_path, **settings(batched)) as running:
        before = seen(vllm)
        sdk.send("samples", base_url=running.url, cases=cases())
        for gateway in (running.pair.a, running.pair.b):
            more_come(running, vllm, 60)
            gateway.kill()
            more_come(running, vllm, 20)
            gateway.start()
        assert_all_right(sdk.answer())
        now = seen(vllm)
        assert {count for id_, count in now.items() if id_ not in before} == {1}
        wait_until(lambda: metrics(running.url)["asgi_gateway_samples_inflight"] == 0)
        assert "Traceback" not in running.process.stderr
        assert "bug" not in running.process.stderr


def test_gateways_are_stopped_in_turn(sdk: Sdk, vllm: str, tmp_path: Path) -> None:
    """As an update of one after the other does it."""
    with as_one(vllm, tmp_path, **settings(True)) as running:
        sdk.send("samples", base_url=running.url, cases=cases())
        for gateway in (running.pair.a, running.pair.b):
            more_come(running, vllm, 40)
            gateway.stop()
            gateway.start()
        assert_all_right(sdk.answer())
        assert "Traceback" not in running.process.stderr


def test_the_server_is_killed_and_comes_back_empty(sdk: Sdk, vllm: str, tmp_path: Path) -> None:
    with as_one(vllm, tmp_path, **settings(True)) as running:
        sdk.send("samples", base_url=running.url, cases=cases())
        more_come(running, vllm, 60)
        running.pair.store.kill()
        running.pair.store.start()
        assert_all_right(sdk.answer())
        assert "Traceback" not in running.process.stderr
