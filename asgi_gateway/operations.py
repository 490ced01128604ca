"""What every route is for: the messages that it takes and gives, and the errors it answers with."""

from typing import Final, NamedTuple

import msgspec

from asgi_gateway import protocol, replies
from asgi_gateway.admin.messages import Drain, DrainUpstream, Overview
from asgi_gateway.errors import (
    Forbidden,
    GatewayError,
    Gone,
    Malformed,
    NotFound,
    Overloaded,
    TooLarge,
    Unauthorized,
    Unready,
    Unsupported,
    UnsupportedEncoding,
)
from asgi_gateway.protocol import API

# Largest `limit` and `offset` of a listing.
MAX_LIMIT: Final = 10_000
MAX_OFFSET: Final = 2**53


class Answer(NamedTuple):
    """An answer that is neither a 200 nor one of our errors."""

    status: int
    text: str
    kind: type[msgspec.Struct]


class Operation(NamedTuple):
    """takes: the struct of the body. gives: the structs or media types of a 200. leads_to: what can
    be asked next, by a field of the 200 that the other operation takes. listed: whether it answers
    with part of a list."""

    summary: str
    takes: type[msgspec.Struct] | None
    gives: tuple[type[msgspec.Struct] | str, ...]
    errors: tuple[type[GatewayError], ...] = ()
    also: tuple[Answer, ...] = ()
    leads_to: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    listed: bool = False


_PROTOBUF: Final = "application/x-protobuf"
_TEXT: Final = "text/plain"

# Errors whose response is the same wherever it occurs.
ERRORS: Final[dict[type[GatewayError], str]] = {
    Malformed: "The body is not what the route takes; `detail` names field, value and limit.",
    Unauthorized: "No API key, or one that is not good; asked for where keys are configured.",
    Forbidden: "The API key has another scope, or may not use this model.",
    NotFound: "An id that was never issued here, or whose session was finished.",
    Gone: "Issued here and no longer held; a sample is to be submitted again.",
    TooLarge: "The body is larger than the route takes.",
    UnsupportedEncoding: "The body has a Content-Encoding.",
    Unsupported: "Understood and refused by name, or a conflict with an earlier request.",
    Overloaded: "Full; repeat after a pause.",
    Unready: "Draining, or no upstream answers yet; repeat after a pause.",
}

_CONFIRMED: Final = (("X-Admin-Action", "`confirmed`; no other page can send it."),)
_TRY_AGAIN: Final = Answer(408, "Not finished at the end of the hold.", replies.TryAgain)
_UNREADY: Final = Answer(503, "New samples should not come here now.", replies.Readiness)

OPERATIONS: Final[dict[str, Operation]] = {
    f"POST {API}/asample": Operation(
        "Submit a sample",
        protocol.SampleRequest,
        (replies.Promise,),
        (NotFound, Unsupported, Overloaded, Unready),
        leads_to=(("retrieve_future", "request_id"), ("cancel_future", "request_id")),
        headers=(("X-Stainless-Package-Version", "The SDK's version; what `stop: []` means."),),
    ),
    f"POST {API}/retrieve_future": Operation(
        "Wait for the result of one sample",
        protocol.RetrieveFuture,
        (_PROTOBUF, replies.SampleResult, replies.FailedSample, replies.MetadataOnly),
        (NotFound, Gone),
        (_TRY_AGAIN,),
    ),
    f"POST {API}/retrieve_futures": Operation(
        "Wait for whatever settles in a sampling session",
        protocol.RetrieveFutures,
        (replies.CompletionPage,),
        (NotFound, Unsupported),
    ),
    f"POST {API}/cancel_future": Operation(
        "Cancel a sample", protocol.CancelFuture, (replies.Empty,), (NotFound,)
    ),
    f"POST {API}/join_sampling_session": Operation(
        "Number a clone of a sampling client",
        protocol.JoinSamplingSession,
        (replies.SamplingSessionJoined,),
        (NotFound,),
    ),
    f"POST {API}/session_heartbeat": Operation(
        "Say that a session lives",
        protocol.Heartbeat,
        (replies.HeartbeatSeen,),
        (NotFound, Gone),
    ),
    f"POST {API}/telemetry": Operation("Accepted and dropped", None, (replies.Accepted,)),
    f"POST {API}/client/config": Operation(
        "Flags for the SDK", protocol.ClientConfig, (replies.ClientFlags,)
    ),
    f"POST {API}/client/dynamic_config": Operation(
        "Flags that the SDK refreshes", protocol.ClientConfig, (replies.DynamicFlags,)
    ),
    f"POST {API}/create_session": Operation(
        "Begin a session",
        protocol.CreateSession,
        (replies.SessionCreated,),
        (Overloaded,),
        leads_to=(("create_sampling_session", "session_id"), ("session_heartbeat", "session_id")),
    ),
    f"POST {API}/create_sampling_session": Operation(
        "Begin to sample from some weights",
        protocol.CreateSamplingSession,
        (replies.SamplingSessionCreated,),
        (NotFound, Gone, Unsupported, Unready),
        leads_to=(
            ("asample", "sampling_session_id"),
            ("join_sampling_session", "sampling_session_id"),
        ),
    ),
    f"POST {API}/sessions/{{id}}/finish": Operation(
        "End a session and its work", protocol.FinishSession, (replies.Empty,), (NotFound,)
    ),
    f"GET {API}/samplers/{{id}}": Operation(
        "The weights of a sampling session", None, (protocol.Sampler,), (NotFound,)
    ),
    f"GET {API}/training_runs": Operation(
        "The training runs whose adapters are served",
        None,
        (protocol.TrainingRunList,),
        (Malformed, Unsupported, Unready),
        listed=True,
    ),
    f"GET {API}/training_runs/{{id}}": Operation(
        "One training run", None, (protocol.TrainingRun,), (NotFound, Unready)
    ),
    f"GET {API}/training_runs/{{id}}/checkpoints": Operation(
        "The checkpoints of one training run",
        None,
        (protocol.CheckpointList,),
        (NotFound, Unready),
    ),
    f"GET {API}/checkpoints": Operation(
        "The checkpoints that are served",
        None,
        (protocol.CheckpointList,),
        (Malformed, Unsupported, Unready),
        listed=True,
    ),
    f"POST {API}/weights_info": Operation(
        "What a checkpoint was made from",
        protocol.WeightsInfoRequest,
        (protocol.WeightsInfo,),
        (NotFound, Unready),
    ),
    f"GET {API}/sessions": Operation(
        "The newest sessions",
        None,
        (protocol.SessionList,),
        (Malformed, Unsupported),
        listed=True,
    ),
    f"GET {API}/sessions/{{id}}": Operation(
        "One session", None, (protocol.SessionInfo,), (NotFound,)
    ),
    f"POST {API}/save_weights_for_sampler": Operation(
        "Save weights at the trainer, to be sampled from", None, ("application/json",)
    ),
    f"GET {API}/get_server_capabilities": Operation(
        "The models served", None, (protocol.Capabilities,), (Unready,)
    ),
    f"GET {API}/healthz": Operation("Health as the SDK asks for it", None, (replies.Healthy,)),
    "GET /admin": Operation("The status page", None, ("text/html",)),
    "GET /admin/state": Operation("What the status page shows", None, (Overview,)),
    "POST /admin/drain": Operation(
        "Stop: refuse new samples, finish and deliver the others",
        Drain,
        (replies.Empty,),
        (Unsupported,),
        headers=_CONFIRMED,
    ),
    "POST /admin/upstream": Operation(
        "Send no new samples to an upstream, or some again",
        DrainUpstream,
        (replies.Empty,),
        (NotFound,),
        headers=_CONFIRMED,
    ),
    "GET /livez": Operation("Whether the process serves", None, (replies.Healthy,)),
    "GET /readyz": Operation(
        "Whether samples should come here", None, (replies.Readiness,), (), (_UNREADY,)
    ),
    "GET /metrics": Operation("Prometheus text", None, (_TEXT,)),
    "GET /openapi.json": Operation("This document", None, ("application/json",)),
}
