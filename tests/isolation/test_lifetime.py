"""What a loader holds goes with it: at ``close``, at ``del``, and with the last of its batches.

Without the garbage collector. ``AUTOLOADER_TEST_RUNS`` says how often (default 1).
"""

import gc
import json
import os
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import ran

from autoloader import AutoLoader, PipelineSpec

FLAGS = 4096
"""A page beside the slots, which goes with the mapping."""
RUNS = int(os.environ.get("AUTOLOADER_TEST_RUNS", "1"))


def test_opened_again_and_again_it_leaves_what_was_there_before_the_first(
    small_spec: PipelineSpec, isolation: str, tmp_path: Path
):
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(small_spec.model_dump(mode="json", by_alias=True)))
    here = Path(__file__).parent
    script = [sys.executable, str(here / "lives_script.py"), str(spec), isolation]
    told = ran(*script, RUNS, 20, env={**os.environ, "PYTHONPATH": str(here.parent)}).stdout
    found = json.loads(told.splitlines()[-1])
    assert found["after"] == found["before"]


KINDS = pytest.mark.parametrize(
    ("isolation", "reader"), [("process", "indexed"), ("thread", "stream")]
)


def ring_of(loader: AutoLoader) -> int:
    return loader._delivery.memory.descriptor


@KINDS
def test_closing_gives_free_slots_back_and_the_lent_ones_when_their_batches_go(
    small_spec: PipelineSpec, isolation: str, reader: str
):
    gc.disable()
    try:
        loader = AutoLoader(
            small_spec, isolation=isolation, ram_floor="1GB", knobs={"reader": reader}
        )
        iterator = iter(loader)
        kept = [next(iterator) for _ in range(3)]
        sums = [int(batch["images"]["primary"].sum()) for batch in kept]
        slot_bytes = loader.plan.mixture.layout.slot_bytes
        watch = os.dup(ring_of(loader))
        while os.fstat(watch).st_blocks * 512 <= 3 * slot_bytes:
            time.sleep(0.01)  # until the ring holds more than what is lent
        loader.close()
        del iterator, loader
        pages = []
        while kept:
            pages.append(os.fstat(watch).st_blocks * 512)
            assert [int(batch["images"]["primary"].sum()) for batch in kept] == sums
            kept.pop()
            sums.pop()
        assert pages == sorted(pages, reverse=True)
        assert pages[0] <= 3 * slot_bytes + FLAGS
        assert pages[-1] <= slot_bytes + FLAGS
        assert os.fstat(watch).st_blocks * 512 <= FLAGS
        os.close(watch)
    finally:
        gc.enable()


@KINDS
def test_a_loader_that_is_dropped_is_gone_at_once(
    small_spec: PipelineSpec, isolation: str, reader: str
):
    loader = AutoLoader(small_spec, isolation=isolation, ram_floor="1GB", knobs={"reader": reader})
    for _, _batch in zip(range(3), loader, strict=False):
        pass
    loader.statistics()
    gc.collect()  # a package that is imported for the first time may keep frames that it ran under
    gc.disable()
    try:
        gone = weakref.ref(loader)
        del loader
        assert gone() is None
    finally:
        gc.enable()


def test_a_live_iterator_keeps_its_loader(small_spec: PipelineSpec):
    iterator = iter(AutoLoader(small_spec, ram_floor="1GB", output="numpy"))
    first: dict[str, Any] = next(iterator)
    assert isinstance(first["images"]["primary"], np.ndarray)
    assert next(iterator)["images"]["primary"].any()


def test_one_of_two_loaders_of_a_child_gives_its_ring_back(small_spec: PipelineSpec):
    """The child goes on for the other one: it may have been filling a slot at that moment."""
    with AutoLoader(small_spec, ram_floor="1GB", output="numpy") as stays:
        next(iter(stays))
        loader = AutoLoader(small_spec, ram_floor="1GB", output="numpy")
        batch = next(iter(loader))
        watch = os.dup(ring_of(loader))
        loader.close()
        assert batch["images"]["primary"].any()
        del batch
        for _ in zip(range(20), stays, strict=False):
            pass
        assert os.fstat(watch).st_blocks * 512 <= FLAGS
        os.close(watch)
