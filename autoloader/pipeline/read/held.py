"""Asks the frame cache about the frames of a planned run, and leaves out reading what it holds.

A frame is known by where its encoded bytes end, so that datasets, passes and cameras' draws that
show the same bytes, and make the same of them, share it. (Frames of a video may begin at the same
keyframe.)

Not here: what is held (``cache.table``), reading the rest (``pipeline.read.planned``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoloader.cache.slab import BLACK, FILE_BITS, CameraFrames, FrameCache
from autoloader.decode.batch_builder import Spans
from autoloader.index.planned import PlannedReads
from autoloader.samples.block import SampleBlock
from autoloader.sampling.dealing import NodePart
from autoloader.sampling.plan import NextUse, PlannedSamples
from autoloader.sampling.schedule import NEVER


class HeldFrames:
    """What one reader of planned runs asks the frame cache.

    Args:
        cache: who decides.
        next_use: tells when a frame is shown next.
        chained: [D] of which datasets the samples of a block use a frame together.
        block_length: samples of a block.
        node: whose uses count; ``None``: there is one node.
    """

    def __init__(
        self,
        cache: FrameCache,
        next_use: NextUse,
        chained: Sequence[bool],
        block_length: int,
        node: NodePart | None = None,
    ) -> None:
        self._node = node
        self._cache = cache
        self._next_use = next_use
        self._chained = np.asarray(chained, np.bool_)
        self._block_length = block_length
        self._rebuilds = 0

    def lease(
        self,
        spans: Spans,
        planned: PlannedSamples,
        block: SampleBlock,
        reads: PlannedReads,
        *,
        rebuilds: int,
    ) -> None:
        """Give a block its lease, if it has use for one; held frames are taken out of ``reads``.

        Args:
            spans: positions of its samples.
            planned: the samples.
            block: without frames yet.
            reads: what there is to read for it.
            rebuilds: indexes that were built anew so far; after one more, cached frames may be of
                other places.
        """
        if rebuilds != self._rebuilds:
            self._rebuilds = rebuilds
            self._cache.forget()
        if not self._cache.budget_bytes or not reads.ranges:
            return
        position = np.concatenate([np.arange(start, stop) for start, stop in spans])
        dataset_of = planned.dataset.astype(np.int64)
        shown = self._next_use.after(planned, reads.steps, reads.shown, position, self._node)
        at = block.frame_row.ravel()
        frames = 1 + int(at.max())
        seen = ~block.frame_zeroed.ravel()
        next_use = np.full(frames, -1, np.int64)
        np.maximum.at(next_use, at[seen], shown.ravel()[seen])
        dataset = np.empty(frames, np.int64)
        dataset[at] = np.repeat(dataset_of, block.frame_row.shape[1])
        # The samples of a chained block use a frame together; a sample uses one once.
        together = np.where(self._chained[dataset_of], position // self._block_length, position)
        use = np.repeat(together - together.min(), block.frame_row.shape[1])
        every = int(use.max()) + 1
        pairs = np.sort(at[seen] * every + use[seen])  # np.unique hashes, which takes longer
        uses = np.bincount(pairs[np.diff(pairs, prepend=-1) > 0] // every, minlength=frames)
        asked = {}
        for camera, ranges in reads.ranges.items():
            key = (ranges.file.astype(np.int64) << FILE_BITS) + ranges.key
            wanted = (ranges.file >= 0) & (next_use >= 0) & (ranges.key >> FILE_BITS == 0)
            asked[camera] = CameraFrames(
                np.where(wanted, key, -1), np.where(wanted, next_use, NEVER), dataset, uses
            )
        lease = self._cache.ask(reads.files, asked, int(position[0]), len(block))
        if not any((slots >= 0).any() for slots in lease.slots.values()):
            lease.give_up()  # nothing is held, and nothing will be: rows are not asked one by one
            return
        block.lease = lease
        for camera, ranges in reads.ranges.items():
            lease.slots[camera][ranges.file < 0] = BLACK  # such a dataset has no such camera
            ranges.file[lease.cached[camera]] = -1
