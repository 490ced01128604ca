"""The gateway's command line, run in this process."""

import dataclasses

import pytest

from asgi_gateway.__main__ import main


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
