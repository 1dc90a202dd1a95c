"""A study's storage: trials by outcome, the findings of each, the best.

How outcomes lie there: *complete* and *pruned* are Optuna's; an *infeasible* trial is a pruned one;
a *failed* one is Optuna's FAIL. ``tune --json`` counts from there. The constraint ``ram_floor`` is
how many GiB below the floor the least headroom was; a kept floor gives a number below zero. So the
sampler learns where the floor is.

The search never measures a set again that this host has measured to the end. Its result lies in the
storage, and a continued study reads it from there.

A trial that runs is heard of every ten seconds. One that was not for a minute
is failed by whoever asks for the next, and queued again, twice at most: a worker that was killed
loses no point of the search. Connections are tried before use, so a server that was started anew
between two trials is no end of the study.

Hosts that are not equal never share trials: the storage keeps one study for each fingerprint, named
``NAME@FINGERPRINT``.

Not here: running trials (``study``, ``trial``).
"""

from __future__ import annotations

import inspect
import logging
import math
import random
import socket
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError

from autoloader.errors import KnobError, UsageError
from autoloader.host.frozen import frozen
from autoloader.spec.knobs import KnobLimits, Knobs, used_knobs
from autoloader.tune.finals import TIE_RATIO, Contender
from autoloader.tune.search_space import SearchSpace
from autoloader.tune.trial import Outcome, TrialResult

LEAST_PRUNE_BATCHES = 40
"""First rung of successive halving: a quarter of the 160 batches that decide."""

NOISE_RATIO = 0.05
"""A running rate this close to the best at the same rung is never pruned."""

KNOWN = "known"
"""The outcome of a set that was drawn again: what it found before, and nothing was measured."""

_ABOUT = "about"
_GIB = 2.0**30
_FOUND = ("reason", "min_headroom_bytes", "peak_rss_bytes", "duration_s")


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
        """True if a trial is pruned: successive halving says so, and it is far behind the best."""
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
        storage: Optuna storage from ``opened_storage``.
        name: name of the study in the storage.
        trials: that will be added.
        batches: number of batches of a measurement.
        seed: seed of Optuna's sampler.
        about: mixture that is measured; one study has one. "": not told.

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
            f"the study {shown_study(name)!r} measured another mixture or split, so its rates "
            "cannot be compared with new ones",
            remedy="choose another name with --study",
        )
    if about and told is None:
        study.set_user_attr(_ABOUT, about)
    queue_lost_trials(study)
    return study


def knobs_key(knobs: Knobs) -> str:
    """A text that equal knob sets share."""
    return repr(sorted(knobs.flat().items()))


def record(trial: optuna.Trial, knobs: Knobs, result: TrialResult, floor_bytes: int | None) -> None:
    """Keep what a trial measured and found."""
    found = {name: getattr(result, name) for name in _FOUND}
    found |= {"knobs": knobs.flat(), "outcome": result.outcome.value, "host": this_host()}
    found["busy_neighbour"] = result.others_cpus if result.busy else None
    if result.outcome is Outcome.COMPLETE and result.measurement is not None:
        found["measurement"] = dict(result.measurement)
    for name, value in found.items():
        if value not in (None, ""):
            trial.set_user_attr(name, value)
    below = _below_floor(result, floor_bytes)
    if below is not None:
        trial.set_constraint("ram_floor", below)


@frozen
class TrialRecord:
    """One measured trial of the storage.

    Attributes:
        number: number of the trial in the storage, from 0.
        label: start, guess or search.
        host: name of the host that ran it; "": not known.
        knobs: values by the knob's full name.
        value: number that the sampler maximises; ``None`` unless the trial is complete.
        result: result of the trial; of a pruned one the rate is the running rate at its end.
    """

    number: int
    label: str
    host: str
    knobs: Mapping[str, Any]
    value: float | None
    result: TrialResult

    @property
    def used_knobs(self) -> dict[str, Any]:
        """Knobs that the trial's reader has a use for."""
        return used_knobs(self.knobs)

    def legal_knobs(self, limits: KnobLimits | None = None) -> Knobs | None:
        """Its knobs; ``None`` where this version, or a host of these limits, has no such set."""
        try:
            knobs = Knobs.build(self.knobs)
            if limits is not None:
                knobs.check(limits)
        except KnobError:
            return None
        return knobs


def records(trials: Sequence[FrozenTrial]) -> tuple[TrialRecord, ...]:
    """The measured trials of a study, by number."""
    measured = (
        one for one in trials if one.state.is_finished() and one.user_attrs.get("outcome") != KNOWN
    )
    return tuple(_recorded(trial) for trial in sorted(measured, key=lambda one: one.number))


def _recorded(trial: FrozenTrial) -> TrialRecord:
    """A trial of the storage as its record."""
    attrs, lost = trial.user_attrs, ""
    outcome, rate = Outcome(attrs.get("outcome", Outcome.FAILED)), None
    if trial.state is TrialState.COMPLETE:
        rate = attrs.get("measurement", {}).get("samples_per_s", trial.value)
    elif trial.state is TrialState.PRUNED and trial.intermediate_values:
        rate = trial.intermediate_values[max(trial.intermediate_values)]
    elif trial.state is TrialState.FAIL:
        lost = "its process was gone; the trial was queued again"
    return TrialRecord(
        trial.number,
        attrs.get("label", "search"),
        attrs.get("host", ""),
        attrs.get("knobs", {}),
        trial.value if trial.state is TrialState.COMPLETE else None,
        TrialResult(
            outcome,
            samples_per_s=rate,
            measurement=attrs.get("measurement"),
            busy="busy_neighbour" in attrs,
            **{"reason": lost, **{name: attrs[name] for name in _FOUND if name in attrs}},
        ),
    )


def known_results(trials: Sequence[TrialRecord]) -> dict[str, TrialResult]:
    """Complete measurements of this host, by ``knobs_key``."""
    return {
        knobs_key(knobs): one.result
        for one in trials
        if one.result.outcome is Outcome.COMPLETE
        and one.host == this_host()
        and one.result.measurement
        and (knobs := one.legal_knobs()) is not None
    }


def this_host() -> str:
    """Attributes that tell trials of this machine from others'."""
    return socket.gethostname()


def pick_finalists(
    trials: Sequence[TrialRecord], space: SearchSpace, *, most: int
) -> list[Contender]:
    """The knob sets worth a final: the best complete ones, those within 2 % by least memory.

    Sets that may not run on this host (another host's, in a shared study), the start itself and
    doubles are left out.

    Args:
        trials: trials of the study.
        space: knobs that are legal here.
        most: number of finalists, at most.
    """
    done = [one for one in trials if one.result.outcome is Outcome.COMPLETE]
    best = max((one.value or 0.0 for one in done), default=0.0)

    def rank(one: TrialRecord) -> tuple[bool, float]:
        if (one.value or 0.0) < best * (1 - TIE_RATIO):
            return True, -(one.value or 0.0)
        memory = one.result.peak_rss_bytes
        return False, math.inf if memory is None else memory

    chosen: list[Contender] = []
    for one in sorted(done, key=rank):
        knobs = one.legal_knobs(space.limits)
        known = (space.start, *(contender.knobs for contender in chosen))
        if len(chosen) < most and knobs is not None and knobs not in known:
            chosen.append(Contender(knobs))
    return chosen


def _below_floor(result: TrialResult, floor_bytes: int | None) -> float | None:
    """GiB below the floor at the least headroom; ``None``: nothing is known of it."""
    least = result.min_headroom_bytes
    below = 0.0 if least is None or floor_bytes is None else (floor_bytes - least) / _GIB
    if result.outcome is Outcome.INFEASIBLE:
        return max(below, 1e-3)  # it was about to cross it
    return min(0.0, below) if result.outcome is Outcome.COMPLETE else None


logger = logging.getLogger(__name__)

HEARTBEAT_S = 10
GRACE_S = 60
"""A trial that was not heard of for so long is lost, and queued again."""
MOST_RETRIES = 2
_CONNECT_S = 10
_LOCKED_S = 60
_TRIES, _AGAIN_S = 50, 0.2


class StudyStorage(optuna.storages.RDBStorage):
    """Optuna's storage, with a heartbeat from a trial's start on, and past a server's silence."""

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """See Optuna; a queued trial that begins has its first heartbeat at once.

        Optuna's thread gives it later, and a trial without any is never stale: one whose process
        was killed in between would run for ever.
        """
        changed = super().set_trial_state_values(trial_id, state, values)
        if changed and state is TrialState.RUNNING:
            self.record_heartbeat(trial_id)
        return changed

    def record_heartbeat(self, trial_id: int) -> None:
        """Note that a trial still runs; a fault of the storage is left to the study's thread."""
        try:
            super().record_heartbeat(trial_id)
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            # The study's own thread meets it too, and says it where it lasts.
            logger.info("no heartbeat of trial %d: %s", trial_id, error)


@contextmanager
def opened_storage(url: str, *, grace_s: int = GRACE_S) -> Iterator[optuna.storages.RDBStorage]:
    """The storage at ``url``, from ``storage_url``; its tables are made where they are missing.

    Its connections are closed at the end.

    Args:
        url: SQLAlchemy URL of the storage.
        grace_s: a trial that was not heard of for so long is queued again.
    """
    storage = _connected(url, grace_s)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _connected(url: str, grace_s: int) -> StudyStorage:
    """The storage; tried again where another process makes its tables at the same moment.

    So it is when the tasks of a job begin one study together: each finds no tables, and only one of
    them can make each.
    """
    postgres = make_url(url).get_backend_name() == "postgresql"
    timeout = {"connect_timeout": _CONNECT_S} if postgres else {"timeout": _LOCKED_S}
    tries = 0
    while True:
        tries += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                return StudyStorage(
                    url,
                    engine_kwargs={"pool_pre_ping": True, "connect_args": timeout},
                    heartbeat_interval=min(HEARTBEAT_S, max(1, grace_s // 3)),
                    grace_period=grace_s,
                    heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(
                        max_retry=MOST_RETRIES
                    ),
                )
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            if tries == _TRIES or not _made_by_another(error):
                raise
        time.sleep(_AGAIN_S * random.random())  # noqa: S311  (so that two do not meet again)


def _made_by_another(error: BaseException) -> bool:
    """True if a table, or its first row, was there a moment after it was found missing."""
    found = _lost(error)
    return isinstance(found, IntegrityError) or "already exists" in str(found)


def queue_lost_trials(study: optuna.Study) -> None:
    """Fail the trials of workers that are gone, and queue them again."""
    # The function itself, without its warning that it is experimental.
    inspect.unwrap(optuna.storages.fail_stale_trials)(study)


def kin_study(name: str, fingerprint: str) -> str:
    """The study in the storage in which hosts of one fingerprint share trials; "" is for all."""
    return f"{name}@{fingerprint}" if fingerprint else name


def shown_study(name: str) -> str:
    """Name of a study for people."""
    return name.rpartition("@")[0] or name


def sqlite_url(path: Path) -> str:
    """The storage URL of an SQLite file, whose directory is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}"


def storage_url(url: str) -> str:
    """``url`` as SQLAlchemy wants it; PostgreSQL goes through psycopg.

    Raises:
        UsageError: ``url`` is no URL.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise UsageError(
            f"--storage {url!r} is not a storage URL",
            remedy='write "sqlite:////absolute/path.db" or "postgresql://user:password@host/name"',
        ) from error
    if parsed.drivername in {"postgres", "postgresql"}:
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed.render_as_string(hide_password=False)


def shown_url(url: str) -> str:
    """``url`` as people write it, without its password."""
    parsed = make_url(url)
    return parsed.set(drivername=parsed.get_backend_name()).render_as_string(hide_password=True)


@contextmanager
def storage_errors(url: str, *, study: str = "") -> Iterator[None]:
    """Translates errors of the storage; they name it without its password.

    Optuna's warnings that heartbeat and stale trials are experimental are left out.

    Args:
        url: SQLAlchemy URL of the storage.
        study: that is under way, and can be gone on with; "": none is yet.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError, UnboundLocalError) as error:
        lost = _lost(error)
        if lost is None:
            raise
        first_line = str(lost).splitlines()[0]
        what = f"cannot be used: {first_line}"
        remedy = "give --storage the URL of a database that can be reached and written"
        if study:
            what = f"was lost in the middle of the study {study!r}: {first_line}"
            remedy = (
                "no profile was written; when the storage answers again, go on with --study "
                f"{study}: trials that it still holds count"
            )
        raise UsageError(f"the study's storage {shown_url(url)} {what}", remedy=remedy) from error
    except ImportError as error:
        raise UsageError(
            f"the study's storage {shown_url(url)} needs a driver that is not installed: {error}",
            remedy="for PostgreSQL: pip install 'autoloader-rlds[postgresql]'",
        ) from error


def _lost(error: BaseException) -> BaseException | None:
    """Message of the database; ``None`` where it is not behind ``error``.

    Where a trial's end cannot be told, Optuna fails over a variable that it has not set.
    """
    found = None
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (SQLAlchemyError, optuna.exceptions.StorageInternalError)):
            found = seen
        seen = seen.__cause__ or seen.__context__
    return found
