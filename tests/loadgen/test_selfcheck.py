"""The client notices when it, or the machine, holds it up."""

import asyncio
import os
import sys
import time

from loadgen.selfcheck import Check, SelfCheck


async def checked(seconds: float, hold_up: float = 0.0, *, work: bool = True) -> Check:
    """A loop that does nothing for a while, but once is busy with Python for `hold_up` seconds."""
    done = [0]

    def rises() -> int:
        done[0] += work
        return done[0]

    check = SelfCheck(rises, lambda: 7)
    check.start()
    await asyncio.sleep(0.1)
    until = time.process_time() + hold_up
    while time.process_time() < until:
        pass
    await asyncio.sleep(seconds)
    return check.stop()


async def test_an_idle_loop_takes_little_and_is_not_late() -> None:
    found = await checked(0.5)
    assert found.cpu < 0.5
    assert found.descriptors_peak == 7
    assert found.late == 0


async def test_a_busy_loop_is_late_and_took_the_cpu_for_it() -> None:
    found = await checked(0.2, hold_up=0.4)
    assert found.lag_max_ms > 300
    assert found.cpu > 0.4 * (1 - found.starved)  # others may have the core for a while
    assert found.cpu_s > 0.4


async def test_ticks_without_work_do_not_count() -> None:
    found = await checked(0.2, hold_up=0.4, work=False)
    assert found.cpu == found.starved == 0.0
    assert found.lag_max_ms > 300


async def test_a_process_that_is_kept_from_running_is_starved() -> None:
    """Stopped by a signal it is late and took no CPU meanwhile, as on a machine without time."""
    helper = (
        "import os, signal, sys, time\n"
        "pid = int(sys.argv[1]); os.kill(pid, signal.SIGSTOP)\n"
        "time.sleep(0.6); os.kill(pid, signal.SIGCONT)"
    )
    work = [0]

    def rises() -> int:
        work[0] += 1
        return work[0]

    check = SelfCheck(rises, lambda: 0)
    check.start()
    stopper = await asyncio.create_subprocess_exec(sys.executable, "-c", helper, str(os.getpid()))
    await stopper.wait()
    found = check.stop()
    assert found.starved > 0.3
    assert found.lag_max_ms > 500


async def test_late_samples_are_counted_from_fifty_milliseconds() -> None:
    check = SelfCheck(lambda: 0, lambda: 0)
    check.start()
    for late_s in (0.01, 0.049, 0.06, 0.2):
        check.late(late_s)
    found = check.stop()
    assert (found.late, found.late_max_ms) == (2, 200.0)
