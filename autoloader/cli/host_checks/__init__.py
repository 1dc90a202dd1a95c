"""Checks of this machine for what will hurt a run: each looks, reports, and changes nothing.

Checks are functions that give facts and findings; ``examine`` runs them all. They take where to
look from a ``Machine``, so that tests can plant faults. A check that fails itself is a finding too,
and the others go on.

Not here: mending anything, showing findings (``cli.doctor``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from autoloader.cli.host_checks import data
from autoloader.cli.host_checks import machine as checks
from autoloader.cli.host_checks.machine import KERNEL_LOG, Check, Fact, Finding, Machine, Seen
from autoloader.controller.profile import load_profile
from autoloader.errors import ProfileError
from autoloader.samples.resolve import ResolvedDataset
from autoloader.spec import PipelineSpec

__all__ = ["KERNEL_LOG", "Fact", "Finding", "Machine", "Seen", "examine"]


def examine(
    machine: Machine,
    *,
    spec: Path | None = None,
    split: str = "train",
    profile: str | None = None,
    floor_bytes: int | None = None,
) -> list[Seen]:
    """Run every check.

    Args:
        machine: places where the checks look.
        spec: a mixture's spec file, whose data is examined as well.
        split: split of the spec that is examined.
        profile: a host profile's name or file; by default the one that a run would take.
        floor_bytes: memory that must stay free; by default the profile's.

    Raises:
        SpecError: the spec is wrong.
        ProfileError: there is no such profile.
    """
    found = load_profile(profile)
    floor = found.profile.limits.ram_floor if floor_bytes is None else floor_bytes
    every: dict[str, Check] = {
        "memory": lambda one: checks.memory(one, floor),
        "kills": checks.kills,
        "gpu": checks.gpus,
        "limits": checks.limits,
        "processors": checks.processors,
        "output": checks.output,
        "profile": lambda _: _profile(profile),
        "leftovers": checks.leftovers,
    }
    seen = [one for name, check in every.items() for one in _run(name, partial(check, machine))]
    return seen if spec is None else seen + _of_data(machine, spec, split)


def _of_data(machine: Machine, place: Path, split: str) -> list[Seen]:
    spec = PipelineSpec.from_yaml(place)
    datasets: list[ResolvedDataset] = []
    seen = _run("data", lambda: data.readable(spec, split, datasets))
    for dataset in datasets:
        seen += _run("data", partial(data.mirrors, dataset, spec.errors.max_corrupt_ratio))
    if not seen:
        seen.append(Fact(f"all of {len(datasets)} datasets that their metadata names", "data"))
    seen += _run("index", lambda: data.indexes(datasets, place))
    files = sorted({piece.path for one in datasets if not one.remote for piece in one.slices})
    return seen + _run("storage", lambda: data.storage(machine, files))


def _profile(which: str | None) -> Iterator[Seen]:
    try:
        found = load_profile(which, strict=True)
    except ProfileError as error:
        yield Finding(error.what, error.remedy)
    else:
        yield Fact("; ".join(found.notes))


def _run(name: str, check: Callable[[], Iterable[Seen]]) -> list[Seen]:
    """Findings and facts of one check, and its failure, if it failed."""
    seen: list[Seen] = []
    try:
        seen += (replace(one, check=one.check or name) for one in check())
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        text = f"a check could not be finished{place} ({error.strerror or error})"
        seen.append(Finding(text, "run it as the user who trains", check="doctor"))
    return seen
