"""What a run starts for itself: the stand-in's flags, its ceiling, and cProfile for py-spy."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from loadgen import profiling
from loadgen.__main__ import parser
from loadgen.flags import plan_of
from loadgen.plan import Length, Plan
from loadgen.served import Served, ceiling_per_s, served_by, stand_in_flags

START = f"env A=1 {sys.executable} -m loadgen upstream --port 0"


def test_without_py_spy_a_server_that_is_started_runs_under_cprofile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profiling, "allowed", lambda _: False)
    with served_by(parser().parse_args(["run", "--start", START, "--profile"])) as served:
        assert served.recorded == ("client",)
        assert served.url.startswith("http://127.0.0.1:")
        assert served.profiles == []
    (profile,) = served.profiles
    assert (profile.who, profile.tool) == ("server", "cProfile")
    assert profile.rows
    assert served.notes == []


def test_py_spy_is_tried_on_a_process_before_a_run_relies_on_it() -> None:
    code = "print(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            recording = profiling.Recording("child", child.pid)
        except profiling.ProfileError:
            assert not profiling.allowed(child.pid)
        else:
            assert profiling.allowed(child.pid)
            with contextlib.suppress(profiling.ProfileError):  # so short a one may hold nothing
                recording.stop()
        child.kill()
    assert not profiling.allowed(child.pid)


def test_the_ceiling_is_of_the_stand_in_that_the_run_starts() -> None:
    def ceiling(flags: tuple[str, ...] | None, tokens: int) -> float | None:
        plan = Plan(scenario="x", url="", samples=1, output_tokens=Length(low=tokens, high=tokens))
        return ceiling_per_s(Served("", None, {}, flags), plan)

    short, long = ceiling(("--barrier", "--gen-seconds", "9"), 16), ceiling((), 8_192)
    assert short is not None
    assert long is not None
    assert short > 2 * long, "what takes it longer it can do less often"
    assert ceiling(("--max-model-len", "100"), 200) is None
    assert ceiling(None, 16) is None


def test_time_scales_what_lasts_and_nothing_else() -> None:
    arguments = parser().parse_args(
        ["run", "--start", "x", "--scenario", "queued", "--time", "0.1", "-n", "50"]
    )
    assert stand_in_flags(arguments) == ("--gen-seconds", "0.5", "--max-num-seqs", "2048")
    plan = plan_of(arguments, "http://127.0.0.1:1", "futures")
    assert (plan.samples, plan.poll_timeout_s, plan.within_s) == (50, 45, 3_600)
    soak = ["run", "--start", "x", "--scenario", "soak", "--time", "0.01"]
    assert plan_of(parser().parse_args(soak), "http://127.0.0.1:1", "future").samples == 240
    full = ["run", "--start", "x", "--scenario", "full", "--time", "0.5"]
    plan = plan_of(parser().parse_args(full), "http://127.0.0.1:1", "future")
    assert (plan.samples, plan.hold_s) == (131_072, 30.0)


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "x"])
def test_time_is_a_number_above_zero(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["run", "--start", "x", "--time", text])
    assert "--time" in capsys.readouterr().err
