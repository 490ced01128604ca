"""Token arrays: what goes upstream is exactly the ids of a strict reading, or nothing does."""

import json
from random import Random
from typing import Any

from asgi_gateway.errors import RequestError
from asgi_gateway.protocol import Prompt, reader
from asgi_gateway.upstream.prompt import MAX_TOKEN_ID, prompt_ids
from tests.fuzz.junk import FRAGMENTS, Pairs, Raw, damage, dumps
from tests.fuzz.target import Target

_READ = reader(Prompt)
_BLANKS = ("", "", "", " ", "\n", "\t", "\r\n  ")


class Refused(Exception):
    pass


class Prompts(Target):
    """A case is the JSON of `prompt`."""

    name = "prompts"
    share = 0.40

    def make(self, rng: Random) -> bytes:
        chunks = [_chunk(rng) for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3)))]
        prompt: Any = Pairs([("chunks", chunks)])
        if rng.random() < 0.03:
            prompt.append(("chunks", Raw(rng.choice(FRAGMENTS))))
        body = dumps(prompt).encode()
        return damage(rng, body) if rng.random() < 0.3 else body

    def check(self, case: bytes) -> str:
        right: list[int] | None
        try:
            case.decode()
        except UnicodeDecodeError:
            # The decoder steps over strings that nobody reads; where it reads, it refuses.
            errors, may_refuse = "replace", True
        else:
            errors, may_refuse = "strict", False
        try:
            right = ids_of(case, errors)
        except Refused:
            right = None
        try:
            spliced, count = prompt_ids(_READ(case).chunks)
        except RequestError as error:
            said = str(error)
        else:
            assert right is not None, f"accepted as {spliced!r}"
            assert json.loads(spliced) == right
            assert count == len(right)
            assert spliced.translate(None, b"0123456789,[]") == b""
            return "accepted"
        assert right is None or may_refuse, f"refused, and it is {right}: {said}"
        assert len(said) < 300
        return "refused"


def _chunk(rng: Random) -> Any:
    tokens: Any
    if rng.random() < 0.1:
        tokens = Raw(rng.choice(FRAGMENTS))
    else:
        ids = [_id(rng) for _ in range(rng.choice((0, 1, 1, 2, 3, 5, 40)))]
        if ids and rng.random() < 0.2:
            ids[rng.randrange(len(ids))] = rng.choice(FRAGMENTS)
        blank = rng.choice(_BLANKS)
        tokens = Raw(f"[{blank}" + f"{blank},{rng.choice(_BLANKS)}".join(ids) + f"{blank}]")
    fields = [("tokens", tokens)]
    kind = rng.random()
    if kind < 0.7:
        fields.insert(rng.randrange(2), ("type", "encoded_text"))
    elif kind < 0.8:
        fields.append(("type", Raw(rng.choice((*FRAGMENTS, '"image"', '"dmel"')))))
    if rng.random() < 0.05:
        fields.append((rng.choice(("tokens", "data", "location", "dmel", "x")), _raw(rng)))
    return Pairs(fields)


def _raw(rng: Random) -> Raw:
    return Raw(rng.choice(FRAGMENTS))


def _id(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.8:
        return str(rng.randrange(152_000))
    if kind < 0.9:
        return str(rng.choice((0, 9, 10, MAX_TOKEN_ID, MAX_TOKEN_ID + 1, 10**10, 2**63, 2**64)))
    return str(rng.randrange(2 ** rng.randrange(1, 70)))


def ids_of(case: bytes, errors: str = "strict") -> list[int]:
    """The ids by json and a list, a number that is not plainly spelled marked as what it is.

    Raises:
        Refused: it is no prompt of token ids.
    """
    document = strict(case, errors)
    chunks = document.get("chunks") if type(document) is dict else None
    _refuse_unless(type(chunks) is list)
    assert isinstance(chunks, list)
    for chunk in chunks:
        _refuse_unless(type(chunk) is dict)
        _refuse_unless(chunk.get("type") is None or type(chunk["type"]) is str)
    ids: list[int] = []
    for chunk in chunks:
        kind = chunk.get("type")
        if kind is None:
            kind = "encoded_text" if chunk.get("tokens") is not None else "another"
        _refuse_unless(kind == "encoded_text")
        tokens = chunk.get("tokens")
        _refuse_unless(type(tokens) is list)
        for token in tokens:
            _refuse_unless(type(token) is int)
            _refuse_unless(0 <= token <= MAX_TOKEN_ID)
        ids += tokens
    _refuse_unless(bool(ids))
    return ids


class Odd(str):
    """A number that is spelled as none of ours."""

    __slots__ = ()


def strict(body: bytes, errors: str = "strict") -> Any:
    """json, with its leniencies taken away: no NaN, no BOM, no other encodings, no -0 for 0.

    Raises:
        Refused.
    """
    try:
        text = body.decode("utf-8", errors)
        document = json.loads(text, parse_constant=_refuse, parse_int=_int, parse_float=Odd)
        if "\\ud" in text.lower():
            json.dumps(document, ensure_ascii=False).encode()  # a lone surrogate is no text
    except (ValueError, RecursionError):
        raise Refused from None
    return document


def _int(spelled: str) -> int | str:
    if spelled.startswith("-"):
        return Odd(spelled)
    return int(spelled) if len(spelled) < 30 else 10**30


def _refuse(_: str) -> Any:
    raise Refused


def _refuse_unless(fine: bool) -> None:
    if not fine:
        raise Refused
