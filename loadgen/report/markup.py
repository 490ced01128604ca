"""HTML by small pieces. Whatever is not markup already is escaped when it becomes part of some."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Final


class Markup(str):
    """Text that is HTML. Only this module and constants make it."""

    __slots__ = ()


SHORT: Final = 16
"""Letters of a cell that is taken for a figure with its unit."""

Child = Markup | str | int | None


def _inner(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    return "" if child is None else html.escape(_printable(str(child)))


def _printable(text: str) -> str:
    """Without what HTML forbids: controls and halves of characters."""
    return "".join(
        letter
        if letter in "\n\t" or (letter.isprintable() or letter == " ")
        else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )


def tag(name: str, *children: Child, **attributes: str | bool | None) -> Markup:
    """An element. `class_` is class, `aria_label` is aria-label; None and False are left out."""
    opened = name
    for key, value in attributes.items():
        shown = key.rstrip("_").replace("_", "-")
        if value is True:
            opened += f" {shown}"
        elif value is not None and value is not False:
            opened += f' {shown}="{html.escape(_printable(value))}"'
    return Markup(f"<{opened}>{''.join(map(_inner, children))}</{name}>")


def joined(children: Iterable[Child]) -> Markup:
    return Markup("".join(map(_inner, children)))


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Child]]) -> Markup:
    """A table whose first cell of a row names it. It scrolls within itself where it is too wide.

    Columns of short cells only are set as figures: to the right and in one line.
    """
    cells = list(rows)
    kinds: list[str | None] = [None] * len(header)
    for column in range(1, len(header)):
        shown = [row[column] for row in cells]
        if not any(isinstance(cell, Markup) or len(str(cell)) > SHORT for cell in shown):
            kinds[column] = "number"
    head = tag(
        "tr",
        *(
            tag("th", cell, scope="col", class_=kind)
            for cell, kind in zip(header, kinds, strict=True)
        ),
    )
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", cell, class_=kind) for cell, kind in zip(row[1:], kinds[1:], strict=True)),
        )
        for row in cells
    ]
    made = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body))
    # Focusable, as otherwise no key scrolls it.
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def pairs(rows: Iterable[tuple[str, Child]]) -> Markup:
    """Labels and values."""
    return tag("dl", *(tag("div", tag("dt", label), tag("dd", value)) for label, value in rows))


def data(value: object, name: str) -> Markup:
    """JSON for the page's script. No character in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(f'<script type="application/json" id="{html.escape(name)}">{text}</script>')


def mark(ok: bool, good: str, bad: str) -> Markup:
    return tag("span", good if ok else bad, class_="good" if ok else "bad")
