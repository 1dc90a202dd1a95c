"""What a study keeps in its storage: trials by outcome, what each found, which were the best.

How outcomes lie there: *complete* and *pruned* are Optuna's; an *infeasible* trial is a pruned one;
a *failed* one is Optuna's FAIL. ``tune --json`` counts from there. The constraint ``ram_floor`` is
how many GiB below the floor the least headroom was, so the sampler learns where the floor is: below
zero it was kept, and by how much.

A set that this host has measured to the end is never measured again by the search: what it found
lies in the storage, and is read from there by the study that goes on.

Not here: running trials (``study``, ``trial``), the storage itself (``storage``).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from autoloader.errors import KnobError, UsageError
from autoloader.knobs import Knobs
from autoloader.tune.finals import TIE_RATIO, Contender
from autoloader.tune.search_space import SearchSpace
from autoloader.tune.storage import queue_lost_trials, shown_study
from autoloader.tune.trial import Outcome, TrialResult

LEAST_PRUNE_BATCHES = 40
"""First rung of successive halving: a quarter of the 160 batches that decide."""

NOISE_RATIO = 0.05
"""A running rate this close to the best at the same rung is never pruned."""

KNOWN = "known"
"""The outcome of a set that was drawn again: what it found before, and nothing was measured."""

_ABOUT = "about"
_GIB = 2.0**30
_FOUND = (
    *("reason", "stderr", "min_headroom_bytes", "peak_rss_bytes"),
    *("cpu_s_per_sample", "duration_s"),
)


class TolerantPruner(optuna.pruners.BasePruner):
    """Successive halving that spares what noise could explain.

    A trial is pruned when successive halving says so and its rate lies more than ``NOISE_RATIO``
    below the best rate that any trial reported at the same step.
    """

    def __init__(self, least_batches: int) -> None:
        self._halving = optuna.pruners.SuccessiveHalvingPruner(
            min_resource=max(1, least_batches), reduction_factor=2
        )

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        step = trial.last_step
        if step is None or not self._halving.prune(study, trial):
            return False
        value = trial.intermediate_values[step]
        best = max(
            other.intermediate_values.get(step, 0.0) for other in study.get_trials(deepcopy=False)
        )
        return value < best * (1 - NOISE_RATIO)


def open_study(
    storage: optuna.storages.RDBStorage,
    name: str,
    *,
    trials: int,
    batches: int,
    seed: int,
    about: str = "",
) -> optuna.Study:
    """The study in its storage, made or resumed; trials of workers that are gone are queued again.

    Args:
        storage: from ``opened_storage``.
        name: in the storage.
        trials: that will be added.
        batches: of a measurement.
        seed: of the sampler.
        about: what is measured; one study has one mixture. "": not told.

    Raises:
        UsageError: the study is of something else.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name=name,
        storage=storage,
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(
            seed=seed,
            multivariate=True,
            group=True,  # the readers have knobs of their own
            n_startup_trials=max(4, trials // 3),
        ),
        pruner=TolerantPruner(min(LEAST_PRUNE_BATCHES, max(1, batches // 4))),
    )
    told = study.user_attrs.get(_ABOUT)
    if about and told not in (None, about):
        raise UsageError(
            f"the study {shown_study(name)} is of another mixture, split or step: its rates and "
            "these cannot be compared",
            remedy="choose another name with --study",
        )
    if about and told is None:
        study.set_user_attr(_ABOUT, about)
    queue_lost_trials(study)
    return study


def knobs_key(knobs: Knobs) -> str:
    """A text that equal knob sets share."""
    return repr(sorted(knobs.flat().items()))


def keep_knobs(trial: optuna.Trial, knobs: Knobs) -> None:
    """Keep the knobs that a trial measures."""
    trial.set_user_attr("knobs", knobs.flat())


def record(trial: optuna.Trial, result: TrialResult, floor_bytes: int | None) -> None:
    """Keep what a trial found."""
    trial.set_user_attr("outcome", result.outcome.value)
    trial.set_user_attr("host", this_host())
    for name in _FOUND:
        value: Any = getattr(result, name)
        if value not in (None, ""):
            trial.set_user_attr(name, value)
    if result.busy:
        trial.set_user_attr("busy_neighbour", result.others_cpus)
    if result.outcome is Outcome.COMPLETE and result.measurement is not None:
        trial.set_user_attr("measurement", dict(result.measurement))
    below = _below_floor(result, floor_bytes)
    if below is not None:
        trial.set_constraint("ram_floor", below)


def known_results(trials: Sequence[FrozenTrial]) -> dict[str, TrialResult]:
    """Complete measurements of this host, by ``knobs_key``."""
    found: dict[str, TrialResult] = {}
    for trial in trials:
        attrs = trial.user_attrs
        if attrs.get("outcome") != Outcome.COMPLETE.value or attrs.get("host") != this_host():
            continue
        measurement = attrs.get("measurement") or {}
        if measurement.get("samples_per_s") is None:
            continue
        try:
            knobs = Knobs.build(attrs["knobs"])
        except KnobError:  # of a version with other knobs
            continue
        found[knobs_key(knobs)] = TrialResult(
            Outcome.COMPLETE,
            samples_per_s=measurement["samples_per_s"],
            measurement=measurement,
            **{name: attrs[name] for name in _FOUND if name in attrs},
        )
    return found


def this_host() -> str:
    """What trials of this machine are told apart by."""
    return socket.gethostname()


def pick_finalists(
    trials: Sequence[FrozenTrial], space: SearchSpace, *, most: int
) -> list[Contender]:
    """The knob sets worth a final: the best complete ones, those within 2 % by least memory.

    Sets that may not run on this host (another host's, in a shared study), the start itself and
    doubles are left out.

    Args:
        trials: trials of the study.
        space: knobs that are legal here.
        most: number of finalists, at most.
    """
    done = [one for one in trials if one.state is TrialState.COMPLETE]
    best = max((trial.value or 0.0 for trial in done), default=0.0)

    def rank(trial: FrozenTrial) -> tuple[bool, float]:
        value = trial.value or 0.0
        memory = trial.user_attrs.get("peak_rss_bytes")
        if value >= best * (1 - TIE_RATIO):
            return False, float("inf") if memory is None else float(memory)
        return True, -value

    chosen: list[Contender] = []
    for trial in sorted(done, key=rank):
        if len(chosen) == most:
            break
        try:
            knobs = Knobs.build(trial.user_attrs.get("knobs", {}))
            knobs.check(space.limits)
        except KnobError:
            continue
        if knobs not in (space.start, *(one.knobs for one in chosen)):
            chosen.append(Contender(knobs))
    return chosen


def count_outcomes(trials: Sequence[FrozenTrial]) -> dict[str, int]:
    """Trials by outcome; those that still run elsewhere, or that nobody ran, are not counted."""
    counts = {outcome.value: 0 for outcome in Outcome}
    for trial in trials:
        if trial.user_attrs.get("outcome") == KNOWN:
            continue
        if trial.state is TrialState.COMPLETE:
            counts["complete"] += 1
        elif trial.state is TrialState.FAIL:
            counts["failed"] += 1
        elif trial.state is TrialState.PRUNED:
            infeasible = trial.user_attrs.get("outcome") == Outcome.INFEASIBLE.value
            counts["infeasible" if infeasible else "pruned"] += 1
    return counts


def _below_floor(result: TrialResult, floor_bytes: int | None) -> float | None:
    """GiB below the floor at the least headroom; ``None``: nothing is known of it."""
    if result.outcome is Outcome.INFEASIBLE:
        least = result.min_headroom_bytes
        told = 0.0 if least is None or floor_bytes is None else (floor_bytes - least) / _GIB
        return max(told, 1e-3)  # it was about to cross it
    if result.outcome is not Outcome.COMPLETE:
        return None
    if result.min_headroom_bytes is None or floor_bytes is None:
        return 0.0
    return min(0.0, (floor_bytes - result.min_headroom_bytes) / _GIB)
