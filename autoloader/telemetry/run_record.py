"""Reads the record that a run left; see ``run_log`` for what it holds.

Not here: writing it (``run_log``), what is concluded from it and drawn (``report``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoloader.errors import UsageError
from autoloader.telemetry.run_log import SCHEMA_VERSION
from autoloader.telemetry.snapshot import Move, Snapshot

_REMEDY = "name a folder that AUTOLOADER_RUN_DIR names, or a run that `autoloader report` lists"


@dataclass(frozen=True, slots=True)
class PipelineRecord:
    """What one pipeline left.

    Attributes:
        path: the file.
        facts: of the start.
        moments: the oldest first; at least one.
        bad: quarantined records, each with ``at_s``, dataset, path, record and reason.
        ended: whether it was closed; a run that was killed was not.
    """

    path: Path
    facts: Mapping[str, Any]
    moments: tuple[Snapshot, ...]
    bad: tuple[Mapping[str, Any], ...] = ()
    ended: bool = False
    _moves: list[Move] = field(default_factory=list, repr=False, compare=False)

    @property
    def last(self) -> Snapshot:
        """The last moment."""
        return self.moments[-1]

    @property
    def moves(self) -> tuple[Move, ...]:
        """Every time that knobs moved, the oldest first, each as it was known at last."""
        if not self._moves:
            found: dict[tuple[float, str, str], Move] = {}
            for moment in self.moments:
                for move in moment.moves:
                    found[move.at_s, move.by, move.why] = move
            self._moves.extend(found[key] for key in sorted(found))
        return tuple(self._moves)


def read_pipeline(path: Path) -> PipelineRecord:
    """The record in one file.

    A line that its writer could not end is left out; so is what a later version added.

    Raises:
        UsageError: it cannot be read, or is no record.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", remedy=_REMEDY) from error
    facts: dict[str, Any] = {}
    bad: list[dict[str, Any]] = []
    said: dict[str, Any] = {}
    moments: list[Snapshot] = []
    ended = False
    for number, line in _parsed(text.splitlines(), path):
        kind = line.pop("kind", None)
        if kind == "start":
            version = line.get("schema_version")
            if version != SCHEMA_VERSION:
                raise UsageError(
                    f"{path}, line {number}: schema version {version}, this is {SCHEMA_VERSION}",
                    remedy="read it with the version of autoloader that wrote it",
                )
            facts, ended, said = dict(line.get("facts") or {}), False, {}
        elif kind == "moment":
            said.update(line)
            moment = Snapshot.from_dict(said)
            if moments and moments[-1].at_s == moment.at_s:  # told in full at the end
                moments.pop()
            moments.append(moment)
        elif kind == "bad":
            bad.append({"at_s": line.get("at_s"), **line.get("record", {})})
        elif kind == "end":
            ended = True
    if not moments:
        raise UsageError(f"{path} is no record of a run: it holds no moment", remedy=_REMEDY)
    return PipelineRecord(path, facts, tuple(moments), tuple(bad), ended)


def _parsed(lines: Iterable[str], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError:
            continue  # its writer was killed, or had no room
        if not isinstance(found, dict):
            raise UsageError(f"{path}, line {number}: not a line of a run's record", remedy=_REMEDY)
        yield number, found


def first_facts(path: Path) -> dict[str, Any]:
    """The facts of a record, without reading the rest of it; none where it has none.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for _, line in _parsed([lines.readline()], path):
                return dict(line.get("facts") or {})
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", remedy=_REMEDY) from error
    return {}


def files_of(run: Path) -> list[Path]:
    """The records' files of a run, or of several.

    Args:
        run: a record's file, or a folder with records at any depth.

    Raises:
        UsageError: there is none.
    """
    if run.is_file():
        return [run]
    found = sorted(
        (file for file in run.rglob("*.jsonl") if file.name != "decisions.jsonl"),
        key=lambda file: file.stat().st_mtime,
    )
    if not found:
        what = "holds no record of a run" if run.is_dir() else "is not there"
        raise UsageError(f"{run} {what}", remedy=_REMEDY)
    return found
