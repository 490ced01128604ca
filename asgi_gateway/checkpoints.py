"""The read-only index: adapters that can be sampled from, as training runs and checkpoints. Pure.

Nothing is known of the training behind an adapter, so what only a trainer could say (rank, size,
metadata) is null, and the time of a checkpoint is when the gateway first saw its adapter.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Literal, TypeVar

from asgi_gateway.protocol import Checkpoint, Cursor, TrainingRun
from asgi_gateway.upstream.naming import Adapter

T = TypeVar("T")

_TYPES: Final[dict[str, Literal["training", "sampler"]]] = {
    "weights": "training",
    "sampler_weights": "sampler",
}


def checkpoints(adapters: Sequence[Adapter]) -> list[Checkpoint]:
    """One checkpoint per adapter, newest first; `adapters` come oldest first."""
    return [_checkpoint(adapter) for adapter in reversed(adapters)]


def training_runs(adapters: Sequence[Adapter], owner: str) -> list[TrainingRun]:
    """The runs that the adapters are checkpoints of, the one with the newest checkpoint first."""
    runs: dict[str, list[Adapter]] = {}
    for adapter in reversed(adapters):
        runs.setdefault(adapter.path.run, []).append(adapter)
    return [_training_run(run, of_run, owner) for run, of_run in runs.items()]


def page(items: Sequence[T], limit: int, offset: int) -> tuple[list[T], Cursor]:
    """A part of a list and where it stands in the whole."""
    part = list(islice(items, offset, offset + limit))
    return part, Cursor(offset=offset, limit=limit, total_count=len(items))


def _training_run(run: str, newest_first: list[Adapter], owner: str) -> TrainingRun:
    def last(kind: str) -> Checkpoint | None:
        of_kind = (adapter for adapter in newest_first if adapter.path.kind == kind)
        return next((_checkpoint(adapter) for adapter in of_kind), None)

    newest = newest_first[0]
    return TrainingRun(
        training_run_id=run,
        base_model=newest.base_model,
        model_owner=owner,
        is_lora=newest.is_lora,
        last_request_time=_time(newest),
        last_checkpoint=last("weights"),
        last_sampler_checkpoint=last("sampler_weights"),
    )


def _checkpoint(adapter: Adapter) -> Checkpoint:
    path = adapter.path
    return Checkpoint(
        checkpoint_id=f"{path.kind}/{path.checkpoint}",
        checkpoint_type=_TYPES[path.kind],
        time=_time(adapter),
        tinker_path=str(path),
    )


def _time(adapter: Adapter) -> datetime:
    return datetime.fromtimestamp(adapter.since, UTC)
