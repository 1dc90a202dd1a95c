"""The whole of ``autoloader.tune``: profile and mixture in, winning profile saved.

Not here: each part of it; this is where they are put together.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import platformdirs

from autoloader.controller.profile import described_host
from autoloader.controller.profiles import check_name
from autoloader.errors import AutoloaderError, ProfileError, UsageError
from autoloader.host.clock import Clock, SystemClock
from autoloader.host.headroom import HeadroomProbe, HeadroomSource
from autoloader.process.planning import LoaderPlan, chain_saves, choose_reader, kind_of, plan_loader
from autoloader.spec import PipelineSpec
from autoloader.spec.knobs import KnobLimits, Knobs
from autoloader.tune.bound import Analyst, Supplies, cache_model
from autoloader.tune.finals import Fastest, LeastForStep
from autoloader.tune.keep import Outcome, Place, keep_winner
from autoloader.tune.ledger import sqlite_url
from autoloader.tune.measurement import LEAST_BATCHES, LEAST_WARMUP, Trace
from autoloader.tune.page import write_page
from autoloader.tune.report import TuneReport
from autoloader.tune.search_space import SearchSpace, guesses, least_for_step
from autoloader.tune.study import StudyOptions, StudyWatcher, run_study
from autoloader.tune.trial import HostTurns, Measurer, TrialRunner, measure_command

logger = logging.getLogger(__name__)

STUDIES_FILE = "studies.db"

_STEPS_S, _LEAST_STEPS = 20.0, 40
"""With a trainer's step a measurement takes so many seconds of it, and at least so many steps."""


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """Options of ``autoloader.tune``.

    Attributes:
        spec_path: the mixture's spec file.
        host_profile: name or path of the profile to start from; ``None`` picks as the loader does.
        floor_bytes: the RAM floor; ``None`` takes the profile's.
        trials: trials to run, the start among them.
        budget_s: wall seconds for search and finals.
        storage: a storage URL; ``None`` is an SQLite file in ``out``, else the user's data folder.
        study: name of a study to make or resume; ``None`` makes a new one, of a SLURM job with a
            storage one for the job.
        resume: the study must be there; with no name the one that was begun last goes on.
        name: of the profile to keep; ``None``: the start's where it is the user's own, else
            NAME-tuned. Never a shipped one's.
        out: folder (or file) for the profile; ``None`` is the user's config folder.
        split: the spec's split to measure.
        seed: seed of Optuna's sampler.
        warmup: batches before a measurement.
        batches: batches of a measurement.
        command: the command line, for the profile's provenance.
        step_time_s: the trainer's step; the cheapest setting that feeds it is sought. ``None``:
            the fastest is.
        report: file for the HTML report; ``None`` is ``STUDY.html`` beside profile or studies.
        spec: the spec in ``spec_path`` with ``settings`` over it; ``None``: as the file has it.
        knobs: knob values over the profile's, to start from.
        settings: words of ``--set``, for the measuring children.
    """

    spec_path: Path
    host_profile: str | None = None
    floor_bytes: int | None = None
    trials: int = 12
    budget_s: float = 300.0
    storage: str | None = None
    study: str | None = None
    resume: bool = False
    name: str | None = None
    out: Path | None = None
    split: str = "train"
    seed: int = 0
    warmup: int = LEAST_WARMUP
    batches: int = LEAST_BATCHES
    command: str = "autoloader.tune"
    step_time_s: float | None = None
    report: Path | None = None
    spec: PipelineSpec | None = None
    knobs: Mapping[str, Any] = field(default_factory=dict)
    settings: Sequence[str] = ()


def tune(
    options: TuneOptions,
    watcher: StudyWatcher,
    *,
    measure: Measurer | None = None,
    headroom: HeadroomSource | None = None,
    clock: Clock | None = None,
) -> TuneReport:
    """Run the study that ``options`` describes and save the winner.

    Args:
        options: options of the command line.
        watcher: is shown every step.
        measure: measures one knob set; by default a child process under the floor.
        headroom: what the machine can still give; by default this host's.
        clock: time source of the time budget.

    Raises:
        UsageError: options that make no sense.
        ProfileError: the name is a shipped profile's, or the profile cannot be written.
        BudgetInfeasibleError: the floor is crossed before or by the start.
        AutoloaderError: bad spec, profile or data, as the exit codes say.
    """
    if options.trials < 1 or options.budget_s <= 0:
        raise UsageError(
            f"--trials {options.trials} with --budget {options.budget_s:g}s leaves nothing to run",
            remedy="give at least one trial and a budget above zero",
        )
    if options.name is not None:
        check_name(options.name)
    if options.step_time_s is not None and options.step_time_s <= 0:
        raise UsageError(
            f"a step of {options.step_time_s:g} s takes no time, so there is nothing to feed",
            remedy="give the trainer's step, such as --step-time 80ms; without it the fastest "
            "setting is sought",
        )
    clock = clock or SystemClock()
    headroom = headroom or HeadroomProbe()
    place = _place(options, measure, headroom, clock)
    plan, space, batch_size = place.plan, place.space, place.batch_size
    base, floor_bytes = plan.profile.profile, plan.ram_floor_bytes
    kin = described_host(files=_local_files(plan), probe_s=0).fingerprint
    study_options = StudyOptions(
        storage=options.storage or _default_storage(options.out),
        name=_study_name(options, base.name),
        kin=kin,
        about=_about(plan, options),
        resume=options.resume,
        trials=options.trials,
        budget_s=options.budget_s,
        seed=options.seed,
        batches=_batches(options),
        floor_bytes=floor_bytes,
    )
    analyst = _analyst(place, options.step_time_s, clock)
    result = run_study(
        space,
        partial(_guesses, space, batch_size, options.step_time_s),
        place.measure,
        study_options,
        clock=clock,
        watcher=watcher,
        analyst=analyst,
        objective=Fastest() if options.step_time_s is None else LeastForStep(),
    )
    analysis = analyst.bound(held_by=result.verdict.winner.knobs.decode_processes)
    bound = None if analysis is None else analysis.samples_per_s
    host = described_host(files=_local_files(plan))
    keep = partial(
        keep_winner,
        plan.profile,
        result,
        Place(
            name=options.name,
            out=options.out,
            host=host,
            mixture=kind_of(plan.mixture),
            usual_reader=choose_reader(plan.mixture, "auto")[0],
            command=options.command,
            today=date.today(),
        ),
        floor_bytes=floor_bytes,
        bound_samples_per_s=bound,
    )
    page = options.report or _folder(options.out) / f"{result.name}.html"
    try:
        kept = keep()
    except ProfileError as error:  # what was measured is told all the same
        unkept = TuneReport(Outcome(None, base, (error.what,)), result, analysis)
        write_page(unkept.story(host, floor_bytes, options.command), page)
        raise ProfileError(
            f"{error.what}; the study {result.name} is kept, and {page} tells what it found",
            remedy=f"{error.remedy}; --study {result.name} --resume goes on with what was measured",
        ) from error
    report = TuneReport(kept, result, analysis)
    told = report.story(host, floor_bytes, options.command)
    return replace(report, page_path=write_page(told, page), told=told)


def _study_name(options: TuneOptions, base: str) -> str:
    """The study's name; "" leaves it to the storage: the one that was begun last."""
    if options.study or options.resume:
        return options.study or ""
    job = os.environ.get("SLURM_JOB_ID")
    if job and options.storage:  # every task of the job is one of its workers
        return f"{base}-slurm-{job}"
    return f"{base}-{datetime.now():%Y%m%d-%H%M%S}-{token_hex(2)}"


def _about(plan: LoaderPlan, options: TuneOptions) -> str:
    """A word for what is measured: the mixture, its split, the trainer's step."""
    spec = plan.mixture.spec.model_dump_json()
    parts = (spec, options.split, options.step_time_s)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class _Place:
    """Subject of the measurements, their method and limits."""

    plan: LoaderPlan
    space: SearchSpace
    batch_size: int
    measure: Measurer


def _place(
    options: TuneOptions, measure: Measurer | None, headroom: HeadroomSource, clock: Clock
) -> _Place:
    """Plan the loader that ``options`` speak of, and how it is measured."""
    spec_path = options.spec_path.absolute()
    spec = options.spec or PipelineSpec.from_yaml(spec_path)
    plan = plan_loader(
        spec,
        profile=options.host_profile,
        ram_floor=options.floor_bytes,
        split=options.split,
        knobs=options.knobs,
        headroom=headroom,
        probe_only=True,
    )
    for note in plan.notes:
        logger.info("%s", note)
    open_reader = spec.reader == "auto" and not any(
        dataset.remote for dataset in plan.mixture.datasets
    )
    space = SearchSpace.around(
        plan.knobs,
        _cautious(plan.limits),
        readers=("indexed", "stream") if open_reader else (),
    )

    runner = TrialRunner(
        measure_command(
            spec_path,
            profile=options.host_profile,
            split=options.split,
            warmup=options.warmup,
            batches=_batches(options),
            floor_bytes=plan.ram_floor_bytes,
            step_time_s=options.step_time_s or 0.0,
            settings=options.settings,
        ),
        floor_bytes=plan.ram_floor_bytes,
        headroom=lambda: _bytes_or_none(headroom),
        clock=clock,
    )
    return _Place(plan, space, spec.batch.size, measure or HostTurns(runner, clock))


def _local_files(plan: LoaderPlan) -> list[str]:
    """Files of the data that this machine opens."""
    local = [dataset for dataset in plan.mixture.datasets if not dataset.remote]
    return sorted({piece.path for dataset in local for piece in dataset.slices})


def _guesses(
    space: SearchSpace, batch_size: int, step_time_s: float | None, trace: Trace | None
) -> tuple[Knobs, ...]:
    """The sets that reasoning gives for what is sought."""
    if step_time_s is None:
        return guesses(space, batch_size, trace)
    return (least_for_step(space, batch_size, trace, step_time_s),)


def _analyst(place: _Place, step_time_s: float | None, clock: Clock) -> Analyst:
    """Knows what there is for this plan's loader."""
    plan, cache_bytes = place.plan, float(place.plan.limits.cache_bytes or 0)
    trainer_s = None if step_time_s is None else step_time_s / place.batch_size
    supplies = Supplies(plan.limits.cpus, cache_bytes=cache_bytes, trainer_s=trainer_s)
    most = place.space.ranges["io_threads"].high
    found = Analyst(supplies, most_io_threads=most, chain_saves=chain_saves(plan.mixture))
    if cache_bytes and plan.knobs.reader == "indexed":
        found.cache = cache_model(plan, clock)
    return found


def _batches(options: TuneOptions) -> int:
    """Batches of a measurement: with a step of the trainer as many as fill some 20 seconds."""
    if options.step_time_s is None:
        return options.batches
    return min(options.batches, max(_LEAST_STEPS, round(_STEPS_S / options.step_time_s)))


def _cautious(limits: KnobLimits) -> KnobLimits:
    """``limits`` with half the ring's budget: a trial's child reads headroom later, and less."""
    if limits.budget_bytes is None:
        return limits
    return replace(limits, budget_bytes=limits.budget_bytes // 2)


def _bytes_or_none(headroom: HeadroomSource) -> int | None:
    try:
        return headroom.read().headroom_bytes
    except AutoloaderError:
        return None


def _folder(out: Path | None) -> Path:
    """Where studies and their reports lie."""
    if out is None:
        return platformdirs.user_data_path("autoloader", appauthor=False)
    return out.parent if out.suffix in {".yaml", ".yml"} else out


def _default_storage(out: Path | None) -> str:
    folder = _folder(out)
    try:
        return sqlite_url(folder.absolute() / STUDIES_FILE)
    except OSError as error:
        raise UsageError(
            f"the study cannot be kept in {folder}: {error}",
            remedy="name a writable folder with --out, or a storage URL with --storage",
        ) from error
