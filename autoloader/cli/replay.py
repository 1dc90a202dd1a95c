"""``autoloader replay``: derives every decision of one log, or of many, again.

Exit codes: 0 every decision is the same, 1 some differ, 2 the log cannot be read.

Not here: the log and the policy (``controller``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autoloader.cli.options import JsonFlag
from autoloader.cli.output import emit, emit_json
from autoloader.controller.decisions import Replayed
from autoloader.controller.decisions import replay as replay_log
from autoloader.errors import UsageError

DIFFERENT = 1
_SHOWN = 20
_REMEDY = "name the decision log of a run; AUTOLOADER_DECISIONS says where one goes"


def replay(
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG ...",
            help="Decision logs that loaders wrote; of a directory all *.jsonl below it.",
        ),
    ],
    as_json: JsonFlag = False,
) -> None:
    """Derive every decision of the logs again, and say where the answers differ."""
    found = {log: _replayed(log) for named in logs for log in _below(named)}
    differences = [(log, one) for log, of in found.items() for one in of.differences]
    if as_json:
        emit_json(
            {
                "logs": len(found),
                "decisions": sum(one.decisions for one in found.values()),
                "changes": sum(one.changes for one in found.values()),
                "differences": [{"log": str(log), **asdict(one)} for log, one in differences],
            }
        )
    else:
        for log, one in found.items():
            for line in _lines(one):
                emit(f"{log}: {line}" if len(found) > 1 else line)
    if differences:
        raise typer.Exit(DIFFERENT)


def _below(named: Path) -> list[Path]:
    if not named.is_dir():
        return [named]
    found = sorted(named.rglob("*.jsonl"))
    if not found:
        raise UsageError(f"there is no *.jsonl below {named}", remedy=_REMEDY)
    return found


def _replayed(log: Path) -> Replayed:
    try:
        with log.open(encoding="utf-8") as lines:
            return replay_log(lines, origin=str(log))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{log} cannot be read: {error}", remedy=_REMEDY) from error


def _lines(found: Replayed) -> Iterator[str]:
    differ = f"{len(found.differences)} differences" if found.differences else "all the same"
    yield f"{found.decisions} decisions, {found.changes} of them changes: {differ}"
    for one in found.differences[:_SHOWN]:
        yield f"  line {one.line}: {one.field}: recorded {one.recorded}, now {one.derived}"
    if len(found.differences) > _SHOWN:
        yield f"  … and {len(found.differences) - _SHOWN} more"
