"""A cluster of Ray's on this machine, in a process of its own: one line in, one line of JSON out.

``add`` starts a node of one processor, ``add PATH`` one that imports from there first, ``remove N``
kills node N without grace, ``head`` kills the head, ``end`` ends everything.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

STORE_BYTES = 80 * 2**20


class RayCluster:
    """The cluster, seen from a process that imports no Ray."""

    def __init__(self, *, store_bytes: int = STORE_BYTES) -> None:
        # Ray's sockets lie below it, whose paths may have 107 bytes.
        self._folder = tempfile.mkdtemp(prefix="ray-")
        environment = {
            **os.environ,
            "RAY_TMPDIR": self._folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DISABLE_IMPORT_WARNING": "1",
            # By default 15: beside busy tests its workers would take minutes to start.
            "RAY_worker_niceness": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(store_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.pid = self._process.pid
        self.address: str = self._answer()["address"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError("the cluster's process has ended")

    def tell(self, order: str) -> dict[str, Any]:
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self.tell("end")
        self._process.communicate(timeout=60)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def ray_cluster(nodes: int = 0) -> Iterator[RayCluster]:
    """A cluster whose head has no processors, with so many nodes of one."""
    cluster = RayCluster()
    try:
        for _ in range(nodes):
            cluster.tell("add")
        yield cluster
    finally:
        cluster.end()


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def patiently(begin: Callable[[], Any]) -> Any:
    """What begins on a busy machine too: Ray gives a node half a minute to start."""
    for _ in range(4):
        with contextlib.suppress(Exception):
            return begin()
    return begin()


def main(store_bytes: int) -> None:
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": store_bytes, "include_dashboard": False}
    head = {"num_cpus": 0, **common}
    cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    nodes: dict[int, Any] = {}
    imported = os.environ.get("PYTHONPATH", "")
    say({"address": cluster.address})
    for line in sys.stdin:
        order, _, rest = line.strip().partition(" ")
        if order == "add":
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [rest, imported]))
            nodes[len(nodes)] = patiently(lambda: cluster.add_node(num_cpus=1, **common))
        elif order == "remove":
            cluster.remove_node(nodes[int(rest)], allow_graceful=False)
        elif order == "head":
            cluster.remove_node(cluster.head_node, allow_graceful=False)
        elif order == "end":
            break
        say({"nodes": len(nodes)})
    cluster.shutdown()
    say({"ended": True})


if __name__ == "__main__":
    main(int(sys.argv[1]))
