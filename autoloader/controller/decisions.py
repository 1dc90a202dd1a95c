"""The decision log: one JSON line for every decision, and its replay.

A log begins with a ``start`` line that holds the limits; a ``decision`` line holds everything that
``decide`` was given and everything it answered; a ``reflex`` line says what the reflex did in
between; an ``admission`` line, what became of a start or a change that was held against a fresh
reading. The outcome of a change is the ``verdict`` of a later decision. ``replay`` gives every
recorded input to today's policy and compares the answers.

Not here: deciding (``policy``), where the file lies (the loader's caller).
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from autoloader.controller.limits import ControllerLimits, ControlRequest
from autoloader.controller.observation import Observation
from autoloader.controller.policy import Decision, decide
from autoloader.controller.states import ControllerState
from autoloader.errors import KnobError, UsageError
from autoloader.telemetry.lines import LineLog

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1

Decide = Callable[[ControllerState, Observation, ControllerLimits], Decision]
_Kind = TypeVar("_Kind")


@functools.cache
def _plain(kind: type[_Kind]) -> TypeAdapter[_Kind]:
    """To plain values and back; made when a log is written or read, not with the import."""
    return TypeAdapter(kind)


class DecisionLog:
    """Writes one log; any thread, beside any other process. A full disk ends the log, not the run.

    Args:
        path: the file; appended to, made with its directory where it is missing.
        pipeline: which pipeline of the run.
        run: identifier of the run.
    """

    def __init__(self, path: Path, *, pipeline: int = 0, run: str = "") -> None:
        self._lines = LineLog(path, {"run": run, "pipeline": pipeline})

    @classmethod
    def wanted(cls, request: ControlRequest, pipeline: int) -> DecisionLog | None:
        """The log that a trainer asks for, begun; ``None`` where it asks for none."""
        if not (request.moves and request.decisions):
            return None
        try:
            log = cls(Path(request.decisions), pipeline=pipeline, run=request.run)
        except OSError as error:
            logger.warning("no decision log: %s cannot be written: %s", request.decisions, error)
            return None
        log.start(request.limits)
        return log

    @property
    def failed(self) -> str | None:
        """Why nothing more is written; ``None`` where all is well."""
        return self._lines.failed

    def start(self, limits: ControllerLimits) -> None:
        """The limits from now on."""
        plain = _plain(ControllerLimits).dump_python(limits, mode="json")
        self._lines.write({"kind": "start", "schema_version": SCHEMA_VERSION, "limits": plain})

    def decision(self, state: ControllerState, seen: Observation, answer: Decision) -> None:
        """One decision, with its inputs."""
        self._lines.write(
            {
                "kind": "decision",
                "at_s": seen.at_s,
                "state": _plain(ControllerState).dump_python(state, mode="json"),
                "observation": _plain(Observation).dump_python(seen, mode="json"),
                "decision": _plain(Decision).dump_python(answer, mode="json"),
            }
        )

    def reflex(self, at_s: float, action: str, headroom_bytes: int | None) -> None:
        """Log an action that the reflex began."""
        self._lines.write(
            {"kind": "reflex", "at_s": at_s, "action": action, "headroom_bytes": headroom_bytes}
        )

    def frames(self, at_s: float, headroom_bytes: int, held_bytes: int, given_bytes: int) -> None:
        """The frame cache had to give memory back: what it held, and what it gave."""
        self._lines.write(
            {
                "kind": "reflex",
                "at_s": at_s,
                "action": "frames",
                "headroom_bytes": headroom_bytes,
                "held_bytes": held_bytes,
                "given_bytes": given_bytes,
            }
        )

    def admission(
        self, at_s: float, what: str, price_bytes: int, headroom_bytes: int | None, admitted: bool
    ) -> None:
        """Log a start or a change that was compared with a fresh reading."""
        self._lines.write(
            {
                "kind": "admission",
                "at_s": at_s,
                "what": what,
                "price_bytes": price_bytes,
                "headroom_bytes": headroom_bytes,
                "admitted": admitted,
            }
        )

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._lines.close()


@dataclass(frozen=True, slots=True)
class Difference:
    """One decision that today's policy answers otherwise.

    Attributes:
        line: in the log, from 1.
        field: name of the field that differs.
        recorded, derived: the two answers.
    """

    line: int
    field: str
    recorded: Any
    derived: Any


@dataclass(frozen=True, slots=True)
class Replayed:
    """Outcome of a replay."""

    decisions: int
    changes: int
    differences: tuple[Difference, ...]


def replay(lines: Iterable[str], *, with_: Decide = decide, origin: str = "the log") -> Replayed:
    """Derive every decision of a log again.

    Args:
        lines: lines of the decision log.
        with_: policy that derives the decisions again.
        origin: names the log in errors.

    Raises:
        UsageError: the log cannot be read: which line, and why.
    """
    decisions = changes = 0
    differences: list[Difference] = []
    for one in read_decisions(lines, origin=origin):
        answer = _plain(Decision).dump_python(with_(one.state, one.seen, one.limits), mode="json")
        decisions += 1
        changes += answer["knobs"] is not None
        differences += [
            Difference(one.line, key, one.answer.get(key), answer[key])
            for key in answer
            if one.answer.get(key) != answer[key]
        ]
    return Replayed(decisions, changes, tuple(differences))


@dataclass(frozen=True, slots=True)
class Recorded:
    """One decision of a log.

    Attributes:
        line: in the log, from 1.
        whose: the run, and which pipeline of it.
        limits, state, seen: what it was made from.
        answer: the decision as its line says it; ``decided`` reads it.
    """

    line: int
    whose: tuple[str, int]
    limits: ControllerLimits
    state: ControllerState
    seen: Observation
    answer: Mapping[str, Any]

    @property
    def decided(self) -> Decision:
        """The decision."""
        decision: Decision = _plain(Decision).validate_python(self.answer)
        return decision


def read_decisions(lines: Iterable[str], *, origin: str = "the log") -> Iterator[Recorded]:
    """Every decision of a log, in its order.

    Args:
        lines: lines of the decision log.
        origin: names the log in errors.

    Raises:
        UsageError: the log cannot be read: which line, and why.
    """
    limits: dict[tuple[str, int], ControllerLimits] = {}
    for number, record in _records(lines, origin):
        whose = (str(record.get("run", "")), int(record.get("pipeline", 0)))
        try:
            if record.get("kind") == "start":
                limits[whose] = _plain(ControllerLimits).validate_python(record["limits"])
            if record.get("kind") != "decision":
                continue
            yield Recorded(
                number,
                whose,
                limits[whose],
                _plain(ControllerState).validate_python(record["state"]),
                _plain(Observation).validate_python(record["observation"]),
                record["decision"],
            )
        except (KeyError, ValidationError, KnobError) as error:
            raise UsageError(
                f"{origin}, line {number}: not a record of this schema: {_first_line(error)}",
                remedy="replay a log as `autoloader` wrote it, with the version that wrote it",
            ) from error


def _records(lines: Iterable[str], origin: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Parsed lines; those that were cut off by the end of their writer are left out.

    A cut line is the last one, or the one before a ``start``: the next writer's.
    """
    held: tuple[int, str] | None = None
    for number, line in enumerate(lines, start=1):
        if held is not None and not (_is_cut(held[1]) and '"kind": "start"' in line):
            yield held[0], _parsed(*held, origin)
        held = (number, line) if line.strip() else None
    if held is not None and held[1].endswith("\n"):
        yield held[0], _parsed(*held, origin)


def _is_cut(line: str) -> bool:
    return line.startswith("{") and not line.rstrip().endswith("}")


def _parsed(number: int, line: str, origin: str) -> dict[str, Any]:
    remedy = "replay a decisions.jsonl that a loader wrote"
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{origin}, line {number}: no JSON: {error}", remedy=remedy) from error
    if not isinstance(record, dict):
        raise UsageError(f"{origin}, line {number}: no JSON object", remedy=remedy)
    version = record.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{origin}, line {number}: schema version {version}, this is {SCHEMA_VERSION}",
            remedy="replay it with the version of autoloader that wrote it",
        )
    return record


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
