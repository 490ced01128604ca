"""Few tokens, packed without an array around them, against any number of them."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asgi_gateway.codec import FEW, Want, values
from asgi_gateway.codec.decode import Decoder, MissingPolicy
from asgi_gateway.codec.encode import encode
from asgi_gateway.errors import Aborted, MissingLogprobs, Unreadable
from tests.codec import bodies

IDS = (
    "0",
    "-0",
    "7",
    "2147483647",
    "2147483648",
    "-1",
    "1.0",
    "1e1",
    "null",
    "true",
    "[7]",
    '"7"',
    "[7,7]",
)
NAMES = (
    *('"token_id:0"', '"token_id:5,token_id:6"', '"token_id:151935"', '"token_id:2147483647"'),
    *('"token_id:2147483648"', '"token_id:4294967296"', '"token_id:00000000007"', '"token_id:"'),
    *('"token_id:-1"', '"7"', "7", "null", '["token_id:7"]', "{}"),
)
LOGPROBS = (
    *("-1.5", "-0.0", "0", "-0", "-7", "1e-46", "-5e-324", "0.1", "-11.93245792388916", "-9999.0"),
    *("3.4028235677973365e38", "3.4028235677973366e38", "-1e39", "1e400", "9007199254740993"),
    *("-9223372036854775808", "18446744073709551615", "18446744073709551616"),
    *("null", "false", "[-1.5]", "[-1.5,-1.5]", '"x"', "{}", "NaN"),
)


def listed(values: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    """Mostly good values; about as many as FEW now and then."""
    good = st.sampled_from(values[:1] * 3 + values[2:4])
    return st.lists(good | good | st.sampled_from(values), max_size=5) | st.integers(
        FEW - 1, FEW + 1
    ).flatmap(lambda length: st.lists(good, min_size=length, max_size=length))


def outcome(decoder: Decoder, body: bytes, want: Want) -> bytes | str:
    try:
        return encode(decoder.decode(body, want, 3))
    except (Unreadable, MissingLogprobs, Aborted) as error:
        return repr(error)


@given(listed(IDS), listed(LOGPROBS), st.booleans(), st.sampled_from(["fail", "nan"]))
@example(["7", "7", "7"], ["-1.5", "[-1.5,-1.5]"], False, "fail")
@example(["7", "[7,7]"], ["-1.5", "-1.5", "-1.5"], False, "fail")
@example(["7", "[7,7]"], ["-1.5", "[-1.5,-1.5]"], False, "fail")
@settings(max_examples=1000, deadline=None)
def test_few_tokens_are_what_many_are(
    ids: list[str], logprobs: list[str], as_many: bool, policy: MissingPolicy
) -> None:
    if as_many:
        ids = (ids * len(logprobs))[: len(logprobs)]
    choice = bodies.choice(token_ids="IDS", logprobs={"token_logprobs": "LOGPROBS"})
    body = (
        bodies.body(choice)
        .replace(b'"IDS"', f"[{','.join(ids)}]".encode())
        .replace(b'"LOGPROBS"', f"[{','.join(logprobs)}]".encode())
    )
    check_few(body, Want(), policy)


@given(
    listed(NAMES),
    listed(LOGPROBS),
    st.booleans(),
    st.sampled_from(["fail", "nan"]),
)
@settings(max_examples=600, deadline=None)
def test_few_names_are_what_many_are(
    names: list[str], logprobs: list[str], as_many: bool, policy: MissingPolicy
) -> None:
    if as_many:
        names = (names * len(logprobs))[: len(logprobs)]
    choice = bodies.choice(logprobs={"token_logprobs": "LOGPROBS", "tokens": "NAMES"})
    body = (
        bodies.body(choice)
        .replace(b'"NAMES"', f"[{','.join(names)}]".encode())
        .replace(b'"LOGPROBS"', f"[{','.join(logprobs)}]".encode())
    )
    check_few(body, Want(named_tokens=True), policy)


def check_few(body: bytes, want: Want, policy: MissingPolicy) -> None:
    found = outcome(Decoder(policy), body, want)
    with pytest.MonkeyPatch.context() as patch:
        # Nothing is few.
        patch.setattr(values, "FEW", -1)
        assert found == outcome(Decoder(policy), body, want)
