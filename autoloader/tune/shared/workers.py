"""Who works on a study, and who of them judges: one verdict for all, whoever is killed meanwhile.

Theory of operation. Each process of a study is a *worker* with an attribute of the study of its
own: what it does, and a count that it raises every few seconds. A worker whose count stands still
for ``GONE_S`` of the looker's own clock is gone; no two clocks are compared. Trials of a worker
that is gone are queued again by the storage's heartbeat (``tune.storage``), for whoever asks next.

The finals are run once. A worker that has searched waits until no other searches, and runs what the
dead have left. Then one claims the verdict: it makes a study named after it, which a storage lets
one process do. It judges and leaves the verdict there; the others wait for it and take it over. If
the judge is gone, the next number is claimed.

Hosts that are not equal never share trials: the storage keeps one study for each fingerprint, named
``NAME@FINGERPRINT``.

Not here: searching and judging (``tune.study``), what a fingerprint is (``profile.facts``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

import optuna
from optuna.trial import TrialState
from pydantic import TypeAdapter
from sqlalchemy.exc import SQLAlchemyError

from autoloader.clock import Clock
from autoloader.errors import UsageError, nearest
from autoloader.tune.storage import queue_again, queue_lost_trials

logger = logging.getLogger(__name__)

BEAT_S = 5.0
LOOK_S = 1.0
GONE_S = 60.0
"""A worker that has not been heard of for so long is gone."""

SEARCHES, WAITS, JUDGES = "searches", "waits", "judges"
_BEFORE = "worker "
_VERDICT = "verdict"
_Verdict = TypeVar("_Verdict")


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
        if f" {_VERDICT} " not in one.study_name
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


class Workers:
    """This process among those of a study; a context manager.

    Args:
        study: in its storage.
        clock: for waiting, and for how long others were not heard of.
        gone_s: see ``GONE_S``.
        beat_s: how often this one is heard of.
        look_s: how often it looks for others while it waits.
    """

    def __init__(
        self,
        study: optuna.Study,
        clock: Clock,
        *,
        gone_s: float = GONE_S,
        beat_s: float = BEAT_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._study = study
        self._clock = clock
        self._gone_s = gone_s
        self._beat_s = beat_s
        self._look_s = look_s
        self.name = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(3)}"
        self._does = SEARCHES
        self._count = 0
        self._heard: dict[str, tuple[int, float]] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="study-worker", daemon=True)

    def __enter__(self) -> Workers:
        self._tell()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()
        with contextlib.suppress(SQLAlchemyError, optuna.exceptions.StorageInternalError):
            self._does = ""
            self._tell()

    def one_verdict(
        self,
        judge: Callable[[], _Verdict],
        kind: type[_Verdict],
        *,
        run_waiting: Callable[[], None],
    ) -> tuple[_Verdict, bool]:
        """The verdict of all workers.

        Args:
            judge: gives it; called by one worker, when no other searches.
            kind: its type; a dataclass that pydantic writes as JSON and reads back.
            run_waiting: runs one trial of those that wait.

        Returns:
            The verdict, and whether it was given here.
        """
        before = self._decided()
        self._does = WAITS
        self._tell()
        self._until_all_have_searched(run_waiting)
        adapter: TypeAdapter[_Verdict] = TypeAdapter(kind)
        number = before
        while True:
            number += 1
            title = f"{self._study.study_name} {_VERDICT} {number}"
            if (room := self._claimed(title)) is not None:
                self._does = JUDGES
                self._tell()
                room.set_user_attr("by", self.name)
                verdict = judge()
                room.set_user_attr(_VERDICT, adapter.dump_python(verdict, mode="json"))
                return verdict, True
            if (found := self._heard_verdict(title)) is not None:
                return adapter.validate_python(found), False

    def _until_all_have_searched(self, run_waiting: Callable[[], None]) -> None:
        told = False
        alone_since: float | None = None
        while True:
            queue_lost_trials(self._study)
            if self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                self._does = SEARCHES
                self._tell()
                run_waiting()
                self._does = WAITS
                self._tell()
                continue
            running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            if self._others(SEARCHES):
                alone_since = None
            elif not running:
                return
            else:  # of a worker that is gone, and was never heard of in this trial
                now = self._clock.now_s()
                alone_since = now if alone_since is None else alone_since
                if now - alone_since > 2 * self._gone_s:
                    queue_again(self._study, running)
                    continue
            if not told:
                logger.warning("others still search in this study; waiting for them")
            told = True
            self._clock.sleep(self._look_s)

    def _others(self, does: str) -> list[str]:
        """Workers beside this one that do so, and are not gone."""
        now = self._clock.now_s()
        found = []
        for key, value in self._study.user_attrs.items():
            if not key.startswith(_BEFORE) or key == _BEFORE + self.name:
                continue
            count, since = self._heard.get(key, (None, now))
            if count != value["count"]:
                since = now
            self._heard[key] = (value["count"], since)
            if now - since >= self._gone_s:
                if value["does"]:  # nobody need wait for it again
                    self._study.set_user_attr(key, {**value, "does": ""})
            elif value["does"] == does:
                found.append(key)
        return found

    def _decided(self) -> int:
        """How many verdicts there are already, of runs before."""
        names = set(optuna.get_all_study_names(self._study._storage))  # noqa: SLF001 no other way
        number = 0
        while f"{self._study.study_name} {_VERDICT} {number + 1}" in names:
            number += 1
        return number

    def _claimed(self, title: str) -> optuna.Study | None:
        """The verdict's own study, where this process made it; ``None``: another one did."""
        try:
            return optuna.create_study(
                storage=self._study._storage,  # noqa: SLF001 the study's own
                study_name=title,
            )
        except optuna.exceptions.DuplicatedStudyError:
            return None

    def _heard_verdict(self, title: str) -> Any | None:
        """The verdict that another worker gives; ``None`` where it is gone without one."""
        logger.warning("another process of this study measures the finals; waiting for its verdict")
        room = optuna.load_study(storage=self._study._storage, study_name=title)  # noqa: SLF001
        since = self._clock.now_s()
        while True:
            attributes = room.user_attrs
            if _VERDICT in attributes:
                return attributes[_VERDICT]
            judges = self._others(JUDGES)
            judge = attributes.get("by")
            nobody = judge is None and self._clock.now_s() - since >= self._gone_s
            if nobody or (judge is not None and _BEFORE + judge not in judges):
                # It has ended, or was not heard of for long; it may have judged just now.
                return room.user_attrs.get(_VERDICT)
            self._clock.sleep(self._look_s)

    def _tell(self) -> None:
        self._count += 1
        value = {"does": self._does, "count": self._count}
        self._study.set_user_attr(_BEFORE + self.name, value)

    def _beat(self) -> None:
        while not self._end.wait(self._beat_s):
            try:
                self._tell()
                self._others(SEARCHES)  # so that at the end it is known who has long been gone
            except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
                # The study's own thread meets it too, and ends the study where it lasts.
                logger.info("the study's storage does not answer: %s", error)
