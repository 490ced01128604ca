"""Where settings come from, without this machine's own, and one of them by its path."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from asgi_gateway.configuration import Loaded, load
from asgi_gateway.settings import SettingsError


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
