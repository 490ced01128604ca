"""The bytes that go over the wires, rendered once where they can be."""

import http.client
from typing import Any, Final

import msgspec

from tests.support.flood.samples import MODEL, Samples
from tests.support.flood.wire import HEADERS, JSON, PROTOBUF

__all__ = ["JSON", "MODEL", "PROTOBUF", "Samples"]

SUBMIT: Final = b"/api/v1/asample"
FETCH: Final = b"/api/v1/retrieve_future"
POLL_MANY: Final = b"/api/v1/retrieve_futures"
PROMPT_TOKENS: Final = 64
TIMEOUT_S: Final = 60.0


def post(path: bytes, body: bytes, accept: bytes = JSON) -> bytes:
    """A whole request with the headers of the SDK."""
    return b"POST " + path + HEADERS % (accept, len(body), body)


def poll_body(request_id: str, *, metadata: bool) -> bytes:
    """metadata: as the SDK asks first, where no batched poll told it the size."""
    allowed = "true" if metadata else "false"
    return f'{{"request_id":"{request_id}","allow_metadata_only":{allowed}}}'.encode()


def completion(number: int, tokens: int) -> bytes:
    """The body that the gateway sends upstream for such a sample."""
    ids = [1_000 + (number + place * 7_919) % 100_000 for place in range(PROMPT_TOKENS)]
    fields = {
        "prompt": ids,
        "model": MODEL,
        "n": 1,
        "max_tokens": tokens,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "logprobs": 0,
        "return_token_ids": True,
        "cache_salt": MODEL,
    }
    return msgspec.json.encode(fields)


def post_upstream(body: bytes) -> bytes:
    """A whole request with as few headers as vLLM needs and the gateway sends."""
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"accept: application/json\r\nx-request-id: 0123456789abcdef0123456789abcdef\r\n"
        b"x-session-id: 0123456789abcdef:12345\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )


class Caller:
    """One blocking connection, for what happens once; opened again after a loss."""

    def __init__(self, port: int) -> None:
        self._wire = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def post(self, path: str, body: bytes, accept: bytes = JSON) -> bytes:
        """The body of the answer; raises RuntimeError unless the status is 200."""
        headers = {"content-type": "application/json", "accept": accept.decode()}
        return self._ask("POST", path, body, headers)

    def json(self, path: str, fields: object) -> dict[str, Any]:
        answer = self.post(path, msgspec.json.encode(fields))
        return msgspec.json.decode(answer, type=dict[str, Any])

    def gauges(self) -> dict[str, float]:
        """The gateway's /metrics by name and labels, without the prefix."""
        text = self._ask("GET", "/metrics", None, {}).decode()
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line[:1] not in ("", "#"))
        return {name.removeprefix("asgi_gateway_"): float(value) for name, value in pairs}

    def sampling_sessions(self, count: int) -> list[str]:
        """Ids of new ones, each in a session of its own."""
        made = []
        for _ in range(count):
            session = self.json("/api/v1/create_session", {"tags": [], "sdk_version": "0.38.0"})
            wish = {
                "session_id": session["session_id"],
                "sampling_session_seq_id": 0,
                "base_model": MODEL,
            }
            answer = self.json("/api/v1/create_sampling_session", wish)
            made.append(str(answer["sampling_session_id"]))
        return made

    def sample(self, sampling_session: str, seq_id: int, tokens: int) -> tuple[bytes, str, bytes]:
        """One sample from submit to result: the answer to asample, its request id, the result."""
        body = Samples(PROMPT_TOKENS, tokens).request(seq_id, sampling_session, seq_id)
        promise = self.post(SUBMIT.decode(), body)
        request_id = str(msgspec.json.decode(promise)["request_id"])
        poll = poll_body(request_id, metadata=False)
        return promise, request_id, self.post(FETCH.decode(), poll, PROTOBUF)

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        try:
            self._wire.request(method, path, body, headers)
            answer = self._wire.getresponse()
            content = answer.read()
        except http.client.HTTPException as error:
            self._wire.close()
            raise RuntimeError(f"{path}: {error!r}") from error
        except OSError:
            self._wire.close()
            raise
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}: {content[:200]!r}")
        return content

    def close(self) -> None:
        self._wire.close()
