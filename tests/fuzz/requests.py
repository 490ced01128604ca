"""Requests of every route: never a 5xx, and what vLLM gets is what a strict reading says."""

import json
import re
from random import Random
from typing import Any, Final

import msgspec
from msgspec import inspect

from asgi_gateway import protocol
from tests.fuzz.junk import DEEP, FRAGMENTS, Pairs, Raw, damage, dumps, text
from tests.fuzz.prompts import Odd, Refused, ids_of, strict
from tests.fuzz.service import Answered, Service, fair
from tests.fuzz.target import Target

ROUTES: Final[dict[str, type[msgspec.Struct] | None]] = {
    "asample": protocol.SampleRequest,
    "retrieve_future": protocol.RetrieveFuture,
    "retrieve_futures": protocol.RetrieveFutures,
    "cancel_future": protocol.CancelFuture,
    "join_sampling_session": protocol.JoinSamplingSession,
    "client/config": protocol.ClientConfig,
    "client/dynamic_config": protocol.ClientConfig,
    "create_session": protocol.CreateSession,
    "create_sampling_session": protocol.CreateSamplingSession,
    "session_heartbeat": protocol.Heartbeat,
    "sessions/@spare@/finish": protocol.FinishSession,
    "weights_info": protocol.WeightsInfoRequest,
    "telemetry": None,
}
_NAMES = list(ROUTES)
# Half of all cases are samples: the only bodies that reach anybody else.
_CHOICES = [*_NAMES, *["asample"] * len(_NAMES)]
_IDS = {
    "sampling_session_id": "@sampler@",
    "session_id": "@session@",
    "request_id": "@request@",
    "base_model": "stand-in",
    "model_path": "tinker://run/weights/step",
    "tinker_path": "tinker://run/weights/step",
    "type": "encoded_text",
}
_PLACEHOLDER = re.compile(rb"@[a-z]+@")
_HEADERS = (
    "accept: application/x-protobuf", "accept: */*", "accept: ", "accept: a\x00b",
    "accept: application/x-protobuf;q=0, application/json", "content-type: text/plain",
    "content-type: application/x-www-form-urlencoded", "content-encoding: gzip",
    "content-encoding: identity", "content-length: 99999999999", "content-length: -1",
    "content-length: x", "x-stainless-package-version: 0.38.0", "x-forwarded-host: evil",
    "x-stainless-package-version: 999999999999999999999.1", "host: evil", "x-request-id: mine",
    "x-stainless-package-version: \xb2.\xb3", "x-session-id: mine", "authorization: Bearer x",
)  # fmt: skip


class Requests(Target):
    """A case is a method and path, header lines, an empty line, and the body."""

    name = "requests"
    share = 0.22

    def open(self) -> None:
        self.service = Service()

    def close(self) -> None:
        self.service.close()

    def make(self, rng: Random) -> bytes:
        route = rng.choice(_CHOICES)
        kind = ROUTES[route]
        tree = _struct(rng, kind) if kind is not None else Raw(rng.choice(FRAGMENTS))
        body = dumps(tree).encode("utf-8", "surrogatepass")
        if rng.random() < 0.15:
            body = damage(rng, body)
        elif rng.random() < 0.001:
            body = rng.choice(DEEP).encode()
        method = "POST" if rng.random() < 0.98 else rng.choice(("GET", "PUT", "HEAD", "OPTIONS"))
        lines = [f"{method} /api/v1/{route}"]
        lines += [rng.choice(_HEADERS) for _ in range(rng.choice((0, 0, 0, 1)))]
        return "\n".join(lines).encode("latin-1") + b"\n\n" + body

    def check(self, case: bytes) -> str:
        service = self.service
        service.ready()
        head, _, body = case.partition(b"\n\n")
        body = _PLACEHOLDER.sub(self._known, body)
        first, *lines = _PLACEHOLDER.sub(self._known, head).decode("latin-1").split("\n")
        method, path = first.split(" ")
        headers = [
            (name.encode("latin-1"), value.strip(" ").encode("latin-1"))
            for name, _, value in (line.partition(":") for line in lines)
        ]
        answer = service.run(service.ask(method, path, headers, body))
        fair(service, answer)
        sent = service.sent()
        if path == "/api/v1/asample" and method == "POST":
            self._sampled(answer, body, headers, [one.body for one in sent])
            for one in sent:
                assert one.request_id == json.loads(answer.body)["request_id"]
                seq_id = json.loads(body.decode(errors="replace"))["seq_id"]
                assert one.affinity == f"{service.ids['@sampler@']}:{seq_id}"
        else:
            assert not sent, "something else than a sample went upstream"
        if path.endswith("/finish") and answer.status == 200:
            service.run(service.renew_spare())
        return str(answer.status)

    def _known(self, match: re.Match[bytes]) -> bytes:
        if match[0] == b"@seq@":
            self.service.seq_id += 1
            return b"%d" % self.service.seq_id
        known = self.service.ids.get(match[0].decode())
        return known.encode() if known is not None else match[0]

    def _sampled(
        self,
        answer: Answered,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
        sent: list[bytes],
    ) -> None:
        """A sample that is accepted went upstream as it was meant, and one that is fine is."""
        if answer.status in (413, 415):
            assert any(name.startswith(b"content-") for name, _ in headers)
            return
        try:
            body.decode()
        except UnicodeDecodeError:
            # Strings that nobody reads are stepped over; what is read is UTF-8.
            errors, may_refuse = "replace", True
        else:
            # Of a key that comes twice the last counts, and none of them may be wrong.
            errors, may_refuse = "strict", has_a_key_twice(body)
        try:
            right = expected(body, errors, new_sdk=_is_new(headers))
        except Refused:
            right = None
        if answer.status != 200:
            used = answer.status == 422 and b"was submitted before" in answer.body
            fine = right is None or may_refuse or used or answer.status == 404
            assert fine, f"refused with {answer.body!r}, and it is {right}"
            return
        assert right is not None, "accepted, and it is no good sample"
        if sent:  # or it repeats an earlier one
            (upstream_body,) = sent
            got = json.loads(upstream_body)
            assert re.fullmatch("[0-9a-f]{32}", got.pop("cache_salt"))
            assert got == right, f"{got} instead of {right}"


def _is_new(headers: list[tuple[bytes, bytes]]) -> bool:
    values = [value for name, value in headers if name == b"x-stainless-package-version"]
    return values[:1] == [b"0.38.0"]


def has_a_key_twice(body: bytes) -> bool:
    found = False

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        made = dict(pairs)
        found |= len(made) != len(pairs)
        return made

    try:
        json.loads(body.decode(), object_pairs_hook=look)
    except (ValueError, RecursionError):
        return False
    return found


# --- bodies --------------------------------------------------------------------------------------


def _struct(rng: Random, kind: type[msgspec.Struct], depth: int = 0) -> Any:
    """A message by its type, mostly right, with other values, more fields and fields twice."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    pairs = Pairs()
    for field in info.fields:
        if field.required or rng.random() < 0.35:
            value = _value(rng, field.encode_name, field.type, depth)
            if rng.random() < 0.02:
                value = Raw(rng.choice(FRAGMENTS))
            pairs.append((field.encode_name, value))
    if rng.random() < 0.05 and pairs:
        pairs.pop(rng.randrange(len(pairs)))
    if rng.random() < 0.05 and pairs:
        again, value = rng.choice(pairs)
        pairs.insert(
            rng.randrange(len(pairs) + 1), (again, rng.choice((value, Raw(rng.choice(FRAGMENTS)))))
        )
    if rng.random() < 0.1:
        pairs.append((rng.choice(_UNKNOWN), Raw(rng.choice(FRAGMENTS))))
    return pairs


# As of vLLM's own request, which must not get through.
_UNKNOWN = (
    "model", "n", "stream", "best_of", "echo", "logit_bias", "user", "guided_json", "lora_request",
    "cache_salt", "priority", "extra_args", "kv_transfer_params", "", "type", "__class__", "x\ty",
)  # fmt: skip


def _value(rng: Random, name: str, kind: inspect.Type, depth: int) -> Any:
    if name in _IDS and rng.random() < 0.93:
        return _IDS[name]
    if name == "seq_id" and rng.random() < 0.9:
        return Raw("@seq@")
    if name == "tokens":
        return Raw(json.dumps([rng.randrange(1000) for _ in range(rng.randrange(1, 6))]))
    if name in ("data", "location", "dmel") and rng.random() < 0.9:
        return None
    if name in _FEATURES and rng.random() < 0.9:
        return rng.choice((None, False if name == "record_stability_info" else 0))
    if name in _RANGES and rng.random() < 0.85:
        return rng.choice(_RANGES[name])
    if isinstance(kind, inspect.UnionType):
        return _value(rng, "", rng.choice(kind.types), depth)
    if isinstance(kind, inspect.StructType):
        return _struct(rng, kind.cls, depth + 1)
    if isinstance(kind, inspect.ListType):
        few = rng.choice((0, 1, 1, 2, 3))
        return [_value(rng, "", kind.item_type, depth + 1) for _ in range(few)]
    return _plain(rng, kind)


def _plain(rng: Random, kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.NoneType):
        return None
    if isinstance(kind, inspect.BoolType):
        return rng.random() < 0.5
    if isinstance(kind, inspect.IntType):
        return rng.choice((0, 1, 2, -1, 7, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63)))
    if isinstance(kind, inspect.FloatType):
        return rng.choice((0.0, 0.5, 1.0, 1, 2.0, -0.5, 1e-7, 1e300))
    if isinstance(kind, inspect.StrType):
        return text(rng)
    if isinstance(kind, inspect.DictType):
        return {text(rng): text(rng)}
    return Raw(rng.choice(FRAGMENTS))


_FEATURES = ("record_stability_info", "prompt_alt_tokens_k")
_RANGES: dict[str, tuple[Any, ...]] = {
    "max_tokens": (1, 2, 16, None),
    "num_samples": (1, 1, 2, 3, None),
    "temperature": (0.0, 0.7, 1.0, 2.0, 0, 1, None),
    "top_p": (0.5, 1.0, 1, None),
    "top_k": (-1, 0, 5, None),
    "topk_prompt_logprobs": (0, 2, None),
    "topk_sample_logprobs": (0, 2, None),
    "prompt_logprobs_last_n": (1, 2, None),
    "prompt_logprobs": (True, False, None),
    "timeout": (0, 0.0, 1.5, None),
    "seed": (0, 1, -5, 2**63 - 1, None),
}


# --- the reference -------------------------------------------------------------------------------

_PARAMS = ("max_tokens", "seed", "stop", "temperature", "top_k", "top_p")


def expected(body: bytes, errors: str, *, new_sdk: bool) -> dict[str, Any]:
    """The upstream body of a sample, from the words of docs/behaviour.md.

    Raises:
        Refused: it is not to be accepted.
    """
    document = _object(strict(body, errors))
    _need(type(document.get("sampling_session_id")) is str)
    _need(_is_int(document.get("seq_id"), 0, 2**63 - 1))
    prompt = _object(document.get("prompt"))
    ids = ids_of(json.dumps(prompt).encode() if errors == "replace" else _again(prompt))
    params = _object(document.get("sampling_params") or {})
    if document.get("sampling_params") is not None:
        _need(type(document["sampling_params"]) is dict)
    n = _int(document, "num_samples", 1, 1, 16_384)
    topk_prompt = _int(document, "topk_prompt_logprobs", 0, 0, 1 << 20)
    topk = _int(document, "topk_sample_logprobs", 0, 0, 1 << 20)
    prompt_logprobs = _bool(document, "prompt_logprobs") or topk_prompt > 0
    last = document.get("prompt_logprobs_last_n")
    _need(last is None or (prompt_logprobs and _is_int(last, 1, 1 << 53)))
    _need(not _bool(document, "record_stability_info"))
    _need(_int(document, "prompt_alt_tokens_k", 0, 0, 0) == 0)
    _need(document.get("target_prompt_logprobs") is None)
    max_tokens = params.get("max_tokens")
    _need(max_tokens is None or _is_int(max_tokens, 1, 65_536 - len(ids)))
    _need(len(ids) < 65_536)
    temperature = _float(params, "temperature", 1.0)
    _need(0 <= temperature <= 2)
    top_p = _float(params, "top_p", 1.0)
    _need(0 < top_p <= 1)
    greedy = n > 1 and temperature < 1e-5
    _need(not greedy or n <= 1024)
    named = not prompt_logprobs and (
        topk > 0 or (max_tokens is not None and _length(ids) > 28 * max_tokens)
    )
    right: dict[str, Any] = {
        "prompt": [ids] * n if greedy else ids,
        "model": "stand-in",
        "n": 1 if greedy else n,
        "max_tokens": max_tokens or 65_536 - len(ids),
        "temperature": temperature,
        "top_p": top_p,
        "top_k": _int(params, "top_k", -1, -1, 2**31 - 1),
        "logprobs": topk,
    }
    if not named:
        right["return_token_ids"] = True
    if named or topk:
        right["return_tokens_as_token_ids"] = True
    if prompt_logprobs:
        right["prompt_logprobs"] = topk_prompt
    seed = params.get("seed")
    if seed is not None:
        _need(_is_int(seed, -(2**63), 2**63 - 1))
        right["seed"] = int(seed)
    return right | _stop(params.get("stop"), new_sdk=new_sdk)


def _stop(stop: Any, *, new_sdk: bool) -> dict[str, Any]:
    if stop is None:
        return {}
    entries = [stop] if type(stop) is str else stop
    _need(type(entries) is list)
    if not entries:
        return {"ignore_eos": True} if new_sdk else {}
    if all(type(entry) is str and entry for entry in entries):
        return {"stop": entries, "skip_special_tokens": False}
    _need(all(_is_int(entry, 0, 2**31 - 1) for entry in entries))
    return {"stop_token_ids": entries}


def _again(prompt: Any) -> bytes:
    """As JSON with the spelling of odd numbers kept."""
    return dumps(_respelled(prompt)).encode("utf-8", "surrogatepass")


def _respelled(value: Any) -> Any:
    if isinstance(value, Odd):
        return Raw(value)
    if isinstance(value, dict):
        return {key: _respelled(item) for key, item in value.items()}
    return [_respelled(item) for item in value] if isinstance(value, list) else value


def _length(ids: list[int]) -> int:
    return len(json.dumps(ids, separators=(",", ":")))


def _object(value: Any) -> dict[str, Any]:
    _need(type(value) is dict)
    return dict(value)


def _int(holder: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = holder.get(name)
    if value is None:
        return default
    if isinstance(value, Odd) and value.removeprefix("-").isdigit():
        value = int(value)
    _need(_is_int(value, low, high))
    return int(value)


def _is_int(value: Any, low: int, high: int) -> bool:
    if isinstance(value, Odd) and value.removeprefix("-").isdigit():
        value = int(value)
    return type(value) is int and low <= value <= high


def _bool(holder: dict[str, Any], name: str) -> bool:
    value = holder.get(name)
    _need(value is None or type(value) is bool)
    return bool(value)


def _float(holder: dict[str, Any], name: str, default: float) -> float:
    value = holder.get(name)
    if value is None:
        return default
    _need(type(value) is int or isinstance(value, Odd))
    return float(value)


def _need(fine: bool) -> None:
    if not fine:
        raise Refused
