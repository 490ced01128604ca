"""What the cases are given: bodies, ids and stores, always the same."""

from collections.abc import Callable
from pathlib import Path

from asgi_gateway.caller import DEFAULT
from asgi_gateway.codec import Want
from asgi_gateway.ids import Ids
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Record

Run = Callable[[], object]

SAMPLER = "0123456789-1-AAAAAAAAAAAAAAAA"
DIGEST = bytes(16)
RESULT = bytes(140)
# As long as what `build` makes of a prompt of 64 tokens.
UPSTREAM_BODY = bytes(600)
ANSWER = (
    Path(__file__).parents[2] / "fixtures/vllm/completion_16tok_logprobs0_ids.json"
).read_bytes()
ANSWER_PROMPT_TOKENS = 32
UPSTREAM = "http://127.0.0.1:9"


def new_store() -> MemoryStore:
    return MemoryStore(
        work_s=2048.0,
        undelivered_s=2048.0,
        delivered_s=300.0,
        max_in_flight=1 << 20,
        max_bytes=1 << 40,
    )


def new_record(ids: Ids, seq_id: int) -> Record:
    return Record(
        request_id=ids.issue(DEFAULT.name),
        caller=DEFAULT.name,
        sampling_session_id=SAMPLER,
        seq_id=seq_id,
        digest=DIGEST,
        want=Want(),
        prompt_tokens=64,
        reserve_bytes=128,
        body=UPSTREAM_BODY,
        accepted_at=0.0,
    )
