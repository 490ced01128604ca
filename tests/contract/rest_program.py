"""The real tinker SDK's look-ups in a process of its own, told what to call on stdin.

    echo '[["rest", "list_sessions", []]]' | TINKER_BASE_URL=... TINKER_API_KEY=tml-x python ...

A call is `[WHOM, METHOD, ARGUMENTS]`; whom is `rest`, `service`, or the name under which the result
of an earlier call was kept: `[WHOM, METHOD, ARGUMENTS, NAME]`. Prints one JSON list of what each
returned or raised, with the seconds that it took.
"""

import contextlib
import json
import os
import sys
import time
import warnings
from typing import Any

import tinker
from tinker import types

WITHIN_S = 30.0


def rest_client(service: tinker.ServiceClient) -> Any:
    """Its own class builds one in new SDKs; in older ones only the service does."""
    with contextlib.suppress(AttributeError, TypeError):
        return tinker.RestClient()
    return service.create_rest_client()


def argument(value: Any) -> Any:
    """Types that JSON has no word for are `{"type": NAME, ...fields}`."""
    if isinstance(value, dict) and "type" in value:
        fields = dict(value)
        return getattr(types, fields.pop("type"))(**fields)
    return value


def shown(result: Any) -> Any:
    return result.model_dump(mode="json") if hasattr(result, "model_dump") else result


def called(whom: Any, method: str, arguments: list[Any]) -> Any:
    result = getattr(whom, method)(*map(argument, arguments))
    return result.result(WITHIN_S) if hasattr(result, "result") else result


def main() -> None:
    warnings.simplefilter("ignore")
    service = tinker.ServiceClient()
    whom: dict[str, Any] = {"service": service, "rest": rest_client(service)}
    told = []
    for name, method, arguments, *keep in json.load(sys.stdin):
        began = time.monotonic()
        try:
            result = called(whom[name], method, arguments)
            whom.update(dict.fromkeys(keep, result))
            answer = {"result": None if keep else shown(result)}
        except Exception as error:  # noqa: BLE001 - what the SDK raises is the answer
            status = getattr(error, "status_code", None)
            answer = {"error": type(error).__name__, "status": status, "text": str(error)}
        told.append({**answer, "seconds": time.monotonic() - began})
    methods = [name for name in dir(whom["rest"]) if not name.startswith("_")]
    print(json.dumps({"told": told, "methods": methods}))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # Not through the interpreter's shutdown, in which the SDK's native transport may abort while
    # connections are open (SIGABRT, about once in 50 runs of SDK 0.38 and pyqwest 0.12).
    os._exit(0)
