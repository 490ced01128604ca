"""Completion bodies: the whole parse against the slow reference, and cutting against the whole."""

import json
import math
from random import Random
from typing import Any

from asgi_gateway.codec import Want, cut, decode, pieces
from asgi_gateway.codec.decode import Decoder, MissingPolicy
from asgi_gateway.codec.encode import encode
from asgi_gateway.errors import Aborted, MissingLogprobs, Unreadable
from tests.codec import bodies, reference
from tests.codec.reference import check, expected
from tests.fuzz.junk import FRAGMENTS, Raw, damage, dumps
from tests.fuzz.target import Target

DOCUMENTED = (Unreadable, MissingLogprobs, Aborted)
PROMPT_TOKENS = 3
# Every array is cut out, and slices hold a few elements.
_SMALL: tuple[tuple[Any, str, int], ...] = (
    (decode, "CUT_FROM_BYTES", 0),
    (decode, "CUT_OBJECTS_FROM_BYTES", 0),
    (cut, "_WORTH_BYTES", 1),
    (cut, "_PROBE", 2),
    (cut, "_WINDOW", 64),
    (pieces, "_NUMBER_SLICE", 9),
    (pieces, "_ROW_SLICE", 100),
    (pieces, "_SLICES_A_STEP", 1),
)
_WANTS = (
    Want(),
    Want(),
    Want(sequences=2),
    Want(sampled_topk=2),
    Want(prompt_logprobs=True, prompt_topk=2, sampled_topk=2),
    Want(prompt_logprobs=True, prompt_last=1),
    Want(sequences=2, prompt_logprobs=True, prompt_topk=1),
    Want(named_tokens=True, sampled_topk=1),
    Want(named_tokens=True),
)


class Answers(Target):
    """A case is a line of JSON, policy and wish, and the body behind it.

    By structure: valid JSON in which no key comes twice; cutting must then have one outcome with
    the whole parse. Of other bodies it may also take one that the whole parse refuses for a part
    that it does not look at.
    """

    name = "answers"
    share = 0.08

    def open(self) -> None:
        self._before = [(module, name, getattr(module, name)) for module, name, _ in _SMALL]
        for module, name, value in _SMALL:
            setattr(module, name, value)
        policies: tuple[MissingPolicy, ...] = ("fail", "nan")
        self._decoders = {policy: Decoder(policy) for policy in policies}

    def close(self) -> None:
        for module, name, value in self._before:
            setattr(module, name, value)

    def make(self, rng: Random) -> bytes:
        want = rng.randrange(len(_WANTS))
        document = _document(rng, _WANTS[want])
        by_structure = rng.random() < 0.5
        places = [rng.random() < 0.9 for _ in range(rng.choice((0, 1, 1, 2)))]
        for inner in places:
            _replace(rng, document, inner, valid=by_structure)
        body = dumps(document).encode()
        if not by_structure and rng.random() < 0.8:
            body = damage(rng, body)
        head = {"want": want, "policy": rng.choice(("fail", "nan")), "structure": by_structure}
        return json.dumps(head).encode() + b"\n" + body

    def check(self, case: bytes) -> str:
        line, _, body = case.partition(b"\n")
        head = json.loads(line)
        want, policy = _WANTS[head["want"]], head["policy"]
        decoder = self._decoders[policy]
        whole: bytes | type[Exception]
        said = ""
        try:
            arrays = decoder._whole(body, want, PROMPT_TOKENS)
        except DOCUMENTED as error:
            whole, said = type(error), str(error)
        else:
            whole = encode(arrays)
        assert len(said) < 500
        assert said.isprintable() or not said
        cut_out: bytes | type[Exception]
        try:
            cut_out = encode(decoder.decode(body, want, PROMPT_TOKENS))
        except DOCUMENTED as error:
            cut_out = type(error)
        right = _right(body, want, policy)
        if isinstance(whole, bytes):
            assert not isinstance(right, type), f"read, and the reference says {right.__name__}"
            if right is not None:
                check(arrays, right)
        else:
            assert right is None or isinstance(right, type), f"{whole.__name__}, and it is {right}"
        if head["structure"] or isinstance(whole, bytes):
            assert cut_out == whole, "cutting and the whole parse differ"
        return "read" if isinstance(whole, bytes) else whole.__name__


def _right(body: bytes, want: Want, policy: str) -> Any:
    """The reference's answer, its refusal as a type, or None where it cannot tell."""
    try:
        document = json.loads(
            body.removeprefix(b"\xef\xbb\xbf").decode(),  # simdjson takes one such mark
            parse_constant=_no,
            parse_int=_int,
            parse_float=_float,
            object_pairs_hook=_unique,
        )
        # A lone surrogate is no text.
        plain = json.dumps(document, ensure_ascii=False).encode()
    except (_Twice, RecursionError):
        return None
    except ValueError:
        return reference.Refused
    if want.named_tokens:
        return None  # the reference knows ids alone
    try:
        return expected(plain, want, PROMPT_TOKENS, policy)
    except (reference.Refused, LookupError, TypeError, AttributeError):
        return reference.Refused


class _Twice(Exception):
    """A key comes twice: which of the two counts is not the reference's to say."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _Twice
    return made


def _int(spelled: str) -> int:
    """What fits 64 bits; another makes a document none."""
    value = int(spelled) if len(spelled) < 30 else 1 << 100
    if not -(2**63) <= value < 2**64:
        raise ValueError(spelled[:30])
    return value


def _float(spelled: str) -> float:
    value = float(spelled)
    if math.isinf(value):
        raise ValueError(spelled[:30])
    return value


def _no(name: str) -> Any:
    raise ValueError(name)


# --- documents -----------------------------------------------------------------------------------


def _document(rng: Random, want: Want) -> Any:
    """As vLLM writes it, the choices in any order, some too many or too few."""
    count = want.sequences if rng.random() < 0.95 else rng.choice((0, 1, 2, 3))
    choices = [bodies.choice(i, prompt_token_ids=list(bodies.PROMPT)) for i in range(count)]
    if want.named_tokens:
        for choice in choices:
            names = [f"token_id:{i}" for i in choice["token_ids"]]
            choice["logprobs"]["tokens"] = names
            if rng.random() < 0.8:
                del choice["token_ids"]
    rng.shuffle(choices)
    return bodies.document(*choices) if choices else {"choices": []}


def _replace(rng: Random, document: Any, inner: bool, *, valid: bool) -> None:
    """Another value in one place, or none, or a key twice."""
    node, path = document, []
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        path.append(key)
        below = node[key]
        if not isinstance(below, (dict, list)) or not below or (not inner and rng.random() < 0.5):
            break
        node = below
    if rng.random() < 0.15:
        del node[key]
    elif isinstance(node, list) and rng.random() < 0.15:
        node.insert(rng.randrange(len(node) + 1), node[key])
    else:
        node[key] = Raw(rng.choice(_VALID if valid else FRAGMENTS))


def _is_valid(fragment: str) -> bool:
    try:
        json.dumps(
            json.loads(fragment, parse_constant=_no, parse_int=_int, parse_float=_float),
            ensure_ascii=False,
        ).encode()
    except (ValueError, RecursionError):
        return False
    return True


_VALID = (
    *[f for f in FRAGMENTS if _is_valid(f)],
    "-1.5",
    "-9999.0",
    '"stop"',
    '"abort"',
    "[5,6,7]",
)
