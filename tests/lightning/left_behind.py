"""What the Lightning tests share without importing Lightning: knobs and samples."""

from typing import Any

KNOBS = {"ring_slots": 4, "decode_threads": 1, "queue_samples": 8, "reader": "indexed"}


def places(batch: dict[str, Any]) -> list[tuple[int, ...]]:
    """The samples of a batch."""
    return [tuple(row) for row in batch["provenance"].tolist()]
