"""Outputs of a study: the JSON document, the text that a person reads, one HTML page, a live view.

Not here: deciding anything (``study``, ``finals``), drawing (``telemetry.charts``).
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from autoloader.controller.profile import Profile
from autoloader.errors import printable
from autoloader.host.clock import Clock
from autoloader.host.files import write_whole
from autoloader.host.frozen import frozen
from autoloader.host.units import MIB, format_bytes
from autoloader.telemetry.charts import render, scatter
from autoloader.tune.finals import Contender, changed_knobs
from autoloader.tune.ledger import TrialRecord
from autoloader.tune.study import StudyResult
from autoloader.tune.trial import Outcome, TrialProgress, TrialResult

logger = logging.getLogger(__name__)

_REASON_LENGTH = 100


@frozen
class TuneReport:
    """The end of ``autoloader.tune``.

    Attributes:
        profile: the profile that is kept, with host, floor and command.
        result: result of the study.
        path: the profile's file; ``None`` where it could not be written.
        notes: sentences for people on what was written over, or why nothing was written.
        page_path: the HTML report; ``None`` where it could not be written.
    """

    profile: Profile
    result: StudyResult
    path: Path | None = None
    notes: tuple[str, ...] = ()
    page_path: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        """Fields of ``tune --json``."""
        verdict, bound = self.result.verdict, self.result.bound
        return {
            "profile_path": None if self.path is None else str(self.path),
            "profile_notes": list(self.notes),
            "report_path": None if self.page_path is None else str(self.page_path),
            "verdict": self.sentence,
            "best": _contender(verdict.winner),
            "start": _contender(verdict.start),
            "speedup": verdict.speedup,
            "speedup_interval": verdict.interval,
            "confirmed_within_ratio": self.result.confirmed_ratio,
            "bound_samples_per_s": bound and bound.samples_per_s,
            "limited_by": bound and bound.limited_by,
            "lifts": [asdict(lift) for lift in bound.lifts] if bound else [],
            "trace": bound and asdict(bound.trace),
            "ended": self.result.ended or None,
            "trials": self.result.outcomes,
            "study": self.result.name,
            "storage": self.result.storage,
        }

    @property
    def sentence(self) -> str:
        """The end of the study in a sentence."""
        verdict, bound = self.result.verdict, self.result.bound
        if verdict.winner.is_start:
            told = f"the start stays: {self.result.ended or verdict.reason}"
        else:
            low, high = verdict.interval or (verdict.speedup, verdict.speedup)
            told = (
                f"{verdict.speedup:.2f} times as fast as the start, with 95 % between {low:.2f} "
                f"and {high:.2f}"
            )
        rate = verdict.winner.samples_per_s
        if bound is not None and rate:
            told += (
                f"; {_rate(rate)} samples/s are {rate / bound.samples_per_s:.0%} of the bound of "
                f"{_rate(bound.samples_per_s)}, limited by {bound.limited_by}"
            )
        return f"{self.profile.name}: {told}."

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """Knob → (start's, best's), where they differ."""
        verdict = self.result.verdict
        return changed_knobs(verdict.start.knobs, verdict.winner.knobs)

    @property
    def bound_lines(self) -> tuple[str, ...]:
        """Describe how near the bound it came, what limits it, what would lift it."""
        bound = self.result.bound
        if bound is None:
            return ("not known: no measurement told what a sample costs",)
        return (bound.describe(self.result.verdict.winner.samples_per_s), bound.describe_costs())

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """Names and values of where and how it was measured."""
        host = self.profile.host
        read = host.storage_read_bytes_per_s
        return (
            ("host", f"{host.describe()}; {host.cpu_model}"),
            ("data on", f"{host.storage}" + (f", read at {read / 1e6:.0f} MB/s" if read else "")),
            ("kernel", host.kernel),
            ("versions", ", ".join(f"{name} {one}" for name, one in host.versions.items())),
            ("fingerprint", host.fingerprint),
            ("storage", self.result.storage),
            ("command", self.profile.provenance.command or ""),
        )

    @property
    def complete(self) -> list[TrialRecord]:
        """Trials with a measured rate."""
        return [one for one in self.result.trials if one.result.outcome is Outcome.COMPLETE]

    def front(self) -> list[TrialRecord]:
        """Complete trials that none beats in both rate and memory, by memory."""
        known = [one for one in self.complete if one.result.peak_rss_bytes is not None]
        best: list[TrialRecord] = []
        for one in sorted(known, key=lambda one: (_peak(one), -_reached(one))):
            if not best or _reached(one) > _reached(best[-1]):
                best.append(one)
        return best

    def _varied(self) -> Iterator[str]:
        """Yield knobs of which complete trials took two values or more."""
        found: dict[str, set[str]] = {}
        for one in self.complete:
            for knob, value in one.used_knobs.items():
                found.setdefault(knob, set()).add(str(value))
        yield from (knob for knob, values in found.items() if len(values) > 1)

    def text(self) -> str:
        """The report as text: no colours, no boxes; the page has every trial and the host too."""
        return "\n".join(map(printable, self._lines()))

    def _lines(self) -> Iterator[str]:
        verdict = self.result.verdict
        yield f"study {self.result.name}"
        yield ""
        yield f"start  {_figures(verdict.start)}"
        yield f"best   {_figures(verdict.winner)}"
        for knob, (before, after) in self.changed.items():
            yield f"  {knob}: {before} → {after}"
        if verdict.ratios:
            yield "  best over start, in turn: " + ", ".join(f"{one:.2f}" for one in verdict.ratios)
        yield ""
        yield "-- bound"
        yield from self.bound_lines
        yield ""
        counts = ", ".join(f"{count} {name}" for name, count in self.result.outcomes.items())
        yield f"trials: {counts}"
        if self.path is not None:
            yield f"profile: {self.path}"
        yield from self.notes
        if self.page_path is not None:
            yield f"report: {self.page_path}"
        yield self.sentence

    def write_page(self, path: Path) -> Path | None:
        """Write the page in one step; ``None`` where that fails, which is logged, ends nothing."""
        try:
            write_whole(path, self.page())
        except OSError as error:
            logger.warning("no report: %s cannot be written: %s", path, error.strerror or error)
            return None
        return path

    def page(self) -> str:
        """The report as one HTML file that needs nothing beside it."""
        return render(
            "autoloader.tune",
            "study.html.jinja",
            report=self,
            verdict=self.result.verdict,
            pareto=self._pareto(),
            knobs=sorted({*self._varied(), *self.changed}),
            rate=_rate,
            bytes=_size,
            beside=_beside,
        )

    def _pareto(self) -> str:
        """Rate against memory of all trials that know both; "" where there are none."""
        front, verdict, bound = self.front(), self.result.verdict, self.result.bound
        dots = [
            (
                _peak(one) / MIB,
                _reached(one),
                "b" if one.label == "start" else "a" if one in front else "quiet",
            )
            for one in self.complete
            if one.result.peak_rss_bytes is not None
        ]
        if not dots:
            return ""
        best = verdict.winner
        if not best.is_start and best.samples_per_s and best.peak_rss_bytes:
            dots.append((best.peak_rss_bytes / MIB, best.samples_per_s, "good"))
        near = bound is not None and bound.samples_per_s < 2 * max(y for _, y, _ in dots)
        return scatter(
            "pareto",
            "rate against memory of all trials",
            dots,
            x_name="peak memory of the loader, MiB",
            y_name="samples/s",
            front=[(_peak(one) / MIB, _reached(one)) for one in front],
            level=(bound.samples_per_s, "bound") if bound is not None and near else None,
        )


@dataclass(eq=False)
class LiveWatcher:
    """Shows a study on a console: one line per trial, and one that moves while a trial runs.

    Attributes:
        console: console that is written to, of stderr.
        clock: time source of the elapsed time.
        budget_s: seconds of the budget, shown beside it.
        began_s: second of the clock at which the budget began.
    """

    console: Console
    clock: Clock
    budget_s: float
    began_s: float
    _status: Status | None = None
    _label: str = ""
    _rate: str = ""

    def started(self, what: str) -> None:
        """Show a line that moves while a trial runs."""
        self._label, self._rate = what, ""
        if self.console.is_terminal:
            self._status = self.console.status(what)
            self._status.start()

    def progressed(
        self, progress: TrialProgress | None, headroom_bytes: int | None, best_samples_per_s: float
    ) -> None:
        """Show rate, headroom and the time that has passed."""
        if progress is not None:
            self._rate = f"batch {progress.batches}, {progress.samples_per_s:.0f} samples/s, "
        if self._status is not None:
            self._status.update(
                f"{self._label}: {self._rate or 'opening, '}best {best_samples_per_s:.0f}, "
                f"headroom {_size(headroom_bytes)}, {self._elapsed()}"
            )

    def ended(self, result: TrialResult, best_samples_per_s: float) -> None:
        """Print the line of a trial that has ended."""
        self.close()
        self.console.print(
            f"{self._label}: {_outcome(result)}, best so far {best_samples_per_s:.0f}, "
            f"headroom {_size(result.min_headroom_bytes)}, {self._elapsed()}",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )

    def close(self) -> None:
        """Take the moving line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _elapsed(self) -> str:
        return f"{self.clock.now_s() - self.began_s:.0f} of {self.budget_s:.0f} s"


def _outcome(result: TrialResult) -> str:
    """Rate of a trial, or the reason why it has none."""
    if result.outcome is Outcome.COMPLETE:
        return f"{_rate(result.samples_per_s)} samples/s{_beside(result)}"
    reason = result.reason.strip().splitlines()
    if not reason:
        return str(result.outcome.value)
    short = textwrap.shorten(reason[0], _REASON_LENGTH, placeholder=" …")
    return f"{result.outcome.value}: {short}"


def _peak(one: TrialRecord) -> int:
    return one.result.peak_rss_bytes or 0


def _reached(one: TrialRecord) -> float:
    return one.result.samples_per_s or 0.0


def _beside(result: TrialResult) -> str:
    """Processors that others used, where they were many."""
    return f" (others used {result.others_cpus:.1f} cpus)" if result.busy else ""


def _figures(one: Contender | TrialResult) -> str:
    """Rate, peak memory and least headroom, in columns."""
    return (
        f"{_rate(one.samples_per_s):>8} samples/s, peak {_size(one.peak_rss_bytes):>10}, "
        f"headroom {_size(one.min_headroom_bytes):>10}"
    )


def _contender(contender: Contender) -> dict[str, Any]:
    """A contender's knobs and figures as values of JSON."""
    return {
        "knobs": contender.knobs.flat(),
        "samples_per_s": contender.samples_per_s,
        "min_headroom_bytes": contender.min_headroom_bytes,
    }


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}"


def _size(count: int | None) -> str:
    return "–" if count is None else format_bytes(count)
