"""The command line says what is wrong, and where each setting comes from."""

from pathlib import Path

import pytest

from asgi_gateway.__main__ import EXIT_USAGE
from asgi_gateway.configuration import leaves
from asgi_gateway.settings import Settings
from tests.support.command_line import Cli


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
        (
            {"STORE__URL": "valkey://u:canary@h", "TRAINING__URL": "http://t:1"},
            "training.url and store.url: ",
        ),
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


@pytest.mark.parametrize("argv", [[], ["go"], ["serve", "--port", "x"], ["serve", "--colour", "1"]])
def test_a_wrong_command_line_exits_2(cli: Cli, argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli(*argv)
    assert caught.value.code == EXIT_USAGE
