"""The order of a mixture: its shares, its epochs, and which dataset gives each block.

Not here: the low-discrepancy schedule itself (``schedule``), debts (``read.mixer``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.order.schedule import DrawnSchedule, Schedule
from autoloader.samples.draws import PURPOSE_CHOICE, PURPOSE_PHASE, dataset_key, fold, unit
from autoloader.samples.resolve import ResolvedMixture

_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class MixtureOrder:
    """What decides a mixture's order.

    Attributes:
        shares: [D] share of each dataset, summing to 1.
        phases: [D] in [0, 1).
        block_length: samples in a row from one dataset.
        pass_samples: [D] samples of a pass where an epoch is one pass of every dataset, else
            ``None``.
        epoch_samples: samples of an epoch over all ranks; ``None`` is forever.
        chain: the samples of a block share frames where their offsets allow it.
        base: the position that this order begins at; those before it were of another one.
        given: [D] samples that each dataset had given by then; empty where none.
        draw_key: of the draws where the datasets' turns are drawn (``strategy: sample``).
    """

    shares: tuple[float, ...]
    phases: tuple[float, ...]
    block_length: int
    pass_samples: tuple[int, ...] | None
    epoch_samples: int | None
    chain: bool = False
    base: int = 0
    given: tuple[int, ...] = ()
    draw_key: int | None = None

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> MixtureOrder:
        """An order from ``dataclasses.asdict`` of one that went through JSON."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in plain.items()
        }
        return cls(**fields)

    def samples_before(self, position: int) -> tuple[int, ...]:
        """[D] samples of each dataset before ``position``, where epochs are not passes."""
        assert self.pass_samples is None
        schedule, _ = _parts(self)[0]
        blocks, left = divmod(position - self.base, self.block_length)
        counts = schedule.counts_before(blocks) * self.block_length
        if left:
            counts[schedule.blocks(blocks, blocks + 1)[0]] += left
        if self.given:
            counts += np.asarray(self.given, dtype=np.int64)
        return tuple(counts.tolist())


def mixture_order(mixture: ResolvedMixture, samples: Mapping[str, int]) -> MixtureOrder:
    """Shares and epoch of a mixture (design: "Epochs").

    Args:
        mixture: the mixture.
        samples: samples of a pass, by dataset name.
    """
    spec = mixture.spec
    counts = [samples[name] for name in mixture.names]
    weights = {
        "explicit": [dataset.weight for dataset in mixture.datasets],
        "natural": [float(count) for count in counts],
        "natural_scaled": [d.weight * n for d, n in zip(mixture.datasets, counts, strict=True)],
    }[spec.weights]
    total = sum(weights)
    epoch = spec.mixing.epoch
    if epoch == "auto":
        epoch = "pass" if spec.weights == "natural" else sum(counts)
    by_pass = epoch == "pass"
    return MixtureOrder(
        shares=tuple(weight / total for weight in weights),
        phases=tuple(unit(fold(dataset.key, PURPOSE_PHASE)) for dataset in mixture.datasets),
        block_length=spec.mixing.block_length,
        pass_samples=tuple(counts) if by_pass else None,
        epoch_samples=sum(counts) if by_pass else None if epoch == "forever" else int(epoch),
        chain=spec.mixing.chain,
        draw_key=fold(dataset_key(spec.seed, ""), PURPOSE_CHOICE)
        if spec.mixing.strategy == "sample"
        else None,
    )


def _parts(order: MixtureOrder) -> list[tuple[Schedule, int]]:
    """The schedules that follow each other, each with the samples of one of its blocks.

    Without ``pass_samples`` it is one that never ends; with them an epoch is the full blocks of
    every dataset's pass, then what is left over as single samples.
    """
    make = Schedule if order.draw_key is None else partial(DrawnSchedule, key=order.draw_key)
    if order.pass_samples is None:
        return [(make(order.shares, order.phases), order.block_length)]
    full = [count // order.block_length for count in order.pass_samples]
    left = [count % order.block_length for count in order.pass_samples]
    return [
        (make(counts, order.phases, finite=counts), size)
        for counts, size in ((full, order.block_length), (left, 1))
        if sum(counts)
    ]


class BlockSequence:
    """Block j of the endless sequence: its dataset and its samples.

    With ``pass_samples`` every epoch deals each dataset's pass exactly: first the full blocks by
    schedule, then what is left over, by a schedule of single samples.
    """

    def __init__(self, order: MixtureOrder) -> None:
        self._parts = _parts(order)
        self._chunk: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._chunk_start = -1
        self._chunk_part = 0
        self.blocks_per_epoch: int | None = None
        if order.pass_samples is not None:
            self.blocks_per_epoch = sum(part.length or 0 for part, _ in self._parts)

    def block(self, j: int) -> tuple[int, int]:
        """(dataset, samples) of block ``j``."""
        if self.blocks_per_epoch is not None:
            j %= self.blocks_per_epoch
        part = 0
        while (length := self._parts[part][0].length) is not None and j >= length:
            j -= length
            part += 1
        schedule, size = self._parts[part]
        start = j - j % _CHUNK
        if (start, part) != (self._chunk_start, self._chunk_part):
            self._chunk = schedule.blocks(start, start + _CHUNK)
            self._chunk_start, self._chunk_part = start, part
        return int(self._chunk[j - start]), size


class PositionSequence:
    """Position i of the endless sequence: its dataset, and which of that dataset's samples it is.

    The same order as ``BlockSequence``, counted in samples and reached without walking. It is what
    a reader gives that never lets another dataset go first.
    """

    def __init__(self, order: MixtureOrder) -> None:
        self._parts = _parts(order)
        self._sizes = [(schedule.length or 0) * size for schedule, size in self._parts]
        self._block_length = order.block_length
        self._base = order.base
        self._given = np.asarray(order.given or (0,) * len(order.shares), dtype=np.int64)
        self._pass_samples: NDArray[np.int64] | None = None
        self._full: NDArray[np.int64] = np.zeros(len(order.shares), dtype=np.int64)
        if order.pass_samples is not None:
            self._pass_samples = np.asarray(order.pass_samples, dtype=np.int64)
            self._full = self._pass_samples - self._pass_samples % order.block_length

    def ordinals(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Dataset [n] int64 of each position in [start, stop), and its number there [n] int64.

        The n-th sample that a dataset gives, counted from the start of the run over all passes,
        has number n.
        """
        if self._pass_samples is None:
            dataset, number = self._of_part(0, start - self._base, stop - self._base)
            return dataset, number + self._given[dataset]
        pieces = []
        epoch_samples = int(self._pass_samples.sum())
        while start < stop:
            epoch, within = divmod(start, epoch_samples)
            part = 0 if within < self._sizes[0] else 1
            within -= sum(self._sizes[:part])
            count = min(stop - start, self._sizes[part] - within)
            dataset, number = self._of_part(part, within, within + count)
            number += epoch * self._pass_samples[dataset]
            if self._parts[part][1] < self._block_length:  # what the full blocks left over
                number += self._full[dataset]
            pieces.append((dataset, number))
            start += count
        if not pieces:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        datasets, numbers = zip(*pieces, strict=True)
        return np.concatenate(datasets), np.concatenate(numbers)

    def positions(self, dataset: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
        """Position [n] int64 of each dataset's sample ``number`` [n], as of ``ordinals``.

        Where the datasets' turns are drawn it is the position at which the sample is due.
        """
        if self._pass_samples is None:
            return self._base + self._in_part(0, dataset, number - self._given[dataset])
        epoch, within = np.divmod(number, self._pass_samples[dataset])
        position = epoch * int(self._pass_samples.sum())
        left_over = within >= self._full[dataset]
        before = 0
        for part, (_, size) in enumerate(self._parts):
            leaves = size < self._block_length
            at = np.flatnonzero(left_over == leaves)
            own = within[at] - self._full[dataset[at]] if leaves else within[at]
            position[at] += before + self._in_part(part, dataset[at], own)
            before += self._sizes[part]
        return position

    def _in_part(
        self, part: int, dataset: NDArray[np.int64], number: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        schedule, size = self._parts[part]
        if size == 1:
            return schedule.places(dataset, number)
        block, within = np.divmod(number, size)
        return np.asarray(schedule.places(dataset, block) * size + within)

    def _of_part(
        self, part: int, start: int, stop: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        schedule, size = self._parts[part]
        if size == 1 or stop <= start:
            return schedule.numbered(start, stop)
        first = start // size
        dataset, block = schedule.numbered(first, -(-stop // size))
        at = np.arange(start, stop, dtype=np.int64)
        which = at // size - first
        return dataset[which], block[which] * size + at % size
