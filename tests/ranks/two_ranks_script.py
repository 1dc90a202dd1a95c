"""One of two ranks; run as a script with torchrun's environment, a spec's path and a file for gloo.

Prints one JSON document: what it saw in each act. The acts, told by their names:

together    an epoch, with an all-reduce after every step, as training has it
lopsided    one rank reads more steps than its ring holds while the other one waits in a collective
killed      the child is killed while one rank waits in a collective; the other one reads on
alone       rank 1 is killed; rank 0 reads on, then ends
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
import torch.distributed as dist

from autoloader import AutoLoader
from autoloader.host.processes import tree_own_bytes

KNOBS = {"ring_slots": 4, "decode_threads": 1, "io_threads": 1, "read_ahead": 2}


def endless(loader: AutoLoader) -> Iterator[dict[str, Any]]:
    while True:
        yield from loader


def main(mix: str, meeting: str) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    for name in ("RANK", "WORLD_SIZE"):  # the process group says as much
        del os.environ[name]
    told: dict[str, Any] = {"rank": rank}
    with AutoLoader(mix, ram_floor="64MiB", knobs=KNOBS) as loader:

        def steps(count: int) -> list[list[list[int]]]:
            return [next(batches)["provenance"].tolist() for _ in range(count)]

        told["length"] = len(loader)
        told["rank_and_world"] = [loader.rank, loader.world_size]
        told["together"] = []
        for batch in loader:
            told["together"].append(batch["provenance"].tolist())
            one = torch.ones(1)
            dist.all_reduce(one)
            assert one.item() == 2
        with TemporaryDirectory() as nowhere:  # where no other rank's figures lie, as on two nodes
            before = os.environ.get("AUTOLOADER_RUNTIME_DIR")
            os.environ["AUTOLOADER_RUNTIME_DIR"] = nowhere
            told["alone_metrics"] = loader.metrics()
            told["metrics"] = loader.metrics(all_ranks=True)
            del os.environ["AUTOLOADER_RUNTIME_DIR"]
            if before is not None:
                os.environ["AUTOLOADER_RUNTIME_DIR"] = before
        told["pids"] = list(loader.statistics().worker_pids)
        told["memory"] = tree_own_bytes(told["pids"][0])
        batches = endless(loader)

        told["lopsided"] = []
        for turn in (0, 1):
            if rank == turn:
                told["lopsided"] = steps(2 * KNOBS["ring_slots"])
            dist.barrier()

        if rank == 1:
            os.kill(told["pids"][0], signal.SIGKILL)
            told["killed"] = steps(5)
            dist.barrier()
        else:
            dist.barrier()
            told["killed"] = steps(5)
        statistics = loader.statistics()
        told["pids_after"] = list(statistics.worker_pids)
        told["restarts"] = statistics.restarts
        told["started_here"] = psutil.Process(statistics.worker_pids[0]).ppid() == os.getpid()
        told["state"] = loader.state_dict()

        dist.barrier()
        if rank == 1:
            sys.stdout.write(json.dumps(told))
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        told["alone"] = steps(2 * KNOBS["ring_slots"])
        told["pids_alone"] = list(loader.statistics().worker_pids)
        told["restarts_alone"] = loader.statistics().restarts
    sys.stdout.write(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)  # gloo would wait for the rank that is gone


if __name__ == "__main__":
    main(*sys.argv[1:])
