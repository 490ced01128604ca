"""The command line: flags and environment -> Settings -> `serve`."""

import argparse
import sys
from collections.abc import Iterable
from typing import Final

from asgi_gateway.access import command as hash_key
from asgi_gateway.configuration import Loaded, gather, leaves, load, shown, value_at
from asgi_gateway.settings import Settings, SettingsError
from asgi_gateway.state import StateError
from asgi_gateway.validity import problems_of_serve
from asgi_gateway.workers.supervisor import supervise
from asgi_gateway.workers.told import FLAG, told

EXIT_USAGE: Final = 2
# The setting that each gives, by the name that argparse keeps it under.
FLAGS: Final = {
    "host": "server.host",
    "port": "server.port",
    "upstream": "upstream.urls",
    "base_model": "models.base",
    "adapter": "models.adapters",
    "workers": "server.workers",
    "insecure": "server.insecure",
}


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.command == "hash-key":
        return hash_key.run(arguments.name, new=arguments.new)
    flags = {path: getattr(arguments, name) for name, path in FLAGS.items()}

    def read() -> Settings:
        """Again whenever it is called: the file may be another."""
        gathered = gather(flags, file=arguments.config)
        settings = gathered.loaded.settings
        problems = [*gathered.problems, *problems_of_serve(settings, gathered.wrong)]
        if problems:
            raise SettingsError(problems)
        return settings

    try:
        if arguments.command == "show-config":
            _show(load(flags, file=arguments.config))
            return 0
        settings = read()
        if arguments.command == "check-config":
            sys.stdout.write("the configuration is valid\n")
            return 0
        if arguments.as_worker is None and settings.server.workers > 1:
            return supervise(settings, _again(argv), read)
        from asgi_gateway.serve import serve  # a server is imported where one is started

        return serve(settings, read, told(arguments.as_worker) if arguments.as_worker else None)
    except (SettingsError, StateError) as error:
        return _refuse(str(error).splitlines())


def _again(argv: list[str] | None) -> list[str]:
    """The command that starts what this process is once more, with whatever flags follow."""
    if argv is None:
        return [sys.executable, *sys.orig_argv[1:]]
    return [sys.executable, "-m", "asgi_gateway", *argv]


def _refuse(problems: Iterable[str]) -> int:
    for problem in problems:
        sys.stderr.write(f"asgi-gateway: {problem}\n")
    return EXIT_USAGE


def _show(loaded: Loaded) -> None:
    """Every setting as `path = value  # source`, secrets hidden."""
    for path, _ in leaves(Settings):
        value = shown(path, value_at(loaded.settings, path))
        sys.stdout.write(f"{path} = {value}  # {loaded.sources.get(path, 'default')}\n")


def parser() -> argparse.ArgumentParser:
    """Of all subcommands; docs/cli.md is made of it."""
    made = argparse.ArgumentParser(
        prog="asgi-gateway", description="Tinker-compatible sampling gateway in front of vLLM"
    )
    commands = made.add_subparsers(dest="command", required=True)
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
            "--workers",
            type=int,
            metavar="N",
            help="processes on the port (1); more need a shared store",
        )
        command.add_argument(FLAG, help=argparse.SUPPRESS)
        command.add_argument(
            "--insecure",
            action="store_true",
            default=None,
            help="listen beyond this machine although no key is configured",
        )
    hash_key.add_to(commands)
    return made


if __name__ == "__main__":
    raise SystemExit(main())
