"""The key of the ids: made once, kept, and refused where others could have read it."""

import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asgi_gateway.state import KeyExposed, StateUnusable
from asgi_gateway.state.key import load_key


def test_made_once(tmp_path: Path) -> None:
    key = load_key(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{64}", key)
    assert load_key(tmp_path) == key
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_no_two_directories_share_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert load_key(tmp_path / "a") != load_key(tmp_path / "b")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_mode(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        load_key(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_all_who_ask_at_once_get_the_same_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(load_key, [tmp_path] * 32))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o601])
def test_a_key_that_others_reach_is_refused(tmp_path: Path, mode: int) -> None:
    load_key(tmp_path)
    (tmp_path / "key").chmod(mode)
    with pytest.raises(KeyExposed, match=rf"{tmp_path}/key has mode {mode:04o}"):
        load_key(tmp_path)


def test_a_stricter_mode_will_do(tmp_path: Path) -> None:
    key = load_key(tmp_path)
    (tmp_path / "key").chmod(0o400)
    assert load_key(tmp_path) == key


@pytest.mark.parametrize("text", ["", "\n", 63 * "a", 65 * "a", 64 * "A", 64 * "a" + "\n\n", "é"])
def test_what_is_no_key_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(StateUnusable, match="does not hold 64 hexadecimal digits"):
        load_key(tmp_path)
    assert path.read_text() == text


def test_links_pipes_and_directories_are_refused(tmp_path: Path) -> None:
    load_key(tmp_path)
    for name in ("link", "pipe", "directory", "missing"):
        (tmp_path / name).mkdir()
    (tmp_path / "link" / "key").symlink_to(tmp_path / "key")
    os.mkfifo(tmp_path / "pipe" / "key", 0o600)
    (tmp_path / "directory" / "key").mkdir(mode=0o700)
    for name in ("link", "pipe", "directory"):
        with pytest.raises(StateUnusable, match=f"{tmp_path}/{name}/key"):
            load_key(tmp_path / name)
    with pytest.raises(StateUnusable, match="cannot be used: No such file"):
        load_key(tmp_path / "nowhere")
