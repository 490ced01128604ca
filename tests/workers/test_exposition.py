"""Metrics of several processes as numbers: read, added, written; which rule each goes by."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from asgi_gateway.admin.messages import Holder, Overview, Timing, UpstreamShown
from asgi_gateway.metrics import Metrics
from asgi_gateway.workers import exposition
from asgi_gateway.workers.folder import Folder
from asgi_gateway.workers.overview import together
from asgi_gateway.workers.rules import RULES, Rule
from asgi_gateway.workers.worker import Seat
from docs.metrics_reference import kinds


def metrics(*, succeeded: int = 0, seconds: tuple[float, ...] = (), **gauges: float) -> bytes:
    made = Metrics()
    made.samples["succeeded"] = succeeded
    for each in seconds:
        made.overhead.observe(each)
    for name, number in gauges.items():
        made.gauge(name, "Text.", lambda number=number: number)  # type: ignore[misc]
    return made.render()


def total(*texts: bytes, gauges: bool = True) -> dict[str, float]:
    added = exposition.read(texts[0])
    for text in texts[1:]:
        exposition.add(added, exposition.read(text), gauges=gauges)
    written = exposition.write(added.values()).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in written if not line.startswith("#"))
    return {name.removeprefix("asgi_gateway_"): float(number) for name, number in pairs}


def test_what_is_read_is_written_as_it_was(tmp_path: Path) -> None:
    for _, made in kinds(tmp_path):
        text = made.render()
        assert exposition.write(exposition.read(text).values()) == text


def test_every_gauge_has_a_rule_and_every_rule_a_metric(tmp_path: Path) -> None:
    families = [family for _, made in kinds(tmp_path) for family in made.families]
    gauges = {family.name for family in families if family.kind == "gauge"}
    assert gauges <= set(RULES), "say in workers/rules.py how it is added"
    assert set(RULES) <= {family.name for family in families}


def test_counters_and_histograms_are_summed() -> None:
    added = total(
        metrics(succeeded=2**60, seconds=(0.2, 7.0)), metrics(succeeded=3, seconds=(0.2,))
    )
    assert added['samples_total{outcome="succeeded"}'] == float(2**60 + 3)
    assert added["overhead_seconds_count"] == 3
    assert added["overhead_seconds_sum"] == pytest.approx(7.4)
    assert added['overhead_seconds_bucket{le="0.25"}'] == 2
    assert added['overhead_seconds_bucket{le="+Inf"}'] == 3


def test_gauges_go_by_the_table() -> None:
    names = {
        "samples_held": Rule.SUM,
        "event_loop_lag_seconds": Rule.MAX,
        "ready": Rule.MIN,
        "workers_answered": Rule.ASKED,
    }
    assert {name: RULES[f"asgi_gateway_{name}"] for name in names} == names
    two = metrics(samples_held=1, event_loop_lag_seconds=0.5, ready=1, workers_answered=2)
    one = metrics(samples_held=2, event_loop_lag_seconds=0.25, ready=0, workers_answered=9)
    for texts, answered in (((two, one), 2), ((one, two), 9)):
        added = total(*texts)
        assert added["samples_held"] == 3
        assert added["event_loop_lag_seconds"] == 0.5
        assert added["ready"] == 0
        assert added["workers_answered"] == answered


def test_of_the_dead_only_counts() -> None:
    dead = metrics(succeeded=5, samples_held=7)
    added = total(metrics(succeeded=1, samples_held=1), dead, gauges=False)
    assert added['samples_total{outcome="succeeded"}'] == 6
    assert added["samples_held"] == 1


def test_what_only_another_one_has_is_there() -> None:
    """As when one of them was started with other upstreams."""
    assert total(metrics(), metrics(samples_held=4))["samples_held"] == 4


def test_labels_with_blanks_and_numbers_that_are_none() -> None:
    made = Metrics()
    rows = [(("a b} 7",), float("inf")), (("c",), float("nan")), (("d",), 1e-7)]
    made.labelled("ready", "gauge", "Text.", ("reason",), lambda: rows)
    assert exposition.write(exposition.read(made.render()).values()) == made.render()


def test_a_folder_remembers_the_dead(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    for serial, succeeded in ((1, 2), (2, 3)):
        folder.socket(serial).touch()
        folder.keep(serial, metrics(succeeded=succeeded))
    folder.socket(3).touch()
    assert folder.serials() == [1, 2, 3]
    folder.bury(1, told=False)
    folder.bury(2, told=True)
    folder.bury(3, told=False)
    assert folder.serials() == []
    dead = folder.dead()
    assert (dead.serials, dead.deaths) == ([1, 2, 3], 2)
    assert total(dead.text.encode())['samples_total{outcome="succeeded"}'] == 5
    assert [path.name for path in tmp_path.iterdir()] == ["dead"]


def test_the_delay_of_one_that_keeps_dying_grows_to_its_end() -> None:
    seat = Seat(0)
    delays = [seat.died(1.0, 100.0) for _ in range(10)]
    assert delays == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert seat.due_at == 130
    assert seat.died(Seat.STEADY_S, 200.0) == 0
    assert seat.died(1.0, 200.0) == 0
    assert seat.died(1.0, 200.0) == 0.5
    assert [seat.died(1.0, 0.0) for _ in range(5000)][-1] == 30


# --- the status page ------------------------------------------------------------------------------


def overview(running: int, state: str, *, up_s: float, ready: bool = True) -> Overview:
    return Overview(
        version="1",
        time=100.0,
        up_s=up_s,
        ready=ready,
        reasons=[] if ready else ["memory is short"],
        draining=False,
        samples={"running": running},
        outcomes={"succeeded": running},
        refusals={},
        retries={},
        polls=1,
        sessions=1,
        bytes_charged=10,
        bytes_limit=100,
        results_bytes=1,
        loop_lag_s=0.1 * running,
        loop_lag_max_s=1.0,
        bounds_s=[1.0],
        timings={"queued": Timing([running, 0], 0.5)},
        upstreams=[UpstreamShown("u:1", state, running, draining=False)],
        holders=[Holder("s", "caller", "model", up_s, running=running)],
        recent=[],
        settings=[],
    )


def test_overviews_become_one() -> None:
    both = [overview(1, "up", up_s=50.0), overview(2, "down", up_s=5.0, ready=False)]
    own, other = (msgspec.json.encode(each) for each in both)
    shown = msgspec.json.decode(asyncio.run(together(own, [other], 3)), type=Overview)
    assert (shown.workers, shown.workers_answered) == (3, 2)
    assert (shown.up_s, shown.ready, shown.reasons) == (5.0, False, ["memory is short"])
    assert (shown.samples, shown.outcomes) == ({"running": 3}, {"succeeded": 3})
    assert (shown.bytes_limit, shown.loop_lag_s) == (200, 0.2)
    assert shown.timings == {"queued": Timing([3, 0], 1.0)}
    assert shown.upstreams == [UpstreamShown("u:1", "down", 3, draining=False)]
    assert shown.holders == [Holder("s", "caller", "model", 5.0, running=3)]
