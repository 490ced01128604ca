"""Rows on what the gateway has room for, and on its process."""

from typing import Final

from dashboard_panels import EACH, MINE, Panel, of, rate

ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Admission": (
        Panel(
            "Submits refused",
            "By what refused them.",
            ((rate("admission_rejected_total", "reason"), "{{reason}}"),),
            unit="cps",
            stacked=True,
        ),
        Panel(
            "Not ready",
            "1 for each reason.",
            ((of("not_ready"), "{{reason}} " + EACH),),
        ),
        Panel(
            "Draining",
            "0 serving, 1 about to drain, 2 draining.",
            ((of("draining"), EACH),),
        ),
    ),
    "Memory and results": (
        Panel(
            "Bytes charged",
            "Prompts, results and room for answers, of store.max_bytes.",
            ((of("charged_bytes"), EACH), (of("charged_bytes_limit"), f"limit {EACH}")),
            unit="bytes",
        ),
        Panel(
            "Results held",
            "",
            ((of("results_held_bytes"), EACH),),
            unit="bytes",
        ),
        Panel(
            "Results dropped",
            "To make room, and because nobody came for them in time.",
            (
                (rate("evicted_for_room_total", "instance"), f"for room {EACH}"),
                (rate("results_unfetched_total", "instance"), f"unfetched {EACH}"),
            ),
            unit="cps",
        ),
        Panel(
            "Memory of the control group",
            "Without file cache that can be taken back.",
            ((of("memory_used_bytes"), EACH), (of("memory_limit_bytes"), f"limit {EACH}")),
            unit="bytes",
        ),
        Panel(
            "Memory level",
            "0 fine, 1 refusing, 2 dropping delivered results, 3 dropping any.",
            ((of("memory_level"), EACH),),
        ),
        Panel(
            "Resident memory",
            "",
            ((f"process_resident_memory_bytes{{{MINE}}}", EACH),),
            unit="bytes",
        ),
    ),
    "Process, event loop, garbage collector": (
        Panel(
            "CPU",
            "Cores; a gateway uses one at most.",
            ((f"rate(process_cpu_seconds_total{{{MINE}}}[$__rate_interval])", EACH),),
        ),
        Panel(
            "Loop lag",
            "The most of the last half minute: about as long waits whoever is served next.",
            ((of("event_loop_lag_recent_seconds"), EACH),),
            unit="s",
        ),
        Panel(
            "Loop stalls and internal errors",
            "Both have a stack on standard error.",
            (
                (f"increase({of('loop_stalls_total')}[$__rate_interval])", f"stalls {EACH}"),
                (f"increase({of('bugs_total')}[$__rate_interval])", f"errors {EACH}"),
            ),
        ),
        Panel(
            "Garbage collector",
            "Share of the time.",
            (
                (
                    rate("gc_pause_seconds_sum", "generation"),
                    "generation {{generation}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "File descriptors",
            "",
            (
                (f"process_open_fds{{{MINE}}}", EACH),
                (f"process_max_fds{{{MINE}}}", f"limit {EACH}"),
            ),
        ),
        Panel(
            "Tasks",
            "Of the event loop; back to where it was once nothing is to do.",
            ((of("tasks"), EACH),),
        ),
        Panel(
            "Journal",
            "Where state.dir is set.",
            ((of("journal_bytes"), EACH),),
            unit="bytes",
        ),
        Panel(
            "Journal: healthy, errors",
            "Where state.dir is set.",
            (
                (of("journal_healthy"), f"healthy {EACH}"),
                (rate("store_errors_total", "instance"), f"errors {EACH}"),
            ),
        ),
        Panel(
            "Settings",
            "Changes that were taken, and refused.",
            (
                (rate("config_reloads_total", "instance"), f"taken {EACH}"),
                (rate("config_reload_failures_total", "instance"), f"refused {EACH}"),
            ),
            unit="cps",
        ),
        Panel(
            "Sample log",
            "Where log.samples is set.",
            (
                (rate("log_written_total", "instance"), f"written {EACH}"),
                (rate("log_dropped_total", "instance"), f"dropped {EACH}"),
            ),
            unit="cps",
        ),
        Panel(
            "Keys: requests turned away",
            "Where API keys are configured.",
            (
                (rate("access_unauthorized_total", "instance"), f"401 {EACH}"),
                (rate("access_forbidden_total", "instance"), f"403 {EACH}"),
            ),
            unit="cps",
        ),
    ),
}
