"""The client against its floor, in small: `loadgen cost` runs it at length."""

import pytest

from loadgen.cost import measure


@pytest.mark.parametrize("style", ["future", "futures"])
async def test_floor_and_client_are_measured_in_turns(style: str) -> None:
    """No bar on a machine that does other things, too; that both do the same work is tested."""
    turns = await measure(style, 300, 2)
    assert len(turns) == 2
    for turn in turns:
        assert 5 < turn.floor < turn.client * 3
        assert turn.client < 5_000
