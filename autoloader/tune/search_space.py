"""The space a study searches: legal knob sets of one pipeline on one host, and no others.

Legal by construction, not by rejection: each range ends where ``KnobLimits`` ends. A knob that is
bound to another one is drawn as a share of it (``num_parallel_calls`` as a share of
``cycle_length``). So every point of the box is a set that may run, and Optuna draws from a fixed
box for each reader. Ranges are widened to hold the start, so it is a point of the space too.

Searched are knobs whose row in ``spec.knobs`` has a range to search, if the reader uses them and
they have more than one value here: with one shard a dataset there is one cycle length. Where the
spec leaves the reader open it is drawn first, and then its knobs. All other knobs stay as the start
has them.
``shuffle_samples`` is the user's choice of quality, and ``min_ready_datasets`` above 1 only delays
the first batch. A model predicts the gain of ``cache_bytes`` (``tune.bound``), since a trial ends
before a frame is shown again.

Not here: the rules themselves (``spec.knobs``), the sampler (``study``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optuna.distributions import IntDistribution

from autoloader.host.frozen import frozen
from autoloader.spec.knobs import KNOBS, UNUSED_KNOBS, KnobLimits, Knobs, Workload
from autoloader.tune.measurement import Trace

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

CALLS_SHARE = "num_parallel_calls_share"
"""Parameter name: ``num_parallel_calls`` as a share of ``cycle_length``, 0 to 1."""


@frozen
class SearchSpace:
    """The legal box around a start.

    Attributes:
        start: the knobs the study starts from; what is not searched stays as it is here.
        limits: limits of the knobs for this pipeline on this host.
        ranges: the box, by knob.
        readers: readers that are allowed; searched where there are several.
    """

    start: Knobs
    limits: KnobLimits
    ranges: Mapping[str, IntDistribution]
    readers: tuple[str, ...] = ()

    @classmethod
    def around(
        cls, start: Knobs, limits: KnobLimits, *, readers: Sequence[str] = ()
    ) -> SearchSpace:
        """The space of all legal knob sets near ``start``, which is clamped to ``limits`` first.

        Raises:
            KnobError: the start has knobs of a dataset that the mixture has not.
        """
        start, _ = start.clamp(limits)
        ranges = {}
        for knob, about in KNOBS.items():
            if about.searched is None:
                continue
            low, high = about.searched
            if (least := about.least(limits)) is not None:
                low = least[0]
            if (most := about.most(limits)) is not None:
                high = min(high, most[0])
            if knob == "cycle_length":
                high = _most_cycle_length(start, limits)
            elif knob == "parse_parallel_calls":
                high = min(high, 2 * limits.cpus)
            known = getattr(start, knob)
            ranges[knob] = IntDistribution(min(low, known), max(low, high, known), log=low > 0)
        return cls(start, limits, ranges, readers=tuple(sorted({start.reader, *readers})))

    def suggest(self, trial: BaseTrial) -> Knobs:
        """A legal knob set, drawn from ``trial``."""
        values: dict[str, Any] = {}
        reader: str = self.start.reader
        if len(self.readers) > 1:
            reader = values["reader"] = trial.suggest_categorical("reader", self.readers)
        for knob, box in self.searched(reader).items():
            values[knob] = trial.suggest_int(knob, box.low, box.high, log=box.log)
        if "cycle_length" in values:
            share = trial.suggest_float(CALLS_SHARE, 0.0, 1.0)
            values["num_parallel_calls"] = max(1, round(share * values["cycle_length"]))
        return Knobs.build(values, base=self.start)

    def clamped(self, wanted: Mapping[str, int]) -> Knobs:
        """Values within the box, over the start."""
        inside = {
            knob: min(max(value, self.ranges[knob].low), self.ranges[knob].high)
            for knob, value in wanted.items()
        }
        return Knobs.build(inside, base=self.start)

    def parameters(self, knobs: Knobs) -> dict[str, Any]:
        """The point whose ``suggest`` gives the searched knobs of ``knobs`` back."""
        reader = knobs.reader if knobs.reader in self.readers else self.start.reader
        found: dict[str, Any] = {
            knob: min(max(getattr(knobs, knob), box.low), box.high)
            for knob, box in self.searched(reader).items()
        }
        if "cycle_length" in found:
            found[CALLS_SHARE] = min(1.0, knobs.num_parallel_calls / found["cycle_length"])
        if len(self.readers) > 1:
            found["reader"] = reader
        return found

    def searched(self, reader: str) -> dict[str, IntDistribution]:
        """The box of what may be drawn for a reader; what cannot matter for it is not there."""
        unused = UNUSED_KNOBS[reader]
        return {
            knob: box
            for knob, box in self.ranges.items()
            if knob not in unused and box.low < box.high
        }


def _most_cycle_length(start: Knobs, limits: KnobLimits) -> int:
    """The largest common cycle length whose sum over all datasets ``Knobs.clamp`` lets pass."""
    most = min(64, max(limits.shards.values(), default=1))
    while most > 1:
        probe = start.model_copy(update={"cycle_length": most, "num_parallel_calls": 1})
        legal, _ = probe.clamp(limits)
        if legal.cycle_length == most and legal.datasets == start.datasets:
            return most
        most -= 1
    return most


def guess(space: SearchSpace, batch_size: int, trace: Trace | None = None) -> Knobs:
    """A first knob set: the ``guess`` of each knob, which keeps the processors busy and no more.

    Args:
        space: search space of legal knobs.
        batch_size: samples of a batch.
        trace: trace of the start; ``None``: costs of a sample are not known.
    """
    limits = space.limits
    known = Workload(
        limits,
        math.ceil(batch_size / max(1, len(limits.shards))),
        disk_bound=trace is not None and trace.disk_busy_ratio >= 0.5,
    )
    return space.clamped({knob: one.guess(known) for knob, one in KNOBS.items() if one.guess})


def guesses(space: SearchSpace, batch_size: int, trace: Trace | None = None) -> tuple[Knobs, ...]:
    """``guess``, and the same with a decode process for each cpu where that is another set.

    How long threads wait for their interpreter is in no trace, so whether more interpreters help is
    tried, and not left to whether the sampler happens upon it.
    """
    first = guess(space, batch_size, trace)
    most = min(space.limits.cpus, space.ranges["decode_processes"].high)
    second = Knobs.build({"decode_processes": most}, base=first)
    same = space.parameters(second) == space.parameters(first)
    return (first,) if same else (first, second)
