"""A spec's datasets: files that are missing, and indexes that are stale.

Not here: how the storage under them answers (``storage``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autoloader.cli.host_checks.findings import Fact, Finding, Seen
from autoloader.errors import AutoloaderError
from autoloader.host.units import format_bytes
from autoloader.index import find_indexes
from autoloader.index.counting import count_mixture
from autoloader.index.index_paths import any_index
from autoloader.index.valid import empty_texts
from autoloader.samples.resolve import ResolvedDataset, resolve
from autoloader.spec import PipelineSpec


def readable(spec: PipelineSpec, split: str) -> Iterator[Finding | ResolvedDataset]:
    """Each dataset that can be read, and for each other one why it cannot."""
    for declared in spec.datasets:
        alone = spec.model_copy(update={"datasets": (declared,), "weights": "natural"})
        try:
            mixture = resolve(alone, split)
            (dataset,) = mixture.datasets
            if not dataset.streamable:
                count_mixture(mixture, probe_only=True)
        except AutoloaderError as error:
            yield Finding("data", "error", error.what, error.remedy)
        else:
            yield dataset


def mirrors(dataset: ResolvedDataset, max_corrupt_ratio: float) -> Iterator[Seen]:
    """Videos of a LeRobot dataset that its metadata names and that are not there.

    Args:
        dataset: of any format.
        max_corrupt_ratio: the part of its episodes without which a run still goes on.
    """
    videos = dataset.directory.missing_videos()
    if videos is None:
        return
    stops = videos.without > max_corrupt_ratio * videos.episodes
    yield Finding(
        "data",
        "error" if stops else "warning",
        f"dataset {dataset.name!r}: {videos.missing} of {videos.named} videos that its metadata "
        f"names are not there, such as {videos.example}: {videos.without} of {videos.episodes} "
        "episodes cannot be "
        + (f"read, more than errors.max_corrupt_ratio={max_corrupt_ratio}" if stops else "read"),
        "fetch the rest of the dataset, or choose a split over the episodes that are whole",
    )


def indexes(datasets: list[ResolvedDataset], spec: Path) -> Iterator[Seen]:
    """Indexes of local datasets: missing, stale, and what they say of blank texts."""
    local = [dataset for dataset in datasets if not dataset.remote]
    without: list[str] = []
    stale: list[str] = []
    unread = 0
    for dataset, found in zip(local, find_indexes(local), strict=True):
        for clause in empty_texts(dataset, found):
            yield Finding(
                "data",
                "warning",
                f"dataset {dataset.name!r}: {clause}",
                "name another feature as language, or leave the text out if that is meant",
            )
        if found is not None:
            continue
        paths = {piece.path for piece in dataset.slices}
        unread += sum(Path(path).stat().st_size for path in paths if Path(path).exists())
        (stale if any(map(any_index, paths)) else without).append(dataset.name)
    if stale:
        yield Finding(
            "index",
            "warning",
            f"the index of {', '.join(stale)} is of other files, other features or another "
            f"version: the next start reads {format_bytes(unread)} to build it",
            f"autoloader index --spec {spec}",
        )
    if without:
        yield Fact(
            "index",
            f"{len(without)} of {len(local)} datasets have no index yet; the first start by index "
            f"reads {format_bytes(unread)} to build it",
        )
    if not stale and not without:
        yield Fact("index", f"{len(local)} datasets are indexed")
