"""Output of commands: one result on stdout, notes and progress on stderr.

Theory of operation. Either stream may be closed, full, a pipe that nobody reads, or of an encoding
that lacks a character. A result that cannot be written is the user's to mend and ends the command;
a note that cannot be written is dropped. Text for people shows control characters as escapes: names
come from files that others wrote, and a terminal obeys what it is sent.

Not here: the texts, which are each command's own.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from autoloader.errors import UsageError, printable
from autoloader.host.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

_MOST_NOTED = 20


Advance = Callable[[int, int], None]
"""Called with units done and units in all."""


def open_streams() -> None:
    """Make the three standard streams safe to use, also where the caller closed one.

    A closed descriptor would be given to the next file that is opened, and results would end in
    that file. So each is opened on ``/dev/null``. What an encoding lacks is written as an escape.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, this one
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  (for as long as the process lives)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def flush_stdout() -> None:
    """See that all of the result is written; raises as ``emit`` does."""
    if sys.stdout is not None:
        with _told_in_our_words():
            sys.stdout.flush()


@contextmanager
def _told_in_our_words() -> Iterator[None]:
    """Turn a fault of stdout into ``UsageError``; a reader that has gone ends the command well."""
    try:
        yield
    except OSError as error:
        _discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(0) from error
        raise UsageError(
            f"the result cannot be written to stdout: {error.strerror or error}",
            remedy="redirect stdout to a place with free space",
        ) from error


def discard_unwritable() -> None:
    """Drop what stderr still holds and cannot write: the interpreter would fail at its end."""
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _discard(stream: IO[str]) -> None:
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def emit(text: str) -> None:
    """Write a result for people to stdout.

    Raises:
        UsageError: stdout is closed or full.
        typer.Exit: it is a pipe whose reader has gone, and so has got all that it wanted.
    """
    _write_result("\n".join(map(printable, text.split("\n"))))


def emit_json(document: Any) -> None:
    """Write ``document`` to stdout; paths become text, dataclasses mappings, NaN is refused.

    Raises as ``emit`` does.
    """
    from pydantic_core import to_jsonable_python  # help goes without

    ascii_only = not str(getattr(sys.stdout, "encoding", "") or "utf-8").lower().startswith("utf")
    plain = to_jsonable_python(document)
    _write_result(json.dumps(plain, indent=2, ensure_ascii=ascii_only, allow_nan=False))


_wants_json = False


def use_json(wanted: bool) -> None:
    """Set whether the commands that follow in this process write JSON."""
    global _wants_json
    _wants_json = wanted


def wants_json() -> bool:
    """Tell whether the command line has ``--json``."""
    return _wants_json


def answered(document: Any) -> bool:
    """Write ``document`` where ``--json`` asks for it, and tell whether it does."""
    if _wants_json:
        emit_json(document)
    return _wants_json


def emit_rendered(show: Callable[[Console], None]) -> None:
    """Write what ``show`` draws on a console to stdout; raises as ``emit`` does."""
    from rich.console import Console

    console = Console()
    with console.capture() as drawn:
        show(console)
    _write_result(drawn.get().removesuffix("\n"))


def _write_result(text: str) -> None:
    """Write text to stdout, with a fault in the library's words."""
    if sys.stdout is None:
        raise UsageError(
            "stdout is closed, so the result cannot be printed",
            remedy="leave stdout open, or redirect it: > /dev/null drops the result",
        )
    with _told_in_our_words():
        print(text)


def note(text: str) -> None:
    """Say something beside the result, on stderr; where that is full, say nothing."""
    with contextlib.suppress(OSError):
        print("\n".join(map(printable, text.split("\n"))), file=sys.stderr)


def note_some(lines: Iterable[str]) -> None:
    """Say the first twenty lines on stderr, and how many more ``--json`` names."""
    every = list(lines)
    for line in every[:_MOST_NOTED]:
        note(line)
    if len(every) > _MOST_NOTED:
        note(f"and {len(every) - _MOST_NOTED} more; --json names all")


@contextmanager
def file_errors(option: str, path: Path) -> Iterator[None]:
    """Write a file that the user named; raises ``UsageError`` where that fails."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{option} {path}: {error.strerror or error}", remedy="give a file that can be written"
        ) from error


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written at the end; raises as ``file_errors`` does."""
    with file_errors("--output", path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        there = path if path.exists() else path.parent
        there.stat()
        if not os.access(there, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_new(path: Path, text: str) -> None:
    """Write a text to the file of ``--output``, unless another text stands there.

    Raises:
        UsageError: it says something else, or cannot be written.
    """
    with file_errors("--output", path):
        if path.is_file() and path.read_text(encoding="utf-8", errors="replace") != text:
            raise UsageError(
                f"{path} exists already with other content; nothing was written",
                remedy="give another file name with --output, or delete this file first",
            )
    write_output(path, text)


def write_output(path: Path, text: str) -> None:
    """Put a text in the place of the file of ``--output``; a device or a pipe stays what it is.

    Raises:
        UsageError: it cannot be written.
    """
    from autoloader.host.files import write_whole  # help goes without

    with file_errors("--output", path):
        if os.path.exists(path) and not os.path.isfile(path):
            path.write_text(text, encoding="utf-8")
        else:
            write_whole(path.resolve(), text)


def emit_table(header: Iterable[str] | None, rows: Iterable[Iterable[Any]]) -> None:
    """Write rows to stdout in columns as wide as they need, the header first if there is one."""
    lines = [[str(cell) for cell in row] for row in ([header] if header else []) + list(rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        emit("  ".join(cells).rstrip())


def emit_document(
    document: Mapping[str, Any], columns: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Write a document for people: its single values, then each of its parts as a table.

    A value is written in the unit that its name or its part's name ends in: ``ring_bytes`` as "72.2
    MiB", ``decode_s`` as "0.53 ms", ``hit_ratio`` as "0.931". A part whose values are all mappings
    is one table; of another one, each part within it has a table of its own.

    Args:
        document: names and values as ``--json`` has them; parts are mappings, or lists of these.
        columns: part → names that its rows show; ``None`` or no entry: all.
    """
    single = {name: value for name, value in document.items() if not _is_part(value)}
    emit_table(None, ((_words(name), _shown(name, value)) for name, value in single.items()))
    parts = [(name, value) for name, value in document.items() if name not in single]
    first = not single
    while parts:
        name, part = parts.pop(0)
        emit(("" if first else "\n") + f"-- {_words(name)}")
        first, rows = False, part
        if isinstance(part, Mapping):
            below = {key: value for key, value in part.items() if _is_part(value)}
            rows = [{"": key, **value} for key, value in below.items() if len(below) == len(part)]
            if not rows:
                own = ((key, value) for key, value in part.items() if key not in below)
                unit = "bytes" * (name == "bytes")
                emit_table(None, ((key, _shown(unit or key, one)) for key, one in own))
                parts[:0] = [(f"{name}: {key}", value) for key, value in below.items()]
        names = dict.fromkeys(key for row in rows for key in row)
        if wanted := (columns or {}).get(name):
            names = dict.fromkeys([*([""] if "" in names else []), *wanted])
        if names:
            cells = ([_shown(key, row.get(key)) for key in names] for row in rows)
            emit_table(map(_words, names), cells)


def _is_part(value: Any) -> bool:
    """True if a value is a mapping, or a list of mappings, which has a part of its own."""
    return isinstance(value, Mapping) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)
    )


def _words(name: str) -> str:
    """A name as a heading: its unit stands with the value, unless it is a rate."""
    plain = name.removesuffix("_bytes")
    if plain.endswith("_per_s"):
        plain = plain.removesuffix("_per_s") + "/s"
    return plain.removesuffix("_s").replace("_", " ")


def _shown(name: str, value: Any) -> str:
    """A value as people read it, by the unit that its name ends in."""
    if value is None or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_shown(key, one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return " | ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value)
    if isinstance(value, str):
        return value
    if name.endswith("bytes"):
        return format_bytes(value)
    if name.endswith("_ratio"):
        return f"{value:.3f}"
    if name.endswith("_s") and not name.endswith("_per_s"):
        return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 100 else f"{value:.1f}"
    return str(value)


@contextmanager
def progress_bar(label: str) -> Iterator[Advance]:
    """A bar on stderr, which goes if nothing was to be done.

    Where stderr is no terminal, it says a line every five seconds instead.
    """
    from rich.console import Console

    from autoloader.telemetry.progress import doing, told

    console = Console(stderr=True)
    if not console.is_terminal:
        with told(label):
            yield lambda done, total: doing(f"{done}/{total}")
        return
    from rich.progress import MofNCompleteColumn, Progress

    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=console) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
        if bar.tasks[0].total is None:
            bar.update(task, visible=False)


class _StderrHandler(logging.Handler):
    """Writes this library's log lines to the stderr of the time of writing."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record to stderr; a word of progress as where no logging is set up."""
        progress = record.name == "autoloader.telemetry.progress"
        note(f"autoloader: {record.getMessage()}" if progress else self.format(record))


def log_to_stderr(verbose: int) -> None:
    """Show warnings of this library on stderr; with 1 also what it does, with 2 everything.

    Other libraries' warnings are shown by a handler of the root, as Python does without one. A
    library that calls ``logging.info`` (TFDS does) would else add its own, for our lines too.
    """
    log, root = logging.getLogger("autoloader"), logging.getLogger()
    if not root.handlers:
        others = logging.StreamHandler()
        others.setLevel(logging.WARNING)
        others.addFilter(lambda record: not record.name.startswith("autoloader"))
        root.addHandler(others)
    log.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG))
    if not any(isinstance(handler, _StderrHandler) for handler in log.handlers):
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
