"""How much a search may cost: little in the suite, more where FUZZ_EFFORT says so."""

import os
from typing import Final

from hypothesis import HealthCheck, settings

# `make fuzz` sets it; 1 in the suite.
EFFORT: Final = int(os.environ.get("FUZZ_EFFORT", "1"))


def machine(runs: int, steps: int) -> settings:
    """Settings of a rule-based machine: so many runs of so many steps, times the effort."""
    return settings(
        max_examples=runs * EFFORT,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
