"""What is wrong is said wholly, at once, by source and name."""

from pathlib import Path

import pytest

from asgi_gateway.configuration import load
from asgi_gateway.settings import Settings, SettingsError
from tests.support.settings_sources import Sources


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
