"""What upstream answers mean, by policies.md section 2, on every recorded error and more."""

import json
import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgi_gateway.errors import (
    EngineFault,
    Interrupted,
    Rejected,
    Unavailable,
    UpstreamError,
)
from asgi_gateway.upstream.verdict import MAX_TEXT_CHARACTERS, error_text, judge, printable
from tests.support.recorded import Recorded, recordings


def words(text: str) -> list[str]:
    return text.split()


# What to do with each recorded error, one by one, so that a new recording must be thought about.
USER = words(
    """
    error_bad_json error_context_equal error_context_too_long error_empty_prompt_list
    error_empty_prompt_string error_generate_context_too_long error_generate_empty_prompt
    error_generate_missing_params error_generate_needs_v2_runner error_generate_stop_without_detok
    error_generate_token_out_of_vocab error_generate_unknown_model error_greedy_n2
    error_logprobs_over_max error_logprobs_string error_lora_load_missing error_lora_load_twice
    error_lora_not_enabled error_lora_unload_unknown error_lora_unloaded_model
    error_max_tokens_string error_max_tokens_zero error_n_zero error_not_found error_prompt_floats
    error_prompt_logprobs_stream error_prompt_missing error_seed_too_big error_temperature_above_2
    error_temperature_negative error_token_negative error_token_out_of_vocab error_top_p_zero
    error_unknown_model error_wrong_content_type
    router_bad_json router_logprobs_bool router_logprobs_negative router_max_tokens_float
    router_n_zero router_payload_too_large router_prompt_big_ids router_prompt_empty_list
    router_prompt_missing router_prompt_negative_id router_seed_huge router_temperature_string
    router_unknown_route router_vllm_context_too_long router_vllm_unknown_model
"""
)
OPERATOR = words(
    """
    error_generate_disabled error_method_not_allowed router_method_not_allowed
    router_wrong_content_type
"""
)
NAN = words(
    """
    nan_completion_logprobs0 nan_completion_logprobs0_greedy nan_completion_prompt_logprobs0
    nan_generate_prompt_logprobs0
"""
)
WAIT = words(
    """
    error_overloaded error_overloaded_stream router_circuit_open router_generate_when_down
    router_health_when_down router_models_when_down router_no_healthy_worker router_queue_full
    router_queue_size0 router_readiness_when_down
"""
)
ONCE_MORE = words("error_engine_dead error_engine_dies_in_flight router_upstream_500_no_retry")
LOST = words(
    """
    router_upstream_closes router_upstream_half_body router_upstream_timeout router_worker_refuses
"""
)


def judged(status: int, body: bytes = b"", retry_after: str | None = None) -> UpstreamError:
    error = judge(status, body, retry_after)
    assert error is not None
    return error


def rejection(status: int, body: bytes = b"") -> Rejected:
    error = judged(status, body)
    assert type(error) is Rejected
    return error


def recorded(name: str) -> Recorded:
    one = recordings()[name]
    assert one.status >= 300
    return one


def message(body: bytes) -> str:
    """The upstream's own words, by a second reading of the body."""
    if not body.startswith(b"{"):
        return body.decode()
    whole = json.loads(body)
    if "error" in whole:
        return str(whole["error"]["message"])
    return str(whole.get("detail", body.decode()))


def check_text(error: UpstreamError, one: Recorded) -> None:
    """It has the status, and the upstream's words in the order they came, on one line."""
    said = message(one.body).replace("\n", " ")
    text = f"the upstream answered {one.status}" + (f": {said}" if said else "")
    assert str(error) == text[: len(str(error))]
    assert len(str(error)) == len(text) or len(str(error)) >= MAX_TEXT_CHARACTERS
    assert "\n" not in str(error)


def test_every_recorded_error_is_judged_below() -> None:
    lists = [USER, OPERATOR, NAN, WAIT, ONCE_MORE, LOST]
    names = [name for one in lists for name in one]
    assert len(names) == len(set(names))
    assert set(names) == {one.name for one in recordings().values() if one.status >= 300}


@pytest.mark.parametrize("name", USER)
def test_the_users_mistakes_come_with_the_upstreams_words(name: str) -> None:
    one = recorded(name)
    error = rejection(one.status, one.body)
    assert error.category == "user"
    check_text(error, one)


@pytest.mark.parametrize("name", OPERATOR + NAN)
def test_what_the_user_cannot_mend_is_the_servers(name: str) -> None:
    one = recorded(name)
    error = rejection(one.status, one.body)
    assert error.category == "server"
    check_text(error, one)
    assert (one.status == 400) == (name in NAN)


@pytest.mark.parametrize("name", WAIT)
def test_what_did_not_run_waits(name: str) -> None:
    one = recorded(name)
    error = judged(one.status, one.body)
    assert type(error) is Unavailable
    assert error.retry_after_s is None
    check_text(error, one)


@pytest.mark.parametrize("name", ONCE_MORE)
def test_a_json_500_is_tried_once_more(name: str) -> None:
    one = recorded(name)
    error = judged(one.status, one.body)
    assert type(error) is EngineFault
    assert error.category == "server"
    check_text(error, one)


@pytest.mark.parametrize("name", LOST)
def test_the_routers_own_500_is_a_lost_connection(name: str) -> None:
    one = recorded(name)
    error = judged(one.status, one.body)
    assert type(error) is Interrupted
    check_text(error, one)


def test_the_context_error_has_its_numbers() -> None:
    text = str(rejection(400, recorded("router_vllm_context_too_long").body))
    assert "65536" in text
    assert "70000" in text


# --- statuses ------------------------------------------------------------------------------------

JSON_ERROR = b'{"error":{"message":"why","type":"X","param":null,"code":0}}'
STATUSES: dict[type[UpstreamError], list[int]] = {
    Unavailable: [408, 429, 503],
    Interrupted: [501, 502, 504, 505, 507, 520, 599, 600, 999],
}


@pytest.mark.parametrize("body", [b"", b"why", JSON_ERROR, b"<html></html>", b"\xff\x00"])
@pytest.mark.parametrize(
    ("kind", "status"), [(kind, status) for kind, all_ in STATUSES.items() for status in all_]
)
def test_statuses_that_mean_the_same_with_any_body(
    kind: type[UpstreamError], status: int, body: bytes
) -> None:
    assert type(judged(status, body)) is kind


@pytest.mark.parametrize("body", [b"", b"why", JSON_ERROR, b"<html></html>", b"\xff\x00"])
@pytest.mark.parametrize("status", [400, 402, 404, 406, 409, 410, 413, 414, 422, 431, 451, 499])
def test_other_4xx_are_the_users(status: int, body: bytes) -> None:
    assert rejection(status, body).category == "user"


@pytest.mark.parametrize("body", [b"", b"why", JSON_ERROR, b'{"error": "Unauthorized"}'])
@pytest.mark.parametrize("status", [401, 403, 405, 415, 100, 199, 300, 301, 302, 304, 307, 399])
def test_what_the_operator_has_to_mend(status: int, body: bytes) -> None:
    assert rejection(status, body).category == "server"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (JSON_ERROR, EngineFault),
        (b" {} ", EngineFault),
        (b'{"detail":"Internal Server Error"}', EngineFault),
        (b"", Interrupted),
        (b"Internal Server Error", Interrupted),
        (b"<html></html>", Interrupted),
        (b'"text"', Interrupted),
        (b"[1]", Interrupted),
        (b"null", Interrupted),
        (JSON_ERROR[:-1], Interrupted),
        (b"{" * 100_000, Interrupted),
        (b'{"a":\xff}', Interrupted),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_500_is_the_engines_only_as_a_json_object(body: bytes, kind: type[UpstreamError]) -> None:
    assert type(judged(500, body)) is kind


@pytest.mark.parametrize("status", [200, 201, 204, 206, 299])
def test_a_2xx_is_for_decoding(status: int) -> None:
    assert judge(status, b"anything", "5") is None


def test_nan_is_the_servers_only_where_vllm_says_so_with_400() -> None:
    mark = b'{"error":{"message":"Out of range float values are not JSON compliant"}}'
    assert rejection(400, mark).category == "server"
    assert rejection(400, b"Out of range float values are not JSON compliant").category == "server"
    assert rejection(422, mark).category == "user"
    assert rejection(400, b'{"error":{"message":"temperature is out of range"}}').category == "user"


# --- Retry-After ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("0", 0.0),
        ("5", 5.0),
        (" 7 ", 7.0),
        ("1.5", 1.5),
        ("120", 120.0),
        ("-1", 0.0),
        ("nan", None),
        ("inf", None),
        ("-inf", None),
        ("1e999", None),
        ("soon", None),
        ("5;6", None),
        ("9" * 5000, None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", None),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize("status", [408, 429, 503])
def test_the_upstreams_wish_to_be_left_alone(
    header: str | None, seconds: float | None, status: int
) -> None:
    error = judged(status, b"busy", header)
    assert type(error) is Unavailable
    assert error.retry_after_s == seconds


def test_no_other_status_has_a_wish() -> None:
    assert judged(500, JSON_ERROR, "5").retry_after_s is None
    assert judged(502, b"", "5").retry_after_s is None
    assert judged(400, b"", "5").retry_after_s is None


# --- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", ""),
        (b"  \r\n ", ""),
        (b"plain", "plain"),
        (b"two\r\nlines", "two lines"),
        (JSON_ERROR, "why"),
        (b'{"error":"Unauthorized"}', "Unauthorized"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"error":{"message":""}}', ""),
        (b'{"error":{"message":"a\\nb\\tc\\u0000d\\u007fe\\u0085f"}}', "a b c d e f"),
        (b'{"error":{"message":"\\ud83d\\ude00 \\u00e9"}}', "\U0001f600 \xe9"),
        (b'{"error":{"message":null}}', '{"error":{"message":null}}'),
        (b'{"error":{"message":5}}', '{"error":{"message":5}}'),
        (b'{"error":null}', '{"error":null}'),
        (b'{"detail":[{"loc":["body"]}]}', '{"detail":[{"loc":["body"]}]}'),
        (b'{"message":"old vLLM"}', '{"message":"old vLLM"}'),
        (b'["a"]', '["a"]'),
        (b"5", "5"),
        (b'{"error":{"message":"\\ud800"}}', '{"error":{"message":"\\ud800"}}'),
        (b"\xff\xfeA", "\ufffd\ufffdA"),
        ("línea\u2028dos\u2029\u202etres\u2066\ufeff".encode(), "línea dos tres"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_the_words_of_an_error_body(body: bytes, text: str) -> None:
    assert error_text(body) == text


def shown(text: str) -> None:
    """One line for people: bounded, no control characters, no turned direction."""
    assert len(text) <= MAX_TEXT_CHARACTERS + 60
    assert len(text.splitlines()) <= 1
    assert not {unicodedata.category(character) for character in text} & {"Cc", "Cs", "Zl", "Zp"}
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", text)


@pytest.mark.parametrize(
    "body",
    [
        b"x" * 5_000_000,
        b"\x1b[31m" * 1_000_000,
        b" " * 1_000_000 + b"late",
        b'{"error":{"message":"' + b"y" * 5_000_000 + b'"}}',
        b'{"error":{"message":"' + b"\\n" * 1_000_000 + b'"}}',
        "\U0001f600".encode() * 100_000,
        b"[" * 1_000_000,
        b'{"error":' + b"9" * 1_000_000 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_long_body_is_cut(body: bytes) -> None:
    for status in (400, 403, 500, 502, 503):
        shown(str(judged(status, body)))


@given(
    st.integers(100, 700),
    st.binary(max_size=60)
    | st.text(max_size=60).map(str.encode)
    | st.text(max_size=60).map(lambda text: json.dumps({"error": {"message": text}}).encode())
    | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(
        lambda value: json.dumps({"error": value}).encode()
    ),
    st.none() | st.text(max_size=8) | st.floats().map(str),
)
@settings(deadline=None)
def test_any_answer_is_judged(status: int, body: bytes, retry_after: str | None) -> None:
    error = judge(status, body, retry_after)
    assert (error is None) == (200 <= status < 300)
    if error is not None:
        shown(str(error))
        assert str(status) in str(error)
        assert error.category in ("user", "server")
        assert error.retry_after_s is None or 0 <= error.retry_after_s < float("inf")


@given(st.text())
@settings(deadline=None)
def test_printable_text_is_printable(text: str) -> None:
    cut = printable(text)
    shown(cut)
    assert cut == cut.strip()
    # Nothing is added but blanks.
    assert set(cut) <= set(text) | {" "}
