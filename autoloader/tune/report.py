"""Outputs of a study: the JSON document, and the lines that a person reads.

Not here: deciding anything (``study``, ``finals``), the profile (``keep``).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from autoloader.controller.profile import HostFacts
from autoloader.host.clock import Clock
from autoloader.host.units import format_bytes
from autoloader.tune.bound import NO_BOUND, Bound
from autoloader.tune.finals import Contender, changed_knobs
from autoloader.tune.keep import Outcome as Kept
from autoloader.tune.keep import without_passwords
from autoloader.tune.page import Figures, Story, plain_text
from autoloader.tune.study import StudyResult
from autoloader.tune.trial import Outcome, TrialProgress, TrialResult

_REASON_LENGTH = 100


@dataclass(frozen=True, slots=True)
class TuneReport:
    """The end of ``autoloader.tune``.

    Attributes:
        kept: the profile that was written, or why none was.
        result: what the study found.
        bound: how fast any setting can be, and why; ``None`` when no cost was measured.
        page_path: the HTML report; ``None`` where it could not be written.
        told: what the whole report tells.
    """

    kept: Kept
    result: StudyResult
    bound: Bound | None
    page_path: Path | None = None
    told: Story | None = None

    def as_dict(self) -> dict[str, Any]:
        """Fields of ``tune --json``; design §3."""
        verdict = self.result.verdict
        return {
            "profile_path": None if self.kept.path is None else str(self.kept.path),
            "profile_notes": list(self.kept.notes),
            "report_path": None if self.page_path is None else str(self.page_path),
            "best": _contender(verdict.winner),
            "start": _contender(verdict.start),
            "speedup": verdict.speedup,
            "speedup_interval": verdict.interval,
            "bound_samples_per_s": None if self.bound is None else self.bound.samples_per_s,
            **(NO_BOUND if self.bound is None else self.bound.as_dict()),
            "ended": self.result.ended or None,
            "busy_rounds": verdict.busy_rounds,
            "trials": dict(self.result.trials),
            "study": self.result.name,
            "storage": self.result.storage,
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Rows for the start and the best: the knobs that differ, then figures."""
        verdict = self.result.verdict
        both = (verdict.start, verdict.winner)
        changed = changed_knobs(verdict.start.knobs, verdict.winner.knobs)
        return [
            *((knob, str(before), str(after)) for knob, (before, after) in changed.items()),
            ("samples/s", *(_rate(one.samples_per_s) for one in both)),
            ("least headroom", *(_size(one.min_headroom_bytes) for one in both)),
            ("loader's peak", *(_size(one.peak_rss_bytes) for one in both)),
        ]

    def lines(self) -> Iterator[str]:
        """Lines below the table."""
        verdict = self.result.verdict
        yield self.verdict_line
        if verdict.busy_rounds:
            yield (
                f"In {verdict.busy_rounds} of {verdict.rounds} rounds other processes used the "
                "processors."
            )
        yield from self.bound_lines
        counts = ", ".join(f"{count} {name}" for name, count in self.result.trials.items())
        yield f"trials: {counts}"
        if self.kept.path is not None:
            yield f"profile: {self.kept.path}"
        yield from self.kept.notes
        if self.page_path is not None:
            yield f"report: {self.page_path}"

    def plain_text(self) -> str:
        """The whole report as plain text."""
        where = [f"report: {self.page_path}"] * (self.page_path is not None)
        return "\n".join([*([] if self.told is None else [plain_text(self.told)]), *where])

    @property
    def verdict_line(self) -> str:
        """Describe the end of the finals in a sentence."""
        verdict = self.result.verdict
        if self.result.ended:
            return f"{self.result.ended}: the start stays."
        if verdict.winner.is_start:
            return "Nothing measured beside the start beat it: the start stays."
        pairs = ", ".join(f"{ratio:.2f}" for ratio in verdict.ratios)
        low, high = verdict.interval or (verdict.speedup, verdict.speedup)
        return (
            f"speedup {verdict.speedup:.2f}, with 95 % between {low:.2f} and {high:.2f} "
            f"(paired runs: {pairs})"
        )

    @property
    def bound_lines(self) -> tuple[str, ...]:
        """Describe how near the bound it came, what limits it, what would lift it."""
        if self.bound is None:
            return ()
        lines = (
            self.bound.describe(self.result.verdict.winner.samples_per_s),
            self.bound.describe_costs(),
        )
        if self.bound.cached_samples_per_s is None:
            return lines
        return (
            *lines,
            f"with {format_bytes(self.bound.cache_bytes)} of decoded frames held, which "
            "the controller does by itself: up to "
            f"{_rate(self.bound.cached_samples_per_s)} samples/s "
            "by the model",
        )

    def story(self, host: HostFacts, floor_bytes: int, command: str) -> Story:
        """Story for the page and the plain report.

        Args:
            host: this machine, in full.
            floor_bytes: the RAM floor that held.
            command: the command line that was run.
        """
        verdict = self.result.verdict
        read = host.storage_read_bytes_per_s
        storage = f"{host.storage}" + (f", read at {read / 1e6:.0f} MB/s" if read else "")
        versions = ", ".join(f"{name} {version}" for name, version in host.versions.items())
        return Story(
            study=self.result.name,
            host=f"{host.describe()}; {host.cpu_model}",
            floor_bytes=floor_bytes,
            start=_figures(verdict.start),
            best=_figures(verdict.winner),
            start_stays=verdict.winner.is_start,
            verdict=self.verdict_line,
            ratios=verdict.ratios,
            changed=changed_knobs(verdict.start.knobs, verdict.winner.knobs),
            bound_samples_per_s=None if self.bound is None else self.bound.samples_per_s,
            bound_lines=self.bound_lines,
            trials=self.result.fates,
            notes=(f"Profile: {self.kept.path}", *self.kept.notes)
            if self.kept.path is not None
            else self.kept.notes,
            facts=(
                ("data on", storage),
                ("kernel", host.kernel),
                ("versions", versions),
                ("fingerprint", host.fingerprint),
                ("storage", self.result.storage),
                ("command", without_passwords(command)),
            ),
        )


class LiveWatcher:
    """Shows a study on a console: one line per trial, and one that moves while a trial runs.

    Args:
        console: where to; its own stderr.
        clock: for the elapsed time.
        budget_s: seconds of the budget, shown beside it.
    """

    def __init__(self, console: Console, clock: Clock, budget_s: float) -> None:
        self._console = console
        self._clock = clock
        self._budget_s = budget_s
        self._began_s = clock.now_s()
        self._status: Status | None = None
        self._label = ""
        self._rate = ""

    def trial_started(self, number: int, planned: int, label: str) -> None:
        role = "" if label == "search" else f" ({label})"
        self._begin(f"trial {number}/{planned}{role}")

    def progressed(
        self, progress: TrialProgress | None, headroom_bytes: int | None, best_samples_per_s: float
    ) -> None:
        if progress is not None:
            self._rate = f"batch {progress.batches}, {progress.samples_per_s:.0f} samples/s, "
        if self._status is not None:
            self._status.update(
                f"{self._label}: {self._rate or 'opening, '}best {best_samples_per_s:.0f}, "
                f"headroom {_size(headroom_bytes)}, {self._elapsed()}"
            )

    def trial_ended(self, number: int, result: TrialResult, best_samples_per_s: float) -> None:
        del number
        self._end(f"{_outcome(result)}, best so far {best_samples_per_s:.0f}", result)

    def final_started(self, number: int, rounds: int, contender: Contender) -> None:
        who = "start" if contender.is_start else "finalist"
        self._begin(f"final {number + 1}/{rounds} ({who})")

    def final_ended(self, contender: Contender, result: TrialResult) -> None:
        del contender
        self._end(_outcome(result), result)

    def close(self) -> None:
        """Take the moving line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _begin(self, label: str) -> None:
        self._label, self._rate = label, ""
        if self._console.is_terminal:
            self._status = self._console.status(label)
            self._status.start()

    def _end(self, text: str, result: TrialResult) -> None:
        self.close()
        self._console.print(
            f"{self._label}: {text}, headroom {_size(result.min_headroom_bytes)}, "
            f"{self._elapsed()}",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )

    def _elapsed(self) -> str:
        return f"{self._clock.now_s() - self._began_s:.0f} of {self._budget_s:.0f} s"


def _outcome(result: TrialResult) -> str:
    if result.outcome is Outcome.COMPLETE:
        beside = "" if not result.busy else f" (others used {result.others_cpus:.1f} processors)"
        return f"{_rate(result.samples_per_s)} samples/s{beside}"
    reason = result.reason.strip().splitlines()
    if not reason:
        return str(result.outcome.value)
    short = textwrap.shorten(reason[0], _REASON_LENGTH, placeholder=" …")
    return f"{result.outcome.value}: {short}"


def _contender(contender: Contender) -> dict[str, Any]:
    return {
        "knobs": contender.knobs.flat(),
        "samples_per_s": contender.samples_per_s,
        "min_headroom_bytes": contender.min_headroom_bytes,
    }


def _figures(contender: Contender) -> Figures:
    return Figures(contender.samples_per_s, contender.peak_rss_bytes, contender.min_headroom_bytes)


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.0f}"


def _size(count: int | None) -> str:
    return "–" if count is None else format_bytes(count)
