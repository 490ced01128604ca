"""A run counts only where the server was what was measured, and only a clean ledger is good."""

import pytest

from loadgen.outcomes import Doubled, Outcomes
from loadgen.plan import Plan
from loadgen.results import ClientCheck, FaultCount, Server
from loadgen.verdict import judge, problems, validity

PLAN = Plan(scenario="test", url="http://127.0.0.1:1", samples=100)
OPEN = Plan(scenario="test", url="http://127.0.0.1:1", samples=100, arrivals="poisson", rate=10.0)
CLEAN = Outcomes(succeeded=100)


def test_a_client_with_time_to_spare_is_valid() -> None:
    check = ClientCheck(cpu=[0.6, 0.7], starved=[0.01], lag_p99_ms=[400.0], machine_busy=0.9)
    assert validity(PLAN, check, None) == []


def test_a_busy_client_is_the_limit_unless_the_server_was() -> None:
    check = ClientCheck(cpu=[0.5, 0.99])
    (reason,) = validity(PLAN, check, None)
    assert reason.startswith("the client was the limit: a process of it took 99% of a core")
    assert validity(PLAN, check, Server(busy=0.5)) != []
    assert validity(PLAN, check, Server(busy=0.97)) == []


@pytest.mark.parametrize(
    "check", [ClientCheck(starved=[0.5]), ClientCheck(machine_busy=0.999)], ids=["starved", "busy"]
)
def test_a_busy_machine_is_the_limit(check: ClientCheck) -> None:
    (reason,) = validity(PLAN, check, Server(busy=0.5))
    assert reason.startswith("the machine was the limit")


def test_a_server_that_others_kept_from_running_was_not_the_limit() -> None:
    (reason,) = validity(PLAN, ClientCheck(), Server(busy=0.5, starved=0.6, pids=[1]))
    assert reason.startswith("the machine was the limit: the server was kept from running for 60%")
    assert validity(PLAN, ClientCheck(), Server(busy=0.95, starved=0.6, pids=[1])) == []
    assert validity(PLAN, ClientCheck(), Server(busy=0.5, starved=0.6, pids=[1, 2, 3, 4])) == []


def test_a_busy_stand_in_is_the_limit_unless_the_server_was() -> None:
    (reason,) = validity(PLAN, ClientCheck(), Server(busy=0.5), 0.99)
    assert reason.startswith("the stand-in was the limit: it took 99% of a core")
    assert validity(PLAN, ClientCheck(), Server(busy=0.95), 0.99) == []
    assert validity(PLAN, ClientCheck(), None, 0.9) == []


def test_an_open_loop_must_be_on_time() -> None:
    late = ClientCheck(late=2, late_max_ms=120.0)
    (reason,) = validity(OPEN, late, None)
    assert "2 samples (2.0%; the bar is 1%) were due up to 120 ms" in reason
    assert validity(OPEN, ClientCheck(late=1), None) == []
    (reason,) = validity(OPEN, ClientCheck(lag_p99_ms=[300.0]), None)
    assert "its loop lagged 300 ms" in reason


def test_problems_name_what_and_how_many() -> None:
    outcomes = Outcomes(
        succeeded=90,
        failed={"server": 3},
        refused={"404": 2},
        wrong={"identity": 1},
        lost=4,
    )
    found = problems(PLAN, outcomes, Doubled(results=1, upstream=2), ())
    assert found == [
        "4 lost",
        "3 failed, category server",
        "2 refused with 404",
        "1 wrong by identity",
        "doubled: 1 answered with another sample's result",
        "doubled: 2 asked for again upstream",
    ]
    assert problems(PLAN, CLEAN, Doubled(), ()) == []


def test_failures_that_were_asked_for_are_no_problem_but_losses_are() -> None:
    outcomes = Outcomes(succeeded=90, failed={"server": 9}, lost=1)
    injected = [FaultCount(kind="server_error", injected=9)]
    assert problems(PLAN, outcomes, Doubled(), injected) == ["1 lost"]


def test_a_ledger_that_does_not_add_up_is_a_problem() -> None:
    (found,) = problems(PLAN, Outcomes(succeeded=99), Doubled(), ())
    assert found == "the ledger does not add up: 99 of 100"


def test_exit_statuses() -> None:
    assert judge([], []).exit_status == 0
    assert judge([], ["4 lost"]).exit_status == 1
    assert judge(["the client was the limit"], []).exit_status == 3
    both = judge(["the client was the limit"], ["4 lost"])
    assert both.exit_status == 3
    assert not both.valid
    assert not both.clean
