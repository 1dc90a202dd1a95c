"""Records of runs: the page of one (``autoloader report``), its decisions again (``replay``).

Exit codes of ``replay``: 0 every decision is the same, 1 some differ, 2 a log cannot be read.

Not here: records (``telemetry.run_record``), a run's figures (``cli.recorded_run``), the page
(``cli.run_page``), the decision log and the policy (``controller``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from autoloader.cli.output import answered, emit, emit_document, file_errors, note
from autoloader.cli.recorded_run import find_ideal, read_run, run_folder, runs_folder
from autoloader.cli.run_page import findings, page
from autoloader.controller.decisions import Replayed
from autoloader.controller.decisions import replay as replay_log
from autoloader.errors import UsageError

DIFFERENT = 1
"""Exit code where decisions differ."""
_SHOWN = 20
_REMEDY = "name the decision log of a run; AUTOLOADER_DECISIONS says where one goes"


def show_page(run: str, other: str | None, ideal: str | None, output: Path | None) -> None:
    """Write the page of a run.

    Args:
        run: folder or name of the run.
        other: a run to put beside it; ``None``: no other.
        ideal: a run of the trainer alone; ``None``: the latest of the same spec, if any.
        output: the page; ``None``: RUN.html in the working directory.
    """
    folder = run_folder(run)
    shown, beside = read_run(folder), None if other is None else read_run(run_folder(other))
    standard = find_ideal(shown, folder.parent) if ideal is None else read_run(run_folder(ideal))
    target = output or Path(f"{shown.name}.html")
    text = page(shown, beside, standard)
    with file_errors("--output", target):
        target.write_text(text, encoding="utf-8")
    found = [(one, findings(one, standard)) for one in (shown, beside) if one is not None]
    rows = [
        {
            "run": one.own.last.run,
            "record": str(one.own.path),
            "length_s": one.length_s,
            "samples_per_s": one.samples_per_s,
            "wait_ratio": one.wait_ratio,
            "limits": one.limits,
            "moves": [asdict(move) for move in one.moves],
            "findings": [asdict(finding) for finding in told],
        }
        for one, told in found
    ]
    if answered({"page": str(target), "runs": rows}):
        return
    for _, told in found:
        for finding in told:
            note(f"{finding.question} {finding.answer}")
    emit(str(target))


def list_runs() -> None:
    """Show the runs that the cache directory keeps."""
    found, kept = [], runs_folder()
    for folder in sorted(kept.glob("*/"), key=lambda one: one.stat().st_mtime):
        try:
            found.append(read_run(folder))
        except UsageError as error:
            note(f"left out: {error.what}")
    runs = [{"name": one.name, "began_s": one.begin_s, "length_s": one.length_s} for one in found]
    if answered({"ring": str(kept), "runs": runs}):
        return
    if not found:
        note(f"{kept} keeps no run: one is kept there once it is 20 s old")
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


def show_replay(logs: Sequence[Path]) -> None:
    """Derive the decisions of logs again and show which differ; exit code 1 where some do.

    Args:
        logs: decision logs, and folders of such.
    """
    found = {log: _replayed(log) for named in logs for log in _below(named)}
    differences = [(log, one) for log, of in found.items() for one in of.differences]
    document = {
        "logs": len(found),
        "decisions": sum(one.decisions for one in found.values()),
        "changes": sum(one.changes for one in found.values()),
        "differences": [{"log": str(log), **asdict(one)} for log, one in differences],
    }
    if not answered(document):
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
