"""Settings of a gateway that runs: every one that is marked takes effect, all of them or none."""

import asyncio
import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asgi_gateway import Gateway
from asgi_gateway.configuration import changes, leaves, load, value_at
from asgi_gateway.errors import Unready
from asgi_gateway.frontdoor import FrontDoor
from asgi_gateway.listeners import Listeners
from asgi_gateway.metrics import Metrics
from asgi_gateway.serve import Server
from asgi_gateway.settings import Settings, SettingsError
from asgi_gateway.settings.section import reloads
from asgi_gateway.standalone import Standalone
from tests.support.clock import ManualClock
from tests.support.held import metric
from tests.support.keyed import entries

RELOADABLE = [path for path, hint in leaves(Settings) if reloads(hint)]
FIXED = [path for path, hint in leaves(Settings) if not reloads(hint)]


def flags(changed: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Values of a whole configuration by path, so that every part is there."""
    keys = folder / "keys.toml"
    if not keys.exists():
        keys.write_text(entries({"alice": {}}))
    return {
        "upstream.urls": ["http://127.0.0.1:1"],
        "access.keys_file": str(keys),
        "log.samples": str(folder / "samples.log"),
        "state.dir": str(folder / "state"),
        **changed,
    }


def made(changed: dict[str, Any], folder: Path) -> Settings:
    return load(flags(changed, folder), environ={}).settings


def another(path: str, folder: Path) -> Any:
    """A value that the setting does not have."""
    if path == "upstream.urls":
        return ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    if path == "access.keys_file":
        other = folder / "other.toml"
        other.write_text(entries({"bob": {}}))
        return str(other)
    special: dict[str, Any] = {
        "access.keys": [f"carol={hashlib.sha256(b'tml-carol').hexdigest()}"],
        "access.hosts": ["gateway.test"],
        "models.base": ["one=two"],
        "models.adapter_name": "{model_id}-{checkpoint_id}",
        "models.adapters": {"tinker://run/sampler_weights/last": "lora"},
        "models.max_context_length": 77,
        "upstream.affinity": "session",
        "upstream.transport": "aiohttp",
        "log.success_share": 0.25,
        "log.samples": str(folder / "other.log"),
        "log.access": str(folder / "access.log"),
        "log.access_share": 0.25,
        "log.format": "json",
        "log.level": "info",
        "tracing.endpoint": "http://127.0.0.1:4318/v1/traces",
        "tracing.share": 0.25,
        "state.dir": str(folder / "elsewhere"),
        "state.fsync": "interval",
        "store.url": "valkey://127.0.0.1:1",
        "store.prefix": "other",
        "store.when_down": "degrade",
        "missing_logprobs": "nan",
        "training.url": "http://127.0.0.1:3",
        "server.host": "127.0.0.2",
        "id_key": "sixteen characters and more",
        "upstream.source": "sqlite:////nowhere/tinker.db",
    }
    if path in special:
        return special[path]
    before = value_at(Settings(), path)
    if isinstance(before, bool):
        return not before
    if before is None:
        return True if path.startswith("client.") else 1 << 20
    return before + 1


STARTED = ManualClock().wall_time()

# --- every setting that is marked takes effect ----------------------------------------------------

_PLAIN = (str, int, float, bool, bytes, type(None))


def values(root: object) -> dict[str, Any]:
    """Every plain value that is reached from an object, by the way to it."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    # What a thing is may be reached in several ways; the first is the same in each of two objects
    # that are built alike.
    line: list[tuple[str, Any]] = [("", root)]
    keep = []
    for way, thing in line:
        if isinstance(thing, _PLAIN):
            found[way] = thing
            continue
        # Sections of the settings are shared, and who holds one is the question.
        if not type(thing).__module__.startswith("asgi_gateway.settings"):
            if id(thing) in seen:
                continue
            seen.add(id(thing))
        keep.append(thing)
        line.extend((f"{way}{step}", part) for step, part in _parts(thing))
    return found


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    module = type(thing).__module__
    if isinstance(thing, dict):
        for position, (key, value) in enumerate(thing.items()):
            yield f"[{key if isinstance(key, str) else position}]", value
            yield f"[key {position}]", key
    elif isinstance(thing, list | tuple | set | frozenset):
        for position, value in enumerate(thing):
            yield f"[{position}]", value
    elif hasattr(thing, "__self__"):
        yield ".__self__", thing.__self__
    elif hasattr(thing, "__closure__"):
        for position, cell in enumerate(thing.__closure__ or ()):
            yield f".cell{position}", cell.cell_contents
    elif module.startswith("asgi_gateway") and not isinstance(thing, type):
        names = dict.fromkeys(getattr(thing, "__dict__", ()))
        for kind in type(thing).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            names |= dict.fromkeys([slots] if isinstance(slots, str) else slots)
        names |= dict.fromkeys(getattr(thing, "__struct_fields__", ()))
        for name in names:
            if hasattr(thing, name):
                yield f".{name}", getattr(thing, name)


async def _serving(settings: Settings) -> tuple[Gateway, Server]:
    """A gateway as `serve` has it, not started."""
    gateway = Standalone(settings, signals=False, clock=ManualClock())
    keeper = vars(gateway)["_keeper"]
    if keeper is not None:
        keeper.close()  # the next one has the same folder
    listeners = Listeners(socket.create_server(("127.0.0.1", 0)), 16)
    listeners.close()
    return gateway, Server(gateway, listeners, 100_000, Settings)


def _told_by(served: tuple[Gateway, Server]) -> dict[str, Any]:
    gateway, server = served
    return {
        **{f"gateway{way}": value for way, value in values(gateway).items()},
        **{f"door{way}": value for way, value in values(vars(server)["_door"]).items()},
        **{f"limit{way}": value for way, value in values(vars(server)["_limit"]).items()},
    }


# What counts how often something was told, and what is of one file or moment.
_OWN = ("_reloads.taken", "_door.reloads", "_door._loaded", "_loaded[", "._seen", ".heard_at")
# Of the process, which is the same for all; what the client would use if it were the transport.
_MACHINE = ("_fields[", "_memory.reading", "_client._urls")


@pytest.mark.parametrize("path", RELOADABLE)
async def test_what_is_marked_ends_up_where_a_new_gateway_has_it(path: str, tmp_path: Path) -> None:
    before = made({}, tmp_path)
    after = made({path: another(path, tmp_path)}, tmp_path)
    assert [changed for changed, *_ in changes(before, after)] == [path]
    old, old_too, new = [_told_by(await _serving(s)) for s in (before, before, after)]
    varying = {way for way in old if old_too.get(way) != old[way]}
    landed = {
        way
        for way in old.keys() | new.keys()
        if old.get(way, ...) != new.get(way, ...)
        and way not in varying
        and not any(name in way for name in _MACHINE)
    }
    shown = ("gateway.settings.", "_reloads.settings.", "_overviews._settings[")
    used = {way for way in landed if not any(name in way for name in shown)}
    assert used, "the setting is used somewhere"
    served = await _serving(before)
    assert await served[0].reload(after) == (path,)
    if path == "upstream.urls":
        served[0].tick()
    got = _told_by(served)
    stale = {
        way: (got.get(way, ...), new.get(way, ...))
        for way in landed
        if got.get(way, ...) != new.get(way, ...) and not any(own in way for own in _OWN)
    }
    assert stale == {}
    assert served[0].settings == after


async def test_all_at_once_and_back(tmp_path: Path) -> None:
    before = made({}, tmp_path)
    after = made({path: another(path, tmp_path) for path in RELOADABLE}, tmp_path)
    gateway, _ = await _serving(before)
    assert set(await gateway.reload(after)) == set(RELOADABLE)
    assert await gateway.reload(after) == ()
    assert set(await gateway.reload(before)) == set(RELOADABLE)
    assert gateway.settings == before


# --- and nothing else -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", FIXED)
async def test_what_is_not_marked_is_refused_by_name(path: str, tmp_path: Path) -> None:
    """With everything that came with it."""
    gateway, _ = await _serving(made({}, tmp_path))
    other = {path: another(path, tmp_path), "poll.hold_s": 7, "models.adapter_name": "x"}
    with pytest.raises(SettingsError) as caught:
        await gateway.reload(made(other, tmp_path))
    first, *others, second = caught.value.problems
    # Beside URLs there is no source.
    assert len(others) == (path == "upstream.source")
    assert first.startswith(f"{path}: from ")
    assert first.endswith(" needs a restart")
    assert second.startswith("models.adapter_name: ")
    assert "sixteen characters" not in str(caught.value)
    assert gateway.settings.poll.hold_s == 30.0
    assert b"config_reload_failures_total 1\n" in gateway.metrics.render()


async def test_every_problem_of_every_kind_is_in_one_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, _ = await _serving(made({}, tmp_path))
    (tmp_path / "keys.toml").write_text("[alice]\n")
    bad = made({"upstream.urls": ["ftp://h"], "server.port": 1, "id_key": "x" * 16}, tmp_path)
    await gateway.read_again(lambda: bad)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    for what in ("server.port: from 8000 to 1 ", "id_key: ", "'ftp://h'", "keys_file: alice"):
        assert what in record.message
    assert "xxxx" not in record.message
    caplog.clear()

    def fails() -> Settings:
        raise SettingsError(["one", "two"])

    await gateway.read_again(fails)
    assert [record.message for record in caplog.records] == [
        "the settings stay as they were: one; two"
    ]
    assert b"config_reload_failures_total 2\n" in gateway.metrics.render()
    assert b"config_reloads_total 0\n" in gateway.metrics.render()


@pytest.mark.parametrize("keyed_before", [True, False])
async def test_whether_keys_are_asked_for_needs_a_restart(
    keyed_before: bool, tmp_path: Path
) -> None:
    keyed, open_to_all = made({}, tmp_path), made({"access.keys_file": ""}, tmp_path)
    before, after = (keyed, open_to_all) if keyed_before else (open_to_all, keyed)
    gateway, _ = await _serving(before)
    with pytest.raises(SettingsError, match="whether keys are asked for at all needs a restart"):
        await gateway.reload(after)
    assert gateway.settings == before


class Fails:
    def __init__(self) -> None:
        self.told: list[Settings] = []

    def reconfigure(self, settings: Settings) -> None:
        self.told.append(settings)
        if len(self.told) == 1:
            raise RuntimeError("a bug")


async def test_a_part_that_fails_takes_the_others_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = made({}, tmp_path)
    gateway, _ = await _serving(before)
    was = values(gateway)
    fails = Fails()
    gateway.told(fails)
    after = made({path: another(path, tmp_path) for path in RELOADABLE}, tmp_path)
    await gateway.read_again(lambda: after)
    assert fails.told == [after, before]
    assert gateway.settings == before
    assert "bug while settings were changed" in caplog.text
    gateway.tick()  # lets go of the upstream that was new for a moment
    got = values(gateway)
    own = (
        *_OWN,
        *_MACHINE,
        "_reloads",
        "_due_at",
        "_looked_at",
        "_marks",
        "last",
        "_rounds",
        "_synced_at",
        "_listing._moved",
        "_listing._refreshing",
    )
    assert {
        way: (was[way], got.get(way, ...))
        for way in was
        if was[way] != got.get(way, ...) and not any(name in way for name in own)
    } == {}
    assert await gateway.reload(after)


async def test_a_gateway_that_was_closed_takes_nothing(tmp_path: Path) -> None:
    gateway = Gateway(made({}, tmp_path), clock=ManualClock())
    async with gateway.running():
        pass
    with pytest.raises(Unready):
        await gateway.reload(made({"poll.hold_s": 7}, tmp_path))
    await gateway.read_again(lambda: made({"poll.hold_s": 7}, tmp_path))
    assert gateway.settings.poll.hold_s == 30.0


async def test_one_that_closes_meanwhile_takes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The keys are read in a thread, which may take its time."""
    before, after = made({}, tmp_path), made({"upstream.urls": ["http://127.0.0.1:9"]}, tmp_path)
    gateway = Gateway(before, clock=ManualClock())
    async with gateway.running():
        one_at_a_time = vars(gateway)["_reloads"]._one_at_a_time
        async with one_at_a_time:  # as if another were reading them
            reload = asyncio.create_task(gateway.reload(after))
            again = asyncio.create_task(gateway.read_again(lambda: after))
            await asyncio.sleep(0.05)
            await gateway.close()
    with pytest.raises(Unready):
        await reload
    await again
    assert gateway.settings == before
    assert [state.name for state in gateway.fleet.states] != ["127.0.0.1:9"]
    assert "upstreams now" not in caplog.text


async def test_what_changed_is_said_without_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, _ = await _serving(made({}, tmp_path))
    assert metric(gateway.metrics.render(), "config_last_reload_timestamp_seconds") == STARTED
    other = {
        "poll.hold_s": 7,
        "upstream.urls": ["http://u:canary@127.0.0.1:1"],
        "access.keys": another("access.keys", tmp_path),
    }
    vars(gateway)["_clock"].advance(60)
    await gateway.reload(made(other, tmp_path))
    (message,) = [r.message for r in caplog.records if "read again" in r.message]
    assert "poll.hold_s from 30.0 to 7.0" in message
    assert "access.keys from () to (hidden)" in message
    assert "('http://127.0.0.1:1',)" in message
    assert "canary" not in message
    assert other["access.keys"][0] not in message
    text = gateway.metrics.render()
    assert metric(text, "config_reloads_total") == 1
    assert metric(text, "config_last_reload_timestamp_seconds") == STARTED + 60


# --- the front door -------------------------------------------------------------------------------


def test_the_front_door_waits_as_it_is_told() -> None:
    limits = Settings().limits
    door = FrontDoor(limits, keepalive_s=100, connections=10, metrics=Metrics())
    other = msgspec.structs.replace(limits, header_s=0.4, connections_per_address=1)
    door.reconfigure(other, 3)
    fresh = FrontDoor(other, keepalive_s=100, connections=3, metrics=Metrics())
    assert vars(door)["_sweep_s"] == vars(fresh)["_sweep_s"] == pytest.approx(0.1)
    assert [wait[1] for wait in vars(door)["_waits"]] == [0.4, 100, 5.0]
    assert (door.connections, door.limits) == (3, other)
