"""Training and sampling through one base URL: the real SDK, the gateway, the stand-in trainer.

`how` is where the trainer is: behind `training.url`, or embedded as the inner application.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from loadgen import answers
from tests.contract.sdk import FUTURES, Sdk, assert_right, sdk_process
from tests.contract.train_and_sample_program import PROMPT
from tests.support.embedded import embedded
from tests.support.processes import Served, free_port, process, serve, stand_in
from tests.support.supervised import supervised
from tests.support.trainer import Served as ServedTrainer
from tests.support.trainer import trainer
from tests.support.wire import Remote

pytestmark = pytest.mark.sdk

HERE = Path(__file__).parent
HELD = ("--work-s", "0.25", "--hold-s", "0.1")
both = pytest.mark.parametrize("how", ["url", "embedded"])


@pytest.fixture(scope="module")
def sdk() -> Iterator[Sdk]:
    with sdk_process(*FUTURES) as running:
        yield running


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    with stand_in("--any-adapter", "--model", "stand-in,org/other") as url:
        yield url


@contextlib.contextmanager
def gateway(how: str, vllm: str, behind: ServedTrainer, **settings: object) -> Iterator[Served]:
    made = (
        serve(vllm, training__url=behind.url, **settings)
        if how == "url"
        else embedded(vllm, behind.url, **settings)
    )
    with made as served:
        yield served
        assert "Traceback" not in served.process.stderr, served.process.story()


def ran(program: str, served: Served) -> Any:
    """What one of the SDK's scripts told."""
    environ = {"TINKER_BASE_URL": served.url, "TINKER_API_KEY": "tml-test"}
    with process([sys.executable, str(HERE / program)], environ) as started:
        assert started.wait(90) == 0, started.story()
        return json.loads(started.stdout)


def adapter(path: str) -> str:
    """vLLM's name for the weights at a path of the trainer's, in the long form or the short."""
    run, _, name = path.removeprefix("tinker://").partition("/")
    return f"{run}_{name.removeprefix('sampler_weights/')}"


def sent(state: Any, path: str) -> list[dict[str, Any]]:
    """The requests that came to one path of the trainer."""
    return [one for one in state["requests"] if one["target"] == f"/api/v1/{path}"]


def headers(request: dict[str, Any]) -> dict[str, str]:
    return {name.lower(): value for name, value in request["headers"]}


# --- whole scripts --------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "flags", [(), (*HELD, "--compress", "--short-paths"), (*HELD, "--pending", "try_again")]
)
def test_every_sample_has_the_weights_of_its_save(
    vllm: str, tmp_path: Path, how: str, flags: tuple[str, ...]
) -> None:
    """Two runs side by side train, save and sample, twice, with minted and with named saves."""
    settings = {"state__dir": tmp_path} if flags else {}
    with trainer(*flags) as behind, gateway(how, vllm, behind, **settings) as served:
        told = ran("train_and_sample_program.py", served)["samples"]
        state = behind.state()
    assert [(one["kind"], one.get("run")) for one in told] == [
        (kind, run) for _ in range(2) for kind in ("minted", "named") for run in state["runs"]
    ] + [("base", None)]
    seen = set()
    for one in told:
        if one["kind"] == "minted":
            model = adapter(state["samplers"][one["id"]]["model_path"])
        else:
            assert one["id"] not in state["samplers"]
            model = adapter(one["path"]) if one["kind"] == "named" else "stand-in"
        right = answers.sample(PROMPT, max_tokens=4, seed=7, model=model)
        assert one["tokens"] == right.token_ids, (one, model)
        seen.add(model)
    assert len(seen) == 9
    assert [run["steps"] for run in state["runs"].values()] == [2, 2]
    # The trainer's flags reach the SDK.
    encodings = {headers(one).get("content-encoding") for one in sent(state, "forward_backward")}
    assert encodings == ({"zstd"} if "--compress" in flags else {None})
    assert sent(state, "asample") == []
    assert sent(state, "retrieve_futures") == []


@both
def test_a_script_that_looks_everything_up(vllm: str, how: str) -> None:
    with trainer(*HELD, "--dynamic-config") as behind, gateway(how, vllm, behind) as served:
        told = ran("trainer_program.py", served)
        state = behind.state()
    (session,) = state["sessions"].values()
    assert session["finished"] == "success"
    assert session["user_metadata"] == {"of": "the contract tests"}
    assert told["sampled"] == "a sample"
    assert told["listed"] == list(state["runs"])
    assert told["checkpoints"] == [
        state["samplers"][told["samplers"]["snapshot"]["id"]]["model_path"],
        told["named"],
    ]
    assert told["after_delete"] == told["checkpoints"][:1]
    assert told["model_path"] == told["checkpoints"][0]
    assert {one["base_model"] for one in told["samplers"].values()} == {"stand-in"}
    assert (told["lora_rank"], told["trainable"]) == (4, [True, False])


# --- samplers that travel or were minted behind our back ------------------------------------------


def cases(number: int) -> list[dict[str, Any]]:
    return [{"prompt": [number, n], "params": {"max_tokens": 4}} for n in range(3)]


def assert_weights(found: list[dict[str, Any]], number: int, path: str) -> None:
    assert len(found) == 3
    for answer, case in zip(found, cases(number), strict=True):
        assert_right(answer, case["prompt"], **case["params"], model=adapter(path))


def test_minted_samplers_outlive_a_gateway_that_keeps_nothing(sdk: Sdk, vllm: str) -> None:
    """The trainer is asked for what the gateway has forgotten or never heard of."""
    with (
        trainer() as behind,
        supervised(vllm, None, training__url=behind.url) as served,
        sdk_process(*FUTURES) as other,
    ):
        carried = sdk.ask("carry_minted", base_url=served.url)
        told = other.ask("sampled", form="pickle", data=carried["pickle"], cases=cases(1))
        run = carried["run"]
        assert_weights(told["answers"], 1, f"tinker://{run}/sampler_weights/ss0_seq1")
        served.kill()
        minted = asyncio.run(minted_at(behind, run))
        served.start()
        for who, number in ((other, 2), (sdk, 3)):
            told = who.ask("sampled", form="pickle", data=carried["pickle"], cases=cases(number))
            assert_weights(told["answers"], number, f"tinker://{run}/sampler_weights/ss0_seq1")
        found = sdk.ask(
            "sampled_from", sampling_session_id=minted, cases=cases(4), base_url=served.url
        )
        assert_weights(found, 4, f"tinker://{run}/sampler_weights/ss7_seq7")
        # Once in each life of the gateway, however many samples and clones there are.
        counts = behind.state()["counts"]
        assert counts[f"GET /api/v1/samplers/{carried['sampler']}"] == 2


async def minted_at(behind: ServedTrainer, run: str) -> str:
    """A sampler minted without the gateway."""
    remote = Remote(int(behind.url.rpartition(":")[2]))
    body = {"model_id": run, "seq_id": 7, "sampling_session_seq_id": 7}
    promise = (await remote.post("/api/v1/save_weights_for_sampler", body)).json()
    while (answer := await remote.post("/api/v1/retrieve_future", promise)).status == 408:
        pass
    sampler: str = answer.json()["sampling_session_id"]
    return sampler


# --- a trainer that comes late, goes and comes back -----------------------------------------------


def test_a_trainer_that_is_down_at_the_start_is_waited_for(sdk: Sdk, vllm: str) -> None:
    """It owns the sessions, so a new client waits for it; the gateway itself is up."""
    port = free_port()
    with serve(vllm, training__url=f"http://127.0.0.1:{port}") as served:
        sdk.send("samples", base_url=served.url, cases=cases(1))
        with pytest.raises(HTTPError, match="503"):
            urlopen(f"{served.url}/api/v1/get_server_capabilities", timeout=5)
        assert urlopen(f"{served.url}/api/v1/healthz", timeout=5).status == 200
        with trainer(port=port):
            for answer, case in zip(sdk.answer(), cases(1), strict=True):
                assert_right(answer, case["prompt"], **case["params"])


def test_sampling_goes_on_without_the_trainer(sdk: Sdk, vllm: str, tmp_path: Path) -> None:
    """With the samplers that are known, with new ones of base models, after a restart too."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with supervised(vllm, tmp_path, training__url=url) as served:
        with trainer(port=port) as behind:
            carried = sdk.ask("carry_minted", base_url=served.url)
            assert sdk.ask("samples", base_url=served.url, cases=cases(0))[0]["sequences"]
            path = f"tinker://{carried['run']}/sampler_weights/ss0_seq1"
            told = sdk.ask("sampled", form="pickle", data=carried["pickle"], cases=cases(1))
            assert_weights(told["answers"], 1, path)
            behind.process.kill()
        for number in (2, 3):
            told = sdk.ask("sampled", form="pickle", data=carried["pickle"], cases=cases(number))
            assert_weights(told["answers"], number, path)
            arguments = {"base_url": served.url, "base_model": "org/other"}
            for answer, case in zip(
                sdk.ask("samples", cases=cases(number), **arguments), cases(number), strict=True
            ):
                assert_right(answer, case["prompt"], **case["params"], model="org/other")
            if number == 2:
                served.kill()
                served.start()
