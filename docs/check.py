"""Checks the docs: links lead somewhere, examples are tested ones, what is generated is fresh,
names and metrics of ours exist, every method of the SDK has its verdict, and what a reader would
copy is taken by whoever it is for.

Run by `make check`. Prints every problem and exits 1, or nothing and exits 0.
"""

import pkgutil
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import cli_reference
import commands_check
import http_routes
import metrics_reference
import scaling_plan
import sdk_support
import settings_reference
import states_drawing

from asgi_gateway.store.states import Event

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"`(?:from |import )?(asgi_gateway(?:\.\w+)+)(?=[`(. ])")
METRIC = re.compile(r"\b(asgi_gateway_[a-z0-9_]+)(?=[`{ \[])")
REFERENCE = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
ITEM = re.compile(r"([-*]|1\.) ")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Headings as the anchors that a forge makes of them."""
    text = FENCE.sub("", page.read_text())
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in HEADING.findall(text)
    }


def broken_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            yield f"{page.relative_to(ROOT)}: no file {target}"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            yield f"{page.relative_to(ROOT)}: no heading for {target}"


def wrong_code(page: Path) -> Iterator[str]:
    """Python that does not compile, and a README snippet other than the tested example."""
    blocks = CODE.findall(page.read_text())
    for block in blocks:
        try:
            compile(block, str(page), "exec", flags=0x2000)  # allows top-level await
        except SyntaxError as error:
            yield f"{page.relative_to(ROOT)}: an example does not compile: {error}"
    if page.name == "embedding.md":
        programs = [path.read_text() for path in (ROOT / "examples/embed").glob("*.py")]
        for block in blocks:
            if not any(block in program for program in programs):
                yield f"{page.relative_to(ROOT)}: no program of examples/embed has {block[:60]!r}"
    sample = (ROOT / "examples/sample.py").read_text()
    if page.name in ("README.md", "index.md") and sample not in blocks:
        yield f"{page.name}: the snippet is not examples/sample.py"


def wrong_names(page: Path) -> Iterator[str]:
    """Dotted names of ours in backticks that cannot be imported."""
    for name in sorted(set(NAME.findall(FENCE.sub("", page.read_text())))):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            yield f"{page.relative_to(ROOT)}: there is no {name}"


def wrong_metrics(page: Path) -> Iterator[str]:
    """Metrics in backticks that the reference does not have."""
    if page.name == "CHANGELOG.md":  # of every release
        return
    known = set(REFERENCE.findall(metrics_reference.PAGE.read_text()))
    for name in sorted(set(METRIC.findall(FENCE.sub("", page.read_text()))) - known):
        if re.sub("_(bucket|sum|count)$", "", name) not in known:
            yield f"{page.relative_to(ROOT)}: there is no metric {name}"


def wrong_events(page: Path) -> Iterator[str]:
    """Events of a sample that the page of its life has too many or too few of."""
    if page.name == "how-it-works.md":
        told = set(REFERENCE.findall(page.read_text()))
        for name in sorted(told ^ {event.name.lower() for event in Event}):
            yield f"{page.relative_to(ROOT)}: the table of events and the code differ in {name}"


def wrong_lists(page: Path) -> Iterator[str]:
    """Lists that a forge shows and the site would run into the paragraph above, or not nest."""
    lines = ("\n" + FENCE.sub("", page.read_text())).splitlines()
    for before, line in pairwise(lines):
        if ITEM.match(line) and before.strip() and not re.match(r"\s*([-*]|\d+\.) |\s", before):
            yield f"{page.relative_to(ROOT)}: no empty line before {line[:60]!r}"
        if re.match(r" {1,3}([-*]|\d+\.) ", line):
            yield f"{page.relative_to(ROOT)}: not nested by four spaces: {line[:60]!r}"


def main() -> int:
    problems = [problem for page in pages() for check in CHECKS for problem in check(page)]
    for generated in (
        sdk_support,
        settings_reference,
        cli_reference,
        metrics_reference,
        http_routes,
        scaling_plan,
        states_drawing,
    ):
        problems += generated.problems()
    for problem in problems:
        sys.stderr.write(problem + "\n")
    return 1 if problems else 0


CHECKS = (
    broken_links,
    wrong_code,
    wrong_names,
    wrong_metrics,
    wrong_events,
    wrong_lists,
    *commands_check.CHECKS,
)

if __name__ == "__main__":
    raise SystemExit(main())
