"""A spec's data: files that are missing, indexes that are stale, storage that is slow.

Not here: the probe of storage (``host.probes.storage``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from autoloader.cli.host_checks.machine import Fact, Finding, Machine, Seen
from autoloader.errors import AutoloaderError
from autoloader.host.clock import Clock, SystemClock
from autoloader.host.probes.storage import (
    FRAME_BYTES,
    Rates,
    by_file_system,
    is_far,
    probe_reads,
    propose_locality,
)
from autoloader.host.units import format_bytes
from autoloader.index import find_indexes
from autoloader.index.counting import count_mixture
from autoloader.index.shard import any_index
from autoloader.index.valid import empty_texts
from autoloader.samples.resolve import ResolvedDataset, resolve
from autoloader.spec import PipelineSpec

SLOW_READ_S = 4e-3
"""A random read that takes longer is a finding: a seek of a disk, or a network."""


def readable(spec: PipelineSpec, split: str, into: list[ResolvedDataset]) -> Iterator[Seen]:
    """Each dataset that cannot be read; those that can are added to ``into``."""
    for declared in spec.datasets:
        alone = spec.model_copy(update={"datasets": (declared,), "weights": "natural"})
        try:
            mixture = resolve(alone, split)
            (dataset,) = mixture.datasets
            if not dataset.streamable:
                count_mixture(mixture, probe_only=True)
        except AutoloaderError as error:
            yield Finding(error.what, error.remedy, severity="error")
        else:
            into.append(dataset)


def mirrors(dataset: ResolvedDataset, max_corrupt_ratio: float) -> Iterator[Seen]:
    """Videos of a LeRobot dataset that its metadata names and that are not there.

    Args:
        dataset: dataset of any format.
        max_corrupt_ratio: the part of its episodes without which a run still goes on.
    """
    videos = dataset.directory.missing_videos()
    if videos is None:
        return
    stops = videos.without > max_corrupt_ratio * videos.episodes
    yield Finding(
        f"dataset {dataset.name!r}: {videos.missing} of {videos.named} videos that its metadata "
        f"names are not there, such as {videos.example}: {videos.without} of {videos.episodes} "
        "episodes cannot be "
        + (f"read, more than errors.max_corrupt_ratio={max_corrupt_ratio}" if stops else "read"),
        "fetch the rest of the dataset, or choose a split over the episodes that are whole",
        severity="error" if stops else "warning",
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
                f"dataset {dataset.name!r}: {clause}",
                "name another feature as language, or leave the text out if that is meant",
                check="data",
            )
        if found is not None:
            continue
        paths = {piece.path for piece in dataset.slices}
        unread += sum(Path(path).stat().st_size for path in paths if Path(path).exists())
        (stale if any(map(any_index, paths)) else without).append(dataset.name)
    if stale:
        yield Finding(
            f"the index of {', '.join(stale)} is of other files, other features or another "
            f"version: the next start reads {format_bytes(unread)} to build it",
            f"autoloader index --spec {spec}",
        )
    if without:
        yield Fact(
            f"{len(without)} of {len(local)} datasets have no index yet; the first start by index "
            f"reads {format_bytes(unread)} to build it",
        )
    if not stale and not without:
        yield Fact(f"{len(local)} datasets are indexed")


def storage(machine: Machine, files: Sequence[str], clock: Clock | None = None) -> Iterator[Seen]:
    """Kind and speed of each file system that holds some of ``files``."""
    for kind, here in sorted(by_file_system(files, machine.proc).items()):
        place = str(Path(here[0]).parent)
        rates = probe_reads(here, (clock or SystemClock()).now_s)
        if rates is None:
            yield Fact(f"{place} lies on {kind}; its files are too small to measure")
            continue
        shown = (
            f"{place} lies on {kind}: 20 KiB at random take {1e3 * rates.random_s:.2f} ms, "
            f"in order come {rates.in_order / 1e6:.0f} MB/s"
            + (" (the page cache may have answered)" if rates.cached else "")
        )
        if rates.random_s > SLOW_READ_S:
            yield Finding(
                f"{shown}; reading by index takes frames from random places, and waits",
                "copy the data to a local disk, or have it read by blocks "
                f"({_locality(rates)}; `autoloader plan` proposes a window), or let memory above "
                "the floor hold frames (cache_bytes), or read it in order (reader: stream)",
            )
        elif is_far(kind):
            yield Finding(
                f"{shown}; others share it, and it may be slower when they use it",
                "copy the data to a local disk where there is one",
            )
        else:
            yield Fact(shown)


def _locality(rates: Rates) -> str:
    """The block that suits; whoever has no mixture at hand sets the window by their memory."""
    found = propose_locality(
        rates,
        reads=1,
        sample_bytes=FRAME_BYTES,
        dataset_bytes=(),
        left_bytes=0,
    )
    return f"mixing: {found.text}" if found else "mixing: {locality: {}}"
