import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgi_gateway.__main__ import main
from asgi_gateway.configuration import load
from asgi_gateway.errors import Malformed
from asgi_gateway.settings import ModelSettings, SettingsError
from asgi_gateway.upstream.naming import Naming, TinkerPath, is_hub_name, parse, problems

PART = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,12}", fullmatch=True).filter(
    lambda part: ".." not in part
)
KIND = st.sampled_from(["weights", "sampler_weights"])


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("tinker://run/weights/0001", TinkerPath("run", "weights", "0001")),
        (
            "tinker://3f0e-11:train:0/sampler_weights/step_10.v2",
            TinkerPath("3f0e-11:train:0", "sampler_weights", "step_10.v2"),
        ),
    ],
)
def test_a_path_of_the_sdk_is_read_and_written_alike(text: str, path: TinkerPath) -> None:
    assert parse(text, "model_path") == path
    assert str(path) == text


@pytest.mark.parametrize("checkpoint", ["000010", "weights2", "my-sampler_weights"])
def test_a_path_of_skyrl_leaves_the_kind_out(checkpoint: str) -> None:
    assert parse(f"tinker://model_ab/{checkpoint}", "model_path") == TinkerPath(
        "model_ab", "sampler_weights", checkpoint
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "run/weights/1",
        "tinker://",
        "tinker://run",
        "tinker://run/weights",
        "tinker://run/sampler_weights",
        "tinker://run/weights/",
        "tinker:///weights/1",
        "tinker://run/external_weights/1",
        "tinker://run/optimizer/1",
        "tinker://run/weights/1/2",
        "tinker://run/weights/1/",
        "tinker://run//weights/1",
        "tinker://run/weights/..",
        "tinker://../weights/1",
        "tinker://a..b/weights/1",
        "tinker://run/weights/.hidden",
        "tinker://run/weights/a b",
        "tinker://run/weights/a%2fb",
        "tinker://run/weights/a\\b",
        "tinker://run/weights/a?b",
        "tinker://run/weights/a#b",
        "tinker://run/weights/a:b",
        "tinker://run/weights/1\n",
        "tinker://run/weights/1\x00",
        "tinker://run/weights/{model_id}",
        "tinker://user@host/weights/1",
        "tinker://run/weights/é",
        "TINKER://run/weights/1",
        "http://127.0.0.1/weights/1",
        "tinker://" + "r" * 201 + "/weights/1",
    ],
)
def test_anything_else_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(Malformed, match="tinker://<run>/sampler_weights/<checkpoint>") as raised:
        parse(text, "model_path")
    assert len(str(raised.value)) < 500


@given(PART, KIND, PART)
def test_a_name_made_by_the_rule_leads_back_to_its_run(
    run: str, kind: str, checkpoint: str
) -> None:
    naming = Naming(ModelSettings())
    path = TinkerPath(run, kind, checkpoint)
    name = naming.adapter(path)
    assert naming.paths(name, run) == [TinkerPath(run, "sampler_weights", checkpoint)]
    usual = naming.paths(name)
    assert len(usual) == 1
    assert naming.adapter(usual[0]) == name


def test_the_last_underscore_parts_run_and_checkpoint() -> None:
    naming = Naming(ModelSettings())
    assert naming.paths("model_ab12_000010") == [
        TinkerPath("model_ab12", "sampler_weights", "000010")
    ]
    assert naming.paths("run_step_10", "run") == [TinkerPath("run", "sampler_weights", "step_10")]
    assert naming.paths("run_step_10", "another") == []
    assert naming.paths("run_step_10", ".*") == []
    assert naming.paths("plain") == []
    assert naming.paths("a_b..c") == []


def test_a_template_may_tell_the_kinds_apart() -> None:
    naming = Naming(ModelSettings(adapter_name="{model_id}/{kind}/{checkpoint_id}"))
    path = TinkerPath("run", "weights", "7")
    assert naming.adapter(path) == "run/weights/7"
    assert naming.paths("run/weights/7") == [path]
    assert naming.paths("run/other/7") == []


def test_a_placeholder_may_be_used_twice() -> None:
    naming = Naming(ModelSettings(adapter_name="{model_id}+{checkpoint_id}+{model_id}"))
    assert naming.paths("a+b+a") == [TinkerPath("a", "sampler_weights", "b")]
    assert naming.paths("a+b+c") == []
    assert naming.paths("a+b+a", "a") == [TinkerPath("a", "sampler_weights", "b")]


def test_a_name_without_the_checkpoint_leads_nowhere() -> None:
    naming = Naming(ModelSettings(adapter_name="lora-{model_id}"))
    assert naming.adapter(TinkerPath("run", "weights", "7")) == "lora-run"
    assert naming.paths("lora-run") == []


def test_the_table_wins_both_ways() -> None:
    naming = Naming(ModelSettings(adapters={"tinker://a/sampler_weights/1": "best"}))
    assert naming.adapter(TinkerPath("a", "sampler_weights", "1")) == "best"
    assert naming.adapter(TinkerPath("a", "weights", "1")) == "a_1"
    assert naming.paths("best") == [TinkerPath("a", "sampler_weights", "1")]
    assert naming.paths("best", "b") == []
    # By the rule it would be the path that the table gives to other weights.
    assert naming.paths("a_1") == []
    assert naming.tabled("best")
    assert not naming.tabled("a_1")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (ModelSettings(adapter_name="{model_id}_{step}"), "unknown placeholder {step}"),
        (ModelSettings(adapter_name="{model_id}_{}"), "unknown placeholder {}"),
        (ModelSettings(adapter_name="{model_id!r}"), "unknown placeholder"),
        (ModelSettings(adapter_name="{model_id"), "a brace without its pair"),
        (ModelSettings(adapter_name="{{model_id}}"), "a brace without its pair"),
        (ModelSettings(adapter_name="lora"), "no placeholder"),
        (ModelSettings(adapter_name=""), "no placeholder"),
        (ModelSettings(adapters={"run/1": "x"}), "models.adapters: path 'run/1' is not of"),
        (ModelSettings(adapters={"tinker://r/weights/1": ""}), "has no upstream name"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_start(settings: ModelSettings, text: str) -> None:
    found = list(problems(settings))
    assert len(found) == 1
    assert text in found[0]
    with pytest.raises(SettingsError):
        Naming(settings)


def test_adapters_come_from_a_table_a_list_or_text(tmp_path: object) -> None:
    path, name = "tinker://run/weights/1", "lora"
    environment = {"ASGI_GATEWAY_MODELS__ADAPTERS": f"{path}={name}, tinker://run/weights/2=b=c"}
    loaded = load(environ=environment).settings.models.adapters
    assert loaded == {path: name, "tinker://run/weights/2": "b=c"}
    assert load({"models.adapters": [f"{path}={name}"]}, {}).settings.models.adapters == {
        path: name
    }


def test_adapters_come_from_a_file(tmp_path: object) -> None:
    file = f"{tmp_path}/gateway.toml"
    with open(file, "w") as stream:
        stream.write('[models.adapters]\n"tinker://run/weights/1" = "lora"\n')
    assert load(environ={}, file=file).settings.models.adapters == {
        "tinker://run/weights/1": "lora"
    }


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (["tinker://run/weights/1"], "is not of the form KEY=VALUE"),
        (["tinker://run/weights/1=a", "tinker://run/weights/1=b"], "is given twice"),
    ],
)
def test_entries_of_another_form_are_refused(entries: list[str], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        load({"models.adapters": entries}, {})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen3-8B", True),
        ("Qwen/Qwen3-8B:32k", True),
        ("org/model/variant", True),
        ("stand-in", False),
        ("/models/qwen", False),
        ("./models/qwen", False),
        ("a/b/c/d", False),
        ("org/", False),
    ],
)
def test_hub_names_are_what_the_sdk_can_load_a_tokenizer_by(name: str, expected: bool) -> None:
    assert is_hub_name(name) is expected


def test_check_config_says_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check-config", "--upstream", "http://127.0.0.1:9"]
    assert main([*arguments, "--adapter", "tinker://run/weights/1=lora"]) == 0
    assert main([*arguments, "--adapter", "run/1=x", "--adapter", "tinker://run/weights/1="]) == 2
    told = capsys.readouterr().err
    assert "models.adapters: path 'run/1' is not of the form" in told
    assert "models.adapters: tinker://run/weights/1 has no upstream name" in told
