"""The database that keeps studies: its URL, how it is opened, and its errors in the user's words.

Theory of operation. A trial that runs is heard of every ten seconds. One that was not for a minute
is failed by whoever asks for the next, and queued again, twice at most: a worker that was killed
loses no point of the search. Connections are tried before use, so a server that was started anew
between two trials is no end of the study.

Hosts that are not equal never share trials: the storage keeps one study for each fingerprint, named
``NAME@FINGERPRINT``.

Not here: what a study keeps there (``study``), what a fingerprint is (``profile.facts``).
"""

from __future__ import annotations

import inspect
import logging
import random
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import optuna
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError

from autoloader.errors import UsageError, nearest

logger = logging.getLogger(__name__)

HEARTBEAT_S = 10
GRACE_S = 60
"""A trial that was not heard of for so long is lost, and queued again."""
MOST_RETRIES = 2
_CONNECT_S = 10
_LOCKED_S = 60
_TRIES, _AGAIN_S = 50, 0.2


class StudyStorage(optuna.storages.RDBStorage):
    """Optuna's storage, whose heartbeat outlives a server that does not answer for a while."""

    def record_heartbeat(self, trial_id: int) -> None:
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
        url: where it is.
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
    """Whether a table, or its first row, was there a moment after it was found missing."""
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
    """What people call it."""
    return name.rpartition("@")[0] or name


def there_already(storage: optuna.storages.BaseStorage, name: str | None, fingerprint: str) -> str:
    """The name of a study that hosts of ``fingerprint`` can go on with.

    Args:
        storage: where it is.
        name: as people call it; ``None``: the one that was begun last.
        fingerprint: of this host.

    Raises:
        UsageError: there is none.
    """
    begun = {
        one.study_name: one.datetime_start or datetime.min
        for one in optuna.get_all_study_summaries(storage, include_best_trial=False)
    }
    mine = {shown_study(one): one for one in begun if one.endswith(f"@{fingerprint}")}
    if name is None and mine:
        return max(mine, key=lambda one: begun[mine[one]])
    if name in mine:
        return str(name)
    others = sorted({shown_study(one) for one in begun} - set(mine))
    if name in others:
        raise UsageError(
            f"--resume: the study {name} was begun on another kind of host, and hosts that differ "
            "share no trials",
            remedy="leave --resume out to begin its part of this host",
        )
    which = "no study yet" if name is None else f"no study {name!r}"
    raise UsageError(
        f"--resume: there is {which} of a host like this in the storage",
        remedy=nearest(name or "", mine) if mine and name else "leave --resume out to begin one",
    )


def sqlite_url(path: Path) -> str:
    """The storage URL of an SQLite file, whose directory is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}"


def storage_url(url: str) -> str:
    """``url`` as SQLAlchemy wants it; PostgreSQL goes through psycopg.

    Raises:
        UsageError: it is no URL.
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
        url: where it is.
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
        if study:
            raise UsageError(
                f"the study's storage {shown_url(url)} was lost in the middle of the study "
                f"{study}: {first_line}",
                remedy="no profile was written; what was measured is kept there: when it answers "
                f"again, go on with --study {study} --resume",
            ) from error
        raise UsageError(
            f"the study's storage {shown_url(url)} cannot be used: {first_line}",
            remedy="name a storage that can be reached and written with --storage",
        ) from error
    except ImportError as error:
        raise UsageError(
            f"the study's storage {shown_url(url)} needs a driver that is not here: {error}",
            remedy="for PostgreSQL: pip install 'autoloader-rlds[postgresql]'",
        ) from error


def _lost(error: BaseException) -> BaseException | None:
    """What the database said; ``None`` where it is not behind ``error``.

    Where a trial's end cannot be told, Optuna fails over a variable that it has not set.
    """
    found = None
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (SQLAlchemyError, optuna.exceptions.StorageInternalError)):
            found = seen
        seen = seen.__cause__ or seen.__context__
    return found
