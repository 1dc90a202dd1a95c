"""What a person should know of the order before a loader starts: chains, blocks, lanes.

Not here: the order (``order``), everything else that is decided (``planning.start``).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from autoloader.order.chains import why_unchained
from autoloader.order.mixture import MixtureOrder
from autoloader.samples.counts import DatasetCount
from autoloader.samples.resolve.mixture import ResolvedMixture

CHAIN_BLOCK = 4
"""Samples of a chain that is reckoned with: longer ones share hardly more."""


def chain_notes(mixture: ResolvedMixture, reader: str, why: str) -> list[str]:
    """What ``mixing.chain`` cannot do, for people; ``plan`` names the datasets one by one."""
    if not mixture.spec.mixing.chain:
        return []
    if reader == "stream":
        return [f"mixing.chain has no effect: the stream reader reads whole episodes ({why})"]
    reasons = {
        why_unchained(dataset.sample, keeps=dataset.keep is not None)
        for dataset in mixture.datasets
    }
    if None in reasons:
        return []
    return [f"mixing.chain has no effect: {'; '.join(sorted(map(str, reasons)))}"]


def chain_saves(mixture: ResolvedMixture) -> float:
    """The share of decodes that chained blocks of ``CHAIN_BLOCK`` would save, 0 to 1.

    An estimate, the mean over datasets; 0 where the spec chains already, or cannot.
    """
    spec = mixture.spec
    lanes = 1 if spec.mixing.locality is None else spec.mixing.locality.lanes
    if spec.mixing.chain or spec.reader == "stream" or lanes > 1:
        return 0.0
    saved = []
    for one in mixture.datasets:
        shared = why_unchained(one.sample, keeps=one.keep is not None) is None
        frames = len(set(one.sample.frame_offsets))
        saved.append(1 - (CHAIN_BLOCK + frames - 1) / (CHAIN_BLOCK * frames) if shared else 0.0)
    return statistics.fmean(saved)


def locality_notes(
    mixture: ResolvedMixture,
    counts: Mapping[str, DatasetCount],
    order: MixtureOrder,
    *,
    reader: str,
    why: str,
    world_size: int,
) -> list[str]:
    """What ``mixing.locality`` cannot do, for people."""
    near = order.locality
    if near is None:
        return []
    if reader == "stream":
        return [f"mixing.locality has no effect: the stream reader reads whole files ({why})"]
    found = []
    if near.lanes > 1 and near.lanes % world_size:
        found.append(
            f"mixing.locality.lanes: {near.lanes} is no multiple of {world_size} ranks: batches "
            "are exact, but ranks read blocks of each other's lanes"
        )
    if near.lanes > 1:
        small = [
            name
            for name, block in zip(mixture.names, near.blocks, strict=True)
            if counts[name].samples < block * near.lanes
        ]
        if small:
            found.append(
                f"mixing.locality.lanes: {near.lanes} are more than the blocks of "
                f"{', '.join(small[:5])}{' and others' * (len(small) > 5)}: each lane reads a part "
                "of a block"
            )
    return found
