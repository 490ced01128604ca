"""The kept cases and a few new ones of every target; `make fuzz CASES=1000000` for many."""

import asyncio
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from asgi_gateway.asgi import Reply
from asgi_gateway.codec import SampleArrays, Want
from asgi_gateway.codec.decode import Decoder
from asgi_gateway.upstream.naming import TinkerPath
from tests.fuzz import run as fuzz
from tests.fuzz.prompts import Prompts
from tests.fuzz.run import CORPUS, TARGETS, corpus, run
from tests.support.effort import EFFORT
from tests.support.processes import ROOT

# At a share of one; a second or less each.
NEW_CASES = 4000


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_finds_nothing(name: str) -> None:
    target = TARGETS[name]()
    cases = corpus(name)
    assert cases
    target.open()
    try:
        kinds = {target.check(case) for case in cases}
    finally:
        target.close()
    assert len(kinds) > 1, "they all come to the same"


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_new_cases_find_nothing(name: str) -> None:
    count = round(NEW_CASES * TARGETS[name].share * EFFORT)
    row = run(name, 1, range(count))
    assert not row.found, "\n".join(f"{f.number} {f.case[:1000]}\n{f.error}" for f in row.findings)
    assert sum(row.kinds.values()) == row.cases == count


def test_every_corpus_has_a_target() -> None:
    assert {path.stem for path in CORPUS.iterdir()} == set(TARGETS)
    assert sum(kind.share for kind in TARGETS.values()) == pytest.approx(1)


def test_a_case_is_made_again_by_its_number() -> None:
    code = (
        "import sys; from random import Random; from tests.fuzz.run import TARGETS;"
        "made = [T().make(Random(f'0 {n} 7')) for n, T in TARGETS.items()];"
        "sys.stdout.buffer.write(b''.join(made))"
    )
    once, again = (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
        for _ in range(2)
    )
    assert once.stdout == again.stdout


def test_a_finding_is_told_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot fail would be of no use."""

    class Broken(Prompts):
        def check(self, case: bytes) -> str:
            if b"type" in case:
                raise AssertionError("it has a type")
            return "fine"

    monkeypatch.setitem(fuzz.TARGETS, "prompts", Broken)
    row = run("prompts", 0, range(50))
    assert 0 < row.found < 50
    assert row.found + row.kinds["fine"] == 50
    assert "it has a type" in row.findings[0].error
    assert msgspec.json.decode(msgspec.json.encode(row), type=fuzz.Row) == row


# --- a target that could not find anything would be of no use ----------------------------------


def _soon(raised: type[Exception]) -> None:
    def fall() -> None:
        raise raised("in a callback, where nobody is told")

    asyncio.get_running_loop().call_soon(fall)


async def _telemetry(*_: Any) -> Reply:
    _soon(RuntimeError)
    return Reply(200, b"{}")


def _other_tokens(self: Decoder, body: bytes, want: Want, prompt_tokens: int) -> SampleArrays:
    arrays = _decode(self, body, want, prompt_tokens)
    changed = [msgspec.structs.replace(s, tokens=s.tokens[::-1]) for s in arrays.sequences]
    return msgspec.structs.replace(arrays, sequences=tuple(changed))


_decode = Decoder.decode


@pytest.mark.parametrize(
    ("name", "where", "planted"),
    [
        ("requests", "asgi_gateway.upstream.request._top_p", lambda _: 0.5),
        ("requests", "asgi_gateway.handshake.HandshakeHandlers.telemetry", _telemetry),
        ("prompts", "asgi_gateway.upstream.prompt.MAX_TOKEN_ID", 2**40),
        ("answers", "asgi_gateway.codec.decode.Decoder.decode", _other_tokens),
        ("wire", "asgi_gateway.upstream.connection.Connection.connection_lost", lambda *_: None),
        ("wire", "asgi_gateway.upstream.connection._framed", lambda _: False),
        ("results", "tests.fuzz.results.as_json", lambda _: b'{"sequences":[]}'),
        ("names", "tests.fuzz.names.parse", lambda _: TinkerPath("..", "weights", "x")),
        ("names", "asgi_gateway.rest.RestHandlers.session", _telemetry),
        ("lines", "asgi_gateway.upstream.verdict.printable", lambda text: text[:1000]),
    ],
)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, where: str, planted: object
) -> None:
    monkeypatch.setattr(where, planted)
    row = run(name, 2, range(600))
    assert row.found > 0, row.kinds
