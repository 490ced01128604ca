"""Stops: strings or token ids, and what an empty list of them means."""

from typing import Any

import pytest

from asgi_gateway.errors import Malformed, RequestError, Unsupported
from asgi_gateway.upstream import request as module
from tests.support.sample_request import TOP, made, params, refused, sent


@pytest.mark.parametrize(
    ("stop", "fields"),
    [
        (None, {}),
        ("END", {"stop": ["END"]}),
        ("\n", {"stop": ["\n"]}),
        ('"\\\u2028\U0001f600', {"stop": ['"\\\u2028\U0001f600']}),
        (["\n\n"], {"stop": ["\n\n"]}),
        (["a", "b"], {"stop": ["a", "b"]}),
        (["1"], {"stop": ["1"]}),
        ([128_001, 0, TOP], {"stop_token_ids": [128_001, 0, TOP]}),
        ([], {"ignore_eos": True}),
    ],
    ids=repr,
)
def test_stops_that_mean_something(stop: Any, fields: dict[str, Any]) -> None:
    if "stop" in fields:
        # The stop may be a special token, whose text vLLM leaves out by default.
        fields = fields | {"skip_special_tokens": False}
    whole = sent(params(stop=stop))
    names = ("stop", "stop_token_ids", "ignore_eos", "skip_special_tokens")
    assert {name: whole[name] for name in names if name in whole} == fields


def test_an_empty_list_of_stops_is_as_absent_for_older_sdks() -> None:
    assert made(params(stop=[]), empty_stop_ends_nothing=False) == made(params())
    assert made(params(), empty_stop_ends_nothing=True) == made(params())
    assert module.EMPTY_STOP_SINCE == (0, 38)


@pytest.mark.parametrize(
    ("stop", "kind"),
    [
        ("", Malformed),
        ([""], Malformed),
        (["a", ""], Malformed),
        ([-1], Malformed),
        ([TOP + 1], Malformed),
        ([2**70], Malformed),
        ([1.5], Malformed),
        ([1.0], Malformed),
        ([True], Malformed),
        ([None], Malformed),
        ([["a"]], Malformed),
        ({}, Malformed),
        (5, Malformed),
        (False, Malformed),
        (["a", 1], Unsupported),
        ([1, "a"], Unsupported),
    ],
    ids=repr,
)
def test_stops_that_mean_nothing(stop: Any, kind: type[RequestError]) -> None:
    refused(params(stop=stop), kind, "stop")
