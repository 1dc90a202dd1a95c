"""Saves the winner of a study as a profile, if it beat the start.

What is written says no more than was found: the reader is pinned only where the study found another
one faster than the one that files like these are read with anyway; knobs that the winner's reader
has no use for stay as the start has them.

Not here: who won (``finals``), how a profile is kept (``controller.profiles``).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from autoloader.controller.profile import Entry, HostFacts, Limits, MixtureKind, Profile, Provenance
from autoloader.controller.profiles import ResolvedProfile, free_name, keep_entry
from autoloader.spec.knobs import UNUSED_KNOBS, Knobs
from autoloader.tune.finals import Contender
from autoloader.tune.study import StudyResult

_PASSWORD = re.compile(r"(://[^:/@\s]+:)[^@\s]+@")
"""Of a storage's URL: a profile is a file that is passed on."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and as what a winner is kept.

    Attributes:
        name: of the profile; ``None``: the start's own where it is the user's, else NAME-tuned.
        out: folder or file; ``None``: the user's config folder.
        host: this machine, in full.
        mixture: what kind the study measured.
        usual_reader: how files like these are read where nobody says how.
        command: the command line that was run.
        today: the date of the measurement.
    """

    name: str | None
    out: Path | None
    host: HostFacts
    mixture: MixtureKind
    usual_reader: str
    command: str
    today: date


@dataclass(frozen=True, slots=True)
class Outcome:
    """Profile that a study left, and where.

    Attributes:
        path: the profile's file; ``None`` where none was written.
        profile: what holds from now on for such mixtures: the winner's, or the start.
        notes: sentences for people: what was written over, or why nothing was.
    """

    path: Path | None
    profile: Profile
    notes: tuple[str, ...] = ()


def keep_winner(
    base: ResolvedProfile,
    result: StudyResult,
    place: Place,
    *,
    floor_bytes: int,
    bound_samples_per_s: float | None,
) -> Outcome:
    """Keep the winner, where there is one.

    Args:
        base: the profile that the study started from.
        result: what the study found.
        place: place where the profile is saved.
        floor_bytes: the RAM floor that held.
        bound_samples_per_s: what the machine could give at most; ``None``: not known.

    Raises:
        ProfileError: the name is a shipped one's, or the place cannot be written.
    """
    start = base.profile
    if result.verdict.winner.is_start:
        note = (
            f"no profile was written: nothing was faster than the start, and {start.name} "
            f"({base.origin}) holds as before"
        )
        return Outcome(None, start, (note,))
    mine = base.origin != "shipped"
    name = place.name or free_name(start.name, place.host, place.out)
    entry = winning_entry(start, result, place, bound_samples_per_s=bound_samples_per_s)
    own = {field: getattr(entry, field) for field in Entry.model_fields}
    profile = start.model_copy(
        update={
            **own,
            "name": name,
            "description": start.description
            if mine and start.name == name
            else f"Tuned on {place.host.describe()}.",
            "host": place.host,
            "limits": Limits(ram_floor=floor_bytes, cpu_budget=start.limits.cpu_budget),
            "entries": (),
        }
    )
    kept = keep_entry(profile, out=place.out, tuned_from=start)
    return Outcome(kept.path if kept.written else None, profile, tuple(kept.notes))


def winning_entry(
    base: Profile, result: StudyResult, place: Place, *, bound_samples_per_s: float | None
) -> Entry:
    """The winner's knobs with what was measured with them."""
    verdict = result.verdict
    winner = verdict.winner
    numbers: dict[str, float | int | None] = {
        "samples_per_s": _rounded(winner.samples_per_s),
        "start_samples_per_s": _rounded(verdict.start.samples_per_s),
        "speedup": round(verdict.speedup, 3),
        "bound_samples_per_s": _rounded(bound_samples_per_s),
        "peak_rss_bytes": winner.peak_rss_bytes,
        "min_headroom_bytes": winner.min_headroom_bytes,
        "time_to_first_batch_s": _median_of(winner, "time_to_first_batch_s"),
        "batch_latency_p50_s": _median_of(winner, "batch_latency_s", "p50"),
        "batch_latency_p99_s": _median_of(winner, "batch_latency_s", "p99"),
    }
    counts = ", ".join(f"{count} {name}" for name, count in result.trials.items())
    return Entry(
        mixture=place.mixture,
        knobs=kept_knobs(winner.knobs, base.knobs, usual_reader=place.usual_reader),
        measurements={name: n for name, n in numbers.items() if n is not None},
        provenance=Provenance(
            source="measured",
            detail=f"study {result.name}: {counts}; start and best measured in turn, "
            f"{len(verdict.ratios)} pairs; from profile {base.name}; {_optuna()}",
            measured_on=place.today.isoformat(),
            command=without_passwords(place.command),
            study=result.name,
        ),
    )


def without_passwords(command: str) -> str:
    """``command`` without the password of a storage's URL."""
    return _PASSWORD.sub(r"\1***@", command)


def kept_knobs(winner: Knobs, start: Knobs, *, usual_reader: str) -> Knobs:
    """``winner`` without what the study cannot have found.

    Knobs that its reader has no use for are the start's, and the reader is ``auto`` where that
    takes the same one.
    """
    values = winner.flat()
    before = start.flat()
    unused = UNUSED_KNOBS[winner.reader]
    for key in list(values):
        dataset, _, knob = key.rpartition(".")
        if knob not in unused:
            continue
        if key in before:
            values[key] = before[key]
        elif dataset:
            del values[key]
    values |= {key: value for key, value in before.items() if key.rpartition(".")[2] in unused}
    if values["reader"] == usual_reader:
        values["reader"] = "auto"
    return Knobs.build(values)


def _median_of(contender: Contender, *keys: str) -> float | None:
    """The median over the rounds of one figure in the child's JSON; ``None`` without any."""
    found = []
    for result in contender.rounds.values():
        value: Any = result.measurement
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, (int, float)):
            found.append(float(value))
    return round(statistics.median(found), 4) if found else None


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


def _optuna() -> str:
    return f"optuna {metadata.version('optuna')}"
