"""The decision log: one JSON line for every decision, and its replay.

A log begins with a ``start`` line that holds the limits; a ``decision`` line holds everything that
``decide`` was given and everything it answered; a ``reflex`` line says what the reflex did in
between; an ``admission`` line, what became of a start or a change that was held against a fresh
reading. The outcome of a change is the ``verdict`` of a later decision. ``replay`` gives every
recorded input to today's policy and compares the answers.

Not here: deciding (``policy``), where the file lies (the loader's caller).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autoloader.controller.limits import ControllerLimits, ControlRequest
from autoloader.controller.observation import Observation
from autoloader.controller.policy import Decision, decide
from autoloader.controller.states import ControllerState
from autoloader.errors import KnobError, UsageError
from autoloader.host.frozen import frozen
from autoloader.spec.block import adapter, plain_of
from autoloader.telemetry.lines import LineLog, read_lines
from autoloader.telemetry.statistics import encoded

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 2


class DecisionLog(LineLog):
    """Writes one log; any thread, beside any other process. A full disk ends the log, not the run.

    Args:
        path: the file; appended to, made with its directory where it is missing.
        pipeline: number of the pipeline in the run.
        run: identifier of the run.
    """

    def __init__(self, path: Path, *, pipeline: int = 0, run: str = "") -> None:
        super().__init__(path, {"run": run, "pipeline": pipeline})

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

    def start(self, limits: ControllerLimits) -> None:
        """The limits from now on."""
        self.write({"kind": "start", "schema_version": SCHEMA_VERSION, "limits": plain_of(limits)})

    def decision(self, state: ControllerState, seen: Observation, answer: Decision) -> None:
        """Write one decision, with its inputs."""
        told = {"state": state, "observation": seen, "decision": answer}
        self.write_text(encoded({"kind": "decision", "at_s": seen.at_s, **told, **self._whose}))

    def event(self, kind: str, at_s: float, **told: Any) -> None:
        """Write one line of another kind.

        Args:
            kind: "reflex" (an action that it began) or "admission".
            at_s: time of the event, in seconds.
            told: further plain values.
        """
        self.write({"kind": kind, "at_s": at_s, **told})


@frozen
class Difference:
    """One decision that today's policy answers otherwise.

    Attributes:
        line: number of the line in the log, from 1.
        field: name of the field that differs.
        recorded, derived: the two answers.
    """

    line: int
    field: str
    recorded: Any
    derived: Any


@frozen
class Replayed:
    """Outcome of a replay."""

    decisions: int
    changes: int
    differences: tuple[Difference, ...]


def replay(lines: Iterable[str], *, origin: str = "the log") -> Replayed:
    """Derive every decision of a log again.

    Args:
        lines: lines of the decision log.
        origin: names the log in errors.

    Raises:
        UsageError: the log cannot be read: which line, and why.
    """
    decisions = changes = 0
    differences: list[Difference] = []
    limits: dict[tuple[Any, Any], ControllerLimits] = {}
    for number, line in read_lines(
        lines,
        origin,
        version=SCHEMA_VERSION,
        remedy="give the decisions.jsonl that a run wrote into AUTOLOADER_RUN_DIR",
    ):
        whose = line.get("run"), line.get("pipeline")
        try:
            if line["kind"] == "start":
                limits[whose] = adapter(ControllerLimits).validate_python(line["limits"])
            if line["kind"] != "decision":
                continue
            state = adapter(ControllerState).validate_python(line["state"])
            seen = adapter(Observation).validate_python(line["observation"])
            recorded, derived = line["decision"], plain_of(decide(state, seen, limits[whose]))
        except (KeyError, ValidationError, KnobError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            first = f"it has no {first}" if isinstance(error, KeyError) else first
            raise UsageError(
                f"{origin}, line {number}: this version cannot replay the decision: {first}",
                remedy="give the log as it was written, and use the version of autoloader that "
                "wrote it",
            ) from error
        decisions += 1
        changes += derived["knobs"] is not None
        differences += [
            Difference(number, key, recorded.get(key), value)
            for key, value in derived.items()
            if recorded.get(key) != value
        ]
    return Replayed(decisions, changes, tuple(differences))
