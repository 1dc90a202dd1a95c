"""How many samples a block of each dataset has, from the bytes that the spec asks for.

Not here: the order over blocks (``scatter``), reading them (``read``).
"""

from __future__ import annotations

from collections.abc import Mapping

from autoloader.order.local.scatter import Locality
from autoloader.samples.resolve.mixture import ResolvedMixture


def locality_of(mixture: ResolvedMixture, samples: Mapping[str, int]) -> Locality | None:
    """The locality of a mixture's order; ``None`` where its spec asks for none.

    Args:
        mixture: the mixture; its files are asked for their sizes.
        samples: of a pass, by dataset name.
    """
    asked = mixture.spec.mixing.locality
    if asked is None:
        return None
    blocks = []
    for dataset in mixture.datasets:
        # A pass's samples lie evenly in the bytes of its records, near enough.
        own = dataset.record_bytes * dataset.records / max(1, samples[dataset.name])
        blocks.append(max(1, int(asked.block / max(1.0, own))))
    return Locality(tuple(blocks), asked.window, asked.lanes, mixture.spec.batch.size)
