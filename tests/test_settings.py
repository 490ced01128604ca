"""Settings: one order of sources, every problem at once, and a command line that says them."""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest

import asgi_gateway
from asgi_gateway.__main__ import EXIT_USAGE, main
from asgi_gateway.configuration import Loaded, leaves, load, shown
from asgi_gateway.settings import ServerSettings, Settings, SettingsError

SECRET = "sixteen characters and more"

# docs: contracts, "Settings"; those that exist.
CONTRACT: dict[str, Any] = {
    "upstream.urls": (),
    "upstream.max_connections": 2048,
    "upstream.connect_timeout_s": 60.0,
    "upstream.read_timeout_s": 2048.0,
    "upstream.unavailable_grace_s": 300.0,
    "upstream.read_retries": 0,
    "upstream.poison_after": 3,
    "upstream.affinity": "sample",
    "store.completed_ttl_s": 2048.0,
    "store.retrieved_ttl_s": 300.0,
    "store.max_in_flight": 262_144,
    "poll.hold_s": 30.0,
    "session.timeout_s": 300.0,
    "session.retention_s": 86_400.0,
    "missing_logprobs": "fail",
    "state.dir": None,
    "state.fsync": "none",
    "training.url": None,
    "limits.retrieve_futures_body_bytes": 16 << 20,
    "limits.asample_body_bytes": 32 << 20,
    "limits.telemetry_body_bytes": 256 << 10,
    "limits.body_bytes": 64 << 10,
    "server.host": "127.0.0.1",
    "server.port": 8000,
}


def value_of(tree: object, path: str) -> Any:
    for name in path.split("."):
        tree = getattr(tree, name)
    return tree


@dataclasses.dataclass
class Sources:
    """The four places that settings come from, none of them the machine's."""

    folder: Path
    toml: str = ""

    def load(
        self, flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None
    ) -> Loaded:
        return load(flags, environ or {}, self.file() if self.toml else None)

    def file(self) -> Path:
        path = self.folder / "gateway.toml"
        path.write_text(self.toml)
        return path

    def problems(
        self, flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None
    ) -> tuple[str, ...]:
        with pytest.raises(SettingsError) as caught:
            self.load(flags, environ)
        assert str(caught.value) == "\n".join(caught.value.problems)
        return caught.value.problems


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


# --- defaults -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CONTRACT)
def test_the_default_is_the_contracts(path: str) -> None:
    assert value_of(load(environ={}).settings, path) == CONTRACT[path]


def test_defaults_have_no_source() -> None:
    loaded = load(environ={})
    assert loaded.settings == Settings()
    assert loaded.sources == {}


def test_an_idle_upstream_connection_is_dropped_before_vllm_drops_it() -> None:
    assert 0 < Settings().upstream.keepalive_s < 5


def test_a_poll_is_answered_before_the_sdk_and_common_proxies_cut_it() -> None:
    assert Settings().poll.hold_s < 45


def test_every_section_is_reached_by_leaves() -> None:
    paths = dict(leaves(Settings))
    assert set(CONTRACT) <= set(paths)
    assert all(value_of(Settings(), path) is not Ellipsis for path in paths)


# --- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected", "source"),
    [
        ("", 30.0, None),
        ("file", 10.0, "file"),
        ("environment", 11.0, "environment"),
        ("flag", 12.0, "flag"),
        ("file environment", 11.0, "environment"),
        ("file flag", 12.0, "flag"),
        ("environment flag", 12.0, "flag"),
        ("file environment flag", 12.0, "flag"),
    ],
)
def test_flag_over_environment_over_file_over_default(
    sources: Sources, given: str, expected: float, source: str | None
) -> None:
    sources.toml = "[poll]\nhold_s = 10" if "file" in given else ""
    environ = {"ASGI_GATEWAY_POLL__HOLD_S": "11"} if "environment" in given else {}
    loaded = sources.load({"poll.hold_s": 12 if "flag" in given else None}, environ)
    assert loaded.settings.poll.hold_s == expected
    assert loaded.sources.get("poll.hold_s") == source


def test_the_order_is_field_by_field(sources: Sources) -> None:
    sources.toml = "[upstream]\nmax_connections = 1\nread_retries = 1\nconnect_timeout_s = 1"
    loaded = sources.load(
        {"upstream.connect_timeout_s": 3.0}, {"ASGI_GATEWAY_UPSTREAM__READ_RETRIES": "2"}
    )
    upstream = loaded.settings.upstream
    assert (upstream.max_connections, upstream.read_retries, upstream.connect_timeout_s) == (
        1,
        2,
        3,
    )
    assert loaded.sources == {
        "upstream.max_connections": "file",
        "upstream.read_retries": "environment",
        "upstream.connect_timeout_s": "flag",
    }


def test_the_file_is_named_by_argument_or_environment(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text("[poll]\nhold_s = 1")
    two.write_text("[poll]\nhold_s = 2")
    environ = {"ASGI_GATEWAY_CONFIG": str(one)}
    assert load(environ=environ).settings.poll.hold_s == 1
    assert load(environ=environ, file=two).settings.poll.hold_s == 2
    assert load(environ={"ASGI_GATEWAY_CONFIG": ""}).settings == Settings()


def test_create_app_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASGI_GATEWAY_UPSTREAM__URLS", "http://h:1,http://h:2")
    assert asgi_gateway.create_app().settings.upstream.urls == ("http://h:1", "http://h:2")
    monkeypatch.setenv("ASGI_GATEWAY_POLL__HOLD_S", "long")
    with pytest.raises(SettingsError, match="hold_s"):
        asgi_gateway.create_app()


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://a:1", ("http://a:1",)),
        ("http://a:1,http://b:2", ("http://a:1", "http://b:2")),
        (" http://a:1 , http://b:2 ,", ("http://a:1", "http://b:2")),
        ("", ()),
    ],
)
def test_lists_in_the_environment_are_separated_by_commas(
    text: str, expected: tuple[str, ...]
) -> None:
    loaded = load(environ={"ASGI_GATEWAY_UPSTREAM__URLS": text})
    assert loaded.settings.upstream.urls == expected


def test_lists_in_the_file_and_from_flags(sources: Sources) -> None:
    sources.toml = '[upstream]\nurls = ["http://a:1", "http://b:2"]'
    loaded = sources.load({"models.base": ["one", "two=2"]})
    assert loaded.settings.upstream.urls == ("http://a:1", "http://b:2")
    assert loaded.settings.models.base == ("one", "two=2")


def test_environment_text_becomes_the_fields_type() -> None:
    loaded = load(
        environ={
            "ASGI_GATEWAY_UPSTREAM__MAX_CONNECTIONS": "7",
            "ASGI_GATEWAY_POLL__HOLD_S": "2.5",
            "ASGI_GATEWAY_MISSING_LOGPROBS": "nan",
            "ASGI_GATEWAY_STORE__MAX_BYTES": "1000",
            "ASGI_GATEWAY_ID_KEY": "1234567890123456",
            "asgi_gateway_poll__hold_s": "not ours: names are matched by case",
            "PATH": "/bin",
        }
    )
    got = loaded.settings
    assert got.upstream.max_connections == 7
    assert got.poll.hold_s == 2.5
    assert got.missing_logprobs == "nan"
    assert got.store.max_bytes == 1000
    assert got.id_key == "1234567890123456"


def test_a_file_keeps_its_types(sources: Sources) -> None:
    sources.toml = "[upstream]\nmax_connections = 7.5"
    (problem,) = sources.problems()
    assert problem.startswith("file: upstream.max_connections = 7.5: ")
    sources.toml = "[upstream]\nurls = [1]"
    (problem,) = sources.problems()
    assert problem.startswith("file: upstream.urls = [1]: ")


OUT_OF_RANGE = [
    ("server.port", -1),
    ("server.port", 65_536),
    ("server.backlog", 0),
    ("server.keepalive_s", 0),
    ("upstream.max_connections", 0),
    ("upstream.connect_timeout_s", 0),
    ("upstream.read_timeout_s", -1),
    ("upstream.keepalive_s", -0.5),
    ("upstream.unavailable_grace_s", -1),
    ("upstream.read_retries", -1),
    ("upstream.poison_after", -1),
    ("state.fsync", "always"),
    ("limits.retrieve_futures_body_bytes", 0),
    ("upstream.affinity", "prompt"),
    ("store.completed_ttl_s", 0),
    ("store.retrieved_ttl_s", 0),
    ("store.max_in_flight", 0),
    ("store.max_bytes", 0),
    ("poll.hold_s", 0),
    ("poll.hold_s", 40.5),
    ("poll.hold_s", float("nan")),
    ("poll.wakes_per_turn", 0),
    ("session.timeout_s", 0),
    ("session.retention_s", 0),
    ("client.sample_max_concurrent_requests", 0),
    ("models.max_context_length", 0),
    ("limits.asample_body_bytes", 0),
    ("missing_logprobs", "zero"),
    ("id_key", "fifteen letters"),
    ("upstream.max_connections", True),
]


@pytest.mark.parametrize(("path", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused(sources: Sources, path: str, value: Any) -> None:
    (problem,) = sources.problems({path: value})
    assert problem.startswith(f"flag: {path} = ")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("server.port", 0),
        ("server.port", 65_535),
        ("upstream.keepalive_s", 0),
        ("upstream.unavailable_grace_s", 0),
        ("poll.hold_s", 40),
        ("upstream.max_connections", 1),
        ("id_key", "sixteen letters."),
    ],
)
def test_the_ends_of_a_range_are_in_it(path: str, value: Any) -> None:
    assert value_of(load({path: value}, {}).settings, path) == value


# --- problems -----------------------------------------------------------------------------------


def test_every_problem_of_every_source_at_once(sources: Sources) -> None:
    sources.toml = "[poll]\nhold_s = 0\nholds = 1\n[stoer]\nmax_bytes = 1"
    problems = sources.problems(
        {"server.port": 70_000, "server.prot": 1},
        {
            "ASGI_GATEWAY_UPSTREAM__MAX_CONNECTIONS": "many",
            "ASGI_GATEWAY_UPSTREM__URLS": "http://h",
        },
    )
    assert [problem.split(":")[0] for problem in problems] == (
        ["file"] * 3 + ["environment"] * 2 + ["flag"] * 2
    )
    for name in ("hold_s", "holds", "stoer", "max_connections", "upstrem", "port", "prot"):
        assert any(name in problem for problem in problems), name


@pytest.mark.parametrize(
    ("unknown", "near"),
    [
        ("poll.holds", "poll.hold_s"),
        ("upstream.url", "upstream.urls"),
        ("upstrem.urls", "upstream.urls"),
        ("store.max_inflight", "store.max_in_flight"),
        ("missing_logprob", "missing_logprobs"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest(sources: Sources, unknown: str, near: str) -> None:
    environ = {"ASGI_GATEWAY_" + unknown.upper().replace(".", "__"): "1"}
    section, _, name = unknown.rpartition(".")
    sources.toml = f"[{section}]\n{name} = 1" if section else f"{name} = 1"
    problems = sources.problems({unknown: 1}, environ)
    assert [problem.split(":")[0] for problem in problems] == ["file", "environment", "flag"]
    for problem in problems:
        assert problem.endswith(f"unknown setting {unknown}; did you mean {near}?")


@pytest.mark.parametrize(
    "toml",
    ["[colour]\nhue = 1", "[colour]", "colour = 1", "colour = {}", "[poll.colour]", "poll = 1"],
)
def test_an_unknown_table_is_refused_even_when_it_is_empty(sources: Sources, toml: str) -> None:
    sources.toml = toml
    (problem,) = sources.problems()
    assert problem.startswith("file: unknown setting ")


@pytest.mark.parametrize("toml", ["[poll.hold_s]", "poll.hold_s = {}"])
def test_a_table_where_a_value_belongs_is_refused(sources: Sources, toml: str) -> None:
    sources.toml = toml
    (problem,) = sources.problems()
    assert problem.startswith("file: poll.hold_s = {}: ")


def test_an_empty_known_table_is_fine(sources: Sources) -> None:
    sources.toml = "[poll]\n[upstream]"
    assert sources.load().settings == Settings()


def test_a_name_like_nothing_has_no_hint(sources: Sources) -> None:
    assert sources.problems({"zzz": 1}) == ("flag: unknown setting zzz",)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*No such file"):
        load(environ={}, file=tmp_path / "none.toml")
    with pytest.raises(SettingsError, match=r"cannot read .*Is a directory"):
        load(environ={}, file=tmp_path)


@pytest.mark.parametrize("content", [b"[poll", b"\xff\xfe", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "gateway.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="is not TOML"):
        load(environ={}, file=path)


def test_problems_of_a_file_do_not_hide_the_others(sources: Sources) -> None:
    sources.toml = "[poll"
    assert len(sources.problems({"server.port": -1})) == 2


@pytest.mark.parametrize("secret", ["short secret", 7])
def test_a_wrong_secret_is_not_shown(sources: Sources, secret: Any) -> None:
    (problem,) = sources.problems({"id_key": secret})
    assert problem.startswith("flag: id_key = (hidden): ")
    assert str(secret) not in problem


def test_settings_are_frozen() -> None:
    made = Settings()
    with pytest.raises(AttributeError):
        made.missing_logprobs = "nan"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        made.poll.hold_s = 1.0  # type: ignore[misc]


# --- memory limit -------------------------------------------------------------------------------


# --- command line -------------------------------------------------------------------------------


@dataclasses.dataclass
class Ran:
    status: int
    out: str
    err: str


class Cli:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *argv: str) -> Ran:
        status = main(list(argv))
        out, err = self._capsys.readouterr()
        return Ran(status, out, err)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line, in an environment that says nothing of the gateway."""
    for name in list(os.environ):
        if name.startswith("ASGI_GATEWAY_"):
            monkeypatch.delenv(name)
    return Cli(capsys)


def test_a_valid_configuration(cli: Cli) -> None:
    ran = cli("check-config", "--upstream", "http://127.0.0.1:8001")
    assert (ran.status, ran.out, ran.err) == (0, "the configuration is valid\n", "")


@pytest.mark.parametrize("command", ["check-config", "serve"])
def test_no_upstream_is_refused_with_how_to_give_one(cli: Cli, command: str) -> None:
    ran = cli(command)
    assert (ran.status, ran.out) == (EXIT_USAGE, "")
    for way in ("--upstream http://", "ASGI_GATEWAY_UPSTREAM__URLS", "upstream.urls"):
        assert way in ran.err


@pytest.mark.parametrize("command", ["check-config", "serve", "show-config"])
def test_every_problem_is_said_at_once(
    cli: Cli, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("[poll]\nholds = 1")
    monkeypatch.setenv("ASGI_GATEWAY_SERVER__BACKLOG", "0")
    ran = cli(command, "--config", str(file), "--port", "70000")
    assert (ran.status, ran.out) == (EXIT_USAGE, "")
    lines = ran.err.splitlines()
    # That no upstream is given is no matter of showing what is.
    said = ["poll.holds", "server.backlog", "server.port", "no upstream"]
    assert len(lines) == len(said[:3] if command == "show-config" else said)
    for line, what in zip(lines, said, strict=False):
        assert line.startswith("asgi-gateway: ")
        assert what in line


def test_problems_of_types_and_of_sense_come_together(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is said of what depends on a value that could not be taken."""
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[poll]\nhold_s = 0\n[server]\nhost = "0.0.0.0"\n[models]\nadapter_name = "x"\n'
        '[models.adapters]\n"tinker://r/sampler_weights/c" = ""\n[training]\nurl = "trainer:1"'
    )
    monkeypatch.setenv("ASGI_GATEWAY_ACCESS__KEYS_FILE", str(tmp_path / "none.toml"))
    ran = cli("check-config", "--config", str(file), "--upstream", "ftp://h")
    assert ran.status == EXIT_USAGE
    lines = ran.err.splitlines()
    for what in (
        *("poll.hold_s = 0", "upstream.urls: 'ftp://h'", "models.adapter_name: 'x'"),
        *("models.adapters: ", "training.url: ", "access.keys_file: cannot read"),
    ):
        assert sum(what in line for line in lines) == 1, what
    assert len(lines) == 6
    monkeypatch.setenv("ASGI_GATEWAY_ACCESS__KEYS_FIL", "f")
    monkeypatch.delenv("ASGI_GATEWAY_ACCESS__KEYS_FILE")
    ran = cli("check-config", "--host", "0.0.0.0", "--upstream", "http://h")
    (line,) = ran.err.splitlines()
    assert line.endswith("access.keys_fil; did you mean access.keys_file?")
    file.write_text("[upstream")
    monkeypatch.delenv("ASGI_GATEWAY_ACCESS__KEYS_FIL")
    (line,) = cli("check-config", "--config", str(file)).err.splitlines()
    assert "is not TOML" in line


@pytest.mark.parametrize("url", ["h:8001", "ftp://h", "tcp://h:1", "http:/h"])
def test_an_upstream_that_is_no_url(cli: Cli, url: str) -> None:
    ran = cli("check-config", "--upstream", url, "--upstream", "http://good:1")
    assert ran.status == EXIT_USAGE
    assert url in ran.err
    assert "http://good:1" not in ran.err


@pytest.mark.parametrize("command", ["check-config", "serve"])
@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"UPSTREAM__URLS": "http://"}, "upstream.urls: "),
        ({"UPSTREAM__URLS": "http://u:canary@h:99999"}, "upstream.urls: "),
        ({"UPSTREAM__URLS": "http://u:canary@h:port"}, "upstream.urls: "),
        ({"UPSTREAM__URLS": "http://u:canary@h:0"}, "upstream.urls: "),
        ({"UPSTREAM__URLS": "http://[::1"}, "upstream.urls: "),
        ({"TRAINING__URL": "trainer:8000"}, "training.url: "),
        ({"TRAINING__URL": "http://"}, "training.url: "),
        ({"TRAINING__URL": "http://u:canary@h:99999"}, "training.url: "),
        ({"TRAINING__URL": "http://u:canary@h:8000"}, "training.url"),
        ({"TRAINING__EMBEDDED": "true"}, "training.embedded: "),
        ({"SERVER__HOST": "a..b"}, "a..b"),
    ],
)
def test_what_serve_could_not_use_is_said(
    cli: Cli, command: str, environ: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"UPSTREAM__URLS": "http://h:1", "SERVER__PORT": "0", "SERVER__INSECURE": "1"}
    for name, value in {**given, **environ}.items():
        monkeypatch.setenv(f"ASGI_GATEWAY_{name}", value)
    ran = cli(command)
    assert (ran.status, ran.out) == (EXIT_USAGE, "")
    (line,) = ran.err.splitlines()
    assert named in line
    assert "canary" not in line


def test_show_config_says_the_source_of_each(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("[session]\ntimeout_s = 60")
    monkeypatch.setenv("ASGI_GATEWAY_POLL__HOLD_S", "20")
    ran = cli("show-config", "--config", str(file), "--port", "9000", "--upstream", "http://h:1")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert "session.timeout_s = 60.0  # file" in lines
    assert "poll.hold_s = 20.0  # environment" in lines
    assert "server.port = 9000  # flag" in lines
    assert "upstream.urls = ('http://h:1',)  # flag" in lines
    assert "upstream.max_connections = 2048  # default" in lines
    assert [line.split(" = ")[0] for line in lines] == [path for path, _ in leaves(Settings)]


def test_show_config_hides_secrets(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "id_key = None  # default" in cli("show-config").out
    monkeypatch.setenv("ASGI_GATEWAY_ID_KEY", SECRET)
    ran = cli("show-config")
    assert "id_key = (hidden)  # environment" in ran.out
    assert SECRET not in ran.out


@pytest.mark.parametrize("path", ["upstream.urls", "training.url"])
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://user:p@ssword@h:8001/?token=abc", "http://h:8001"),
        ("http://user:pa/ssword@h:8001/v1#abc", "http://h:8001/v1"),
        ("http://user:p?ssword@h:8001/?token=abc", "http://(hidden)"),
        ("user:p@ssword@h:8001", "h:8001"),
        ("http://h:8001/?token=abc@ssword", "http://(hidden)"),
    ],
)
def test_nothing_secret_of_a_url_is_shown(path: str, url: str, told: str) -> None:
    several: tuple[object, ...] = (url,) if path == "training.url" else (url, [url], (url,))
    for value in several:
        text = shown(path, value)
        assert told in text
        assert not re.search("user|ssword|abc", text)
    if path == "upstream.urls":
        assert shown(path, f"{url}, http://other:1") == repr(f"{told},http://other:1")


def test_show_config_and_problems_hide_what_a_url_carries(cli: Cli) -> None:
    url = "http://user:p@ssword@h:8001/?token=abc"
    ran = cli("show-config", "--upstream", url)
    assert "upstream.urls = ('http://h:8001',)  # flag" in ran.out
    refused = cli("check-config", "--upstream", url.replace("http", "ftp"))
    assert "ftp://h:8001 " in refused.err.replace("'", " ")
    for text in (ran.out, ran.err, refused.err):
        assert not re.search("p@|ssword|abc", text)


@pytest.mark.parametrize("argv", [[], ["go"], ["serve", "--port", "x"], ["serve", "--colour", "1"]])
def test_a_wrong_command_line_exits_2(cli: Cli, argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli(*argv)
    assert caught.value.code == EXIT_USAGE


def test_what_kubernetes_says_of_a_service_of_our_name_is_not_ours() -> None:
    environ = {
        "ASGI_GATEWAY_SERVICE_HOST": "10.0.0.7",
        "ASGI_GATEWAY_SERVICE_PORT": "8000",
        "ASGI_GATEWAY_SERVICE_PORT_HTTP": "8000",
        "ASGI_GATEWAY_PORT": "tcp://10.0.0.7:8000",
        "ASGI_GATEWAY_PORT_8000_TCP": "tcp://10.0.0.7:8000",
        "ASGI_GATEWAY_PORT_8000_TCP_ADDR": "10.0.0.7",
        "ASGI_GATEWAY_SERVER__PORT": "8001",
    }
    assert load(environ=environ).settings == Settings(server=ServerSettings(port=8001))
    with pytest.raises(SettingsError, match="portt"):
        load(environ={"ASGI_GATEWAY_PORTT": "1"})
