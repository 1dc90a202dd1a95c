"""A cluster of Ray's: joined, never started; its nodes, and what goes wrong in plain words.

Not here: which cluster (``process.arguments``), what runs on its nodes (``driver``).
"""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

from autoloader.errors import PipelineError
from autoloader.host.extras import needs
from autoloader.host.frozen import frozen

RESOURCE = "autoloader"
"""Where nodes declare this resource of Ray's, they alone help, each with as much as it declares."""
_ANSWER_S = 5.0
_REACHED_REMEDY = (
    "check whether the cluster runs (`ray status`) and this host belongs to it: "
    "`ray start --address=HEAD:6379 --num-cpus=0`"
)


@frozen
class ClusterNode:
    """A node that lives.

    Attributes:
        name: Ray's id of it.
        host: address of the node, for people.
        cpus: processors that Ray may use there; of these, as many as ``RESOURCE`` says.
        declared: True if the node declares ``RESOURCE``.
    """

    name: str
    host: str
    cpus: int
    declared: bool = False


def join(address: str) -> Any:
    """Connect this process to a cluster; the module ``ray``.

    Where something listens there and says nothing, Ray waits without end.

    Raises:
        MissingExtraError: Ray is not installed.
        PipelineError: there is no such cluster, or it has another version of Ray or Python.
    """
    address = _answering(address)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with needs("decoding on other hosts"):
        import ray
    here = Path.cwd()
    os.chdir("/")  # Ray puts the working directory on the import path of its workers
    try:
        ray.init(
            address=address,
            namespace="autoloader",
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # Ray lets out its own errors, gRPC's and bare ones
        text = " ".join(str(error).split())
        remedy = _REACHED_REMEDY
        if "ersion mismatch" in text:
            remedy = "use the same versions of Ray and Python on all hosts"
        raise PipelineError(f"helpers at {address}: {text}", remedy=remedy) from error
    finally:
        os.chdir(here)
    return ray


def _answering(address: str) -> str:
    """The same with the number for the name: Ray may not find a name that this host knows.

    Says at once that nobody listens: Ray tries for a minute.

    Raises:
        PipelineError: no cluster answers at the address.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        return address
    try:
        with socket.create_connection((host, int(port)), _ANSWER_S) as answered:
            number = answered.getpeername()[0]
    except OSError as error:
        raise PipelineError(
            f"helpers: no Ray cluster answers at {address}: {error}", remedy=_REACHED_REMEDY
        ) from error
    outside = answered.family is socket.AF_INET and not number.startswith("127.")
    return f"{number}:{port}" if outside else address


def other_nodes(ray: Any, own: str) -> list[ClusterNode]:
    """Living nodes with processors to give, without this process's ``own``.

    Where any node declares ``RESOURCE``, only those that do.
    Asks the head, and may wait for it.
    """
    living = [one for one in ray.nodes() if one["Alive"]]
    declared = any(RESOURCE in one["Resources"] for one in living)
    found = []
    for one in living:
        resources = one["Resources"]
        cpus = int(resources.get("CPU", 0))
        if declared:
            cpus = min(cpus, int(resources.get(RESOURCE, 0)))
        if cpus >= 1 and one["NodeID"] != own:
            found.append(ClusterNode(one["NodeID"], one["NodeManagerAddress"], cpus, declared))
    return found


def own_node(ray: Any) -> str:
    """The node that this process is on."""
    return str(ray.get_runtime_context().get_node_id())


def placed(ray: Any, node: ClusterNode) -> dict[str, Any]:
    """Options of what runs on a node: one processor, no GPU, one of ``RESOURCE`` if declared."""
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    return {
        "num_cpus": 1,
        "num_gpus": 0,
        "resources": {RESOURCE: 1} if node.declared else {},
        "scheduling_strategy": affinity(node_id=node.name, soft=False),
    }


def plain_reason(error: BaseException) -> str:
    """An error of Ray's in a sentence, without its traceback."""
    text = str(getattr(error, "cause", None) or error).strip() or type(error).__name__
    if "Traceback" in text:
        return " ".join(text.splitlines()[-1].split())
    for mark in ("class_name:", "rpc_code:", "The task may", "\n"):
        text = text.partition(mark)[0]
    return " ".join(text.split())
