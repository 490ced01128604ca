"""`asgi-gateway serve` with keys: as a process, with signals and a changing file; and that nothing
secret, and nothing of a prompt, is in anything that it says."""

import asyncio
import contextlib
import itertools
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loadgen import answers
from loadgen.faults import Fault, fault_prompt_id
from tests.support.collector import Collector
from tests.support.keyed import API, entries, hashed, sample, secret_of
from tests.support.processes import Served, environment, process, serve, stand_in

# ruff: noqa: ASYNC240 - small files of a test
pytestmark = pytest.mark.servers

COMMAND = [sys.executable, "-m", "asgi_gateway"]
# With everything that is ever logged, asyncio's own words too.
AT_DEBUG = """
import logging, sys
from asgi_gateway.__main__ import main
logging.basicConfig(level=logging.DEBUG)
sys.exit(main())
"""


class Client:
    """One caller over real sockets; keeps everything that it was ever answered."""

    def __init__(self, url: str, heard: list[str]) -> None:
        self.url = url
        self.heard = heard

    async def ask(
        self, method: str, path: str, body: object = None, key: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        if key is not None:
            headers["X-API-Key"] = key
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, json=body, headers=headers) as answer,
        ):
            text = await answer.read()
            self.heard.append(f"{answer.status} {dict(answer.headers)} {text!r}")
            is_json = answer.content_type == "application/json"
            return answer.status, await answer.json() if is_json else text


async def until_status(client: Client, key: str, status: int) -> None:
    async with asyncio.timeout(15):
        while (await client.ask("GET", f"{API}/sessions", key=key))[0] != status:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_keys_are_read_again_on_sighup_and_when_the_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(entries({"alice": {}}))
    with serve("http://127.0.0.1:9", access__keys_file=str(file)) as served:
        client = Client(served.url, [])
        await until_status(client, secret_of("alice"), 200)
        assert (await client.ask("GET", f"{API}/sessions", key=secret_of("bob")))[0] == 401
        file.write_text(entries({"bob": {}}))
        served.process.signal(signal.SIGHUP)
        await until_status(client, secret_of("bob"), 200)
        await until_status(client, secret_of("alice"), 401)
        file.write_text(entries({"carol": {}}))
        await until_status(client, secret_of("carol"), 200)
        file.write_text("[alice]\n")
        served.process.signal(signal.SIGHUP)
        await asyncio.to_thread(
            served.process.wait_for, lambda: "stay as they were" in served.process.stderr, "word"
        )
        assert (await client.ask("GET", f"{API}/sessions", key=secret_of("carol")))[0] == 200
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait) == 0


async def test_sighup_without_a_keys_file_changes_nothing() -> None:
    with serve("http://127.0.0.1:9", access__keys=f"alice={hashed('x')}") as served:
        served.process.signal(signal.SIGHUP)
        await asyncio.to_thread(
            served.process.wait_for, lambda: "they are the same" in served.process.stderr, "word"
        )
        assert (await Client(served.url, []).ask("GET", f"{API}/healthz"))[0] == 200
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait) == 0


@pytest.mark.parametrize("host", ["0.0.0.0"])
def test_everybodys_address_without_keys(host: str) -> None:
    command = [*COMMAND, "serve", "--host", host, "--port", "0", "--upstream", "http://h:1"]
    with process(command) as started:
        assert started.wait() == 2
        assert started.stdout == ""
        assert started.stderr.startswith(f"asgi-gateway: server.host = {host!r}: ")


@pytest.mark.parametrize("how", ["--insecure", "keys"])
def test_everybodys_address_where_it_is_meant(how: str) -> None:
    command = [*COMMAND, "serve", "--host", "0.0.0.0", "--port", "0", "--upstream", "http://h:1"]
    environ = {"ASGI_GATEWAY_STATE__DIR": ""}
    if how == "keys":
        environ["ASGI_GATEWAY_ACCESS__KEYS"] = f"alice={hashed('x')}"
    else:
        command.append(how)
    with process(command, environ) as started:
        assert started.first_line().startswith("asgi-gateway listening on http://0.0.0.0:")


def test_keys_that_cannot_be_used(tmp_path: Path) -> None:
    command = [*COMMAND, "serve", "--port", "0", "--upstream", "http://h:1"]
    environ = {"ASGI_GATEWAY_ACCESS__KEYS_FILE": str(tmp_path / "absent")}
    with process(command, environ) as started:
        assert started.wait() == 2
        assert "cannot read" in started.stderr


# --- nothing secret is said -----------------------------------------------------------------------

SECRETS = {name: f"tml-canary{name}canary-0123456789" for name in ("a", "b", "wrong", "late")}
PASSWORD = "canarypasswordcanary"
# A prompt of these; one alone may be any number. Ids that the stand-in knows: an upstream may quote
# in its error what it refuses, and that goes to the caller and to standard error.
MARKER = [101_237, 101_239]
MARKER_TEXT = "canary-text-canary"


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_no_output_has_a_secret_or_a_prompt(tmp_path: Path, log_format: str) -> None:
    """Everything that the gateway answers, logs, counts or keeps, for all kinds of requests."""
    file, log, state = tmp_path / "keys.toml", tmp_path / "samples.jsonl", tmp_path / "state"
    requests = tmp_path / "access.jsonl"
    file.write_text(
        entries({n: {"sha256": hashed(SECRETS[n]), "max_in_flight": 50} for n in ("a", "b")})
        + entries({"probe": {"scopes": ["metrics"]}})
    )
    heard: list[str] = []
    dead = f"http://user:{PASSWORD}@127.0.0.1:9"
    with stand_in("--faults") as up, Collector().running() as collector:
        upstream = up.replace("http://", f"http://user:{PASSWORD}@")
        environ: dict[str, object] = {
            "access__keys_file": file,
            "log__samples": log,
            "log__access": requests,
            "log__access_share": 1.0,
            "log__format": log_format,
            "log__level": "debug",
            "tracing__otlp": True,
            "tracing__endpoint": collector.url.replace("http://", f"http://user:{PASSWORD}@"),
            "tracing__share": 1.0,
            "state__dir": state,
            "id_key": "canaryidkeycanary",
        }
        # Both ways: a logging of the program's own, and that of `serve`.
        with at_debug(upstream, dead, environ, own=log_format == "text") as served:
            await drive(Client(served.url, heard), file)
            served.process.terminate()
            await asyncio.to_thread(served.process.wait)
            heard += [served.process.stdout, served.process.stderr]
        assert "stay as they were" in heard[-1]
        assert "no model list" in heard[-1]
    for argv in (["show-config"], ["check-config", "--upstream", dead.removeprefix("http:")]):
        variables = environment(**environ, upstream__urls=upstream, training__url=upstream)
        variables["ASGI_GATEWAY_ACCESS__KEYS"] = f"late={hashed(SECRETS['late'])}"
        with process([*COMMAND, *argv], variables) as asked:
            await asyncio.to_thread(asked.wait)
            heard += [asked.stdout, asked.stderr]
    assert "must start with http" in heard[-1]
    assert "upstream.urls = ('http://" in "".join(heard)
    lines = log.read_text()
    assert lines.count("\n") >= 5
    assert lines.count('"caller":"a"') == lines.count("\n")
    heard.append(lines)
    asked_for = requests.read_text()
    assert asked_for.count("\n") >= 20
    assert "/nowhere" in asked_for
    heard.append(asked_for)
    assert len([one for one in collector.spans() if one["kind"] == 2]) >= 5
    heard += [body.decode("latin-1") for body in collector.bodies]
    heard += [
        path.read_bytes().decode("latin-1")
        for path in state.rglob("*")
        if path.is_file() and path.name != "id_key"
    ]
    prompts = [", ".join(map(str, MARKER)), ",".join(map(str, MARKER))]
    canaries = ["canary", "Y2FuYXJ5", *prompts, *map(hashed, SECRETS.values())]
    for one in heard:
        for canary in canaries:
            position = one.find(canary)
            assert position < 0, one[max(0, position - 300) : position + 300]


@contextlib.contextmanager
def at_debug(
    first: str, second: str, settings: dict[str, object], *, own: bool
) -> Iterator[Served]:
    program = ["-c", AT_DEBUG] if own else ["-m", "asgi_gateway"]
    command = [sys.executable, *program, "serve", "--port", "0"]
    command += ["--upstream", first, "--upstream", second]
    with process(command, {**environment(**settings), "PYTHONASYNCIODEBUG": "1"}) as started:
        line = started.first_line()
        yield Served("serve", int(line.rsplit(":", 1)[1]), started)


async def drive(client: Client, file: Path) -> None:
    key = SECRETS["a"]
    created = await client.ask("POST", f"{API}/create_session", {"tags": []}, key)
    body = {"sampling_session_seq_id": 0, "base_model": "stand-in", **created[1]}
    status, made = await client.ask("POST", f"{API}/create_sampling_session", body, key)
    assert status == 200, made
    numbers = itertools.count()

    async def submit(tokens: list[int], **more: object) -> tuple[int, Any]:
        body = sample(made["sampling_session_id"], next(numbers))
        body["prompt"]["chunks"][0]["tokens"] = tokens
        return await client.ask("POST", f"{API}/asample", {**body, **more}, key)

    kinds = (Fault.SERVER_ERROR, Fault.CLOSE_BEFORE, Fault.ABORTED, Fault.BAD_REQUEST)
    prompts = [[1, *MARKER]] + [[fault_prompt_id(one, answers.VOCAB), *MARKER] for one in kinds]
    for prompt in prompts:
        status, promise = await submit(prompt)
        assert status == 200, promise
        poll = {"request_id": promise["request_id"]}
        await client.ask("POST", f"{API}/retrieve_future", poll, key)
    # Refused at the door, for the prompt and for other reasons.
    await submit([2**31, *MARKER])
    await submit([1], sampling_params={"stop": [MARKER_TEXT, 1]})
    await submit([1], target_prompt_logprobs={"data": MARKER})
    await submit([1], sampling_params={"max_tokens": "x"})
    await client.ask("POST", f"{API}/asample", [MARKER_TEXT], key)
    await client.ask("POST", f"{API}/telemetry", {"events": [MARKER_TEXT]}, key)
    # Not let in, in every way that there is.
    for wrong in (SECRETS["wrong"], key[:-1], key + "x"):
        await client.ask("POST", f"{API}/asample", {}, wrong)
        await client.ask("GET", "/metrics", None, None, Authorization=f"Bearer {wrong}")
    await client.ask("GET", f"{API}/sessions?api_key={SECRETS['wrong']}")
    await client.ask("GET", f"/nowhere?key={SECRETS['a']}", None, key)
    await client.ask("GET", "/metrics", None, key)
    # Where no secret belongs, and where somebody will write one all the same.
    # Whoever sent it may hear it again, so these answers are not looked at.
    itself = Client(client.url, [])
    await itself.ask("GET", f"{API}/samplers/{SECRETS['a']}", None, key)
    await itself.ask("GET", f"/{SECRETS['wrong']}/{SECRETS['a']}", None, key)
    other = {"request_id": promise["request_id"]}
    await client.ask("POST", f"{API}/retrieve_future", other, SECRETS["b"])
    # A secret where its digest should be.
    good = file.read_text()
    file.write_text(f'{good}[late]\nsha256 = "{SECRETS["late"]}"\n')
    async with asyncio.timeout(20):
        while b"failed_reloads_total 1" not in (await metrics(client)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    file.write_text(good)
    for path in ("/livez", "/readyz", "/openapi.json", f"{API}/sessions", f"{API}/checkpoints"):
        await client.ask("GET", path, None, key)


async def metrics(client: Client) -> bytes:
    status, text = await client.ask("GET", "/metrics", None, secret_of("probe"))
    assert status == 200
    assert isinstance(text, bytes)
    return text
