"""tf.data AUTOTUNE in the driver's place: the same cgroup, script and pace, ``ram_budget`` set.

``python -m bench.control.rival JOB``, a driver's job. Its settings leave to AUTOTUNE what can be
left to it. It has no floor to keep: what it does with its budget is what is shown.

Not here: the graph (``bench.peers.plain_tfdata``).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from bench.control.group import join
from bench.control.trainer import Orders

SETTINGS = {
    "cycle_length": 4,
    "interleave_calls": -1,
    "parse_calls": -1,
    "stream_prefetch": -1,
    "decode_calls": -1,
    "batch_calls": -1,
    "prefetch": -1,
    "autotune": 1,
}


def main() -> None:
    job = json.loads(sys.argv[1])
    join(job["group"])
    from bench.peers import open_contender

    with os.fdopen(os.dup(1), "w", buffering=1) as told:
        os.dup2(2, 1)
        orders = Orders(job["pace_s"])
        settings = {**SETTINGS, "ram_budget_bytes": job["budget_bytes"]}
        times = []
        for batch in open_contender("plain_tfdata", Path(job["spec"]), settings):
            times.append((time.monotonic(), len(batch["dataset_index"])))
            if len(times) == 1:
                told.write(json.dumps({"first": times[0][0]}) + "\n")
            orders.compute(times[-1][0])
            if orders.stopped.is_set():
                break
    Path(job["out"]).write_text(json.dumps({"times": times}))
    os._exit(0)


if __name__ == "__main__":
    main()
