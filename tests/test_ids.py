"""Request ids (policies 3): what was issued is told from what never was, without keeping any."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgi_gateway.errors import Foreign, Gone, NotFound
from asgi_gateway.ids import REQUEST, SAMPLER, Ids

SHAPE = re.compile(r"[A-Za-z0-9_-]{1,128}")
KEY = "a key that several processes share"
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"


def tampered(request_id: str, position: int) -> str:
    """The id with another character at one position."""
    old = request_id[position]
    new = ALPHABET[(ALPHABET.index(old) + 1) % len(ALPHABET)]
    return request_id[:position] + new + request_id[position + 1 :]


@given(st.text(max_size=20))
def test_an_id_has_the_shape_of_the_wire(caller: str) -> None:
    ids = Ids()
    for _ in range(3):
        assert SHAPE.fullmatch(ids.issue(caller))


def test_ids_differ() -> None:
    ids = Ids()
    assert len({ids.issue("caller") for _ in range(1000)}) == 1000


def test_the_counter_does_not_outgrow_the_shape() -> None:
    ids = Ids()
    for number in (0, 2**32, 2**63):
        ids._counter = iter([number])  # type: ignore[assignment]
        request_id = ids.issue("caller")
        assert SHAPE.fullmatch(request_id)
        assert isinstance(ids.missing(request_id, "caller"), Gone)


@pytest.mark.parametrize("key", [None, KEY])
def test_an_issued_id_is_gone(key: str | None) -> None:
    ids = Ids(key)
    error = ids.missing(ids.issue("caller"), "caller")
    assert isinstance(error, Gone)
    assert error.status == 410


@pytest.mark.parametrize("key", [None, KEY])
def test_another_callers_id_looks_never_issued(key: str | None) -> None:
    ids = Ids(key)
    foreign = ids.missing(ids.issue("alice"), "bob")
    unknown = ids.missing(tampered(ids.issue("bob"), -1), "bob")
    assert isinstance(foreign, NotFound)
    assert (foreign.status, str(foreign)) == (unknown.status, str(unknown))


def test_a_tampered_id_of_a_shared_key_is_unknown_at_every_position() -> None:
    ids = Ids(KEY)
    request_id = ids.issue("caller")
    for position in range(len(request_id)):
        assert isinstance(ids.missing(tampered(request_id, position), "caller"), NotFound), position


def test_a_tampered_id_of_this_process_is_unknown() -> None:
    """Counter and MAC; another epoch cannot be checked with a key of this process alone."""
    ids = Ids()
    request_id = ids.issue("caller")
    for position in range(len(ids.epoch), len(request_id)):
        assert isinstance(ids.missing(tampered(request_id, position), "caller"), NotFound), position


def test_a_counter_that_was_not_issued_is_unknown() -> None:
    ids = Ids(KEY)
    _, counter, mac = ids.issue("caller").split("-", 2)
    assert isinstance(
        ids.missing(f"{ids.epoch}-{int(counter, 16) + 1:x}-{mac}", "caller"), NotFound
    )


def test_an_id_of_another_epoch_gets_the_benefit_of_the_doubt_from_a_process_key() -> None:
    before, after = Ids(), Ids()
    assert isinstance(after.missing(before.issue("caller"), "caller"), Gone)


def test_an_id_of_another_epoch_is_checked_with_a_shared_key() -> None:
    before, after = Ids(KEY), Ids(KEY)
    request_id = before.issue("caller")
    assert before.epoch != after.epoch
    assert isinstance(after.missing(request_id, "caller"), Gone)
    assert isinstance(after.missing(request_id, "another"), NotFound)
    assert isinstance(after.missing(tampered(request_id, -1), "caller"), NotFound)
    assert isinstance(
        after.missing(Ids("another key altogether").issue("caller"), "caller"), NotFound
    )


def test_any_given_key_is_a_shared_one() -> None:
    """Also an empty one, so that what `missing` believes and what the MAC uses cannot differ."""
    request_id = Ids("").issue("caller")
    assert isinstance(Ids("").missing(request_id, "caller"), Gone)
    assert isinstance(Ids("").missing(tampered(request_id, -1), "caller"), NotFound)


def test_two_processes_without_a_key_do_not_share_one() -> None:
    one, two = Ids(), Ids()
    two.epoch = one.epoch
    assert isinstance(two.missing(one.issue("caller"), "caller"), NotFound)


WELL_FORMED = "0123abcdef-0-AbCdEfGh_-012345"


@pytest.mark.parametrize(
    "request_id",
    [
        "",
        "x" * 129,
        "a:b",
        "a b",
        "ä",
        "a\n",
        "a/b",
        "a\0",
        "+" * 16,
        WELL_FORMED + "\n",
        WELL_FORMED + "=",
    ],
)
def test_a_malformed_id_is_unknown_and_the_text_says_the_shape(request_id: str) -> None:
    error = Ids().missing(request_id, "caller")
    assert isinstance(error, NotFound)
    assert "1 to 128 characters" in str(error)


@pytest.mark.parametrize(
    "request_id",
    [
        "x",
        "x" * 128,
        "--",
        WELL_FORMED.upper(),
        WELL_FORMED[:-1],
        WELL_FORMED + "A",
        "-" + WELL_FORMED,
        WELL_FORMED.replace("-", "_"),
        "0123456789-" + "f" * 17 + "-" + "A" * 16,
        "0123456789--" + "A" * 16,
        "012345678g-0-" + "A" * 16,
    ],
)
def test_an_id_not_in_our_form_is_unknown_even_to_a_process_key(request_id: str) -> None:
    assert isinstance(Ids().missing(request_id, "caller"), NotFound)


def test_a_sequence_id_is_no_request_id() -> None:
    ids = Ids()
    assert isinstance(ids.missing(ids.issue("caller") + "-0", "caller"), NotFound)


@given(st.text(max_size=140), st.sampled_from([None, KEY]))
def test_no_text_breaks_it(request_id: str, key: str | None) -> None:
    assert isinstance(Ids(key).missing(request_id, "caller"), (Gone, NotFound))


def test_a_caller_cannot_imitate_another_triple() -> None:
    """The MAC covers stem, purpose and caller apart: moving a border changes it."""
    ids = Ids(KEY)
    assert ids._mac("b", REQUEST, "a") != ids._mac("", REQUEST, "ab")
    assert ids._mac("c", "p", "a\0b") == ids._mac("p\0c", "b", "a"), "why a stem holds no NUL"
    assert "\0" not in ids.issue("a\0b")


def test_an_id_serves_one_purpose() -> None:
    ids = Ids(KEY)
    sampler = ids.issue("caller", SAMPLER)
    assert ids.may_be_ours(sampler, "caller", SAMPLER)
    assert not ids.may_be_ours(sampler, "caller", REQUEST)
    assert isinstance(ids.missing(sampler, "caller"), NotFound)


def test_an_id_of_another_make_is_foreign() -> None:
    """A trainer's ids, decimal say, go on to the trainer where there is one."""
    ids = Ids(KEY)
    assert isinstance(ids.missing("12345", "caller"), Foreign)
    forged = ids.issue("caller")[:-1]
    assert not isinstance(ids.missing(ids.issue("caller"), "another"), Foreign)
    assert isinstance(ids.missing(forged, "caller"), Foreign)
