"""Spreads independent parts of a job over the processors of a cluster; each is done once.

A part that is lost with its worker or node is done again elsewhere; one that fails by itself ends
the job. What was done stays done, so a job that is begun again goes on: that is the parts' own
affair (``catalogue``).

Not here: what the parts are (``catalogue``), batches of a running loader (``driver``).
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from autoloader.cluster import ray_client
from autoloader.cluster.ray_client import ClusterNode
from autoloader.errors import AutoloaderError, PipelineError

Part = TypeVar("Part")
_LOOK_S = 2.0
_MOST_LOSSES = 5
"""Of one part: whatever kills its worker each time is the part's own."""


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
        parts: its arguments.
        done: called with a part and what it gave, in this thread, as they come.

    Returns:
        How many nodes took part.

    Raises:
        AutoloaderError: what a part failed with; or there is no node, or a part is lost each time.
    """
    remote = ray.remote(max_retries=0)(call)
    left = collections.deque(parts)
    running: dict[Any, tuple[Part, ClusterNode]] = {}
    losses: collections.Counter[str] = collections.Counter()
    used: set[str] = set()
    nodes: list[ClusterNode] = []
    looked_s = float("-inf")
    while left or running:
        if time.monotonic() - looked_s >= _LOOK_S:
            nodes, looked_s = ray_client.other_nodes(ray, []), time.monotonic()
        if not nodes and not running:
            raise PipelineError(
                "no node of the cluster has a processor to give",
                remedy="start one: `ray start --address=HEAD:6379`",
            )
        busy = collections.Counter(node.name for _, node in running.values())
        for node in (one for one in nodes for _ in range(one.cpus - busy[one.name])):
            if left:
                part = left.popleft()
                reference = remote.options(**ray_client.placed_on(ray, node)).remote(part)
                running[reference] = part, node
        ready, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_S)
        for reference in ready:
            part, node = running.pop(reference)
            try:
                answer = ray.get(reference)
            except AutoloaderError as error:
                raise getattr(error, "cause", error) from error
            except Exception as error:  # whatever ended a process of another host
                losses[repr(part)] += 1
                reason = ray_client.plain_reason(error)
                if losses[repr(part)] >= _MOST_LOSSES:
                    raise PipelineError(
                        f"a part of the job is lost each time; last on {node.host}: {reason}",
                        remedy="look at what its process printed: `ray logs`",
                    ) from error
                nodes = [one for one in nodes if one.name != node.name]  # until it is looked at
                left.appendleft(part)
                continue
            used.add(node.name)
            done(part, answer)
    return len(used)
