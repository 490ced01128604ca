"""How the metrics of several workers become one: by the kind, and for gauges by name."""

import enum
from typing import Final


class Rule(enum.Enum):
    SUM = enum.auto()
    MAX = enum.auto()
    MIN = enum.auto()
    # Of the worker that was asked; the others' say nothing.
    ASKED = enum.auto()


_OURS: Final = "asgi_gateway_"

# Gauges of which the sum is the whole; each worker has the limits of its own.
_SUMMED: Final = (
    *("access_held", "charged_bytes", "charged_bytes_limit", "connections", "journal_bytes"),
    *("polls_inflight", "results_held_bytes", "samples_held", "samples_inflight"),
    *("samples_inflight_limit", "samples_lost", "samples_queued", "samples_running"),
    *("samples_undelivered", "sessions", "store_unwritten", "store_waiting", "tasks"),
    *("upstream_inflight", "upstream_requests_limit"),
)
# The worst of all, and what is the same of all.
_HIGHEST: Final = (
    *("breaker_state", "build_info", "draining", "event_loop_lag_recent_seconds"),
    *("event_loop_lag_seconds", "event_loop_lag_seconds_max", "gc_pause_seconds_max"),
    # Of the control group that they share, or of the largest.
    *("memory_level", "memory_limit_bytes", "memory_used_bytes", "not_ready"),
    *("upstream_draining", "upstream_source_age_seconds"),
    # A counter of the supervisor's, which each shows.
    "worker_deaths_total",
)
# What is only where it is everywhere: the settings of the last that took any, for one.
_LOWEST: Final = (
    *("config_last_reload_timestamp_seconds", "journal_healthy", "keys", "ready", "store_up"),
    *("upstream_up", "upstreams_available"),
)
_ASKED: Final = ("workers", "workers_answered")

RULES: Final[dict[str, Rule]] = {
    **{_OURS + name: Rule.SUM for name in _SUMMED},
    **{_OURS + name: Rule.MAX for name in _HIGHEST},
    **{_OURS + name: Rule.MIN for name in _LOWEST},
    **{_OURS + name: Rule.ASKED for name in _ASKED},
    "process_max_fds": Rule.SUM,
    "process_open_fds": Rule.SUM,
    "process_resident_memory_bytes": Rule.SUM,
    "process_virtual_memory_bytes": Rule.SUM,
    # The youngest: that one of them began anew is seen.
    "process_start_time_seconds": Rule.MAX,
}


def rule_of(name: str, kind: str) -> Rule:
    """Counters, histograms and summaries are summed; a gauge that is not in the table is shown as
    the highest."""
    return RULES.get(name, Rule.MAX if kind == "gauge" else Rule.SUM)
