"""Command line. Subcommands import what they need when they run, so that --help is quick."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence

from loadgen.flags import add_run

USAGE_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit status is its own."""
    parser = argparse.ArgumentParser(
        prog="loadgen", description="Load harness for the sampling gateway."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_upstream(commands)
    add_run(commands, _run)
    _add_cost(commands)
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def _add_upstream(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "upstream",
        help="serve a stand-in vLLM",
        description="A stand-in vLLM: real response shape, deterministic content, next to no CPU.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add(
        "--port",
        type=_whole(0, 65_535),
        default=8001,
        help="0 picks a free port (default: %(default)s)",
    )
    add(
        "--model",
        action="extend",
        type=_names,
        metavar="NAME",
        help="served model, repeatable or comma-separated (default: stand-in)",
    )
    add(
        "--lora",
        action="extend",
        type=_names,
        default=[],
        metavar="NAME",
        help="adapter of the first model, repeatable or comma-separated",
    )
    add(
        "--any-adapter",
        action="store_true",
        help="take every unknown name as an adapter that is found when first asked for",
    )
    add(
        "--max-model-len",
        type=_whole(2),
        default=65_536,
        metavar="N",
        help="context in tokens (default: %(default)s)",
    )
    add(
        "--vocab-size",
        type=_whole(2_000),
        default=151_936,
        metavar="N",
        help="ids in all (default: %(default)s)",
    )
    add(
        "--delay-s",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="answer so long after asked (default: %(default)s)",
    )
    add(
        "--barrier",
        type=_whole(1),
        nargs="?",
        const=0,
        metavar="K",
        help="hold answers until K are outstanding, or until POST /release; POST /hold shuts again",
    )
    add(
        "--keepalive-s",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="close connections idle for so long (default: %(default)s)",
    )
    add("--faults", action="store_true", help="let prompts ask for faults, see loadgen/faults.py")
    add(
        "--fault-times",
        type=_whole(0),
        metavar="N",
        help="give each distinct prompt its fault N times, then the right answer",
    )
    parser.set_defaults(run=_upstream, parser=parser)


def _run(arguments: argparse.Namespace) -> int:
    from loadgen.command import command

    return command(arguments)


def _add_cost(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "cost",
        help="measure what the client itself costs",
        description="CPU a sample of the client against two of the leanest POSTs, in turns.",
    )
    parser.add_argument("--style", choices=("future", "futures"), default="future")
    parser.add_argument("--samples", type=_whole(100), default=2_000, metavar="N")
    parser.add_argument("--turns", type=_whole(1), default=25, metavar="N")
    parser.set_defaults(run=_cost)


def _cost(arguments: argparse.Namespace) -> int:
    from loadgen.cost import report

    return report(arguments.style, arguments.samples, arguments.turns)


def _upstream(arguments: argparse.Namespace) -> int:
    import gc

    import uvloop

    from loadgen.upstream import ListenError, Settings, serve

    models = tuple(arguments.model or ("stand-in",))
    names = [*models, *arguments.lora]
    if len(set(names)) < len(names):
        arguments.parser.error("argument --model/--lora: a name is given twice")
    if arguments.fault_times is not None and not arguments.faults:
        arguments.parser.error("argument --fault-times: needs --faults")
    settings = Settings(
        host=arguments.host,
        port=arguments.port,
        models=models,
        loras=tuple(arguments.lora),
        any_adapter=arguments.any_adapter,
        max_model_len=arguments.max_model_len,
        vocab=arguments.vocab_size,
        delay_s=arguments.delay_s,
        keepalive_s=arguments.keepalive_s,
        faults=arguments.faults,
        fault_times=arguments.fault_times,
        barrier=arguments.barrier,
    )
    # Collecting the imports and the tape again and again would show up in measurements.
    gc.set_threshold(50_000, 20, 100)
    try:
        uvloop.run(serve(settings))
    except ListenError as error:
        print(f"loadgen upstream: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError("an empty name")
    return names


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"not a whole number: {text!r}") from None
        if value < least or (most is not None and value > most):
            bound = f"at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be {bound}, got {value}")
        return value

    return convert


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number of seconds: {text!r}") from None
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"must be zero or more seconds, got {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
