"""What the Lightning tests share without importing Lightning: knobs, samples, leftovers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

KNOBS = {"ring_slots": 4, "decode_threads": 1, "queue_samples": 8, "reader": "indexed"}


def children() -> list[str]:
    """Loader children of this process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if b"autoloader.worker" in command and parent == os.getpid():
                found.append(entry.name)
    return found


def places(batch: dict[str, Any]) -> list[tuple[int, ...]]:
    """The samples of a batch."""
    return [tuple(row) for row in batch["provenance"].tolist()]
