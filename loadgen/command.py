"""`loadgen run`: a run against a server, its result on the terminal and in files.

Exit status: 0 ok, 1 the ledger is not clean or a threshold failed, 2 usage, 3 the run is invalid.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
from typing import Final

import msgspec
import uvloop

from loadgen import preflight
from loadgen.address import address
from loadgen.flags import plan_of
from loadgen.fleet import FleetError
from loadgen.limits import NoSuchProcess
from loadgen.plan import API_KEY
from loadgen.preflight_command import found_here
from loadgen.processes import StartError
from loadgen.profiling import ProfileError
from loadgen.report.ending import check_places, finish
from loadgen.report.live import watching
from loadgen.report.thresholds import ThresholdError, bounds
from loadgen.run import run
from loadgen.schedule import PlanError
from loadgen.secret import Secret
from loadgen.served import add_profile, ceiling_per_s, served_by
from loadgen.session import Flags
from loadgen.standin import StandInError

USAGE_ERROR: Final = 2
CONFIG_WITHIN_S: Final = 10.0
KEY_VARIABLE: Final = "LOADGEN_API_KEY"


def command(arguments: argparse.Namespace) -> int:
    """Run it; the exit status."""
    arguments.api_key = arguments.api_key or os.environ.get(KEY_VARIABLE) or API_KEY
    secret = Secret(arguments.api_key)
    shown = secret.command(["loadgen", *sys.argv[1:]])
    try:
        check_places(arguments.json, arguments.html)
        with served_by(arguments) as served:
            style = arguments.style or offered_style(served.url, arguments.api_key)
            plan = plan_of(arguments, served.url, style)
            wanted = bounds(arguments.threshold, arguments.thresholds, plan)
            checked = found_here(plan, served.pids.get("server"))
            if not (checked.ok or arguments.no_preflight):
                print("\n".join(preflight.lines(checked)), file=sys.stderr)
                return USAGE_ERROR
            title = f"loadgen {plan.scenario}, {plan.samples:,} samples"
            with watching(sys.stderr, title, arguments.quiet) as watcher:
                parts = served.parts(shown, served.following(watcher, plan.samples))
                if arguments.profile:
                    parts = parts._replace(profile=served.recorded)
                parts = parts._replace(
                    sdk_python=arguments.sdk_python, ceiling_per_s=ceiling_per_s(served, plan)
                )
                result = uvloop.run(run(plan, parts))
            result.preflight = checked
            if result.upstream is not None:
                result.upstream.mode = served.mode
        add_profile(result, served)
    except (PlanError, ThresholdError, ValueError) as error:
        arguments.parser.error(secret.hide(str(error)))
    except (FleetError, NoSuchProcess, ProfileError, StandInError, StartError, OSError) as error:
        print(f"loadgen run: {secret.hide(str(error))}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130
    try:
        result = secret.hide_in(result)
        return finish(result, wanted, sys.stdout, arguments.json, arguments.html)
    except OSError as error:
        print(f"loadgen run: {error}", file=sys.stderr)
        return USAGE_ERROR


def offered_style(url: str, api_key: str) -> str:
    """How the SDK would poll this server, by its client/config. Raises OSError, ValueError."""
    where = address(url)
    link = http.client.HTTPConnection(where.host, where.port, timeout=CONFIG_WITHIN_S)
    try:
        path = f"{where.prefix.decode()}/api/v1/client/config"
        headers = {"content-type": "application/json", "x-api-key": api_key}
        link.request("POST", path, b'{"sdk_version":"0.38.0"}', headers)
        answer = link.getresponse()
        body = answer.read()
    finally:
        link.close()
    if answer.status != 200:
        raise ValueError(f"client/config: {answer.status} {Secret(api_key).excerpt(body)}")
    flags = msgspec.json.decode(body, type=Flags)
    return "futures" if flags.sample_use_retrieve_futures else "future"
