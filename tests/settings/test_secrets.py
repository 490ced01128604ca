"""No secret is shown, neither of a setting nor of a URL."""

import re
from typing import Any

import pytest

from asgi_gateway.configuration import shown
from tests.support.command_line import Cli
from tests.support.settings_sources import Sources

SECRET = "sixteen characters and more"


@pytest.mark.parametrize("secret", ["short secret", 7])
def test_a_wrong_secret_is_not_shown(sources: Sources, secret: Any) -> None:
    (problem,) = sources.problems({"id_key": secret})
    assert problem.startswith("flag: id_key = (hidden): ")
    assert str(secret) not in problem


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
