"""Indexes and statistics of a large catalogue, built by the hosts of a cluster side by side.

Index files are written where all hosts see them: beside the data, or in a cache directory that is
shared. The same shard gives the same bytes on every host, and a present index is left alone. So a
repeated job continues where it stopped. Statistics come back as numbers, and are kept in
this host's cache as each arrives.

A part that is lost with its worker or node is done again elsewhere, by Ray. One that fails by
itself ends the job.

Not here: building (``index.opening``, ``index.statistics``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

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
from autoloader.samples.resolve import resolve
from autoloader.samples.statistics import NormalizationStatistics
from autoloader.spec import PipelineSpec

_PARTS_A_NODE = 32
"""Parts are so small that a node that joins late, or dies, matters little."""
_LARGEST_PART = 16
_LOOK_S = 2.0
_MOST_LOSSES = 5
"""Of one part: whatever kills its worker each time is the part's own."""

Progress = Callable[[int, int], None]
Part = tuple[str, ...]
"""Paths of shard files, or names of datasets."""


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
    missing = missing_files(resolve(spec, split).datasets, beside=beside)
    if not missing:
        return 0, 0
    ray = ray_client.join(address)
    return len(missing), _indexed(ray, spec, split, missing, progress, beside=beside)


def _indexed(
    ray: Any,
    spec: PipelineSpec,
    split: str,
    missing: Sequence[str],
    progress: Progress,
    *,
    beside: bool = False,
    of_statistics: bool = False,
) -> int:
    """Have other hosts build indexes of these shards; the number that was built."""
    size = max(1, min(_LARGEST_PART, len(missing) // _PARTS_A_NODE))
    parts = [tuple(missing[first : first + size]) for first in range(0, len(missing), size)]
    finished = 0

    def done(part: Part, _: object) -> None:
        nonlocal finished
        finished += len(part)
        progress(finished, len(missing))

    plain, home = spec.model_dump(mode="json"), str(index_directory())
    call = partial(index_part, plain, split, home, beside=beside, of_statistics=of_statistics)
    return spread(ray, call, parts, done=done)


def index_part(
    plain: Mapping[str, Any],
    split: str,
    home: str,
    paths: Part,
    *,
    beside: bool,
    of_statistics: bool,
) -> None:
    """Build the index files of a few shards; on a host of the cluster.

    Raises:
        AutoloaderError: a shard cannot be read, as for ``open_indexes``.
    """
    spec = PipelineSpec.from_mapping(plain)
    mixture = measured(spec, split) if of_statistics else resolve(spec, split)
    wanted = [
        replace(one, slices=slices)
        for one in mixture.datasets
        if (slices := tuple(piece for piece in one.slices if piece.path in paths))
    ]
    open_indexes(wanted, cache_dir=Path(home), beside=beside, keep=True, threads=1)


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
    ray = ray_client.join(address)
    missing = missing_files([one for one in measured(spec, split).datasets if not one.remote])
    if missing:
        _indexed(ray, spec, split, missing, lambda *_: None, of_statistics=True)
    finished = 0

    def done(_: Part, found: dict[str, Any]) -> None:
        nonlocal finished
        finished += 1
        known = {name: NormalizationStatistics.from_plain(one) for name, one in found.items()}
        keep_statistics(spec, split, known)
        progress(finished, len(groups))

    call = partial(statistics_part, spec.model_dump(mode="json"), split)
    return spread(ray, call, groups, done=done)


def statistics_part(plain: Mapping[str, Any], split: str, names: Part) -> dict[str, Any]:
    """Statistics of datasets that share theirs; on a host of the cluster.

    Raises:
        AutoloaderError: a dataset cannot be read, as for ``statistics_of``.
    """
    found = statistics_of(PipelineSpec.from_mapping(plain), split, read_remote=True, only=names)
    assert found is not None
    return {name: one.plain() for name, one in found.items()}


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
        AutoloaderError: what a part failed with; or a host is not the same, there is no node, or a
            part is lost each time.
    """
    placed = ray_client.placed(ray, _nodes(ray)[0])
    remote = ray.remote(max_retries=_MOST_LOSSES)(_done_there).options(**placed)
    left = {remote.remote(call, part, packages()): part for part in parts}
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
    """Other nodes of the cluster; ``PipelineError`` where none has a processor to give."""
    nodes = ray_client.other_nodes(ray, [])
    if not nodes:
        raise PipelineError(
            "no node of the cluster has a processor to give",
            remedy="start one: `ray start --address=HEAD:6379`",
        )
    return nodes


def _done_there(
    call: Callable[[Part], Any], part: Part, identity: Mapping[str, str]
) -> tuple[str, Any]:
    """The node that did a part, and what it gave; the code must be the same there."""
    import ray

    if differs := differences(identity, packages()):
        raise UsageError(
            f"a host of the cluster is not the same as the one that asks: {'; '.join(differs)}",
            remedy="install the same versions on all hosts",
        )
    return ray_client.own_node(ray), call(part)
