"""What is under examples/deploy, read as the tools that it is for read it."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from asgi_gateway.configuration import leaves
from asgi_gateway.settings import Settings
from tests.support.processes import ROOT

FOLDER: Final = ROOT / "examples" / "deploy"
VARIABLE: Final = re.compile(r"\$\{[A-Z_]+:-([^}]*)\}")
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

KNOWN: Final = {path for path, _ in leaves(Settings)}


def default(path: str) -> Any:
    """A setting's default."""
    value: Any = Settings()
    for name in path.split("."):
        value = getattr(value, name)
    return value


def drain_s() -> float:
    """From SIGTERM to the end at the latest, with default settings."""
    seconds: float = default("drain.predrain_s") + default("drain.grace_s")
    return seconds


def settings_of(environment: dict[str, str]) -> dict[str, str]:
    """Setting -> value of the variables that are the gateway's."""
    prefix = "ASGI_GATEWAY_"
    return {
        name.removeprefix(prefix).lower().replace("__", "."): value
        for name, value in environment.items()
        if name.startswith(prefix)
    }


def flat(table: dict[str, Any]) -> dict[str, Any]:
    """A configuration of sections, by dotted path."""
    return {f"{part}.{name}": v for part, section in table.items() for name, v in section.items()}


# --- Containerfile --------------------------------------------------------------------------------


class Instruction(msgspec.Struct, frozen=True):
    name: str
    rest: str

    @property
    def words(self) -> list[str]:
        """What stands behind the name, flags left out; of an exec form its strings."""
        found = self.rest[self.rest.index("[") :] if "[" in self.rest else ""
        if found:
            strings: list[str] = json.loads(found)
            return strings
        return [word for word in self.rest.split() if not word.startswith("--")]


def stages() -> list[list[Instruction]]:
    """The instructions of each stage of the Containerfile, FROM first."""
    text = (FOLDER / "Containerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    found: list[list[Instruction]] = []
    for name, rest in lines:
        if name == "FROM":
            found.append([])
        found[-1].append(Instruction(name, rest.strip()))
    return found


def all_of(stage: list[Instruction], name: str) -> list[Instruction]:
    return [instruction for instruction in stage if instruction.name == name]


def only(stage: list[Instruction], name: str) -> Instruction:
    (instruction,) = all_of(stage, name)
    return instruction


def image_environment() -> dict[str, str]:
    pairs = [i.rest.split() for i in all_of(stages()[-1], "ENV")]
    return dict(pair.split("=", 1) for words in pairs for pair in words)


def sent_to_the_build(path: str) -> bool:
    """Whether the ignore file lets a path of the repository through: its last match decides."""
    sent = True
    for line in (FOLDER / "Containerfile.dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        anywhere = pattern.startswith("**/") and pattern[3:] in path.split("/")
        if pattern == "*" or anywhere or f"{path}/".startswith(f"{pattern}/"):
            sent = line.startswith("!")
    return sent


# --- YAML -----------------------------------------------------------------------------------------


class Loader(yaml.SafeLoader):  # type: ignore[misc]  # the package has no types
    """Knows Compose's tag for what an override takes away."""


RESET: Final = object()
Loader.add_constructor("!reset", lambda loader, node: RESET)


def compose(*names: str) -> dict[str, Any]:
    """Compose files, later ones over earlier ones, with the defaults of their variables."""
    merged: dict[str, Any] = {}
    for name in names:
        text = VARIABLE.sub(r"\1", (FOLDER / name).read_text())
        merged = _over(merged, yaml.load(text, Loader))
    return merged


def _over(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    both = {
        key: _over(below.get(key), above[key]) if key in above else below[key]
        for key in [*below, *(key for key in above if key not in below)]
    }
    return {key: value for key, value in both.items() if value is not RESET}


def kubernetes() -> dict[str, Any]:
    """Kind -> object; one of each."""
    documents = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
    found = {document["kind"]: document for document in documents}
    assert len(found) == len(documents)
    return found


# --- systemd --------------------------------------------------------------------------------------


def unit(name: str = "asgi-gateway.service") -> dict[str, list[str]]:
    """Every assignment of the unit, whatever its section; the values in order."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / name).read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def unit_config(name: str = "config.toml") -> dict[str, Any]:
    return flat(tomllib.loads((FOLDER / name).read_text()))


# --- Valkey ---------------------------------------------------------------------------------------


def valkey_config() -> dict[str, str]:
    """Directive -> the rest of its line, without comments."""
    lines = (FOLDER / "valkey.conf").read_text().splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    found = dict(pairs)
    assert len(found) == len(pairs)
    return found


def size_bytes(text: str) -> int:
    """4g, 4G or 4Gi."""
    number, unit_of = re.fullmatch(r"(\d+)([kmg])i?", text.lower()).groups()  # type: ignore[union-attr]
    return int(number) << {"k": 10, "m": 20, "g": 30}[unit_of]


def seconds(text: str) -> int:
    number, unit_of = re.fullmatch(r"(\d+)(s|m)?", text).groups()  # type: ignore[union-attr]
    return int(number) * (60 if unit_of == "m" else 1)


def part(path: Path, pattern: str) -> str:
    """The only group of the only match in a file."""
    (found,) = re.findall(pattern, path.read_text(), re.MULTILINE)
    return str(found)
