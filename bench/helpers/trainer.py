"""A trainer that only takes batches: how many, how long the longest took, checksums if wanted.

    python -m bench.helpers.trainer '{"spec": …, "seconds": 10, "helpers": "ray@…", "knobs": {…}}'

One line of JSON a second and one at the end, on stdout.

Not here: who starts it, and where (``bench.helpers.play``).
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
import zlib
from typing import Any

import numpy as np
import psutil

from autoloader import AutoLoader, PipelineSpec


def main(wanted: dict[str, Any]) -> None:
    """Take batches for so many seconds, or so many."""
    started = time.monotonic()
    logging.getLogger("autoloader").addHandler(_Told(logging.WARNING))
    spec = PipelineSpec.from_mapping(wanted["spec"])
    with AutoLoader(
        spec,
        output="numpy",
        ram_floor="200MB",
        controller=wanted.get("controller", False),
        helpers=wanted.get("helpers"),
        knobs={"reader": "indexed", **wanted.get("knobs", {})},
    ) as loader:
        taken = _Taken(loader, summed=wanted.get("sums", False))
        present = wanted.get("present", 0)
        while present and not _are_there(loader, present):
            taken.one()
        if wanted.get("give_back"):
            loader.retune(helper_slots=0)
            while _are_there(loader, 1) or _asking():
                taken.one()
        before, awaited = _helped(loader), taken.batches
        begun = said = time.monotonic()
        longest, taken.gap_s = 0.0, 0.0
        while time.monotonic() - begun < wanted["seconds"]:
            if taken.batches == wanted.get("batches"):
                break
            taken.one()
            longest = max(longest, taken.gap_s)
            time.sleep(wanted.get("step_s", 0.0))
            if time.monotonic() - said >= 1:
                said = time.monotonic()
                more = {"gap_s": taken.gap_s, "helped": _helped(loader) - before}
                _tell(loader, {"at_s": said - begun, "batches": taken.batches - awaited, **more})
                taken.gap_s = 0.0
        _tell(
            loader,
            {
                "seconds": time.monotonic() - begun,
                "wall_s": time.monotonic() - started,
                "batches": taken.batches - awaited,
                "longest_s": longest,
                "sums": taken.sums,
                "helped": _helped(loader) - before,
                "ray_imported": "ray" in sys.modules,
                "end": True,
            },
        )


class _Taken:
    """Takes batches; how many, their checksums, the longest wait in seconds."""

    def __init__(self, loader: AutoLoader, *, summed: bool) -> None:
        self._stream = (batch for _ in iter(int, 1) for batch in loader)
        self._summed = summed
        self.batches, self.gap_s = 0, 0.0
        self.sums: list[int] = []

    def one(self) -> None:
        asked = time.monotonic()
        batch = next(self._stream)
        self.gap_s = max(self.gap_s, time.monotonic() - asked)
        self.batches += 1
        if self._summed:
            self.sums.append(_sum(batch))


def _are_there(loader: AutoLoader, helpers: int) -> bool:
    """Whether so many are there and have helped."""
    found = loader._pipeline.activity().helpers  # noqa: SLF001 a witness looks inside
    return found.present >= helpers and found.batches >= 4 * helpers


def _helped(loader: AutoLoader) -> int:
    return loader._pipeline.activity().helpers.batches  # noqa: SLF001


def _asking() -> bool:
    """Whether the process that asks helpers runs."""
    own = [psutil.Process(), *psutil.Process().children(recursive=True)]
    with contextlib.suppress(psutil.Error):
        return any("autoloader.cluster.driver" in part for one in own for part in one.cmdline())
    return True


class _Told(logging.Handler):
    """Says what the loader warns of as a line of JSON too."""

    def emit(self, record: logging.LogRecord) -> None:
        print(json.dumps({"warned": record.getMessage()}), flush=True)


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
        "late": seen.helpers.late if seen.helpers else 0,
    }
    print(json.dumps({**said, **more}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
