"""``autoloader report``: one HTML page of a run from the record that it left, or of two.

Not here: the record (``telemetry.run_record``), the page (``cli.run_report``).
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autoloader.cli.options import JsonFlag
from autoloader.cli.output import emit, emit_document, emit_json, file_errors, note
from autoloader.cli.run_report.findings import findings
from autoloader.cli.run_report.run import Run, find_ideal, read_run
from autoloader.errors import UsageError, nearest
from autoloader.storage.places import cache_root

_LAST = "last"


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A folder that AUTOLOADER_RUN_DIR named, the name of a run that the cache "
            'directory keeps, or "last". Without one: lists those that it keeps.',
        ),
    ] = None,
    other: Annotated[
        str | None, typer.Argument(metavar="[OTHER]", help="A second run, to put beside it.")
    ] = None,
    ideal: Annotated[
        str | None,
        typer.Option(
            help="A run of the same trainer with replay_one_batch: says what the loader costs. "
            "Default: the latest one of the same spec on the same host, where there is one."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The page; default: RUN.html in the working directory.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw one HTML page of a run: what limited it, what was done and why; or two side by side."""
    if run is None:
        _list(as_json)
        return
    from autoloader.cli.run_report.page import page  # other commands use the records alone

    shown, beside = _read(run), None if other is None else _read(other)
    standard = find_ideal(shown, run_folder(run).parent) if ideal is None else _read(ideal)
    target = output or Path(f"{shown.name}.html")
    text = page(shown, beside, standard)
    with file_errors("--output", target):
        target.write_text(text, encoding="utf-8")
    runs = [shown] if beside is None else [shown, beside]
    if as_json:
        emit_json(
            {
                "page": str(target),
                "runs": [
                    {
                        "run": one.own.last.run,
                        "record": str(one.own.path),
                        "length_s": one.length_s,
                        "samples_per_s": one.samples_per_s,
                        "wait_ratio": one.wait_ratio,
                        "limits": one.limits,
                        "moves": [asdict(move) for move in one.moves],
                        "findings": [asdict(found) for found in findings(one, standard)],
                    }
                    for one in runs
                ],
            }
        )
        return
    for one in runs:
        for found in findings(one, standard):
            note(f"{found.question} {found.answer}")
    emit(str(target))


def _list(as_json: bool) -> None:
    found = []
    for folder in sorted(_ring().glob("*/"), key=lambda one: one.stat().st_mtime):
        try:
            found.append(read_run(folder))
        except UsageError as error:
            note(f"left out: {error.what}")
    if as_json:
        emit_json(
            {
                "ring": str(_ring()),
                "runs": [
                    {"name": one.name, "began_s": one.begin_s, "length_s": one.length_s}
                    for one in found
                ],
            }
        )
        return
    if not found:
        note(f"{_ring()} keeps no run: one is kept there once it is 20 s old")
        return
    rows = [
        {
            "run": one.name,
            "script": one.own.last.script,
            "began": time.strftime("%Y-%m-%d %H:%M", time.localtime(one.begin_s)),
            "ran_for_s": one.length_s,
            "samples_per_s": one.samples_per_s,
            "wait_ratio": one.wait_ratio,
        }
        for one in found
    ]
    emit_document({"runs": rows})


def _read(run: str) -> Run:
    return read_run(run_folder(run))


def _ring() -> Path:
    return cache_root() / "runs"


def run_folder(run: str) -> Path:
    """Folder of a record: a path, a kept run's name or the beginning of one, or the latest."""
    if Path(run).exists():
        return Path(run)
    kept = {one.name: one for one in _ring().glob("*/")}
    if run == _LAST and kept:
        return max(kept.values(), key=lambda one: one.stat().st_mtime)
    matching = [name for name in kept if name.startswith(run)]
    if run in kept or len(matching) == 1:
        return kept[run if run in kept else matching[0]]
    where = f"there is no {run}, and {_ring()} keeps "
    raise UsageError(
        where + (f"{len(matching)} runs that begin so" if matching else "no run of that name"),
        remedy=nearest(run, sorted(kept)) if kept else "set AUTOLOADER_RUN_DIR, and run again",
    )
