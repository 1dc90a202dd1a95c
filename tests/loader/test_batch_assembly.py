"""What putting a batch together costs in calls, whatever a batch holds."""

from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np
import pytest

from autoloader.batch import assemble, wrapper
from autoloader.samples.layout import BatchLayout

Metadata = Literal["none", "dataset_only", "full"]


def calls(rows: int, metadata: Metadata) -> int:
    """Function calls, Python's and C's, for one batch of so many rows."""
    layout = BatchLayout(rows, {"primary": (4, 4)}, 2, 1, 3, 1, 2)
    views = layout.views(np.zeros(layout.slot_bytes, np.uint8))
    texts, wrap = [b"push"] * rows, wrapper("torch")
    counted = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        assemble(views, texts, rows=rows, metadata=metadata, wrap=wrap)
    finally:
        sys.setprofile(before)
    return counted


@pytest.mark.parametrize("metadata", ["dataset_only", "full"])
def test_metadata_costs_calls_by_the_batch_and_none_by_the_sample(metadata: Metadata) -> None:
    added = {calls(rows, metadata) - calls(rows, "none") for rows in (4, 64)}
    assert len(added) == 1
    assert 0 < added.pop() <= 4
