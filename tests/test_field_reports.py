# ruff: noqa: E501 - one row a report
"""What broke for users of such systems, and the test that holds each expectation.

The left column is a report's number in the field-report list that the project was started with: its
sections 1 (Tinker-compatible servers), 2 (SDK clients) and 3 (vLLM and its routers), severity
critical and high. A row that names no test, or one that does not exist, fails.

| report | tests |
|---|---|
| 1.01 a burst exhausts what is behind the promises | `test_leaks::test_ten_thousand_samples_leave_nothing_behind`, `test_flood::test_two_thousand_samples_of_two_sessions_twice` |
| 1.02 building the result costs more than forwarding it | `codec/test_decode::test_decoding_makes_no_python_object_per_token`, `upstream/test_client::test_the_prompt_is_dropped_when_a_2xx_answer_begins` |
| 1.03 a client whose cost grows with requests in flight | `upstream/test_client::test_a_thousand_samples_over_fifty_connections` |
| 1.04 which failures may be retried | `test_outcomes::test_an_interruption_hands_the_sample_back`, `test_outcomes::test_refused_for_the_whole_grace_is_410_and_never_an_error` |
| 1.05 protobuf or JSON by Accept | `test_json_results::test_accept_decides_the_form` |
| 1.06 one sequence id per sample | `handlers/test_samples::test_asample_promises_one_id_per_sequence`, `test_outcomes::test_fewer_choices_than_asked_hand_the_sample_back` |
| 1.07 client config is needed to start | `handlers/test_client::test_client_config_says_the_configured_limits` |
| 1.08 a re-sent request must not run twice | `handlers/test_samples::test_a_repeated_submit_is_the_same_sample`, `handlers/test_samples::test_the_same_seq_id_with_another_body_is_refused` |
| 1.09 session affinity on the way to the router | `upstream/test_client::test_headers_name_the_request_and_what_a_router_hashes` |
| 1.10 prompt logprobs dropped or shifted | `contract/test_sampling::test_prompt_logprobs`, `contract/test_sampling::test_topk_of_the_prompt` |
| 1.11 request shapes the SDK really sends | `upstream/test_request::test_a_request_of_a_real_sdk`, `upstream/test_request_stops::test_stops_that_mean_something` |
| 1.12 the stopping token belongs to the sample | `codec/test_decode::test_a_stopped_sample_keeps_its_last_token`, `codec/test_decode::test_lengths_that_differ_are_named_whatever_the_policy` |
| 1.14 aborted generations dressed as finished ones | `codec/test_decode::test_one_choice_that_did_not_end_by_itself_interrupts_all`, `codec/test_decode::test_an_aborted_choice_without_a_token_is_not_delivered` |
| 1.15 the router is stricter and less tidy | `upstream/test_verdict::test_the_users_mistakes_come_with_the_upstreams_words`, `upstream/test_verdict::test_the_routers_own_500_is_a_lost_connection` |
| 1.16 missing logprobs filled with zeros | `codec/test_decode::test_a_missing_logprob_fails_or_becomes_nan`, `codec/test_decode::test_an_empty_sample_is_a_sample` |
| 1.17 no bound between accepted samples and the router | `upstream/test_client::test_no_more_than_max_connections_and_first_come_first_served` |
| 1.18 results kept for the life of the process | `test_polling::test_delivered_to_an_open_client_is_kept_300_seconds`, `test_polling::test_a_result_that_nobody_fetched_is_kept_2048_seconds` |
| 1.19 a poll that lands on another worker | `state/test_opening::test_a_second_owner_in_another_process` |
| 2.01 samples that neither finish nor fail | `upstream/test_client::test_the_work_clock_ends_the_upstream_request`, `test_polling::test_a_poll_is_held_exactly_its_time` |
| 2.02 one failed sample ends the run | `test_outcomes::test_an_interruption_hands_the_sample_back`, `contract/test_statuses::test_408_polls_again_and_410_submits_again` |
| 2.03 over capacity should mean waiting, with a reason | `contract/test_statuses::test_429_waits_and_repeats`, `contract/test_statuses::test_the_queue_state_of_a_408_reaches_the_user` |
| 2.04 poll retries have no back-off | `test_polling::test_unavailable_is_paused_and_says_so` |
| 2.06 five seconds to connect is too short for a wave | `contract/test_sampling::test_two_hundred_at_once` |
| 3.01 impossible tokens | `codec/test_decode::test_minus_9999_passes_as_it_is`, `upstream/test_verdict::test_nan_is_the_servers_only_where_vllm_says_so_with_400` |
| 3.02 top-k rows hold k or k+1 entries | `codec/test_decode::test_recorded_alternatives_in_any_key_order`, `codec/test_decode::test_ten_alternatives_along_a_long_prompt` |
| 3.04 abandoned work keeps its slot | `upstream/test_client::test_a_lapsed_session_ends_its_upstream_work`, `upstream/test_client::test_a_dropped_poll_cancels_nothing` |
| 3.05 the engine never says no | `test_pressure::test_full_by_bytes_is_429_with_retry_after`, `handlers/test_samples::test_a_full_gateway_says_429_and_when_to_come_again` |
| 3.06 the default descriptor limit | `test_descriptors::test_the_soft_limit_is_raised_at_start` |
| 3.07 health checks starve under load | `test_flood::test_two_thousand_samples_of_two_sessions_twice` |
| 3.08 client mistakes open the breaker | `test_outcomes::test_an_error_result` |
| 3.09 503 is weather | `test_outcomes::test_the_tries_back_off_and_then_the_sample_is_handed_back` |
| 3.10 the middle is stalled | `test_metrics::test_stages_say_where_samples_are` |
"""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = re.findall(r"^\| (\d\.\d\d) [^|]*\| ([^|]*) \|$", __doc__ or "", flags=re.MULTILINE)


@pytest.mark.parametrize(("report", "named"), ROWS, ids=[report for report, _ in ROWS])
def test_a_report_has_its_tests(report: str, named: str) -> None:
    names = re.findall(r"`([^`]+)`", named)
    assert names, report
    for name in names:
        path, _, function = name.partition("::")
        source = (TESTS / f"{path}.py").read_text()
        assert re.search(rf"^(async )?def {function}\(", source, flags=re.MULTILINE), name


def test_no_report_was_left_out() -> None:
    assert len(ROWS) == 32
