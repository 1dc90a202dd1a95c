"""A run as its record tells it: figures of the whole run and of its stretches.

Not here: sentences and drawings (``report``), reading files (``telemetry.run_record``).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from autoloader.cli.output import note
from autoloader.errors import UsageError
from autoloader.host.frozen import frozen
from autoloader.process.observer import identity_of
from autoloader.spec import PipelineSpec
from autoloader.storage.places import cache_root
from autoloader.telemetry import run_record
from autoloader.telemetry.statistics import Move, Statistics

_GAP_RATIO = 1 / 50
"""A pause between two moments above this share of the run, and above ``_GAP_S``, is a gap."""
_GAP_S = 30.0
_MOST_WAITS = 0.5
"""Share of its time that training waited, above which its own pace is not known."""


@frozen
class Below:
    """A stretch of time in which headroom was below the RAM floor.

    Attributes:
        begin_s, end_s: seconds since the run began.
        least_bytes: least headroom in it, in bytes.
        lost_bytes: headroom lost from half a minute before to the least.
        own_bytes: bytes that the loader itself held more at the least than before; negative:
            it had given memory back.
    """

    begin_s: float
    end_s: float
    least_bytes: int
    lost_bytes: int
    own_bytes: int


@dataclass(frozen=True)
class Run:
    """One run: the record of its training loader, and the records of the other ranks.

    Attributes:
        name: name of the run for people.
        own: record of the pipeline that the page is about: that of the rank that waits most.
        ranks: records of the training pipelines of all ranks, ``own`` included.
    """

    name: str
    own: run_record.PipelineRecord
    ranks: tuple[run_record.PipelineRecord, ...] = field(default=())

    @property
    def replays(self) -> bool:
        """True if one batch was handed out again and again: the trainer alone."""
        return bool(self.own.facts.get("replay_one_batch"))

    @cached_property
    def state(self) -> str:
        """Word for it: "ended", "runs" (on this machine), or "killed": its record has no end."""
        if self.own.ended:
            return "ended"
        living = {one.run for one in run_record.living_runs()}
        return "runs" if self.own.last.run in living else "killed"

    @cached_property
    def begin_s(self) -> float:
        """Unix time of the beginning, in seconds."""
        return min(self.own.moments[0].started_at_s, self.own.moments[0].at_s)

    @property
    def length_s(self) -> float:
        """Seconds from the beginning to the last moment."""
        return self.own.last.at_s - self.begin_s

    @cached_property
    def running(self) -> tuple[tuple[float, int, Statistics], ...]:
        """(seconds that it stands for, batches, moment) of all in which training took batches."""
        both = ((a, b) for a, b in self._pairs() if a.phase == b.phase == "running")
        return tuple((b.at_s - a.at_s, b.batches - a.batches, b) for a, b in both)

    def _pairs(self) -> Iterator[tuple[Statistics, Statistics]]:
        longest = max(_GAP_S, self.length_s * _GAP_RATIO)
        for before, now in zip(self.own.moments, self.own.moments[1:], strict=False):
            if 0 < now.at_s - before.at_s <= longest and now.worker_pid == before.worker_pid:
                yield before, now

    @cached_property
    def samples_per_s(self) -> float | None:
        """Mean samples/s that training took, pauses for validation left out."""
        batch = self.own.facts.get("batch_size")
        seconds = sum(seconds for seconds, more, _ in self.running if more >= 0)
        batches = sum(more for _, more, _ in self.running if more >= 0)
        return batches * batch / seconds if batch and seconds and batches else None

    @cached_property
    def wait_ratio(self) -> float | None:
        """Share of the time that training waited for data."""
        return self._mean(lambda moment: moment.wait_ratio)

    @property
    def needed_per_s(self) -> float | None:
        """Samples/s that training would take if it never waited; ``None``: it mostly waited."""
        rate, waited = self.samples_per_s, self.wait_ratio
        if not rate or waited is None or waited > _MOST_WAITS:
            return None
        return rate / (1 - waited)

    @cached_property
    def bound_per_s(self) -> float | None:
        """Mean of the samples/s that the loader could give."""
        return self._mean(lambda moment: moment.bound_per_s)

    @cached_property
    def most_bytes(self) -> int | None:
        """Greatest memory of the loader in bytes, its ring included."""
        held = (one.held_bytes for one in self.own.moments)
        return max((one for one in held if one is not None), default=None)

    @cached_property
    def least_headroom_bytes(self) -> int | None:
        """Least headroom in bytes."""
        seen = (one.headroom_bytes for one in self.own.moments)
        return min((one for one in seen if one is not None), default=None)

    def _mean(self, read: Callable[[Statistics], float | None]) -> float | None:
        read_all = [(seconds, read(moment)) for seconds, _, moment in self.running]
        known = [(seconds, value) for seconds, value in read_all if value is not None]
        total = sum(seconds for seconds, _ in known)
        return sum(seconds * value for seconds, value in known) / total if total else None

    @cached_property
    def limits(self) -> dict[str, float]:
        """Limit → share of the time in which training ran, the largest first."""
        return _shares((moment.limited_by, seconds) for seconds, _, moment in self.running)

    @cached_property
    def states(self) -> dict[str, float]:
        """The controller's state → share of the time, the largest first; none without one."""
        return _shares((one.state, now.at_s - one.at_s) for one, now in self._pairs() if one.state)

    @cached_property
    def waits(self) -> dict[str, float]:
        """Limit → share of the time that training waited for it, the largest first."""
        return _shares(
            (moment.limited_by, seconds * (moment.wait_ratio or 0.0))
            for seconds, _, moment in self.running
            if moment.limited_by not in ("", "training", "gpu")
        )

    def stretches(
        self, holds: Callable[[Statistics], bool]
    ) -> Iterator[tuple[list[Statistics], Statistics | None]]:
        """Yield moments in a row for which ``holds`` is true, and the moment behind them."""
        moments, behind = self.own.moments, 0
        for true, group in itertools.groupby(moments, holds):
            stretch = list(group)
            behind += len(stretch)
            if true:
                yield stretch, moments[behind] if behind < len(moments) else None

    @cached_property
    def below_floor(self) -> tuple[Below, ...]:
        """Stretches of time in which headroom was below the RAM floor."""
        below = self.stretches(lambda moment: (moment.above_floor_bytes or 0) < 0)
        return tuple(self._below(stretch, after) for stretch, after in below)

    def _below(self, stretch: Sequence[Statistics], after: Statistics | None) -> Below:
        least = min(stretch, key=lambda one: one.headroom_bytes or 0)
        begin_s = stretch[0].at_s
        before = [one for one in self.own.moments if begin_s - 30.0 <= one.at_s < begin_s]
        known = [one for one in before if one.headroom_bytes is not None]
        start = max(known, key=lambda one: one.headroom_bytes or 0, default=least)
        return Below(
            stretch[0].at_s - self.begin_s,
            (after or stretch[-1]).at_s - self.begin_s,
            least.headroom_bytes or 0,
            (start.headroom_bytes or 0) - (least.headroom_bytes or 0),
            (least.held_bytes or 0) - (start.held_bytes or 0),
        )

    @property
    def changes(self) -> tuple[Move, ...]:
        """Moves that changed a knob."""
        return tuple(move for move in self.own.moves if move.changes)

    def rank_waits(self) -> dict[int, float]:
        """Rank → share of its time that it waited, the worst first."""
        waits = ((one.last.rank, Run("", one).wait_ratio) for one in self.ranks)
        found = {rank: waited for rank, waited in waits if waited is not None}
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def _shares(times: Iterable[tuple[str, float]]) -> dict[str, float]:
    """(name, seconds) → share of them all, the largest first; none where there are no seconds."""
    counted: defaultdict[str, float] = defaultdict(float)
    for name, seconds in times:
        counted[name] += seconds
    total = sum(counted.values())
    largest = sorted(counted.items(), key=lambda item: -item[1])
    return {name: value / total for name, value in largest} if total else {}


def runs_folder() -> Path:
    """Folder of the cache directory that keeps records of runs."""
    return cache_root() / "runs"


def kept_runs() -> list[Run]:
    """Runs that the cache directory keeps, the latest first; those that cannot be read are told."""
    found = []
    for folder in reversed(run_record.by_age(runs_folder().glob("*/"))):
        try:
            found.append(read_run(folder))
        except UsageError as error:
            if any(folder.glob("*.jsonl")):  # else it has just begun, or gave way to a later run
                note(f"left out: {error.what}")
    return found


def find_run(run: str) -> Path:
    """Find the folder or file of a run.

    Args:
        run: path of a folder or record, the beginning of a kept run's name, a part of its script's
            name (the latest run counts), or "last": the last that was killed or ended with a rate,
            if any did; a note names the later ones that ended without one.
    """
    path = Path(run)
    if os.path.isdir(path) or (os.path.exists(path) and path.suffix == ".jsonl"):
        return path
    kept = kept_runs()
    if run == "last" and kept:
        ended = [one for one in kept if one.state != "runs"]
        # A run that ended well without a rate is one of peek or verify.
        told = [one for one in ended if one.samples_per_s or one.state == "killed"]
        found = (told or ended or kept)[:1]
        if passed := [one.name for one in itertools.takewhile(lambda one: one not in found, ended)]:
            note(f"passed over, since training took no batch: {', '.join(passed)}")
    else:
        found = [one for one in kept if one.name == run]
        found = found or [one for one in kept if one.name.startswith(run)]
        found = found or [one for one in kept if run in one.own.last.script][:1]
    if len(found) == 1:
        return runs_folder() / found[0].name
    begin = f", but {len(found)} whose names begin so" if found else ""
    raise UsageError(
        f"{runs_folder()} keeps no run {run!r}{begin}" + ("" if kept else f": {why_no_run()}"),
        remedy="`autoloader report` lists the runs that are kept"
        if kept
        else f"check the name; if the environment variable {run_record.VARIABLE} was set when the "
        "run began, give the folder that it named",
    )


def why_no_run() -> str:
    """Say why the cache directory keeps no run."""
    if elsewhere := os.environ.get(run_record.VARIABLE):
        return f"{run_record.VARIABLE}={elsewhere} sends records elsewhere"
    return f"a run of less than {run_record.RING_AFTER_S:.0f} s is not kept"


def read_run(path: Path) -> Run:
    """Read the run whose record lies in a folder or a file; of several, the latest.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    every = [run_record.read_pipeline(file) for file in run_record.files_of(path)]
    training = [one for one in every if one.last.split == "train"] or every
    latest = max(training, key=lambda one: one.moments[0].at_s)
    node, begin_s = latest.last.node, latest.moments[0].at_s
    ranks = [one for one in training if one.last.run == latest.last.run
             or (one.last.node == node and one.last.at_s >= begin_s)]  # fmt: skip
    ranks.sort(key=lambda one: one.last.batches)
    by_rank = {one.last.rank: one for one in ranks}  # of two loaders, the one that gave more
    ranks = [by_rank[rank] for rank in sorted(by_rank)]
    own = max(ranks, key=lambda one: Run("", one).wait_ratio or 0.0)
    return Run(path.name if os.path.isdir(path) else path.parent.name, own, tuple(ranks))


def cost_of(run: Run, ideal: Run) -> float | None:
    """Share of a run's time that its loader costs, against the trainer alone; not below 0."""
    if not run.samples_per_s or not ideal.samples_per_s:
        return None
    return max(0.0, 1.0 - run.samples_per_s / ideal.samples_per_s)


def last_run(spec: PipelineSpec) -> Run | None:
    """Find the latest run of a spec on this host that is kept and has a rate; ``None``: none is."""
    wanted, files = identity_of(spec), list[Path]()
    with contextlib.suppress(UsageError):  # there is none
        files = run_record.files_of(runs_folder())
    for file in reversed(files):
        with contextlib.suppress(OSError, UsageError), file.open(errors="replace") as lines:
            if not file.name.startswith("train-") or wanted["spec_digest"] not in next(lines, ""):
                continue  # the first line is that of the start
            run = read_run(file)
            if wanted.items() <= run.own.facts.items() and run.samples_per_s and not run.replays:
                return run
    return None
