"""The command line: flags and environment -> Settings -> `serve`."""

import argparse
import sys
from collections.abc import Iterable
from typing import Any, Final

from asgi_gateway.access import bind, keys
from asgi_gateway.access import command as hash_key
from asgi_gateway.addresses import fault_of
from asgi_gateway.clock import SystemClock
from asgi_gateway.configuration import Loaded, leaves, load, shown
from asgi_gateway.settings import Settings, SettingsError, TrainingSettings
from asgi_gateway.sources import configured as sources
from asgi_gateway.state import StateError
from asgi_gateway.tracing import starting
from asgi_gateway.training.prefix import Prefix
from asgi_gateway.upstream import naming

EXIT_USAGE: Final = 2
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
    from asgi_gateway.serve import serve  # a server is imported where one is started

    try:
        return serve(loaded.settings)
    except (SettingsError, StateError) as error:
        return _refuse(str(error).splitlines())


def _problems(settings: Settings) -> list[str]:
    """What is wrong with a well-typed configuration."""
    problems = []
    if not settings.upstream.urls and not settings.upstream.source:
        problems.append(NO_UPSTREAM)
    problems += [
        f"upstream.urls: {shown('upstream.urls', url)} {fault}"
        for url in settings.upstream.urls
        if (fault := fault_of(url))
    ]
    problems += sources.problems(settings.upstream, SystemClock())
    problems += _problems_of_training(settings.training)
    try:
        settings.server.host.encode("idna")  # as it is looked up
    except UnicodeError as error:
        problems.append(f"server.host = {settings.server.host!r}: {error}")
    problems += naming.problems(settings.models)
    problems += keys.problems(settings.access)
    problems += bind.problems(settings)
    problems += starting.problems(settings.tracing)
    return problems


def _problems_of_training(training: TrainingSettings) -> list[str]:
    problems = []
    if training.url is not None:
        if fault := fault_of(training.url):
            problems.append(f"training.url: {shown('training.url', training.url)} {fault}")
        else:
            try:
                Prefix(training.url)
            except ValueError as error:
                problems.append(str(error))
    if training.embedded:
        problems.append("training.embedded: there is no inner application here, only in Gateway()")
    return problems


def _refuse(problems: Iterable[str]) -> int:
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
