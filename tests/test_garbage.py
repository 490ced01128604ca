"""An error is freed with its frames, and what they hold of a request, as soon as it is answered.

A frame that keeps an error which was raised in it waits for the collector with it, and so do the
frames above: megabytes of bodies, at a time when requests are refused because memory is short.
"""

import ast
import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asgi_gateway.errors import Exhausted, Overloaded
from tests.support.gateway import Driven, driven
from tests.support.upstream import FakeUpstream, Raw, Request, answer

PACKAGE = Path(__file__).parent.parent / "asgi_gateway"
REPEATS = 5


@pytest.fixture
def garbage() -> Iterator[list[Any]]:
    """What the collector finds, from the first look into it on."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.garbage.clear()
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def kinds(garbage: list[Any]) -> Counter[str]:
    gc.collect()
    return Counter(type(one).__name__ for one in garbage)


def held(counted: Counter[str]) -> int:
    return counted["frame"] + counted["traceback"]


async def test_what_is_refused_leaves_nothing(upstream: FakeUpstream, garbage: list[Any]) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        await refusals(gateway)
        before = held(kinds(garbage))
        for _ in range(REPEATS):
            await refusals(gateway)
        assert held(kinds(garbage)) - before < REPEATS, kinds(garbage)


async def refusals(driven: Driven) -> None:
    admission = driven.gateway._admission
    for refusal in (Overloaded, Exhausted):
        admission.object("test", "because", refusal)
        assert (await driven.submit()).status in {429, 503}
        admission.clear("test")
    for path, body, status in (
        ("asample", b"{", 400),
        ("asample", b"{}", 400),
        ("retrieve_future", b'{"request_id":"never-issued"}', 404),
        ("nowhere", b"", 404),
    ):
        assert (await driven.client.post(f"/api/v1/{path}", body)).status == status


async def test_what_fails_upstream_leaves_nothing(
    upstream: FakeUpstream, garbage: list[Any]
) -> None:
    async def refusing(_: Request) -> Raw:
        return answer(400, {"error": {"message": "no", "code": 400}})

    upstream.script = refusing
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        await failed(gateway, 0)
        before = held(kinds(garbage))
        for seq_id in range(1, REPEATS + 1):
            await failed(gateway, seq_id)
        assert held(kinds(garbage)) - before < REPEATS, kinds(garbage)


async def failed(driven: Driven, seq_id: int) -> None:
    request_id = (await driven.submit(seq_id)).json()["request_id"]
    assert (await driven.poll(request_id).response()).json()["category"] == "user"


def test_no_frame_keeps_what_is_raised_in_it() -> None:
    """`raise name` is of a handler's name, which Python unbinds, or followed by `del name`."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Name)
        and node.exc.id in stored(function)
    ]
    assert found == []


def stored(function: ast.AST) -> set[str]:
    """Names that are assigned in it and not deleted in a `finally`."""
    names = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Try):
            for last in node.finalbody:
                if isinstance(last, ast.Delete):
                    names -= {target.id for target in last.targets if isinstance(target, ast.Name)}
    return names
