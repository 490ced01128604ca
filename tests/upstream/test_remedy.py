"""What follows from an error, where earlier errors of the same sample must not count."""

import pytest

from asgi_gateway.errors import EngineFault, Unavailable
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.store.records import Record
from asgi_gateway.upstream.remedy import OURS_RETRY_S, GiveBack, Remedies, Retry
from tests.store.records import new_record

URL = "http://h:1"


def running(now: float, body: bytes = b"{}") -> Record:
    record = new_record(1, body=body)
    record.started_at = now
    return record


def test_an_answer_ends_the_wait_for_an_upstream() -> None:
    """A JSON 500 long after an outage has its own retry, and its own time to wait for it."""
    remedies, record = Remedies(UpstreamSettings(urls=(URL,))), running(0.0)
    for now in (0.0, 1.0):
        assert isinstance(remedies.after(record, Unavailable("503"), URL, now), Retry)
    since = record.unavailable_since
    assert since == 0.0
    record.started_at = 5.0
    remedy = remedies.after(record, EngineFault("500"), URL, 299.6)
    assert isinstance(remedy, Retry)
    assert record.unavailable_since is None
    assert record.unavailable_count == 0


def test_an_outage_after_a_long_run_is_another_one() -> None:
    remedies, record = Remedies(UpstreamSettings(urls=(URL,))), running(0.0)
    remedies.after(record, Unavailable("503"), URL, 0.0)
    record.started_at = 1.0
    remedy = remedies.after(record, Unavailable("503"), URL, 600.0)
    assert remedy == Retry(600.0, "unavailable", earliest=600.0)
    assert record.unavailable_since == 600.0


def test_connects_that_hang_are_one_outage() -> None:
    settings = UpstreamSettings(urls=(URL,), unavailable_grace_s=300)
    remedies, record, now = Remedies(settings), running(0.0), 0.0
    for _ in range(20):
        record.started_at = now
        now += settings.connect_timeout_s
        remedy = remedies.after(record, Unavailable("it hangs"), URL, now)
        if isinstance(remedy, GiveBack):
            break
        assert isinstance(remedy, Retry)
        now = max(now, remedy.not_before)
    assert 300 <= now <= 400


@pytest.mark.parametrize("before", [0, 3])
def test_what_this_machine_lacks_starts_no_grace(before: int) -> None:
    remedies, record = Remedies(UpstreamSettings(urls=(URL,))), running(0.0)
    for _ in range(before):
        remedies.after(record, Unavailable("503"), URL, 0.0)
    counted = record.unavailable_count
    ours = Unavailable("no descriptor", ours=True)
    remedy = remedies.after(record, ours, URL, 1000.0)
    at = 1000.0 + OURS_RETRY_S
    assert remedy == Retry(at, "unavailable", earliest=at)
    assert record.unavailable_count == counted
