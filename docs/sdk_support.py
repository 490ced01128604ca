"""Writes docs/sdk-support.md from docs/sdk-support.json, which `make sdk-matrix` writes.

    python docs/sdk_support.py [--check]

With --check nothing is written: it says where the page is stale, and which public methods of the
installed SDK have no verdict yet.
"""

import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from generated import run, stale

DOCS = Path(__file__).resolve().parent
RESULTS, PAGE = DOCS / "sdk-support.json", DOCS / "sdk-support.md"
CLASSES = ("SamplingClient", "ServiceClient", "RestClient", "APIFuture")
MARKS = {"works": "yes", "absent": "–", "fails": "**no**"}

HEAD = """\
# SDK support

Written by `make sdk-matrix`, which runs every SDK listed here in an environment of its own against
a gateway on a socket and the stand-in vLLM. Tokens and logprobs are compared bit for bit.

## Releases

"yes" is a test that passed, "–" something that this release does not have; releases in between are
not run. Polls are single, one for each sample, or batched: from 0.27 on a client polls for all of
its samples at once where the gateway says so (`client.sample_use_retrieve_futures`, on wherever
there is a journal).

"""

METHODS = """
## Methods of SDK {newest}

Every public method on the sampling side, called without a trainer. "works" went to the gateway,
"works in the client" needed no request. What needs a trainer goes there where `training.url` or an
embedded application gives one, and is refused by name otherwise, at once. `_async` forms do the
same.

"""


def public(name: str) -> list[str]:
    """What a class of the installed SDK offers: methods and properties."""
    import tinker

    return [member for member in dir(getattr(tinker, name)) if not member.startswith("_")]


def page(results: dict[str, Any]) -> str:
    return "".join((HEAD, releases(results), METHODS.format(**results), methods(results)))


def releases(results: dict[str, Any]) -> str:
    columns = [(sdk, style) for sdk, styles in results["sdks"].items() for style in styles]
    lines = [
        f"| | {' | '.join(sdk for sdk, _ in columns)} |",
        f"|---{'|---' * len(columns)}|",
        f"| polls | {' | '.join(style for _, style in columns)} |",
    ]
    for case, title in results["cases"].items():
        found = [results["sdks"][sdk][style].get(case, "absent") for sdk, style in columns]
        lines.append(f"| {title} | {' | '.join(MARKS[one] for one in found)} |")
    return "\n".join(lines) + "\n"


def methods(results: dict[str, Any]) -> str:
    """A row per method; neighbours of one class with one verdict share it."""
    lines = ["| of | methods | without a trainer |", "|---|---|---|"]
    for name in CLASSES:
        verdicts = results["methods"][name]
        named = [
            (method, verdict)
            for method, verdict in sorted(verdicts.items(), key=_by_verdict)
            if verdicts.get(method.removesuffix("_async")) != verdict
            or not method.endswith("_async")
            or method == "result_async"
        ]
        for verdict, rows in groupby(named, key=lambda item: item[1]):
            shown = ", ".join(f"`{method}`" for method, _ in rows)
            lines.append(f"| {name} | {shown} | {verdict} |")
    return "\n".join(lines) + "\n"


def _by_verdict(item: tuple[str, str]) -> tuple[int, str, str]:
    """What works first, then what a trainer adds, then what is refused."""
    method, verdict = item
    return ["works", "needs", "refused"].index(re.split("[ :]", verdict)[0]), verdict, method


def problems() -> Iterator[str]:
    """What is stale or missing, one line each."""
    results = json.loads(RESULTS.read_text())
    yield from stale(PAGE, page(results))
    if results["newest"] != version("tinker"):
        yield f"docs/sdk-support.json is of SDK {results['newest']}: run make sdk-matrix"
    for name in CLASSES:
        there, told = set(public(name)), set(results["methods"].get(name, ()))
        for method in sorted(there ^ told):
            said = "has no verdict" if method in there else "is no more"
            yield f"docs/sdk-support.json: {name}.{method} {said}: run make sdk-matrix"


if __name__ == "__main__":
    raise SystemExit(run(PAGE, lambda: page(json.loads(RESULTS.read_text())), problems))
