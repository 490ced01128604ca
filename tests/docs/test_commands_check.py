"""docs/commands_check.py: what a reader would copy and nobody would take is told."""

from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = "commands_check"


@pytest.mark.parametrize(
    "text",
    [
        "    asgi-gateway serve --port 8000 --upstream http://h:1\n",
        "    .venv/bin/asgi-gateway serve --config FILE  # --nonsense\n",
        "    A=1 asgi-gateway serve \\\n        --insecure\n",
        "    loadgen run --start 'asgi-gateway serve --port 0 --upstream {upstream}' -n 5\n",
        "    python -m loadgen upstream --lora a | other --flag\n",
        "    vllm serve M --enable-lora\n",
        "Write `from asgi_gateway import Gateway`, it isn't `a --flag` of ours.\n",
        "```\nasgi-gateway hash-key alice --new\n```\n",
    ],
)
def test_commands_that_there_are(module: ModuleType, page: Path, text: str) -> None:
    page.write_text(text)
    assert list(module.wrong_flags(page)) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("    asgi-gateway serve --prot 8000\n", "has no --prot"),
        ("    asgi-gateway start\n", "has no command start"),
        ("    A=1 asgi-gateway serve \\\n        --prot=1\n", "has no --prot"),
        ("    python -m asgi_gateway serve --prot 1\n", "has no --prot"),
        ("    loadgen run --start 'asgi-gateway serve --prot 0'\n", "has no --prot"),
        ("Say `loadgen run --nope`.\n", "has no --nope"),
        ("```sh\n.venv/bin/loadgen run --nope\n```\n", "has no --nope"),
    ],
)
def test_commands_that_there_are_not(module: ModuleType, page: Path, text: str, told: str) -> None:
    page.write_text(text)
    (problem,) = module.wrong_flags(page)
    assert told in problem
    assert problem.startswith("page.md: ")


def test_targets(module: ModuleType, page: Path) -> None:
    page.write_text("    make run PORT=1\n    A=1 make runs\n\nAnd `make it`. They make haste.\n")
    assert list(module.wrong_targets(page)) == [
        "page.md: there is no make runs",
        "page.md: there is no make it",
    ]


def test_settings(module: ModuleType, page: Path) -> None:
    page.write_text(
        "`upstream.urls`, `ASGI_GATEWAY_STATE__DIR`, `ASGI_GATEWAY_CONFIG`, `other.thing`,"
        " `upstream.url` and ASGI_GATEWAY_MODELS__ADAPTOR_NAME=x\n"
    )
    assert list(module.wrong_settings(page)) == [
        "page.md: there is no setting models.adaptor_name",
        "page.md: there is no setting upstream.url",
    ]


DIGEST = "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"


@pytest.mark.parametrize(
    ("snippet", "told"),
    [
        ('[upstream]\nurls = ["http://h:1"]\n', None),
        ('[upstream]\nurl = "http://h:1"\n', "upstream.urls"),
        ("[upstream]\nmax_connections = 0\n", "max_connections"),
        ("[upstream\n", "a snippet is refused"),
        (f'[alice]\nsha256 = "{DIGEST}"\n', None),
        ('[alice]\nsha256 = "abc"\n', "64 hexadecimal digits"),
        ('thresholds = ["failed == 0"]\n', None),
        ('thresholds = ["faild == 0"]\n', "faild"),
    ],
)
def test_toml(module: ModuleType, page: Path, snippet: str, told: str | None) -> None:
    page.write_text(f"```toml\n{snippet}```\n")
    problems = list(module.wrong_toml(page))
    if told is None:
        assert problems == []
    else:
        assert told in problems[0]


def test_names_of_tests(module: ModuleType, page: Path) -> None:
    (page.parent / "tests").mkdir()
    (page.parent / "tests/test_a.py").write_text("async def test_b() -> None: ...\n")
    page.write_text("`tests/test_a.py::test_b` `tests/test_a.py` `tests/test_a.py::c` `tests/x.py`")
    assert list(module.wrong_tests(page)) == [
        "page.md: tests/test_a.py has no c",
        "page.md: there is no tests/x.py",
    ]
