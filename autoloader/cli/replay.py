"""``autoloader replay``: derives every decision of a log again.

Exit codes: 0 every decision is the same, 1 some differ, 2 the log cannot be read.

Not here: the log and the policy (``controller``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoloader.cli.output import JsonFlag, emit, emit_json
from autoloader.controller.decisions import replay as replay_log
from autoloader.errors import UsageError

DIFFERENT = 1
_SHOWN = 20


def replay(
    log: Annotated[Path, typer.Argument(help="A decisions.jsonl that a loader wrote.")],
    as_json: JsonFlag = False,
) -> None:
    """Derive every decision of a log again, and say where the answers differ."""
    try:
        with log.open(encoding="utf-8") as lines:
            found = replay_log(lines, origin=str(log))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{log} cannot be read: {error}",
            remedy="name the decisions.jsonl of a run; AUTOLOADER_DECISIONS says where one goes",
        ) from error
    if as_json:
        emit_json(
            {
                "decisions": found.decisions,
                "changes": found.changes,
                "differences": found.differences,
            }
        )
    else:
        emit(
            f"{found.decisions} decisions, {found.changes} of them changes: "
            + (f"{len(found.differences)} differences" if found.differences else "all the same")
        )
        for one in found.differences[:_SHOWN]:
            emit(f"  line {one.line}: {one.field}: recorded {one.recorded}, now {one.derived}")
        if len(found.differences) > _SHOWN:
            emit(f"  … and {len(found.differences) - _SHOWN} more")
    if found.differences:
        raise typer.Exit(DIFFERENT)
