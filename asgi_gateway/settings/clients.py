"""Settings of the side where the clients are."""

from typing import Annotated

from msgspec import Meta

from asgi_gateway.settings.section import (
    Count,
    CountOrZero,
    NotNegative,
    Port,
    Positive,
    Reloads,
    Section,
)


class ServerSettings(Section, frozen=True, kw_only=True):
    """What `serve` listens on."""

    host: str = "127.0.0.1"
    """address that `serve` listens on"""
    port: Port = 8000
    """port; 0 picks a free one"""
    # Above the idle time of common pools, so that the client and not the server ends an idle
    # connection and no request meets a closing socket.
    keepalive_s: Positive = 100.0
    """idle client connections are kept so long; above the SDK's own 90 s"""
    backlog: Count = 65_535
    """accept queue asked for; the kernel caps it at `net.core.somaxconn`, and `serve` says so at
    its start"""
    stall_dump_s: NotNegative = 5.0
    """an event loop that stands still for so long has its stack printed on standard error; 0 is
    off"""
    workers: Count = 1
    """processes of `serve` on one port; more than one need a shared store, see
    [several gateways](scaling.md)"""
    insecure: bool = False
    """listen beyond this machine although no key is configured"""


class PollSettings(Section, frozen=True, kw_only=True):
    # The SDK gives a poll 45 s and common proxies cut at 60.
    hold_s: Reloads[Annotated[float, Meta(gt=0, le=40)]] = 30.0
    """how long a poll is held; polls that are held already too"""
    wakes_per_turn: Reloads[Count] = 128
    """polls answered in one turn of the event loop"""
    gather_s: Reloads[NotNegative] = 0.01
    """a batched poll waits so long after the first completion for more to join it"""
    # So that the client can reserve memory.
    inline_bytes: Reloads[Count] = 1 << 20
    """a larger result is announced with its size first, where the client allows it"""


class SessionSettings(Section, frozen=True, kw_only=True):
    timeout_s: Reloads[Positive] = 300.0
    """no sign of life for so long ends a session's work"""
    retention_s: Reloads[Positive] = 86_400.0
    """and for so long forgets the session"""


class DrainSettings(Section, frozen=True, kw_only=True):
    """What follows the first SIGTERM or SIGINT; a second one ends it."""

    # Long enough for a balancer to notice.
    predrain_s: Reloads[NotNegative] = 5.0
    """after SIGTERM or SIGINT `/readyz` fails for so long before new samples are refused"""
    grace_s: Reloads[NotNegative] = 60.0
    """then samples finish and results are fetched for so long at most; a second signal ends it"""


class ClientSettings(Section, frozen=True, kw_only=True):
    """What `client/config` and `client/dynamic_config` tell the SDK."""

    sample_max_concurrent_requests: Reloads[Count] = 2000
    """samples in flight per SamplingClient, as told to the SDK"""
    sample_dispatch_bytes_semaphore_size: Reloads[Count] = 10 << 20
    """bytes that one SDK client submits at once"""
    inflight_response_bytes_semaphore_size: Reloads[Count] = 50 << 20
    """result bytes that one SDK client fetches at once"""
    refresh_interval_sec: Reloads[Count] = 300
    """how often the SDK asks for its dynamic configuration"""
    sample_use_retrieve_futures: Reloads[bool | None] = None
    """batched polls; on where a journal is kept, never where none is: a sample that is lost with
    its session would never end"""
    sample_join_sampling_session: Reloads[bool | None] = None
    """clones ask for a number; on where a journal is kept"""
    sample_cancel_enabled: Reloads[bool] = True
    """abandoned samples are cancelled"""


class LimitSettings(Section, frozen=True, kw_only=True):
    """Largest request bodies, 413 beyond; then how long `serve` waits for its clients."""

    asample_body_bytes: Reloads[Count] = 32 << 20
    """largest `asample` body"""
    retrieve_futures_body_bytes: Reloads[Count] = 16 << 20
    """largest body of a batched poll"""
    telemetry_body_bytes: Reloads[Count] = 256 << 10
    """largest telemetry body"""
    body_bytes: Reloads[Count] = 64 << 10
    """largest body of every other route"""
    sessions_per_caller: Reloads[Count] = 65_536
    """sessions kept; beyond, `create_session` answers 429 until one is forgotten"""
    header_s: Reloads[Positive] = 10.0
    """under `serve`: from the first byte of a request's head to its end; a new connection must
    begin within it too. See [servers](servers.md#clients-that-are-slow-or-hostile)"""
    body_idle_s: Reloads[Positive] = 10.0
    """under `serve`: no byte of a body for so long ends the connection"""
    body_s: Reloads[Positive] = 30.0
    """under `serve`: a body may take so long, and one second more for each 64 KiB of it"""
    write_s: Reloads[Positive] = 30.0
    """under `serve`: a client that takes less than 16 KiB of what is ready for it in this time is
    cut off"""
    connections: Reloads[Count | None] = None
    """under `serve`: connections of clients, more are closed at accept; where not given, more than
    the descriptors allow wait in the accept queue"""
    # No limit by default: rollout workers share addresses.
    connections_per_address: Reloads[CountOrZero] = 0
    """under `serve`: of one client address; 0 is any number"""


class AccessSettings(Section, frozen=True, kw_only=True):
    """API keys, in a file or as NAME=SHA256HEX; without any, every caller is let in."""

    keys_file: Reloads[str] = ""
    """TOML file of API keys, read again when it changes; see [access control](access.md). Whether
    keys are asked for at all is decided at the start"""
    keys: Reloads[tuple[str, ...]] = ()
    """keys as NAME=SHA256HEX, of scope `sample`; hidden in what is shown"""
    hosts: tuple[str, ...] = ()
    """without keys, names that `serve` on this machine may be called by besides, `*` for any; see
    [access control](access.md#without-keys)"""
