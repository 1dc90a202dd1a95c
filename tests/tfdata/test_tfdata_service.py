"""The tf.data front door over tf.data service: a dispatcher and two workers on this machine."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rlds_files import write_pair
from streams import spec_of

from autoloader.pipeline.graph.tensorflow import tf
from autoloader.spec import PipelineSpec
from autoloader.tfdata import as_dataset

service = tf.data.experimental.service
HINT = tf.data.experimental.SHARD_HINT
SAMPLES = 33


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> PipelineSpec:
    """Two datasets of 21 and 12 samples, in three files and in two."""
    pair = write_pair(tmp_path_factory.mktemp("pair"), a=[[3, 5, 1], [4, 2], [6]], b=[[7], [5]])
    return spec_of(*pair, weights="natural", batch={"size": 4, "drop_last": False})


SERVES = """
import socket
import sys
from tensorflow.data.experimental import service

sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
ports = [one.getsockname()[1] for one in sockets]
for one in sockets:
    one.close()
addresses = [f"localhost:{port}" for port in ports]
server = service.DispatchServer(service.DispatcherConfig(worker_addresses=addresses))
workers = [
    service.WorkerServer(
        service.WorkerConfig(
            dispatcher_address=server.target.partition("://")[2], worker_address=address, port=port
        )
    )
    for address, port in zip(addresses, ports, strict=True)
]
print(server.target, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def dispatcher(warm_python: Path) -> Iterator[str]:
    """The address of a dispatcher that knows its two workers; all have ports of this machine.

    They are a process of their own, which is killed: an orderly end may take more than a minute.
    """
    with subprocess.Popen(
        [warm_python, "-c", SERVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as served:
        yield served.stdout.readline().strip()
        served.kill()


def distributed(dataset: Any, dispatcher: str, mode: Any) -> list[dict[str, Any]]:
    over = dataset.apply(service.distribute(processing_mode=mode, service=dispatcher))
    return list(over.as_numpy_iterator())


def places(elements: list[dict[str, Any]]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(one["provenance"].tolist()) for one in elements)


@pytest.mark.parametrize("strategy", ["python", "sample"])
def test_dynamic_sharding_gives_each_sample_of_the_passes_once(
    spec: PipelineSpec, dispatcher: str, strategy: str
):
    mixing = spec.mixing.model_copy(update={"strategy": strategy})
    dataset = as_dataset(spec.model_copy(update={"mixing": mixing}), passes=2)
    found = places(distributed(dataset, dispatcher, service.ShardingPolicy.DYNAMIC))
    assert found == places(list(dataset.as_numpy_iterator()))
    assert len(found) == 2 * SAMPLES


def test_batches_made_by_the_workers_hold_each_sample_once(spec: PipelineSpec, dispatcher: str):
    dataset = as_dataset(spec, passes=1, batched=True)
    batches = distributed(dataset, dispatcher, service.ShardingPolicy.DYNAMIC)
    rows = Counter(tuple(row) for one in batches for row in one["provenance"].tolist())
    assert len(rows) == sum(rows.values()) == SAMPLES


def test_a_hint_deals_the_files_to_the_workers_that_the_dispatcher_knows(
    spec: PipelineSpec, dispatcher: str
):
    dataset = as_dataset(spec, passes=2, shard=(HINT, HINT))
    found = places(distributed(dataset, dispatcher, service.ShardingPolicy.HINT))
    assert found == places(list(as_dataset(spec, passes=2).as_numpy_iterator()))
