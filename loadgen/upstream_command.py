"""`loadgen upstream`: its flags, and what they come to."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from loadgen.arguments import names, seconds, share, whole

if TYPE_CHECKING:
    from loadgen.settings import Settings

USAGE_ERROR: Final = 2
BY_PROMPT: Final = "prompt"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "upstream",
        help="serve a stand-in vLLM",
        description="A stand-in vLLM: real response shape, deterministic content, next to no CPU. "
        "Answers at once unless --gen-seconds, --max-num-seqs or --barrier say otherwise.",
    )
    _add_served(parser)
    _add_timing(parser)
    _add_answers(parser)
    _add_faults(parser)
    parser.set_defaults(run=run, parser=parser)


def _add_served(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--host",
        action="extend",
        type=names,
        metavar="ADDRESS",
        help="address to listen on, repeatable or comma-separated (default: 127.0.0.1)",
    )
    add(
        "--port",
        type=whole(0, 65_535),
        default=8001,
        help="0 picks a free port (default: %(default)s)",
    )
    add(
        "--processes",
        type=whole(1, 256),
        default=1,
        metavar="N",
        help="so many on the same port; counts and barrier are those of all (default: %(default)s)",
    )
    add(
        "--model",
        action="extend",
        type=names,
        metavar="NAME",
        help="served model, repeatable or comma-separated (default: stand-in)",
    )
    add(
        "--lora",
        action="extend",
        type=names,
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
        type=whole(2),
        default=65_536,
        metavar="N",
        help="context in tokens (default: %(default)s)",
    )
    add(
        "--vocab-size",
        type=whole(2_000),
        default=151_936,
        metavar="N",
        help="ids in all (default: %(default)s)",
    )
    add(
        "--keepalive-s",
        type=seconds,
        default=5.0,
        metavar="S",
        help="close connections idle for so long (default: %(default)s)",
    )
    add(
        "--ceiling",
        action="store_true",
        help="measure what it can do on this machine, print it and leave",
    )


def _add_timing(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--gen-seconds",
        "--delay-s",
        dest="gen_seconds",
        type=seconds,
        default=0.0,
        metavar="S",
        help="a generation takes so long (default: %(default)s)",
    )
    add(
        "--jitter",
        type=share,
        default=0.0,
        metavar="J",
        help="by this share of it more or less, uniformly (default: %(default)s)",
    )
    add(
        "--max-num-seqs",
        type=whole(1),
        metavar="N",
        help="choices generated at once; the rest waits, first come first served",
    )
    add(
        "--barrier",
        type=whole(1),
        nargs="?",
        const=0,
        metavar="K",
        help="hold answers until K are outstanding, or until POST /release; POST /hold shuts again",
    )


def _add_answers(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--tokens-dist",
        metavar="SPEC",
        help="draw token counts: uniform:A:B, lognormal:MEDIAN:SIGMA, geometric:MEAN or fixed:N, "
        "at most max_tokens (default: max_tokens)",
    )
    add(
        "--bodies",
        choices=("full", "lean"),
        default="full",
        help="lean leaves out text, token strings and alternatives (default: %(default)s)",
    )
    add(
        "--hits",
        choices=("request-id", "prompt"),
        default="request-id",
        help="under what GET /requests counts arrivals (default: %(default)s)",
    )
    add(
        "--ids-kept",
        type=whole(1),
        metavar="N",
        help="arrivals are known of so many request ids, the latest ones (default: 200000)",
    )
    add("--seed", type=whole(0), default=0, metavar="N", help="of jitter, counts and faults")


def _add_faults(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--faults",
        nargs="?",
        const=BY_PROMPT,
        metavar="SCRIPT",
        help="faults by rate or schedule, such as reset_body:0.01,503:10s-12s; 'prompt' among them "
        "or no script at all lets prompts ask for faults",
    )
    add(
        "--fault-times",
        type=whole(0),
        metavar="N",
        help="give each distinct prompt its fault N times, then the right answer",
    )


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Exits with a message where the flags contradict each other or a spec is wrong."""
    from loadgen import lengths, script
    from loadgen.counts import REQUEST_IDS_CAP
    from loadgen.settings import Settings

    fail = arguments.parser.error
    models = tuple(arguments.model or ("stand-in",))
    hosts = tuple(arguments.host or ("127.0.0.1",))
    for flags, given in (("--model/--lora", (*models, *arguments.lora)), ("--host", hosts)):
        if len(set(given)) < len(given):
            fail(f"argument {flags}: a name is given twice")
    if arguments.fault_times is not None and not arguments.faults:
        fail("argument --fault-times: needs --faults")
    items = [item.strip() for item in (arguments.faults or "").split(",") if item.strip()]
    scripted = ",".join(item for item in items if item != BY_PROMPT)
    try:
        script.parse(scripted)
    except ValueError as error:
        fail(f"argument --faults: {error}")
    try:
        if arguments.tokens_dist is not None:
            lengths.parse(arguments.tokens_dist)
    except ValueError as error:
        fail(f"argument --tokens-dist: {error}")
    return Settings(
        hosts=hosts,
        port=arguments.port,
        models=models,
        loras=tuple(arguments.lora),
        any_adapter=arguments.any_adapter,
        max_model_len=arguments.max_model_len,
        vocab=arguments.vocab_size,
        delay_s=arguments.gen_seconds,
        jitter=arguments.jitter,
        max_num_seqs=arguments.max_num_seqs,
        tokens_dist=arguments.tokens_dist,
        lean=arguments.bodies == "lean",
        keepalive_s=arguments.keepalive_s,
        faults=BY_PROMPT in items,
        script=scripted,
        fault_times=arguments.fault_times,
        barrier=arguments.barrier,
        hits=arguments.hits,
        ids_kept=arguments.ids_kept or REQUEST_IDS_CAP,
        seed=arguments.seed,
    )


def settings_from(flags: Sequence[str]) -> tuple[Settings, int]:
    """What flags of the command come to, and how many processes; exits as `settings_of` does."""
    made = argparse.ArgumentParser(prog="loadgen")
    add_to(made.add_subparsers())
    arguments = made.parse_args(["upstream", *flags])
    return settings_of(arguments), arguments.processes


def run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    from loadgen.serving import ListenError, serve

    try:
        if arguments.ceiling:
            from loadgen.ceiling import report

            report(settings, arguments.processes)
        else:
            serve(settings, arguments.processes)
    except ListenError as error:
        print(f"loadgen upstream: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0
