"""How often frames are used in a pass is what listing every sample's frames counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.cache.shown import frames_by_uses, of_blocks
from autoloader.samples.windows import rows, valid_range
from autoloader.sampling.episodes import DatasetTable
from autoloader.sampling.plan import foretell_reuse
from tests.index.test_plan_chains import mixture_of, sample_of, table_of
from tests.index.test_plan_samples import samples, tables


def listed(table: DatasetTable) -> Counter[int]:
    """Frames by the samples that show them, sample by sample."""
    uses: Counter[tuple[int, int]] = Counter()
    offsets = np.asarray(table.sample.frame_offsets)
    for episode, steps in enumerate(-(-table.steps.astype(int) // table.stride)):
        kept = None if table.kept is None else set(table.kept.numbers(episode).tolist())
        for t in range(*valid_range(table.sample, int(steps))):
            if kept is None or t in kept:
                window = rows(np.asarray([t]), offsets, int(steps), table.sample)
                for frame in set(window.index[~window.zeroed].tolist()):
                    uses[episode, frame] += 1
    return Counter(uses.values())


@given(tables(samples()))
def test_frames_are_counted_by_the_samples_that_show_them(table: DatasetTable) -> None:
    assert dict(frames_by_uses(table)) == pytest.approx(dict(listed(table)))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=3), st.integers(1, 400))
def test_long_episodes_are_counted_by_their_ends(offsets: list[int], steps: int) -> None:
    table = table_of("a", [steps, 41], sample_of(offsets, "repeat"))
    assert dict(frames_by_uses(table)) == dict(listed(table))


def test_blocks_that_chain_their_samples_use_a_frame_as_often_as_it_is_decoded() -> None:
    table = table_of("a", [80] * 20, sample_of([0, 5]))
    order = mixture_of([table], [1.0], 4, by_pass=True)
    object.__setattr__(order, "chain", True)
    decodes = foretell_reuse(order, [table], 8).decodes[0] * table.samples
    shown = frames_by_uses(table)
    chained = of_blocks(shown, decodes)
    assert sum(frames for _, frames in chained) == pytest.approx(sum(n for _, n in shown))
    assert sum(uses * frames for uses, frames in chained) == pytest.approx(decodes)
    assert [uses for uses, _ in chained] == [1, 2]
