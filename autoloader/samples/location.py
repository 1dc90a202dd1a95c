"""Where a sample lies on disk, by its provenance.

Not here: who writes provenance (``samples.layout``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoloader.errors import UsageError
from autoloader.samples.resolve import ResolvedMixture


@dataclass(frozen=True, slots=True)
class SampleLocation:
    """Where a sample lies on disk.

    Attributes:
        dataset: its name.
        path: the TFRecord file.
        record: the episode's number in that file.
        t: in (strided) frames of the episode.
        step: the episode's step that t is, before the stride.
        pass_: in which pass of the dataset it came.
    """

    dataset: str
    path: str
    record: int
    t: int
    step: int
    pass_: int


def locate(mixture: ResolvedMixture, provenance: Any) -> SampleLocation:
    """The place of one row of ``batch["provenance"]``.

    Raises:
        UsageError: it is no such row, or of another mixture.
    """
    try:
        index, pass_, shard, record, t = (int(number) for number in provenance)
        dataset = dict(enumerate(mixture.datasets))[index]
        path = dict(enumerate(dataset.slices))[shard].path
    except (TypeError, ValueError, KeyError) as error:
        raise UsageError(
            f"provenance {provenance!r:.200} names no sample of this loader",
            remedy='give one row of its batch["provenance"]: dataset, pass, shard, episode, t',
        ) from error
    return SampleLocation(dataset.name, path, record, t, t * dataset.stride, pass_)
