"""The command line: flags and environment -> Settings -> Gateway -> uvicorn."""

import argparse
import asyncio
import gc
import resource
import signal
import socket
import sys
from types import FrameType
from typing import Any, Final

from msgspec.structs import replace

from asgi_gateway.access import bind, keys
from asgi_gateway.access import command as hash_key
from asgi_gateway.kernel import accept_queue_limit
from asgi_gateway.settings import (
    Loaded,
    Settings,
    SettingsError,
    default_state_dir,
    leaves,
    load,
    shown,
)
from asgi_gateway.state import StateError
from asgi_gateway.upstream import naming

EXIT_USAGE: Final = 2
# Listener, journal, logs, and clients enough to be of use; every open poll takes one more.
RESERVED_DESCRIPTORS: Final = 128
# libuv, and so uvloop, accepts one connection per listening descriptor in a turn of the loop. In a
# burst of long turns that keeps new clients waiting for tens of seconds; duplicates of the
# descriptor share the queue and multiply the rate.
LISTENERS: Final = 16
# Next to nothing here is cyclic, and collecting with the interpreter's own thresholds took 38% of
# the CPU of a burst, in pauses of up to 0.2 s: thousands of requests in flight are young objects
# that survive, and each full pass walks all of them.
GC_THRESHOLDS: Final = (10_000, 20, 100)

NO_UPSTREAM: Final = (
    "no upstream: say where vLLM listens, with --upstream http://HOST:PORT,"
    " ASGI_GATEWAY_UPSTREAM__URLS or upstream.urls in a file"
)


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.command == "hash-key":
        return hash_key.run(arguments.name, new=arguments.new)
    flags = {
        "server.host": arguments.host,
        "server.port": arguments.port,
        "server.insecure": arguments.insecure or None,
        "upstream.urls": arguments.upstream,
        "models.base": arguments.base_model,
        "models.adapters": arguments.adapter,
    }
    try:
        loaded = load(flags, file=arguments.config)
    except SettingsError as error:
        return _refuse(error.problems)
    problems = list(_problems(loaded.settings))
    if arguments.command == "show-config":
        _show(loaded)
        return 0
    if problems:
        return _refuse(problems)
    if arguments.command == "check-config":
        sys.stdout.write("the configuration is valid\n")
        return 0
    return serve(loaded.settings)


def serve(settings: Settings) -> int:
    """Run the gateway under uvicorn until SIGINT or SIGTERM; returns the exit status."""
    import uvicorn

    from asgi_gateway.app import Gateway
    from asgi_gateway.onewrite import OneWriteProtocol

    class Server(uvicorn.Server):
        """Says on stdout when it accepts, and lets go of parked polls when told to stop."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            self.loop = asyncio.get_running_loop()
            gc.collect()  # before the gateway opens: its pauses are those of serving
            await super().startup(sockets)
            if settings.access.keys_file:
                self.loop.add_signal_handler(signal.SIGHUP, gateway.reload_keys)
            if self.started:
                gc.freeze()  # what is imported and built by now stays
                port = listeners[0].getsockname()[1]
                sys.stdout.write(f"asgi-gateway listening on http://{shown_host}:{port}\n")
                sys.stdout.flush()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.loop.call_soon_threadsafe(gateway.stop_holding)
            super().handle_exit(sig, frame)

    limit = raise_descriptor_limit()
    needed = settings.upstream.max_connections + RESERVED_DESCRIPTORS
    if limit < needed:
        connections = settings.upstream.max_connections
        problem = (
            f"{limit} descriptors are allowed, upstream.max_connections = {connections} needs"
            f" {needed} at least: raise the hard limit (ulimit -Hn, LimitNOFILE=) or lower the"
            " setting"
        )
        return _refuse([problem])
    server = settings.server
    shown_host = f"[{server.host}]" if ":" in server.host else server.host
    try:
        listeners = _listen(server.host, server.port, server.backlog)
    except OSError as error:
        return _refuse([f"cannot listen on {shown_host}:{server.port}: {error.strerror}"])
    if settings.state.dir is None and server.port != 0:
        # A port that was picked at random cannot be come back to, so nothing is kept for it.
        folder = default_state_dir(server.host, server.port)
        settings = replace(settings, state=replace(settings.state, dir=str(folder)))
    try:
        gateway = Gateway(settings)
    except (StateError, SettingsError) as error:
        for listener in listeners:
            listener.close()
        return _refuse(str(error).splitlines())
    _warn_of_short_queue(server.backlog)
    config = uvicorn.Config(
        gateway,
        loop="uvloop",
        http=OneWriteProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        # Only a trainer is told who called; wrapped around every request it is 3% of the CPU.
        proxy_headers=settings.training.url is not None,
        timeout_keep_alive=max(1, int(server.keepalive_s)),
        backlog=server.backlog,
    )
    runner = Server(config)
    gc.set_threshold(*GC_THRESHOLDS)
    # uvicorn raises the signal that stopped it once more at its end; stopping is no failure.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        runner.run(sockets=listeners)
    except KeyboardInterrupt:
        return 0
    return 0 if runner.started else 1


def raise_descriptor_limit() -> int:
    """Raise the soft limit on open descriptors to the hard one; returns what is allowed now."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """One listening socket under LISTENERS descriptors."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return [listener, *(listener.dup() for _ in range(LISTENERS - 1))]


def _warn_of_short_queue(backlog: int) -> None:
    """The kernel shortens an accept queue without a word, and refuses what it has no room for."""
    allowed = accept_queue_limit()
    if allowed is not None and allowed < backlog:
        sys.stderr.write(
            f"asgi-gateway: server.backlog = {backlog} was asked, the kernel allows {allowed}"
            f" connections to wait: sysctl -w net.core.somaxconn={backlog}\n"
        )


def _problems(settings: Settings) -> list[str]:
    """What is wrong with a well-typed configuration."""
    problems = []
    if not settings.upstream.urls:
        problems.append(NO_UPSTREAM)
    problems += [
        f"upstream.urls: {shown('upstream.urls', url)} must start with http:// or https://"
        for url in settings.upstream.urls
        if not url.startswith(("http://", "https://"))
    ]
    problems += naming.problems(settings.models)
    problems += keys.problems(settings.access)
    problems += bind.problems(settings)
    return problems


def _refuse(problems: Any) -> int:
    for problem in problems:
        sys.stderr.write(f"asgi-gateway: {problem}\n")
    return EXIT_USAGE


def _show(loaded: Loaded) -> None:
    """Every setting as `path = value  # source`, secrets hidden."""
    for path, _ in leaves(Settings):
        value: Any = loaded.settings
        for name in path.split("."):
            value = getattr(value, name)
        sys.stdout.write(
            f"{path} = {shown(path, value)}  # {loaded.sources.get(path, 'default')}\n"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="asgi-gateway", description="Tinker-compatible sampling gateway in front of vLLM"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("serve", "run the gateway"),
        ("check-config", "say every problem of the configuration, or that it is valid"),
        ("show-config", "print the effective settings and where each comes from"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--config", metavar="FILE", help="TOML file")
        command.add_argument("--host", help="address to listen on (127.0.0.1)")
        command.add_argument("--port", type=int, help="port to listen on (8000); 0 picks one")
        command.add_argument(
            "--upstream", action="append", metavar="URL", help="vLLM or vllm-router; repeatable"
        )
        command.add_argument(
            "--base-model",
            action="append",
            metavar="NAME",
            help="model that clients may ask for: NAME, or NAME=UPSTREAM_NAME; repeatable",
        )
        command.add_argument(
            "--adapter",
            action="append",
            metavar="PATH=NAME",
            help="what the upstream calls the weights of a tinker:// path; repeatable",
        )
        command.add_argument(
            "--insecure",
            action="store_true",
            help="listen beyond this machine although no key is configured",
        )
    hash_key.add_to(commands)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
