import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgi_gateway.shared.errors import ServerError
from asgi_gateway.shared.resp import LARGE_BYTES, NOTHING, packed, packer, reader
from tests.support.fake_valkey import commands_of

ARGUMENTS = st.one_of(
    st.binary(), st.text(), st.integers(-(1 << 62), 1 << 62), st.just(b"x" * (LARGE_BYTES + 1))
)


def as_sent(argument: bytes | str | int) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode()


@given(st.lists(ARGUMENTS, min_size=1, max_size=9))
def test_both_ways_to_pack_are_the_same(arguments: list[bytes | str | int]) -> None:
    whole = packer()(tuple(arguments))
    assert whole == packed(tuple(arguments))
    assert commands_of(whole) == ([[as_sent(argument) for argument in arguments]], b"")


@pytest.mark.parametrize("wrong", [None, ["x"], object()])
def test_what_cannot_be_sent_is_refused(wrong: object) -> None:
    for others in (("SET",), ("SET", b"x" * (LARGE_BYTES + 1))):
        with pytest.raises((TypeError, AttributeError)):
            packer()((*others, wrong))  # type: ignore[arg-type]


def test_errors_inside_a_reply_are_values() -> None:
    read = reader()
    read.feed(b"*2\r\n:1\r\n-OOM no\r\n+")
    one, error = read.gets()
    assert one == 1
    assert isinstance(error, ServerError)
    assert error.code == "OOM"
    assert read.gets() is NOTHING
