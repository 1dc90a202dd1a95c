"""Run in a memory cgroup of its own: reads pictures that take most of its memory to decode.

``python large_pictures.py GROUP SPEC BATCHES``; prints one JSON document.
"""

import itertools
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from streams import endless

from autoloader import AutoLoader
from autoloader.host.headroom import oom_kills


def main(group: str, mix: str, batches: str) -> None:
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    knobs = {"decode_threads": 4, "cache_bytes": 0, "ring_slots": 4}
    with AutoLoader(mix, ram_floor="64MiB", output="numpy", knobs=knobs, profile="local_dev") as it:
        shown = [
            [batch["provenance"].tolist(), batch["images"]["primary"][:, 0, 0, 0, 0].tolist()]
            for batch in itertools.islice(endless(it), int(batches))
        ]
        told = {
            "shown": shown,
            "restarts": it.statistics().restarts,
            "quarantined": len(it.quarantined()),
        }
    sys.stdout.write(json.dumps({**told, "kills": oom_kills(group)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
