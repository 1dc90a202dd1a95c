"""Open parts of a mixture, shared by all pipelines over it: indexes, plan, cached frames, blocks.

A loader that goes elsewhere (a resume, a validation that begins anew) gets a new pipeline over the
same mixture. Traced graphs and open indexes depend on neither place nor knobs, and take most of a
pipeline's start. So the next pipeline takes them over (``CompiledMixture``), and cached frames too:
a second validation finds those of the first.

The ranks of a node have a pipeline each in one child, over the same files in the same order. Before
a pipeline reads, an index's columns and a plan's running counts take most of its memory, and
neither is ever written to. So the ranks share them, and they are closed with the last pipeline.

Not here: the indexes (``index``), the plan (``sampling.plan``), reading
(``pipeline.read.planned``).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from autoloader.cache.table import FrameTable
from autoloader.decode.decoders import DecodeRequest, requests_of
from autoloader.host.threads import free_in_forks
from autoloader.index.dataset import DatasetIndex
from autoloader.index.opening import open_indexes, versions_of
from autoloader.index.planned import RunPlanner
from autoloader.index.valid import tables_of
from autoloader.pipeline.read.blocks import Blocks
from autoloader.pipeline.read.frame_reads import NowRead
from autoloader.samples.block import EpisodeStream
from autoloader.samples.resolve import ResolvedMixture, check_content
from autoloader.sampling.mixture import MixtureOrder
from autoloader.sampling.plan import NextUse, SamplePlan


class OpenMixture:
    """One mixture's indexes and plan; for any number of threads, which only read.

    All pipelines over the mixture share this object. With the last of them it goes, and the next
    pipeline reads the files again.

    Args:
        mixture: the resolved mixture.
        order: the order of its samples.

    Attributes:
        first: path → status of each local shard file before its index was opened.
        indexes: index of every dataset.
        plan: plan of the samples over these indexes.
        next_use: the plan read backwards: the position at which a frame is needed again.
        frames: frame cache of all pipelines, with a budget of 0 at first.
        frames_bytes: bytes of all decoded frames; a cache of so many evicts none.
        blocks: blocks that runs are read from; ``None``: the order has no locality.

    Raises:
        SourceError: an index cannot be opened or built.
    """

    def __init__(self, mixture: ResolvedMixture, order: MixtureOrder) -> None:
        self.first: dict[str, os.stat_result] = {}
        for path in {one.path for dataset in mixture.datasets for one in dataset.slices}:
            with contextlib.suppress(OSError):  # remote, or gone: its index says so
                self.first[path] = os.stat(path)  # noqa: PTH116
        self.indexes = open_indexes(mixture.datasets)
        for index in self.indexes:
            check_content(mixture, index.dataset.name, index.digest())
        tables = tables_of(mixture, order, self.indexes)
        self.plan = SamplePlan(order, tables, chain=order.chain)
        self.next_use = NextUse(self.plan, tables)
        sizes = mixture.layout.frame_bytes
        made = _made(mixture, self.indexes)
        self.frames = FrameTable(sizes, len(mixture.datasets), made=made)
        self.frames_bytes = sum(
            int(index.steps.sum(dtype=np.int64)) * len(choices) * sizes[camera]
            for dataset, index in zip(mixture.datasets, self.indexes, strict=True)
            for camera, choices in dataset.cameras.items()
        )
        self.blocks: Blocks | None = None
        if order.locality is not None:
            self.blocks = Blocks(mixture, order, self.plan, self.planner(mixture))
            self.blocks.now = NowRead(self.first)

    def planner(self, mixture: ResolvedMixture) -> RunPlanner:
        """A planner of reads over the indexes."""
        return RunPlanner(mixture.datasets, mixture.layout, self.indexes, self.plan.chained)


_open_mixtures: weakref.WeakValueDictionary[str, OpenMixture] = weakref.WeakValueDictionary()
_opening: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
"""Of each mixture that is being opened, held by the thread that opens it."""
_lock = free_in_forks(threading.Lock(), _open_mixtures.clear, _opening.clear)


def _made(mixture: ResolvedMixture, indexes: Sequence[DatasetIndex]) -> dict[str, list[int]]:
    """Camera → [D] numbers of how each dataset's frames are decoded; see ``FrameTable``.

    Equal numbers have equal requests to the decoder and, where an index names frames by its own
    rows, equal rows.
    """
    requests, found = requests_of(mixture), {}
    for camera in mixture.layout.cameras:
        numbers: dict[tuple[DecodeRequest, bytes], int] = {}
        keys = [
            (of[camera], index.rows_of(camera)) for of, index in zip(requests, indexes, strict=True)
        ]
        found[camera] = [numbers.setdefault(key, len(numbers)) for key in keys]
    return found


@dataclass(slots=True)
class CompiledMixture:
    """Parts of pipelines over one mixture; for any number of threads.

    Attributes:
        readers: the stream reader of each dataset, by name.
        open_mixture: the indexes and the plan over them.
    """

    readers: dict[str, EpisodeStream] = field(default_factory=dict)
    open_mixture: OpenMixture | None = None

    def open(self, mixture: ResolvedMixture, order: MixtureOrder) -> OpenMixture:
        """The indexes and the plan of a mixture, built where they are missing.

        Raises:
            SourceError: an index cannot be opened or built.
        """
        files = [versions_of(one) for one in mixture.datasets]
        key = json.dumps([mixture.plain(), asdict(order), files], sort_keys=True)
        with _lock:
            mine = _opening.setdefault(key, threading.Lock())
        with mine:
            opened = _open_mixtures.get(key) or OpenMixture(mixture, order)
            _open_mixtures[key] = opened
        if self.open_mixture is not opened:
            self.let_go()
        self.open_mixture = opened
        return opened

    def let_go(self) -> None:
        """Give back the cached frames: no pipeline of this loader follows for now."""
        if self.open_mixture is not None:
            self.open_mixture.frames.give_up()
