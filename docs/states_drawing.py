"""Draws docs/states.svg from the gateway's own table of a sample's states and events.

    python docs/states_drawing.py [--check]

With --check nothing is written: it says where the drawing is stale, exit status 1. A state without
a place and an arrow that crosses another state's box are errors, so a changed table wants a look
here.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from generated import run, stale

from asgi_gateway.store.states import TABLE, Event, State

DRAWING = Path(__file__).resolve().with_name("states.svg")
WIDTH, HEIGHT = 860, 480
# Centres of the boxes; which states there are and what leads where is the table's to say.
PLACES = {
    "QUEUED": (120, 110),
    "RUNNING": (120, 370),
    "CANCELLED": (440, 80),
    "FAILED": (440, 240),
    "SUCCEEDED": (440, 400),
    "GONE": (740, 240),
}
HALF_WIDTH, HALF_HEIGHT = 66, 22
APART = 14  # of the two arrows between one pair
BEGINS = min(State).name

STYLE = """
  .paper { fill: #ffffff } .box { fill: #eef2fb; stroke: #35507a } .line { stroke: #4a5568 }
  .head { fill: #4a5568 } .name { fill: #14213d } .event { fill: #23395d }
  .end { stroke-dasharray: 5 3 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #1b1e27 } .box { fill: #27304a; stroke: #9db4e0 } .line { stroke: #a9b3c7 }
    .head { fill: #a9b3c7 } .name { fill: #f0f3fa } .event { fill: #d5deee }
  }
  text { font-family: system-ui, sans-serif; font-size: 15px; text-anchor: middle }
  .name { font-weight: 600 }
  .event { paint-order: stroke; stroke-width: 5px; stroke-linejoin: round; font-size: 14px }
  .event { stroke: #ffffff }
  @media (prefers-color-scheme: dark) { .event { stroke: #1b1e27 } }
"""


class Point(NamedTuple):
    x: float
    y: float


def arrows() -> dict[tuple[str, str], list[str]]:
    """(from, to) -> names of the events that lead there."""
    found: dict[tuple[str, str], list[str]] = {}
    for state in State:
        for event in Event:
            outcome = TABLE[state][event]
            if isinstance(outcome, State):
                found.setdefault((state.name, outcome.name), []).append(event.name.lower())
    return found


def sentences() -> Iterator[str]:
    """The same in words, for whoever does not see the drawing."""
    for (source, target), events in arrows().items():
        yield f"{source} to {target} by {' or '.join(events)}"


def ends(source: str, target: str, *, paired: bool) -> tuple[Point, Point]:
    """Where an arrow begins and ends: on the borders of the two boxes, beside its opposite."""
    a, b = Point(*PLACES[source]), Point(*PLACES[target])
    length = math.dist(a, b)
    along = Point((b.x - a.x) / length, (b.y - a.y) / length)
    shift = APART if paired else 0
    a = Point(a.x - along.y * shift, a.y + along.x * shift)
    b = Point(b.x - along.y * shift, b.y + along.x * shift)
    reach = border(along)
    return (
        Point(a.x + along.x * reach, a.y + along.y * reach),
        Point(b.x - along.x * (reach + 3), b.y - along.y * (reach + 3)),
    )


def border(along: Point) -> float:
    """How far it is from the centre of a box to its border."""
    return min(
        HALF_WIDTH / abs(along.x) if along.x else math.inf,
        HALF_HEIGHT / abs(along.y) if along.y else math.inf,
    )


def crossed(a: Point, b: Point, but: tuple[str, str]) -> Iterator[str]:
    """States whose box the line from a to b goes through."""
    for name, (x, y) in PLACES.items():
        if name not in but:
            for step in range(101):
                t = step / 100
                px, py = a.x + (b.x - a.x) * t, a.y + (b.y - a.y) * t
                if abs(px - x) <= HALF_WIDTH and abs(py - y) <= HALF_HEIGHT:
                    yield name
                    break


def drawing() -> str:
    """The SVG. Raises ValueError where the table and the places do not fit each other."""
    if PLACES.keys() != {state.name for state in State}:
        raise ValueError("docs/states_drawing.py: PLACES are not the states of the table")
    found = arrows()
    lines, words = [], []
    for (source, target), events in found.items():
        a, b = ends(source, target, paired=(target, source) in found)
        through = list(crossed(a, b, (source, target)))
        if through:
            raise ValueError(f"docs/states_drawing.py: {source} to {target} crosses {through}")
        lines.append(
            f'<line class="line" x1="{a.x:.1f}" y1="{a.y:.1f}" x2="{b.x:.1f}" y2="{b.y:.1f}"/>'
            f"{head(a, b)}"
        )
        # Nearer to its beginning: at the end several arrows meet.
        x, y = a.x + (b.x - a.x) * 0.36, a.y + (b.y - a.y) * 0.36 + 5
        words.append(f'<text class="event" x="{x:.1f}" y="{y:.1f}">{", ".join(events)}</text>')
    leaving = {source for source, _ in found}
    boxes = []
    for name, (x, y) in PLACES.items():
        last = "" if name in leaving else " end"
        boxes.append(
            f'<rect class="box{last}" x="{x - HALF_WIDTH}" y="{y - HALF_HEIGHT}"'
            f' width="{2 * HALF_WIDTH}" height="{2 * HALF_HEIGHT}" rx="8"/>'
            f'<text class="name" x="{x}" y="{y + 5}">{name}</text>'
        )
    x, y = PLACES[BEGINS]
    a, b = Point(x, y - HALF_HEIGHT - 45), Point(x, y - HALF_HEIGHT - 3)
    lines.append(f'<line class="line" x1="{a.x}" y1="{a.y}" x2="{b.x}" y2="{b.y}"/>{head(a, b)}')
    words.append(f'<text class="event" x="{a.x}" y="{a.y - 6}">accepted</text>')
    title = f"States of a sample. Accepted as {BEGINS}. {'. '.join(sentences())}."
    body = "\n".join((*lines, *boxes, *words))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-labelledby="title">\n<title id="title">{title}</title>\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>\n'
        f'<g stroke-width="1.6">\n{body}\n</g>\n</svg>\n'
    )


def head(a: Point, b: Point) -> str:
    """The point of an arrow that ends at b."""
    length = math.dist(a, b)
    x, y = (b.x - a.x) / length, (b.y - a.y) / length
    left = f"{b.x - 10 * x - 5 * y:.1f},{b.y - 10 * y + 5 * x:.1f}"
    right = f"{b.x - 10 * x + 5 * y:.1f},{b.y - 10 * y - 5 * x:.1f}"
    return f'<path class="head" d="M{b.x:.1f},{b.y:.1f} L{left} L{right} Z"/>'


def problems() -> list[str]:
    """That the drawing is stale, or cannot be made."""
    try:
        return stale(DRAWING, drawing())
    except ValueError as error:
        return [str(error)]


if __name__ == "__main__":
    raise SystemExit(run(DRAWING, drawing, problems))
