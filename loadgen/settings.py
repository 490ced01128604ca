"""How a stand-in behaves, as one value that another process can be given."""

from __future__ import annotations

from typing import Literal, NamedTuple

from loadgen.answers import MODEL, VOCAB
from loadgen.counts import REQUEST_IDS_CAP

Hits = Literal["request-id", "prompt"]


class Settings(NamedTuple):
    """How the stand-in behaves. Lengths in tokens, times in seconds.

    any_adapter: whether every unknown model name is an adapter that is found when first asked for,
    as with vLLM's filesystem resolver; such names are not listed.
    delay_s: how long a generation takes, from when it starts.
    jitter: share of `delay_s` by which it may be shorter or longer, uniformly.
    max_num_seqs: choices generated at once; the rest waits in line. None for no limit.
    tokens_dist: see `lengths`; None gives as many tokens as asked for.
    lean: whether answers leave out what a gateway has no use for, see `body`.
    barrier: how many outstanding completions open the barrier, 0 where only `POST /release` does;
    None for no barrier.
    faults: whether prompts may ask for faults; script: faults by rate or schedule, see `script`.
    fault_times: how often each distinct prompt gets a fault at most; None for no limit.
    hits: under what arrivals are counted for `GET /requests`.
    ids_kept: of how many request ids at most that is known, the latest ones.
    seed: of the jitter, the lengths and the faults.
    """

    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 8001
    models: tuple[str, ...] = (MODEL,)
    loras: tuple[str, ...] = ()
    any_adapter: bool = False
    max_model_len: int = 65_536
    vocab: int = VOCAB
    delay_s: float = 0.0
    jitter: float = 0.0
    max_num_seqs: int | None = None
    tokens_dist: str | None = None
    lean: bool = False
    keepalive_s: float = 5.0
    faults: bool = False
    script: str = ""
    fault_times: int | None = None
    barrier: int | None = None
    hits: Hits = "request-id"
    ids_kept: int = REQUEST_IDS_CAP
    seed: int = 0
