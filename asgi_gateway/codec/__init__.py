"""Sample results between vLLM's JSON and the SDK's protobuf; `SampleArrays` is where they meet."""

import enum
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

Int32s: TypeAlias = npt.NDArray[np.int32]
Float32s: TypeAlias = npt.NDArray[np.float32]

# What the SDK reads as an empty top-k cell.
PAD_TOKEN = 0
PAD_LOGPROB = -99999.0

# So few tokens of a sequence are held as bytes.
FEW: Final = 64


class StopReason(enum.IntEnum):
    """Why a sequence ended; the numbers are the wire's."""

    STOP = 0
    LENGTH = 1


class Want(msgspec.Struct, frozen=True, gc=False):
    """The shape of the answer to one sample, all that decoding needs of the request.

    sequences: how many completions were asked for, at least 1.
    prompt_logprobs: whether one logprob per prompt token was asked for.
    prompt_topk: alternatives per prompt position, 0 for none; implies prompt_logprobs.
    sampled_topk: alternatives per generated position, 0 for none.
    prompt_last: score only the last so many prompt tokens; 0 for all.
    named_tokens: the ids come as `token_id:N` in `logprobs.tokens`, not as `token_ids`.
    """

    sequences: int = 1
    prompt_logprobs: bool = False
    prompt_topk: int = 0
    sampled_topk: int = 0
    prompt_last: int = 0
    named_tokens: bool = False


class Topk(msgspec.Struct, frozen=True, gc=False):
    """Alternatives per position, row-major: `tokens` int32 and `logprobs` float32, (length, k)."""

    tokens: Int32s
    logprobs: Float32s


class Sequence(msgspec.Struct, frozen=True, gc=False):
    """One completion: `tokens` int32 (n,) and `logprobs` float32 (n,), natural log.

    They are held as arrays or, where they are few, as the bytes of such arrays, little-endian: an
    array object takes more to make than a short answer's numbers.
    """

    stop_reason: StopReason
    held_tokens: Int32s | bytes
    held_logprobs: Float32s | bytes
    topk: Topk | None = None

    @property
    def tokens(self) -> Int32s:
        held = self.held_tokens
        return np.frombuffer(held, np.dtype("<i4")) if isinstance(held, bytes) else held

    @property
    def logprobs(self) -> Float32s:
        held = self.held_logprobs
        return np.frombuffer(held, np.dtype("<f4")) if isinstance(held, bytes) else held


class SampleArrays(msgspec.Struct, frozen=True, gc=False):
    """One decoded answer.

    prompt_logprobs: float32 (prompt length,), NaN where a position is not scored; None if not
        asked for.
    prompt_cache_hit_tokens: prompt tokens that the upstream took from its prefix cache.
    """

    sequences: tuple[Sequence, ...]
    prompt_logprobs: Float32s | None = None
    prompt_topk: Topk | None = None
    prompt_cache_hit_tokens: int = 0
