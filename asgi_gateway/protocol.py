"""Every JSON message of the public API as a typed struct, and its decoder, built once.

Tolerant where clients are old: unknown fields, explicit nulls and a missing `type` pass. A prompt's
token array stays raw JSON: it is checked and spliced into the upstream's body as it is, so that no
Python object per token is ever made.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from asgi_gateway.errors import Malformed

# Where the SDK's routes live, below the root path.
API: Final = "/api/v1"


# A raw field that may be absent. An explicit null arrives as the text `null`.
MaybeRaw: TypeAlias = msgspec.Raw | msgspec.UnsetType

# What a session keeps of what its client says about it.
DisplayName = Annotated[str, msgspec.Meta(max_length=1024)]
MAX_METADATA_BYTES: Final = 16 << 10

# Shorter ones are nobody's, and in a list of millions they would take many times their size.
RequestId = Annotated[str, msgspec.Meta(min_length=8)]
MAX_ACKNOWLEDGED: Final = 262_144

# A body above this is looked through before it is decoded: objects and strings of a few bytes
# take some thirty times as much decoded.
LARGE_BODY_BYTES: Final = 64 << 10
MAX_OBJECTS: Final = 16_384
MAX_STRINGS: Final = 16_384
MAX_PARAMS_BYTES: Final = 256 << 10

# The SDK's clone ids reach 1e18; a double would round them.
SeqId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


def given(raw: MaybeRaw) -> bool:
    """Whether a raw field was sent and is not null."""
    return raw is not msgspec.UNSET and bytes(raw) != b"null"


class _Message(msgspec.Struct, gc=False):
    pass


class Chunk(_Message):
    """One piece of a prompt; the kind is told by `type`, or by its keys where old SDKs omit it."""

    type: str | None = None
    tokens: MaybeRaw = msgspec.UNSET
    data: MaybeRaw = msgspec.UNSET
    location: MaybeRaw = msgspec.UNSET
    dmel: MaybeRaw = msgspec.UNSET

    def kind(self) -> str:
        """encoded_text, image, image_asset_pointer, dmel, or what the client called it."""
        if self.type is not None:
            return self.type
        if given(self.tokens):
            return "encoded_text"
        if given(self.data):
            return "image"
        if given(self.location):
            return "image_asset_pointer"
        return "dmel" if given(self.dmel) else "unknown"


class Prompt(_Message):
    chunks: list[Chunk]


class SamplingParams(_Message):
    """None means absent or null; `stop` distinguishes an empty list from nothing."""

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str | int] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


class SampleRequest(_Message):
    """`POST /api/v1/asample`. seq_id goes beyond 2^53 and is an exact integer."""

    sampling_session_id: str
    seq_id: SeqId
    prompt: Prompt
    sampling_params: SamplingParams | None = None
    num_samples: int | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int | None = None
    topk_sample_logprobs: int | None = None
    prompt_logprobs_last_n: int | None = None
    target_prompt_logprobs: MaybeRaw = msgspec.UNSET
    prompt_alt_tokens_k: int | None = None
    record_stability_info: bool | None = None


class RetrieveFuture(_Message):
    request_id: str
    allow_metadata_only: bool | None = None


class PollTarget(_Message):
    sampling_session_id: str
    type: str = "sampling_session"
    cloned_sampler_id: int = 0


class RetrieveFutures(_Message):
    """`POST /api/v1/retrieve_futures`; timeout in seconds, 0 for one look."""

    target: PollTarget
    prev_cursor: int = 0
    timeout: float | None = None
    retrieved_request_ids: list[RequestId] | None = None


class CancelFuture(_Message):
    request_id: str


class JoinSamplingSession(_Message):
    sampling_session_id: str


class ClientConfig(_Message):
    sdk_version: str | None = None


class CreateSession(_Message):
    tags: list[str] | None = None
    user_metadata: dict[str, Any] | None = None
    sdk_version: str | None = None
    project_id: str | None = None
    display_name: DisplayName | None = None


class CreateSamplingSession(_Message):
    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None


class Heartbeat(_Message):
    session_id: str


class FinishReason(_Message):
    type: str


class FinishSession(_Message):
    reason: FinishReason | None = None
    detail: str | None = None


class SupportedModel(_Message, omit_defaults=True):
    model_name: str
    max_context_length: int | None = None
    sampleable: bool | None = None
    trainable: bool | None = None


class Capabilities(_Message):
    supported_models: list[SupportedModel]


class Sampler(_Message, omit_defaults=True):
    sampler_id: str
    base_model: str
    model_path: str | None = None


# --- the read-only index: every field is written, an unknown one as null -------------------------


class WeightsInfoRequest(_Message):
    """`POST /api/v1/weights_info`."""

    tinker_path: str


class WeightsInfo(_Message):
    base_model: str
    is_lora: bool
    lora_rank: int | None = None
    train_unembed: bool | None = None
    train_mlp: bool | None = None
    train_attn: bool | None = None


class Checkpoint(_Message):
    """checkpoint_id is `<kind>/<name>`, the path without its run."""

    checkpoint_id: str
    checkpoint_type: Literal["training", "sampler"]
    time: datetime
    tinker_path: str
    size_bytes: int | None = None
    public: bool = False
    user_metadata: dict[str, str] | None = None
    expires_at: datetime | None = None


class Cursor(_Message):
    offset: int
    limit: int
    total_count: int


class CheckpointList(_Message):
    checkpoints: list[Checkpoint]
    cursor: Cursor | None = None


class TrainingRun(_Message):
    training_run_id: str
    base_model: str
    model_owner: str
    is_lora: bool
    last_request_time: datetime
    corrupted: bool = False
    lora_rank: int | None = None
    last_checkpoint: Checkpoint | None = None
    last_sampler_checkpoint: Checkpoint | None = None
    user_metadata: dict[str, str] | None = None


class TrainingRunList(_Message):
    training_runs: list[TrainingRun]
    cursor: Cursor


class SessionList(_Message):
    sessions: list[str]


class SessionInfo(_Message):
    training_run_ids: list[str]
    sampler_ids: list[str]
    user_metadata: dict[str, str] | None = None
    display_name: str | None = None


encode = msgspec.json.Encoder().encode


class _Params(_Message):
    sampling_params: MaybeRaw = msgspec.UNSET


_PARAMS: Final = msgspec.json.Decoder(_Params)


class Reader(msgspec.Struct, frozen=True):
    """Decodes one type of body; every way of being bad input becomes Malformed.

    max_objects, max_strings: how many of them a large body may have.
    """

    decoder: msgspec.json.Decoder[Any]
    max_objects: int = MAX_OBJECTS
    max_strings: int = MAX_STRINGS

    def __call__(self, body: bytes) -> Any:
        try:
            if len(body) > LARGE_BODY_BYTES:
                self._look_through(body)
            return self.decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise Malformed(str(error)) from None
        except UnicodeDecodeError:
            raise Malformed("the body is not UTF-8") from None
        except RecursionError:
            raise Malformed("the body is nested too deeply") from None

    def _look_through(self, body: bytes) -> None:
        """At some 10 GB a second; what is inside of strings counts too."""
        if body.count(b"{") > self.max_objects:
            raise Malformed(f"the body has over {self.max_objects} objects, the limit") from None
        if body.count(b'"') > 2 * self.max_strings:
            raise Malformed(f"the body has over {self.max_strings} strings, the limit") from None
        params = _PARAMS.decode(body).sampling_params
        if params is not msgspec.UNSET and len(bytes(params)) > MAX_PARAMS_BYTES:
            text = f"sampling_params has {len(bytes(params))} bytes, at most {MAX_PARAMS_BYTES}"
            raise Malformed(text) from None


def reader(
    kind: type[msgspec.Struct], *, max_objects: int = MAX_OBJECTS, max_strings: int = MAX_STRINGS
) -> Reader:
    """The reader of one message, built once per route."""
    return Reader(msgspec.json.Decoder(kind), max_objects, max_strings)
