"""Pages that are followed as they stand: files written, commands run, what is printed compared.

A block of ``sh`` is run by bash in the order of the page; a block of ``text`` behind it is what it
prints on stdout. A block of ``python`` that begins with ``# NAME.py`` is a file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ended import ran

_FENCE = re.compile(r"^```(sh|text|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")
_MEASURED = re.compile(r"\d+(\.\d+)?( (GiB|MiB|KiB|s|ms)\b|/s| %)|-?\d+\.\d+(e-?\d+)?")


@dataclass(frozen=True)
class Step:
    """Commands of a page.

    Attributes:
        commands: as they stand.
        shown: what the page says that they print; ``None``: it says nothing.
        files: name → text of the files that the page has between the last commands and these.
    """

    commands: str
    shown: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(self.commands.split()[:2])


def steps(page: Path) -> Iterator[Step]:
    """What a page has people do, but for installing."""
    found = _FENCE.findall(page.read_text())
    files = {}
    for (kind, text), (after, output) in zip(found, [*found[1:], ("", "")], strict=True):
        if kind == "python" and (name := _FILE.match(text)):
            files[name[1]] = text
        if kind == "sh" and not text.startswith("pip install"):
            yield Step(text, output if after == "text" else None, files)
            files = {}


def settled(text: str, *, of_the_host: Sequence[str] = ()) -> list[str]:
    """Lines without what was measured, and without the width of columns.

    Args:
        text: what is printed, or shown.
        of_the_host: how lines begin that hang on the machine.
    """
    lines = (" ".join(_MEASURED.sub("#", line).split()) for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(tuple(of_the_host))]


class Follower:
    """Takes each step of a page once, behind those before it.

    Args:
        taken: the steps.
        place: where.
        environment: of the commands.
    """

    def __init__(self, taken: Sequence[Step], place: Path, environment: Mapping[str, str]) -> None:
        self.place = place
        self._steps = taken
        self._environment = dict(environment)
        self._printed: list[str] = []

    def printed(self, number: int) -> str:
        """What step ``number`` printed on stdout."""
        while len(self._printed) <= number:
            step = self._steps[len(self._printed)]
            for name, text in step.files.items():
                (self.place / name).write_text(text)
            words = ("bash", "-euo", "pipefail", "-c", step.commands)
            done = ran(*words, cwd=self.place, env=self._environment, code=None)
            outputs = {path.name: path.read_text() for path in self.place.glob("*.out")}
            assert done.returncode == 0, (step.commands, done.stdout, done.stderr, outputs)
            self._printed.append(done.stdout)
        return self._printed[number]
