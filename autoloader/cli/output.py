"""How commands speak: one result on stdout, notes and progress on stderr.

Not here: what they say.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

JsonFlag = Annotated[bool, typer.Option("--json", help="Write one JSON document to stdout.")]
"""The type of every command's ``--json`` option."""


class Advance(Protocol):
    """Called with units done and units in all."""

    def __call__(self, done: int, total: int) -> None: ...


def emit(text: str) -> None:
    """Write a result for people to stdout."""
    print(text)


def emit_json(document: Any) -> None:
    """Write ``document`` to stdout; paths become text, dataclasses mappings, NaN is refused."""
    print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False, default=_plain))


def note(text: str) -> None:
    """Say something beside the result, on stderr."""
    print(text, file=sys.stderr)


def emit_table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write rows to stdout in columns as wide as they need, the header first."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        emit("  ".join(cells).rstrip())


@contextmanager
def progress_bar(label: str) -> Iterator[Advance]:
    """A bar on stderr that shows itself at the first call of what it yields.

    Where stderr is no terminal, it says a line at each tenth instead.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _TenthTeller(label)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, total=None, visible=False)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        yield advance


class _TenthTeller:
    def __init__(self, label: str) -> None:
        self._label = label
        self._told = 0

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 10
        if tenth > self._told:
            self._told = tenth
            note(f"{self._label}: {done}/{total}")


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no place in a JSON document")
