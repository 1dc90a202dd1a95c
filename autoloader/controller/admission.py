"""Memory prices of knobs, and admission: may a start or a change take that memory?

Prices. A start is priced from file sizes. Later, one unit of each knob is priced by the rolling
95th percentile of the bytes that such units really held (``RollingPrices``), scaled by what the
whole process holds against its predicted bytes. A stream's new generation opens beside the old one,
so a change of a stream knob costs the whole new stream, not a difference.

Budget. Headroom is one number that all pipelines of a process read: train, validation, the ranks of
a node. It falls only when pages are touched, seconds after a change was admitted. Two pipelines
that each trust it would spend it twice. So an admitted change is promised first, under one lock,
against the reading it was admitted on. For ``PROMISED_S`` it counts as gone for everybody; by then
the reading shows the pages. Pipelines in use share equally what is left above the highest floor,
the margin and the promises. A parked pipeline keeps its promises and gets no more. Processes are
not coordinated: between trainers with a child each stand the margin and the reflex.

Opening. A trainer plans its start seconds before and without a view of the other pipelines. So the
process that runs them prices the start again before it opens anything (``admit_opening``). Without
room for these knobs the pipeline opens with the least knobs, which the plan made sure of.

Any thread may call a ``SharedBudget``.

Invariants:
    1. A change is admitted only where predicted headroom stays at or above floor + margin.
    2. Unknown headroom admits nothing, and has no room.
    3. Admitted promises never sum to more than the bytes above floor + margin at that time.
    4. Parts of the pipelines in use sum to at most the whole.

Not here: reading memory (``host.headroom``), choosing knobs (``policy``), shrinking other loaders
for one that opens (``process.child``).
"""

from __future__ import annotations

import logging
import math
import operator
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autoloader.controller.limits import ControllerLimits
from autoloader.errors import BudgetInfeasibleError
from autoloader.host.clock import Clock
from autoloader.host.frozen import frozen
from autoloader.host.headroom import HeadroomProbe, headroom_or_none
from autoloader.host.units import MIB, format_bytes
from autoloader.samples.block import DECODED_TOGETHER_BYTES, MOST_UNFINISHED, RUN_BYTES
from autoloader.samples.resolve import MixtureSizes
from autoloader.spec.knobs import (
    BATCHES_OF_A_HELPER,
    REOPENING_KNOBS,
    THREADS_OF,
    UNUSED_KNOBS,
    Knobs,
)

logger = logging.getLogger(__name__)

INTERPRETER_BYTES = 110 * MIB
"""A child that reads by index: Python, NumPy, OpenCV (measured: 100–110 MiB)."""
DECODE_PROCESS_BYTES = 70 * MIB
"""A decode process: Python, NumPy, OpenCV, less what it shares with its siblings."""
HELPERS_BYTES = 150 * MIB
"""The process that asks helpers elsewhere: Python, NumPy, Ray (108 MiB), and its connections."""
SAMPLE_BYTES = 32 * 1024
"""Bytes of a further waiting sample: about one encoded frame, since frames are held once."""
_SHORTEST_RUN_OF = 4
"""Ranks of one child read shorter runs ahead, down to this part of a run."""
TENSORFLOW_BYTES = 520 * MIB
"""TensorFlow's own resident memory once imported (measured: 450–560 MiB)."""
STREAM_BYTES = 12 * MIB
"""One open stream at cycle_length 1, without the episodes in it (measured over 29 streams)."""
CYCLE_BYTES = 5 * MIB
"""Each further unit of cycle_length: threads, read buffers, a record in flight."""
THREAD_BYTES = 2 * MIB
"""A further thread: its stack, its decoder, a frame in hand."""

_generation = operator.attrgetter(*REOPENING_KNOBS)


@frozen
class StartPrice:
    """Predicted bytes of a pipeline, or of those of all ranks.

    Attributes:
        parts: bytes by part, of all ranks.
            framework: the interpreter and its libraries, TensorFlow where it is needed.
            streams: open streams, before the episodes they hold.
            queued: encoded episodes in queues, prefetch and parse; or runs read ahead.
            ring: the batch ring, when every slot is in use.
            cache: decoded frames that are held.
            blocks: blocks of an order with locality, which ranks share.
            requests: requests to stores that are under way, which ranks share.
            decode: large pictures that are being decoded; 0 where they are small.
        ranks: number of ranks whose pipelines these are.
    """

    parts: Mapping[str, int]
    ranks: int = 1

    @property
    def total_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


def price_start(
    knobs: Knobs, sizes: MixtureSizes, *, ranks: int = 1, joining: bool = False
) -> StartPrice:
    """Predict what the pipelines of a child hold with these knobs.

    Args:
        knobs: values of all knobs.
        sizes: memory sizes of the mixture.
        ranks: pipelines of this kind in one child. By index they share the libraries, the indexes
            and, in shorter runs, what is read ahead.
        joining: whether the child is there already, with its libraries.
    """
    streams = queued = 0
    with_tensorflow = knobs.reader == "stream"
    for name, record in sizes.record_bytes.items() if with_tensorflow else ():
        stream, encoded = _stream_bytes(knobs, name, record, SAMPLE_BYTES)
        streams += stream + sizes.buffer_bytes.get(name, 0) * knobs.for_dataset(name).cycle_length
        queued += encoded
    framework = TENSORFLOW_BYTES
    if not with_tensorflow:
        queued = _price_runs(knobs, max(RUN_BYTES, sizes.run_bytes))
        framework = INTERPRETER_BYTES
        if knobs.decode_processes > 1:
            framework += DECODE_PROCESS_BYTES * knobs.decode_processes * ranks
        if ranks > 1:
            queued = max(queued // ranks, queued // _SHORTEST_RUN_OF)
    if joining:
        framework -= TENSORFLOW_BYTES if with_tensorflow else INTERPRETER_BYTES
    parts = {
        "framework": framework,
        "streams": ranks * streams,
        "queued": ranks * queued,
        "ring": ranks * knobs.ring_slots * sizes.batch_bytes,
        "cache": 0 if with_tensorflow else ranks * knobs.cache_bytes,
        "blocks": 0 if with_tensorflow else sizes.block_bytes * knobs.decode_processes,
        "requests": sizes.request_bytes * (1 if with_tensorflow else knobs.decode_processes),
        "decode": price_decoding(knobs, sizes.picture_bytes),
    }
    return StartPrice(parts, ranks)


def price_decoding(knobs: Knobs, picture_bytes: int) -> int:
    """Bytes of pictures while they are made, beyond ``THREAD_BYTES`` of each thread.

    Large pictures are decoded as far as ``DECODED_TOGETHER_BYTES`` reach, or one at a time.
    """
    together = max(picture_bytes, DECODED_TOGETHER_BYTES)
    return min(sum(knobs.pixel_threads.values()) * max(0, picture_bytes - THREAD_BYTES), together)


def admit_start(price: StartPrice, *, headroom_bytes: int, ram_floor_bytes: int) -> int:
    """Bytes left above the floor after starting at ``price``, where ``price`` is of minimum knobs.

    Raises:
        BudgetInfeasibleError: even these would cross the floor; with the numbers.
    """
    left = headroom_bytes - ram_floor_bytes - price.total_bytes
    if ram_floor_bytes > headroom_bytes:
        raise BudgetInfeasibleError(
            f"the RAM floor of {format_bytes(ram_floor_bytes)} is more than the "
            f"{format_bytes(headroom_bytes)} that are free now",
            remedy="lower ram_floor (--ram-floor), or free memory",
        )
    if left < 0:
        parts = (f"{name} {format_bytes(size)}" for name, size in price.parts.items() if size)
        needs = f"loaders of the node's {price.ranks} ranks need"
        needs = "loader needs" if price.ranks == 1 else needs
        floor = f", and {format_bytes(ram_floor_bytes)} of that must stay free (ram_floor)"
        kept = floor if ram_floor_bytes else ""
        raise BudgetInfeasibleError(
            f"even with the smallest knobs, the {needs} about {format_bytes(price.total_bytes)} "
            f"({', '.join(parts)}), but only {format_bytes(headroom_bytes)} are free{kept}",
            remedy=f"lower {'ram_floor or ' if kept else ''}batch.size, use smaller frames or "
            "fewer datasets, "
            + ("lower mixing.locality.window or block, " if price.parts.get("blocks") else "")
            + ("" if price.ranks == 1 else "start fewer ranks on a node, ")
            + "or free memory",
        )
    return left


@frozen
class Prices:
    """Bytes of one unit of each knob, 95th percentiles of what such units really held.

    Attributes:
        slot_bytes: bytes of a ring slot.
        sample_bytes: bytes of an encoded sample that waits.
        record_bytes: dataset → bytes of an episode.
        run_bytes: bytes of a run that is read ahead, with the indexed reader.
        picture_bytes: bytes of the largest picture, decoded; 0 where it is not known.
        scale: bytes that the process held over the bytes that these prices predicted, at least 1.
    """

    slot_bytes: int = 0
    sample_bytes: int = SAMPLE_BYTES
    record_bytes: Mapping[str, int] = field(default_factory=dict)
    run_bytes: int = RUN_BYTES
    picture_bytes: int = 0
    scale: float = 1.0

    def record(self, dataset: str) -> int:
        """Bytes of an episode of a dataset; of one that is not known, the largest."""
        known = self.record_bytes.get(dataset)
        return max(self.record_bytes.values(), default=MIB) if known is None else known


def price_knobs(knobs: Knobs, datasets: Mapping[str, int], prices: Prices) -> int:
    """Bytes that a running pipeline holds with ``knobs``, above what it holds with none.

    Args:
        knobs: values of all knobs.
        datasets: shards of each dataset (``KnobLimits.shards``).
        prices: bytes of one unit of each knob.
    """
    indexed = knobs.reader == "indexed"
    unused = UNUSED_KNOBS["indexed" if indexed else "stream"]
    threads: int = sum(getattr(knobs, one) for one in THREADS_OF.values() if one not in unused)
    private, shared = threads * THREAD_BYTES, knobs.ring_slots * prices.slot_bytes
    private += price_decoding(knobs, prices.picture_bytes)
    if indexed:
        private += _price_runs(knobs, prices.run_bytes)
        private += (knobs.decode_processes - 1) * INTERPRETER_BYTES
        shared += knobs.cache_bytes + _price_helpers(knobs, prices.slot_bytes)
    else:
        private += sum(_price_stream(knobs, name, prices) for name in datasets)
    return math.ceil(private * max(1.0, prices.scale)) + shared


def _price_runs(knobs: Knobs, run_bytes: int) -> int:
    """Bytes of runs: those read ahead, and one in hand; of large runs, which are batches, more."""
    more = MOST_UNFINISHED if run_bytes > RUN_BYTES else 0
    return (knobs.read_ahead + 1 + more) * run_bytes * knobs.decode_processes


def _price_helpers(knobs: Knobs, slot_bytes: int) -> int:
    """Bytes that helpers on other hosts cost here: the process that asks them, their answers."""
    if not knobs.helper_slots:
        return 0
    return HELPERS_BYTES + knobs.helper_slots * BATCHES_OF_A_HELPER * slot_bytes


def price_change(before: Knobs, after: Knobs, datasets: Mapping[str, int], prices: Prices) -> int:
    """Bytes that must be free to move from ``before`` to ``after``; never less than nothing.

    A stream whose knobs change is held twice while its new generation takes over.
    """
    grown = price_knobs(after, datasets, prices) - price_knobs(before, datasets, prices)
    twice = 0
    if after.reader != "indexed":
        for name in datasets:
            if _generation(before.for_dataset(name)) != _generation(after.for_dataset(name)):
                smaller = min((before, after), key=lambda k: _price_stream(k, name, prices))
                twice += _price_stream(smaller, name, prices)
    return max(0, grown + math.ceil(twice * max(1.0, prices.scale)))


def _price_stream(knobs: Knobs, dataset: str, prices: Prices) -> int:
    """Bytes of a dataset's stream, with the episodes and samples in it."""
    return sum(_stream_bytes(knobs, dataset, prices.record(dataset), prices.sample_bytes))


def _stream_bytes(
    knobs: Knobs, dataset: str, record_bytes: int, sample_bytes: int
) -> tuple[int, int]:
    """(bytes of a dataset's open stream, bytes of the encoded episodes and samples in it).

    Args:
        knobs: values of all knobs.
        dataset: name of the dataset.
        record_bytes: bytes of an episode.
        sample_bytes: bytes of an encoded sample that waits.
    """
    own = knobs.for_dataset(dataset)
    # 1: the episode in the queue. Samples that wait count as far as they exceed it.
    held = 1 + own.stream_prefetch + own.parse_parallel_calls + own.cycle_length
    waiting = max(own.queue_samples, own.shuffle_samples) * sample_bytes
    stream = STREAM_BYTES + CYCLE_BYTES * (own.cycle_length - 1)
    return stream, record_bytes * held + max(0, waiting - record_bytes)


class RollingPrices:
    """Prices of what really was held, over the last ``window`` readings.

    Args:
        sizes: sizes of the mixture, which are known and not measured.
        window: number of readings that are kept.
    """

    def __init__(self, sizes: MixtureSizes, *, window: int = 120) -> None:
        self._sizes = sizes
        self._seen = {name: deque[float](maxlen=window) for name in ("sample", "run", "scale")}

    def note_sample(self, size: float) -> None:
        """Encoded bytes of a waiting sample, as seen now."""
        self._seen["sample"].append(size)

    def note_run(self, size: float) -> None:
        """Bytes of a planned run, as seen now."""
        self._seen["run"].append(size)

    def note_process(self, held_bytes: float, predicted_bytes: float) -> None:
        """Compare the bytes of the process with the bytes that these prices predicted."""
        if predicted_bytes > 0:
            self._seen["scale"].append(min(4.0, max(1.0, held_bytes / predicted_bytes)))

    def current(self) -> Prices:
        """The prices now."""
        sample, run, scale = (percentile(values, 0.95) for values in self._seen.values())
        return Prices(
            slot_bytes=self._sizes.batch_bytes,
            sample_bytes=int(sample or SAMPLE_BYTES),
            record_bytes=self._sizes.record_bytes,
            run_bytes=int(run or max(RUN_BYTES, self._sizes.run_bytes)),
            picture_bytes=self._sizes.picture_bytes,
            scale=scale or 1.0,
        )


def percentile(values: deque[float] | deque[int], q: float) -> float | None:
    """The q-quantile, upper: a value that at least a share q does not exceed; ``None``: empty."""
    if not values:
        return None
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, math.ceil(q * len(ordered)) - 1)])


PROMISED_S = 5.0
"""Seconds for which a promise counts: by then its pages have come, at 0.4 GiB/s."""
OPENING_S = 15.0
"""The same for a pipeline that opens: libraries, streams and the first fill of its ring."""


@dataclass(slots=True, eq=False)
class Claim:
    """One pipeline's claim on a budget.

    Attributes:
        floor_bytes: bytes of the pipeline's RAM floor.
        in_use: whether the pipeline may grow; a parked one may not.
        promises: (time until which the promise counts, its bytes), which it may not hold yet.
    """

    floor_bytes: int
    in_use: bool = True
    promises: list[tuple[float, int]] = field(default_factory=list)


class SharedBudget:
    """Memory that several pipelines may take together.

    Args:
        clock: time source of the promises' ages.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self.forget_all()

    def forget_all(self) -> None:
        """Begin without pipelines; called in a fork.

        The pipelines are the parent's, and so is a thread that holds the lock at that moment.
        """
        self._lock = threading.RLock()
        self._claims: list[Claim] = []

    def enter(self, floor_bytes: int) -> Claim:
        """Register a pipeline, which calls ``leave`` at its end; reserves nothing.

        From now on the highest floor of all pipelines holds, and one more divides the rest.
        """
        claim = Claim(floor_bytes)
        with self._lock:
            self._claims.append(claim)
        return claim

    def leave(self, claim: Claim) -> None:
        """Unregister a pipeline, and drop its promises; may be called twice."""
        with self._lock:
            self._claims = [one for one in self._claims if one is not claim]

    def promised_bytes(self) -> int:
        """Bytes that all pipelines were promised and may not hold yet."""
        now_s, found = self._clock.now_s(), 0
        for one in self._claims:
            one.promises = [promise for promise in one.promises if promise[0] > now_s]
            found += sum(size for _, size in one.promises)
        return found

    def room_bytes(
        self, claim: Claim, headroom_bytes: int | None, margin_bytes: int, *, opening: bool = False
    ) -> int:
        """Bytes that a pipeline may take now, by a reading of headroom; 0 without a reading."""
        with self._lock:
            may = claim in self._claims and (opening or claim.in_use)
            if headroom_bytes is None or not may:
                return 0
            floor = max(one.floor_bytes for one in self._claims)
            left = max(0, headroom_bytes - floor - margin_bytes - self.promised_bytes())
            return left if opening else left // sum(one.in_use for one in self._claims)

    def try_promise(
        self,
        claim: Claim,
        size: int,
        *,
        headroom_bytes: int | None,
        margin_bytes: int,
        opening: bool = False,
    ) -> bool:
        """Promise ``size`` bytes to a pipeline if there is room for them; true if there is.

        Args:
            claim: claim of the pipeline.
            size: bytes above those that the pipeline holds.
            headroom_bytes: a fresh reading; ``None``: unknown, and nothing is promised.
            margin_bytes: distance to the floor that must stay.
            opening: whether the pipeline opens: then it may take all that is left, not its part
                alone.
        """
        with self._lock:
            fits = size <= self.room_bytes(claim, headroom_bytes, margin_bytes, opening=opening)
            if fits:
                self.take(claim, size, opening=opening)
            return fits

    def take(self, claim: Claim, size: int, *, opening: bool = False) -> None:
        """Count ``size`` bytes as promised, whether there is room or not: somebody else decided."""
        with self._lock:
            if size > 0:
                lasts_s = OPENING_S if opening else PROMISED_S
                claim.promises.append((self._clock.now_s() + lasts_s, size))


@frozen
class Opening:
    """A pipeline that may open.

    Attributes:
        claim: the pipeline's claim on the budget.
        knobs: values to begin with: those asked for, or the least.
        price_bytes: bytes that the pipeline is predicted to hold with them.
        headroom_bytes: the reading that this was compared with; ``None``: unknown.
        as_asked: whether the knobs are those asked for.
    """

    claim: Claim
    knobs: Knobs
    price_bytes: int
    headroom_bytes: int | None
    as_asked: bool


def admit_opening(
    budget: SharedBudget,
    source: HeadroomProbe,
    knobs: Knobs,
    limits: ControllerLimits,
    price: Callable[[Knobs], int],
    *,
    moves: bool,
) -> Opening:
    """Give a pipeline its place in the budget, and the knobs it may open with.

    Args:
        budget: memory budget shared by this process.
        source: source of headroom readings.
        knobs: values that were asked for.
        limits: limits of the pipeline's knobs.
        price: bytes that opening with knobs takes.
        moves: whether knobs may move by themselves; without that they stay as they are asked for,
            and only count.
    """
    claim = budget.enter(limits.ram_floor_bytes)
    headroom, least, margin = headroom_or_none(source), limits.least(knobs), limits.margin_bytes
    asked = price(knobs)
    fits = budget.try_promise(
        claim, asked, headroom_bytes=headroom, margin_bytes=margin, opening=True
    )
    as_asked = fits or not moves or least == knobs
    chosen, size = (knobs, asked) if as_asked else (least, price(least))
    if not fits:
        budget.take(claim, size, opening=True)
    if not as_asked:
        logger.warning(
            "the loader opens with its smallest knobs: those asked for need %s; free are %s, of "
            "which %s must stay free",
            format_bytes(asked),
            "unknown" if headroom is None else format_bytes(headroom),
            format_bytes(limits.ram_floor_bytes + margin),
        )
    return Opening(claim, chosen, size, headroom, as_asked)
