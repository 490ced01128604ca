"""Ids, names and paths: whatever a client calls things, nothing reaches a header or a host."""

import json
import re
from random import Random

from asgi_gateway.errors import Malformed
from asgi_gateway.upstream.naming import parse
from asgi_gateway.upstream.origin import Origin
from tests.fuzz.junk import text
from tests.fuzz.service import Service, fair
from tests.fuzz.target import Target

# Where a name stands: a path, or a route and a body.
PLACES = {
    "finish": "sessions/{}/finish",
    "session": "sessions/{}",
    "sampler": "samplers/{}",
    "run": "training_runs/{}",
    "run checkpoints": "training_runs/{}/checkpoints",
    "delete": "training_runs/{}/checkpoints/weights/x",
    "query": "sessions?limit={}&offset={}",
    "any": "{}",
    "poll": ("retrieve_future", "request_id"),
    "cancel": ("cancel_future", "request_id"),
    "sample": ("asample", "sampling_session_id"),
    "join": ("join_sampling_session", "sampling_session_id"),
    "heartbeat": ("session_heartbeat", "session_id"),
    "base model": ("create_sampling_session", "base_model"),
    "model path": ("create_sampling_session", "model_path"),
    "tinker path": ("weights_info", "tinker_path"),
    "target": ("retrieve_futures", "target"),
    "acknowledged": ("retrieve_futures", "retrieved_request_ids"),
    "header": "",
    "grammar": "",
}
_SAMPLE = {
    "seq_id": 0,
    "prompt": {"chunks": [{"tokens": [1]}]},
    "sampling_params": {"max_tokens": 1},
}
_LINE = re.compile(rb"[!-~]+: [ -~]*|POST /base/v1/completions HTTP/1\.1")
_ORIGIN = Origin("http://user:pass@upstream.invalid:8000/base")


class Names(Target):
    """A case is a place, an equals sign and the name."""

    name = "names"
    share = 0.05

    def open(self) -> None:
        self.service = Service()

    def close(self) -> None:
        self.service.close()

    def make(self, rng: Random) -> bytes:
        place = rng.choice(list(PLACES))
        return f"{place}={text(rng)}".encode("utf-8", "surrogatepass")

    def check(self, case: bytes) -> str:
        place, _, name = case.decode("utf-8", "surrogatepass").partition("=")
        if place == "header":
            return _header(name)
        if place == "grammar":
            return _grammar(name)
        service = self.service
        service.ready()
        where = PLACES[place]
        if isinstance(where, str):
            method = "POST" if place == "finish" else "DELETE" if place == "delete" else "GET"
            path = where.replace("{}", name)
            answer = service.run(service.ask(method, f"/api/v1/{path}", [], b"{}"))
        else:
            route, field = where
            body = json.dumps(self._body(field, name)).encode()
            answer = service.run(service.ask("POST", f"/api/v1/{route}", [], body))
        fair(service, answer)
        assert not service.sent(), "a name that nobody gave out went upstream"
        if place in ("base model", "model path") and answer.status == 200:
            assert name in ("stand-in", *_GOOD_PATHS), "a name was taken for another"
        return str(answer.status)

    def _body(self, field: str, name: str) -> dict[str, object]:
        if field == "target":
            return {"target": {"sampling_session_id": name}, "timeout": 0}
        if field == "retrieved_request_ids":
            target = {"sampling_session_id": self.service.ids["@sampler@"]}
            return {"target": target, "timeout": 0, field: [name, name]}
        if field == "sampling_session_id":
            return {**_SAMPLE, field: name}
        number: dict[str, object] = {"sampling_session_seq_id": hash(name) % 2**31}
        return {**number, "session_id": self.service.ids["@session@"], field: name}


_GOOD_PATHS = (
    "tinker://run/weights/step",
    "tinker://run/sampler_weights/step",
    "tinker://run/step",
)


def _header(name: str) -> str:
    """A request's head has as many lines as it should, or is not made."""
    try:
        head = _ORIGIN.head("0000000000-0-AAAAAAAAAAAAAAAA", f"{name}:1", 2)
    except ValueError:
        return "refused"
    *lines, empty, rest = head.split(b"\r\n")
    assert (empty, rest) == (b"", b"")
    assert len(lines) == 8
    assert b"X-Session-ID: " + name.encode() + b":1" in lines
    assert all(_LINE.fullmatch(line) for line in lines), head
    return "sent"


def _grammar(name: str) -> str:
    """A path is three plain parts: no file, no host, no escape can be made of it."""
    try:
        path = parse(name)
    except Malformed:
        return "refused"
    parts = (path.run, path.checkpoint)
    assert path.kind in ("weights", "sampler_weights")
    for part in parts:
        assert re.fullmatch(r"[A-Za-z0-9_.:-]+", part)
        assert not part.startswith(".")
        assert ".." not in part
    assert ":" not in path.checkpoint
    return "parsed"
