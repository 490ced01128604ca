"""The client against its floor, in small: `loadgen cost` runs it at length."""

from __future__ import annotations

import itertools

import pytest

from loadgen import cost
from loadgen.__main__ import parser
from loadgen.cost import LEAST_TURNS, Turn, measure


@pytest.mark.parametrize("style", ["future", "futures"])
async def test_floor_and_client_are_measured_in_turns(style: str) -> None:
    """No bar on a machine that does other things, too; that both do the same work is tested."""
    turns = await measure(style, 300, 2)
    assert len(turns) == 2
    for turn in turns:
        assert 5 < turn.floor < turn.client * 3
        assert turn.client < 5_000


@pytest.mark.parametrize(
    ("looks_s", "within_s", "made"),
    [
        (1.0, 8.0, 12),  # quick enough: all of them
        (1.0, 3.0, LEAST_TURNS + 2),
        (60.0, 40.0, LEAST_TURNS),  # however slow
    ],
)
async def test_turns_end_when_the_time_is_used(looks_s: float, within_s: float, made: int) -> None:
    """By a clock that each look moves on; it is looked at before a turn, once enough are made."""
    looks = itertools.count()
    turns = await measure("future", 300, 12, within_s, lambda: looks_s * next(looks))
    assert len(turns) == made


def test_what_runs_unless_told_otherwise_is_bounded() -> None:
    plan = parser().parse_args(["cost"])
    assert (plan.samples, plan.turns, plan.within_s) == (cost.SAMPLES, cost.TURNS, cost.WITHIN_S)
    assert plan.within_s <= 45
    # 25 turns of 2,000 samples that cost three times 0.1 ms, client, floor and server.
    assert plan.samples * (plan.turns + 1) * 0.3e-3 < plan.within_s


def test_the_figure_is_the_median_of_the_pairs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the ratio of the medians, which mixes turns that met different machines."""

    async def measured(*_: object) -> list[Turn]:
        return [Turn(10, 14), Turn(30, 42), Turn(20, 100)]

    monkeypatch.setattr(cost, "measure", measured)
    assert cost.report("future", 1, 3, 1.0) == 0
    assert "1.40 times two leanest POSTs, median of 3 pairs (the target is 1.5" in (
        capsys.readouterr().out
    )
