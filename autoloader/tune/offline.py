"""The whole of ``autoloader.tune``: profile and mixture in, a profile for this host out.

A profile is always kept. If the start won, the profile has the start's knobs, and the bound: how
much faster a setting could be. A profile claims no more than the study found. The reader is pinned
only if the study found another one faster than the usual reader of such files. Knobs that the
winner's reader does not use stay as the start has them.

Not here: the study (``study``), who won (``finals``), how a profile is kept
(``controller.profiles``).
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from secrets import token_hex

import platformdirs

from autoloader.controller.profile import HostFacts, Limits, Profile, Provenance, described_host
from autoloader.controller.profiles import check_name, free_name, keep_profile
from autoloader.errors import ProfileError, UsageError
from autoloader.host import supervision
from autoloader.host.clock import Clock
from autoloader.host.extras import is_installed
from autoloader.host.headroom import HeadroomProbe, headroom_or_none
from autoloader.process.planning import LoaderPlan, choose_reader, kind_of, plan_loader
from autoloader.spec import PipelineSpec
from autoloader.spec.knobs import KnobLimits, Knobs, used_knobs
from autoloader.tune.bound import Analyst
from autoloader.tune.ledger import sqlite_url
from autoloader.tune.report import TuneReport
from autoloader.tune.search_space import SearchSpace, guesses
from autoloader.tune.study import Study, StudyResult, StudyWatcher, TuneOptions
from autoloader.tune.trial import Measurer, TrialRunner, by_turns, others_cpus

logger = logging.getLogger(__name__)

STUDIES_FILE = "studies.db"
_REPORT_SHARE = 0.15
"""Most of the budget that is kept back for the report."""

_PASSWORD = re.compile(r"(://[^:/@\s]+:)[^@\s]+@")
"""Of a storage's URL: a profile is a file that is passed on."""


def tune(
    options: TuneOptions,
    watcher: StudyWatcher,
    *,
    measure: Measurer | None = None,
    headroom: HeadroomProbe | None = None,
    clock: Clock | None = None,
    began_s: float | None = None,
) -> TuneReport:
    """Run the study that ``options`` describes, and keep a profile.

    Args:
        options: options of the command line.
        watcher: is shown every step.
        measure: measures one knob set; by default a child process under the floor.
        headroom: source of headroom readings; by default this host.
        clock: time source of the time budget.
        began_s: second of the clock at which the budget began; ``None``: now.

    Raises:
        UsageError: options that make no sense.
        ProfileError: the name is a shipped profile's, or the profile cannot be written.
        BudgetInfeasibleError: the floor is crossed before or by the start.
        AutoloaderError: bad spec, profile or data, as the exit codes say.
    """
    _check(options)
    clock, headroom = clock or Clock(), headroom or HeadroomProbe()
    began_s = clock.now_s() if began_s is None else began_s
    spec = options.spec or PipelineSpec.from_yaml(options.spec_path)
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
    options = replace(options, floor_bytes=plan.ram_floor_bytes)
    local = [dataset for dataset in plan.mixture.datasets if not dataset.remote]
    open_reader = spec.reader == "auto" and len(local) == len(plan.mixture.datasets)
    space = SearchSpace.around(
        plan.knobs,
        _cautious(plan.limits),
        readers=("indexed", "stream") if open_reader and is_installed("tensorflow") else (),
    )
    # The report's libraries take about as long as those of the start: they are in the budget, too.
    began_s -= min(clock.now_s() - began_s, _REPORT_SHARE * options.budget_s)
    host = described_host(files=sorted({one.path for each in local for one in each.slices}))
    read = partial(headroom_or_none, headroom)
    runner = TrialRunner(measure_command(options), plan.ram_floor_bytes, read, clock)
    result = Study(
        space=space,
        guesses=partial(guesses, space, spec.batch.size),
        measure=measure or by_turns(runner, clock, began_s + options.budget_s),
        options=options,
        clock=clock,
        began_s=began_s,
        watcher=watcher,
        storage=options.storage or _default_storage(options.out),
        name=_study_name(options, plan.profile.profile.name),
        kin=host.fingerprint,
        about=_about(plan, options),
        analyst=Analyst(plan.limits.cpus, most_io_threads=space.ranges["io_threads"].high),
        others_cpus=partial(others_cpus, clock),
        proven_per_s=_proven_per_s(plan, host, options),
    ).run()
    profile = _profile(plan, result, host, options)
    page = _folder(options.out) / f"{result.name}.html"
    try:
        kept = keep_profile(profile, out=options.out, tuned_from=plan.profile.profile)
    except ProfileError as error:  # what was measured is told all the same
        TuneReport(profile, result, notes=(error.what,)).write_page(page)
        raise ProfileError(
            f"{error.what}; the study {result.name!r} is kept, and {page} tells what it found",
            remedy=f"{error.remedy}; --study {result.name} goes on with what was measured",
        ) from error
    report = TuneReport(profile, result, kept.path, tuple(kept.notes))
    return replace(report, page_path=report.write_page(page))


def _check(options: TuneOptions) -> None:
    """Refuse options that make no sense."""
    if options.trials < 1 or options.budget_s <= 0:
        raise UsageError(
            f"--trials {options.trials} with --budget {options.budget_s:g}s leaves nothing to run",
            remedy="give at least one trial and a budget above zero",
        )
    if options.name is not None:
        check_name(options.name)


def _study_name(options: TuneOptions, base: str) -> str:
    """The study's name, made up where the options have none."""
    if options.study:
        return options.study
    job = os.environ.get("SLURM_JOB_ID")
    if job and options.storage:  # every task of the job is one of its workers
        return f"{base}-slurm-{job}"
    return f"{base}-{datetime.now():%Y%m%d-%H%M%S}-{token_hex(2)}"


def _about(plan: LoaderPlan, options: TuneOptions) -> str:
    """A word for what is measured: the mixture and its split."""
    parts = (plan.mixture.spec.model_dump_json(), options.split)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def measure_command(options: TuneOptions) -> list[str]:
    """The command line of a measuring child, without its knobs."""
    given = {
        "--spec": options.spec_path.absolute(),
        "--split": options.split,
        "--warmup": options.warmup,
        "--batches": options.batches,
        "--ram-floor": options.floor_bytes,
        "--profile": options.host_profile,
    }
    words = [(name, str(value)) for name, value in given.items() if value is not None]
    words += [("--set", setting) for setting in options.settings]
    command = supervision.command("autoloader", ["measure", "--json"])
    return [*command, *(word for pair in words for word in pair)]


def _proven_per_s(plan: LoaderPlan, host: HostFacts, options: TuneOptions) -> float | None:
    """Samples/s of the start in a study that it won here; ``None``: in none, or search anyway."""
    profile, kind = plan.profile.profile, kind_of(plan.mixture)
    here = profile.provenance.source == "measured" and profile.host.is_same(host)
    alike = profile.mixture is not None and profile.mixture.is_like(kind)
    told = profile.measurements
    if options.study or options.knobs or not (here and alike and told.get("finals_rounds")):
        return None
    return told.get("samples_per_s")


def _cautious(limits: KnobLimits) -> KnobLimits:
    """``limits`` with half the ring's budget: a trial's child reads headroom later, and less."""
    if limits.budget_bytes is None:
        return limits
    return replace(limits, budget_bytes=limits.budget_bytes // 2)


def _folder(out: Path | None) -> Path:
    """Where studies and their reports lie."""
    if out is None:
        return platformdirs.user_data_path("autoloader", appauthor=False)
    return out.parent if out.suffix in {".yaml", ".yml"} else out


def _default_storage(out: Path | None) -> str:
    """URL of the file with the user's studies."""
    folder = _folder(out)
    try:
        return sqlite_url(folder.absolute() / STUDIES_FILE)
    except OSError as error:
        raise UsageError(
            f"--output {str(folder)!r}: the study cannot be saved there: "
            + ("it is no folder" if folder.is_file() else str(error.strerror or error)),
            remedy="give another folder with --output, or a storage URL with --storage",
        ) from error


def _profile(
    plan: LoaderPlan, result: StudyResult, host: HostFacts, options: TuneOptions
) -> Profile:
    """The profile that the study found: the winner's knobs, and what was measured with them."""
    start, verdict, winner = plan.profile.profile, result.verdict, result.verdict.winner
    bound = None if result.bound is None else result.bound.samples_per_s
    kind = kind_of(plan.mixture)
    name = options.name or free_name(start.name, host, kind, options.out)
    mine = plan.profile.origin != "shipped" and start.name == name
    compared = verdict.at_most is not None or not winner.is_start
    rounds: float | None = verdict.rounds if compared else None
    if winner.is_start and _proven_per_s(plan, host, options) is not None:
        rounds = rounds or start.measurements["finals_rounds"]
    numbers = {
        "samples_per_s": _rounded(winner.samples_per_s, 1),
        "start_samples_per_s": _rounded(verdict.start.samples_per_s, 1),
        "speedup": round(verdict.speedup, 3),
        "confirmed_within_ratio": _rounded(result.confirmed_ratio, 4),
        "finals_rounds": rounds,
        "bound_samples_per_s": _rounded(bound, 1),
        "peak_rss_bytes": winner.peak_rss_bytes,
        "min_headroom_bytes": winner.min_headroom_bytes,
    }
    counts = ", ".join(f"{count} {name}" for name, count in result.outcomes.items())
    how = f"start and best measured in turn, {len(verdict.ratios)} pairs"
    if winner.is_start:
        how = f"the start stays: {result.ended or verdict.reason}"
    usual_reader = choose_reader(plan.mixture, "auto")[0]
    return start.model_copy(
        update={
            "name": name,
            "description": start.description if mine else f"Tuned on {host.describe()}.",
            "host": host,
            "limits": Limits(ram_floor=plan.ram_floor_bytes, cpu_budget=start.limits.cpu_budget),
            "mixture": kind,
            "knobs": kept_knobs(winner.knobs, start.knobs, usual_reader=usual_reader),
            "measurements": {key: value for key, value in numbers.items() if value is not None},
            "provenance": Provenance(
                source="measured",
                detail=f"study {result.name}: {counts}; {how}; from profile {start.name}; "
                f"optuna {metadata.version('optuna')}",
                measured_on=date.today().isoformat(),
                command=_PASSWORD.sub(r"\1***@", options.command),
                study=result.name,
            ),
        }
    )


def kept_knobs(winner: Knobs, start: Knobs, *, usual_reader: str) -> Knobs:
    """``winner`` without what the study cannot have found.

    Knobs that its reader has no use for are the start's, and the reader is ``auto`` where that
    takes the same one.
    """
    before = start.flat()
    used_then = used_knobs(before | {"reader": winner.reader})
    values = used_knobs(winner.flat()) | {k: v for k, v in before.items() if k not in used_then}
    if values["reader"] == usual_reader:
        values["reader"] = "auto"
    return Knobs.build(values)


def _rounded(number: float | None, digits: int) -> float | None:
    return None if number is None else round(number, digits)
