from datetime import UTC, datetime

from asgi_gateway.checkpoints import checkpoints, page, training_runs
from asgi_gateway.upstream.naming import Adapter, parse

EARLY, LATE = 1_700_000_000.0, 1_700_000_060.0


def adapter(path: str, since: float, base_model: str = "Qwen/Qwen3-8B") -> Adapter:
    return Adapter(parse(path), "name", base_model, is_lora=True, since=since)


OLDEST_FIRST = [
    adapter("tinker://a/sampler_weights/1", EARLY),
    adapter("tinker://b:train:0/sampler_weights/1", EARLY, "Qwen/Qwen3-4B"),
    adapter("tinker://a/sampler_weights/2", EARLY),
    adapter("tinker://a/weights/2", LATE),
]


def test_checkpoints_come_newest_first_and_under_the_sdks_ids() -> None:
    listed = checkpoints(OLDEST_FIRST)
    assert [one.tinker_path for one in listed] == [
        "tinker://a/weights/2",
        "tinker://a/sampler_weights/2",
        "tinker://b:train:0/sampler_weights/1",
        "tinker://a/sampler_weights/1",
    ]
    assert [one.checkpoint_id for one in listed[:2]] == ["weights/2", "sampler_weights/2"]
    assert [one.checkpoint_type for one in listed[:2]] == ["training", "sampler"]
    assert listed[0].time == datetime.fromtimestamp(LATE, UTC)


def test_nothing_is_made_up() -> None:
    [one] = checkpoints(OLDEST_FIRST[:1])
    assert (one.size_bytes, one.public, one.user_metadata, one.expires_at) == (
        None,
        False,
        None,
        None,
    )
    [run] = training_runs(OLDEST_FIRST[:1], "me")
    assert (run.lora_rank, run.user_metadata, run.corrupted) == (None, None, False)


def test_runs_gather_their_checkpoints() -> None:
    a, b = training_runs(OLDEST_FIRST, "me")
    assert (a.training_run_id, a.base_model, a.model_owner) == ("a", "Qwen/Qwen3-8B", "me")
    assert a.is_lora
    assert a.last_request_time == datetime.fromtimestamp(LATE, UTC)
    assert a.last_checkpoint is not None
    assert a.last_checkpoint.tinker_path == "tinker://a/weights/2"
    assert a.last_sampler_checkpoint is not None
    assert a.last_sampler_checkpoint.tinker_path == "tinker://a/sampler_weights/2"
    assert (b.training_run_id, b.base_model) == ("b:train:0", "Qwen/Qwen3-4B")
    assert b.last_checkpoint is None
    assert training_runs([], "me") == []


def test_a_page_says_where_it_stands() -> None:
    part, cursor = page(list(range(10)), limit=4, offset=8)
    assert part == [8, 9]
    assert (cursor.offset, cursor.limit, cursor.total_count) == (8, 4, 10)
    assert page([1, 2], limit=0, offset=0)[0] == []
    assert page([1, 2], limit=5, offset=2**53)[0] == []
