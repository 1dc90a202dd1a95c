"""Command lines of autoloader that run in the process of a test."""

import json
from typing import Any, NamedTuple

import pytest

from autoloader.cli.app import main


class Said(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


class Cli:
    """Runs a command line: ``cli("plan", spec, code=2).err``."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *words: object, code: int | None = 0) -> Said:
        """How it ended; the test fails if that is not ``code``; None: any."""
        self._capture.readouterr()
        said = Said(main([str(word) for word in words]), *self._capture.readouterr())
        assert code in (None, said.code), said.err
        return said

    def json(self, *words: object, code: int | None = 0) -> Any:
        """The one document that it printed with ``--json``."""
        return json.loads(self(*words, "--json", code=code).out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs command lines."""
    return Cli(capsys)
