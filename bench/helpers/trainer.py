"""A trainer that only takes batches: how many, how long the longest took, checksums if wanted.

    python -m bench.helpers.trainer '{"spec": …, "seconds": 10, "helpers": "ray@…", "knobs": {…}}'

One line of JSON a second and one at the end, on stdout.

Not here: who starts it, and where (``bench.helpers.__main__``).
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from typing import Any

import numpy as np

from autoloader import AutoLoader, PipelineSpec


def main(wanted: dict[str, Any]) -> None:
    """Take batches for so many seconds, or so many."""
    spec = PipelineSpec.from_mapping(wanted["spec"])
    with AutoLoader(
        spec,
        output="numpy",
        ram_floor="200MB",
        controller=wanted.get("controller", False),
        helpers=wanted.get("helpers"),
        knobs={"reader": "indexed", **wanted.get("knobs", {})},
    ) as loader:
        _await(loader, wanted.get("present", 0))
        before = loader._pipeline.activity().helpers.batches  # noqa: SLF001 a witness looks inside
        begun = said = time.monotonic()
        batches, longest, sums = 0, 0.0, []
        stream = (batch for _ in iter(int, 1) for batch in loader)
        while time.monotonic() - begun < wanted["seconds"]:
            if batches == wanted.get("batches"):
                break
            asked = time.monotonic()
            batch = next(stream)
            longest = max(longest, time.monotonic() - asked)
            if wanted.get("sums"):
                sums.append(_sum(batch))
            batches += 1
            time.sleep(wanted.get("step_s", 0.0))
            if time.monotonic() - said >= 1:
                said = time.monotonic()
                _tell(loader, {"at_s": said - begun, "batches": batches, "longest_s": longest})
        _tell(
            loader,
            {
                "seconds": time.monotonic() - begun,
                "batches": batches,
                "longest_s": longest,
                "sums": sums,
                "helped": loader._pipeline.activity().helpers.batches - before,  # noqa: SLF001
                "ray_imported": "ray" in sys.modules,
                "end": True,
            },
        )


def _await(loader: AutoLoader, helpers: int) -> None:
    """Take batches until so many helpers are there and have helped."""
    stream = (batch for _ in iter(int, 1) for batch in loader)
    found = loader._pipeline.activity().helpers  # noqa: SLF001
    while found.present < helpers or (helpers and found.batches < 4 * helpers):
        next(stream)
        found = loader._pipeline.activity().helpers  # noqa: SLF001


def _sum(batch: Any) -> int:
    parts = [batch["provenance"], batch["action"], *batch["images"].values()]
    found = 0
    for part in parts:
        found = zlib.crc32(np.ascontiguousarray(part).tobytes(), found)
    return found


def _tell(loader: AutoLoader, said: dict[str, Any]) -> None:
    seen = loader.statistics()
    more = {
        "slots": loader.knobs.helper_slots,
        "present": seen.helpers.present if seen.helpers else 0,
        "state": seen.state,
        "wait_ratio": seen.wait_ratio,
    }
    print(json.dumps({**said, **more}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
