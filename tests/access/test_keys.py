"""What a keys file and the environment may say, and that a problem quotes nothing of it."""

import hashlib
from pathlib import Path

import pytest

from asgi_gateway.access import keys
from asgi_gateway.access.keys import Keys, load, stamp
from asgi_gateway.caller import Caller
from asgi_gateway.settings import AccessSettings, SettingsError
from tests.support.keyed import entries, hashed, secret_of

CANARY = "tml-canary-0123456789-canary"


def read(folder: Path, text: str | bytes, *listed: str) -> Keys:
    file = folder / "keys.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(AccessSettings(keys_file=str(file), keys=listed))


def problems(folder: Path, text: str | bytes, *listed: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        read(folder, text, *listed)
    assert CANARY not in str(caught.value)
    return caught.value.problems


def only(found: Keys) -> Caller:
    [key] = found.by_digest.values()
    return key.caller


def test_a_key_with_nothing_but_its_digest(tmp_path: Path) -> None:
    found = read(tmp_path, entries({"alice": {}}))
    assert list(found.by_digest) == [hashlib.sha256(secret_of("alice").encode()).digest()]
    caller = only(found)
    assert (caller.name, set(caller.grants)) == ("alice", {"sample"})
    assert (caller.models, caller.max_in_flight, caller.max_requests_per_s) == (None, None, None)


def test_a_key_with_everything(tmp_path: Path) -> None:
    fields = {
        "scopes": ["sample", "admin", "metrics"],
        "max_in_flight": 7,
        "max_requests_per_s": 2.5,
        "burst": 9,
        "models": ["org/model", "tinker://run/*", "tinker://r2/weights/a", "tinker://r3/b"],
    }
    caller = only(read(tmp_path, entries({"alice": fields})))
    assert caller.grants == {"sample", "admin", "metrics"}
    assert (caller.max_in_flight, caller.max_requests_per_s, caller.burst) == (7, 2.5, 9)
    assert set(caller.models or ()) == {
        "org/model",
        "tinker://run/*",
        "tinker://r2/weights/a",
        "tinker://r3/sampler_weights/b",
    }


@pytest.mark.parametrize(("rate", "burst"), [(0.1, 1), (1, 1), (2.5, 3), (100, 100)])
def test_a_burst_that_is_not_given_is_a_second(tmp_path: Path, rate: float, burst: int) -> None:
    text = entries({"alice": {"max_requests_per_s": rate}})
    assert only(read(tmp_path, text)).burst == burst


def test_several_secrets_of_one_caller(tmp_path: Path) -> None:
    found = read(tmp_path, entries({"alice": {"sha256": [hashed("old"), hashed("new")]}}))
    assert {key.caller.name for key in found.by_digest.values()} == {"alice"}
    assert len(found) == 2


def test_keys_of_the_environment_are_added(tmp_path: Path) -> None:
    found = read(tmp_path, entries({"alice": {}}), f"bob={hashed('b').upper()}")
    assert {key.caller.name for key in found.by_digest.values()} == {"alice", "bob"}
    assert len(load(AccessSettings(keys=(f"bob={hashed('b')}",)))) == 1


GOOD = f'sha256 = "{hashed("x")}"\n'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "there is no key in it"),
        ("# nothing\n", "there is no key in it"),
        (b"\xff\xfe", "is not TOML"),
        (f"[alice]\n{CANARY}", "is not TOML"),
        ("a = " + "[" * 5000, "is not TOML"),
        (f"{CANARY}! = 1", "is not TOML"),
        (f'"{CANARY}" = "alice"', "entry 1 is not a table"),
        (f'["{CANARY} "]\n{GOOD}', "the name of entry 1"),
        (f'["é"]\n{GOOD}', "the name of entry 1"),
        (f'["{"a" * 65}"]\n{GOOD}', "the name of entry 1"),
        ("[alice]\n", "alice: Object missing required field `sha256`"),
        (f'[alice]\nsha256 = "{CANARY}"', "alice: sha256 must be 64 hexadecimal digits"),
        ("[alice]\nsha256 = []", "alice: sha256 must be"),
        (f'[alice]\nsha256 = "{hashed("")}"', "empty secret"),
        (f"[alice]\n{GOOD}scopes = []", "scopes"),
        (f'[alice]\n{GOOD}scopes = ["{CANARY}"]', "scopes"),
        (f"[alice]\n{GOOD}max_in_flight = 0", "max_in_flight"),
        (f"[alice]\n{GOOD}max_requests_per_s = 0", "max_requests_per_s"),
        (f"[alice]\n{GOOD}max_requests_per_s = inf", "alice: max_requests_per_s must be a finite"),
        (f"[alice]\n{GOOD}max_requests_per_s = nan", "max_requests_per_s"),
        (f"[alice]\n{GOOD}burst = 2", "burst needs max_requests_per_s"),
        (f"[alice]\n{GOOD}models = []", "models"),
        (f'[alice]\n{GOOD}models = [""]', "models"),
        (f'[alice]\n{GOOD}models = ["org/*"]', "whole name"),
        (f'[alice]\n{GOOD}models = ["tinker://*"]', "tinker://<run>/*"),
        (f'[alice]\n{GOOD}models = ["tinker://../*"]', "tinker://<run>/*"),
        (f'[alice]\n{GOOD}key = "{CANARY}"', "unknown field"),
        (f"[alice]\n{GOOD}[bob]\n{GOOD}", "bob: another key has the same sha256"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str | bytes, named: str) -> None:
    [problem] = problems(tmp_path, text)
    assert problem.startswith("access.keys_file: ")
    assert named in problem


def test_every_problem_is_named(tmp_path: Path) -> None:
    text = f'[alice]\n{GOOD}\n[bob]\nsha256 = "x"\n[carol]\n'
    found = problems(tmp_path, text, CANARY, f"alice={hashed('y')}", "dan=abc")
    assert found[0] == "access.keys: entry 1 is not of the form NAME=SHA256HEX"
    assert found[1] == "access.keys: entry 3 is not of the form NAME=SHA256HEX"
    assert found[2].startswith("access.keys_file: carol: ")
    assert "access.keys_file: the name alice is given twice" in found
    assert len(found) == 5


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    settings = AccessSettings(keys_file=str(tmp_path / "absent"))
    with pytest.raises(SettingsError, match=r"cannot read .*absent: No such file"):
        load(settings)
    assert len(list(keys.problems(settings))) == 1
    assert stamp(settings.keys_file) is None


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = entries({"alice": {}})
    monkeypatch.setattr(keys, "MAX_FILE_BYTES", len(text))
    assert len(read(tmp_path, text)) == 1
    assert "over" in problems(tmp_path, text + "\n")[0]


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/access.md").read_text()
    example = page.split("```toml\n")[1].split("```")[0]
    callers = {key.caller.name for key in read(tmp_path, example).by_digest.values()}
    assert callers == {"alice", "prometheus"}


def test_nothing_configured_has_no_problem() -> None:
    assert list(keys.problems(AccessSettings())) == []
    assert not keys.is_configured(AccessSettings())
