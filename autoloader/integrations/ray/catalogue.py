"""Indexes and statistics of a large catalogue, built by the hosts of a cluster side by side.

Index files are written where all hosts see them: beside the data, or in a cache directory that is
shared. The same shard gives the same bytes on every host, and one that is there is left alone, so a
job that is begun again goes on where it stopped. Statistics come back as numbers, and are kept in
this host's cache as each arrives.

A part that is lost with its worker or node is done again elsewhere, by Ray. One that fails by
itself ends the job.

Not here: building (``index.opening``, ``index.statistics.mixture``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from autoloader.errors import AutoloaderError, PipelineError, UsageError
from autoloader.index.opening import missing_files, open_indexes
from autoloader.index.shard import index_directory
from autoloader.index.statistics import (
    keep_statistics,
    measured,
    missing_groups,
    statistics_of,
)
from autoloader.integrations.ray import ray_client
from autoloader.pipeline.builders import differences, packages
from autoloader.samples.resolve import ResolvedDataset, resolve
from autoloader.samples.statistics import NormalizationStatistics
from autoloader.spec import PipelineSpec

_PARTS_A_NODE = 32
"""Parts are so small that a node that joins late, or dies, matters little."""
_LARGEST_PART = 16

Progress = Callable[[int, int], None]
Part = TypeVar("Part")
_LOOK_S = 2.0
_MOST_LOSSES = 5
"""Of one part: whatever kills its worker each time is the part's own."""


@dataclass(frozen=True, slots=True)
class _IndexPart:
    spec: dict[str, Any]
    split: str
    paths: tuple[str, ...]
    beside: bool
    home: str
    identity: tuple[tuple[str, str], ...]
    of_statistics: bool = False


@dataclass(frozen=True, slots=True)
class _StatisticsPart:
    spec: dict[str, Any]
    split: str
    names: tuple[str, ...]
    identity: tuple[tuple[str, str], ...]


def index_over_hosts(
    address: str, spec: PipelineSpec, split: str, *, beside: bool, progress: Progress
) -> tuple[int, int]:
    """Have the missing index files of a mixture built; how many, and by how many nodes.

    Args:
        address: address of the Ray cluster.
        spec: the pipeline spec of the mixture.
        split: name of the split, such as "train".
        beside: write beside the data, not into the cache directory.
        progress: called with shard files indexed and shard files to index.

    Raises:
        AutoloaderError: a shard cannot be read, a host is not the same, or there is none.
    """
    mixture = resolve(spec, split)
    missing = missing_files(mixture.datasets, beside=beside)
    if not missing:
        return 0, 0
    whole = _IndexPart(
        spec.model_dump(mode="json"),
        split,
        tuple(missing),
        beside,
        str(index_directory()),
        tuple(packages().items()),
    )
    return len(missing), _indexed(ray_client.join(address), whole, progress)


def _indexed(ray: Any, whole: _IndexPart, progress: Progress) -> int:
    size = max(1, min(_LARGEST_PART, len(whole.paths) // _PARTS_A_NODE))
    parts = [
        replace(whole, paths=whole.paths[first : first + size])
        for first in range(0, len(whole.paths), size)
    ]
    finished = 0

    def done(part: _IndexPart, _: object) -> None:
        nonlocal finished
        finished += len(part.paths)
        progress(finished, len(whole.paths))

    return spread(ray, index_part, parts, done=done)


def index_part(part: _IndexPart) -> None:
    """Build the index files of a few shards; on a host of the cluster.

    Raises:
        AutoloaderError: as ``open_indexes``; or this host is not the same.
    """
    _check_same(part.identity)
    spec = PipelineSpec.from_mapping(part.spec)
    mixture = measured(spec, part.split) if part.of_statistics else resolve(spec, part.split)
    wanted = [one for one in (_only(each, part.paths) for each in mixture.datasets) if one.slices]
    home = Path(part.home)
    open_indexes(wanted, cache_dir=home, beside=part.beside, keep=True, threads=1)


def _only(dataset: ResolvedDataset, paths: Sequence[str]) -> ResolvedDataset:
    return replace(dataset, slices=tuple(one for one in dataset.slices if one.path in paths))


def statistics_over_hosts(
    address: str, spec: PipelineSpec, split: str, *, progress: Progress
) -> int:
    """Have the missing statistics of a mixture computed, and kept in the cache; by how many nodes.

    Raises:
        AutoloaderError: a dataset cannot be read, a host is not the same, or there is none.
    """
    groups = missing_groups(spec, split)
    if not groups:
        return 0
    ray, plain, same = ray_client.join(address), spec.model_dump(mode="json"), packages()
    missing = missing_files([one for one in measured(spec, split).datasets if not one.remote])
    identity = tuple(same.items())
    if missing:
        home = str(index_directory())
        whole = _IndexPart(plain, split, tuple(missing), False, home, identity, of_statistics=True)
        _indexed(ray, whole, lambda *_: None)
    finished = 0

    def done(_: _StatisticsPart, found: dict[str, Any]) -> None:
        nonlocal finished
        finished += 1
        known = {name: NormalizationStatistics.from_plain(one) for name, one in found.items()}
        keep_statistics(spec, split, known)
        progress(finished, len(groups))

    parts = [_StatisticsPart(plain, split, names, identity) for names in groups]
    return spread(ray, statistics_part, parts, done=done)


def statistics_part(part: _StatisticsPart) -> dict[str, Any]:
    """Statistics of datasets that share theirs; on a host of the cluster.

    Raises:
        AutoloaderError: as ``statistics_of``; or this host is not the same.
    """
    _check_same(part.identity)
    spec = PipelineSpec.from_mapping(part.spec)
    found = statistics_of(spec, part.split, read_remote=True, only=part.names)
    assert found is not None
    return {name: one.plain() for name, one in found.items()}


def _check_same(identity: Sequence[tuple[str, str]]) -> None:
    differs = differences(dict(identity), packages())
    if differs:
        raise UsageError(
            f"a host of the cluster is not the same as the one that asks: {'; '.join(differs)}",
            remedy="install the same versions on all hosts",
        )


def spread(
    ray: Any,
    call: Callable[[Part], Any],
    parts: Sequence[Part],
    *,
    done: Callable[[Part, Any], None],
) -> int:
    """Call a function for each part, on all nodes that have processors.

    Args:
        ray: joined to a cluster.
        call: importable on all hosts.
        parts: arguments of each remote call.
        done: called with a part and what it gave, in this thread, as they come.

    Returns:
        How many nodes took part.

    Raises:
        AutoloaderError: what a part failed with; or there is no node, or a part is lost each time.
    """
    nodes = _nodes(ray)
    remote = ray.remote(max_retries=_MOST_LOSSES)(_done_there)
    placed = ray_client.spread_over(nodes)
    left = {remote.options(**placed).remote(call, part): part for part in parts}
    used: set[str] = set()
    while left:
        ready, _ = ray.wait(list(left), num_returns=1, timeout=_LOOK_S)
        if not ready:
            _nodes(ray)
        for reference in ready:
            part = left.pop(reference)
            try:
                node, answer = ray.get(reference)
            except AutoloaderError as error:
                raise getattr(error, "cause", error) from error
            except Exception as error:  # whatever ended processes of other hosts
                raise PipelineError(
                    f"a part of the job is lost each time: {ray_client.plain_reason(error)}",
                    remedy="look at what its process printed: `ray logs`",
                ) from error
            used.add(node)
            done(part, answer)
    return len(used)


def _nodes(ray: Any) -> list[ray_client.ClusterNode]:
    nodes = ray_client.other_nodes(ray, [])
    if not nodes:
        raise PipelineError(
            "no node of the cluster has a processor to give",
            remedy="start one: `ray start --address=HEAD:6379`",
        )
    return nodes


def _done_there(call: Callable[[Part], Any], part: Part) -> tuple[str, Any]:
    """Result of a part, and the node that did it."""
    return ray_client.own_node(ray_client.joined()), call(part)
