"""How ids and sessions lead to their group."""

import pytest

from asgi_gateway.ids import Ids
from asgi_gateway.shared.groups import GROUPS, group_of, group_of_session, numbered, tags


def test_an_id_leads_to_the_group_of_its_session() -> None:
    for session in ("sampler-1", "s", "x" * 200, "é"):
        group = group_of_session(session)
        assert 0 <= group < GROUPS
        for count in (0, 1, 2**40):
            assert group_of(f"0123456789-{numbered(count, group):x}-{'_' * 16}") == group


def test_the_ids_of_today_have_the_shape() -> None:
    assert group_of(Ids().issue("caller")) == 0


@pytest.mark.parametrize(
    "other",
    [
        "",
        "id-7",
        "0123456789--AAAAAAAAAAAAAAAA",
        "0123456789-+1-AAAAAAAAAAAAAAAA",
        "0123456789-1_0-AAAAAAAAAAAAAAAA",
        "0123456789-1-AAAAAAAAAAAAAAAA\n",
        "0123456789-1F-AAAAAAAAAAAAAAAA",
        "0123456789-1-AAAAAAAAAAAAAAAAA",
        "é123456789-1-AAAAAAAAAAAAAAAA",
    ],
)
def test_what_is_no_id_of_ours_has_no_group(other: str) -> None:
    assert group_of(other) is None


def test_sessions_spread_over_the_groups() -> None:
    counts = [0] * GROUPS
    for number in range(GROUPS * 20):
        counts[group_of_session(f"session-{number}:sampler")] += 1
    assert min(counts) > 0
    assert max(counts) < 60


def test_a_tag_is_one_slots_name() -> None:
    assert (tags("agw")[0x3F], tags("agw")[0]) == (b"{agw:3f}", b"{agw:00}")
    assert len(set(tags("agw"))) == GROUPS
