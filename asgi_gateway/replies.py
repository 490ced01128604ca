"""Every JSON answer as a typed struct: handlers build the small ones, `openapi` shows them all.

Promise, which is made per sample, is written as text on the hot path, and SampleResult in
`codec/as_json`; tests hold their bytes to these structs.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from asgi_gateway.errors import Category

QueueState = Literal["active", "paused_capacity", "paused_rate_limit"]


class _Answer(msgspec.Struct, gc=False):
    pass


class Error(_Answer):
    """What is wrong, for people; the status says what to do about it."""

    detail: str


class Empty(_Answer):
    """Done; nothing to say."""


# --- sampling ------------------------------------------------------------------------------------


class Promise(_Answer):
    """The sample is accepted: its id, and one id per sequence that was asked for."""

    request_id: str
    sample_sequence_ids: list[str]


class TryAgain(_Answer, tag_field="type", tag="try_again"):
    """Not finished at the end of the hold; the poll is to be repeated at once."""

    request_id: str
    queue_state: QueueState
    queue_state_reason: str | None


class FailedSample(_Answer):
    """A sample that failed for good: a result, and so with status 200."""

    error: str
    category: Category


class MetadataOnly(_Answer, tag_field="status", tag="complete_metadata"):
    """A result too large to send unannounced; ask again with `allow_metadata_only: false`."""

    request_id: str
    response_payload_size: int


class SampledSequence(_Answer):
    """One completion; NaN, which JSON has not, is null."""

    stop_reason: Literal["stop", "length"]
    tokens: list[int]
    logprobs: list[float | None]
    topk_logprobs: list[list[tuple[int, float]] | None] | UnsetType = UNSET


class SampleResult(_Answer, tag_field="type", tag="sample"):
    """The result for SDKs that do not accept protobuf."""

    sequences: list[SampledSequence]
    prompt_logprobs: list[float | None] | UnsetType = UNSET
    topk_prompt_logprobs: list[list[tuple[int, float]] | None] | UnsetType = UNSET
    prompt_cache_hit_tokens: int | UnsetType = UNSET


class Finished(_Answer, tag_field="state", tag="finished"):
    """This sample has a result of so many bytes."""

    request_id: str
    response_payload_uncompressed_size: int


class Failed(_Answer, tag_field="state", tag="failed"):
    """This sample has no result; `retrieve_future` says why."""

    request_id: str


class CompletionPage(_Answer):
    """What has settled since the last poll, and the cursor to send with the next."""

    completions: list[Finished | Failed]
    cursor: int


class SamplingSessionJoined(_Answer, tag_field="type", tag="join_sampling_session"):
    """A number for this clone that no other clone of the sampling session has."""

    client_counter: int


# --- sessions and service ------------------------------------------------------------------------


class SessionCreated(_Answer, tag_field="type", tag="create_session"):
    session_id: str


class SamplingSessionCreated(_Answer, tag_field="type", tag="create_sampling_session"):
    sampling_session_id: str


class HeartbeatSeen(_Answer, tag_field="type", tag="session_heartbeat"):
    pass


class ClientFlags(_Answer):
    """How the SDK shall behave towards this gateway."""

    sample_max_concurrent_requests: int
    sample_dispatch_bytes_semaphore_size: int
    inflight_response_bytes_semaphore_size: int
    sample_use_retrieve_futures: bool
    sample_join_sampling_session: bool


class DynamicFlags(_Answer):
    """Flags that the SDK fetches again every `refresh_interval_sec`."""

    refresh_interval_sec: int
    sample_cancel_enabled: bool


class Accepted(_Answer, tag_field="status", tag="accepted"):
    pass


class Healthy(_Answer, tag_field="status", tag="ok"):
    pass


class Readiness(_Answer):
    """Whether new samples should come here; `reasons` says why not."""

    ready: bool
    reasons: list[str]
