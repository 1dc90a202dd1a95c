"""Windows against a reference that walks row by row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoloader.samples import windows
from autoloader.spec import SampleSpec

EDGES = st.sampled_from(["repeat", "zero", "drop"])
OFFSETS = st.lists(st.integers(-6, 6), min_size=1, max_size=4).map(tuple)
SAMPLES = st.builds(
    lambda frames, states, start, horizon, step, first, last, per_episode: (
        SampleSpec.model_validate(
            {
                "frame_offsets": frames,
                "state_offsets": states,
                "action_start": start,
                "action_horizon": horizon,
                "action_step": step,
                "edges": {"start": first, "end": last},
                "per_episode": per_episode,
            }
        )
    ),
    OFFSETS,
    OFFSETS,
    st.integers(-4, 4),
    st.integers(1, 5),
    st.integers(1, 3),
    EDGES,
    EDGES,
    st.just("all") | st.integers(1, 20),
)


def every_offset(sample: SampleSpec) -> list[int]:
    horizon = [sample.action_start + k * sample.action_step for k in range(sample.action_horizon)]
    return [*sample.frame_offsets, *sample.state_offsets, *horizon]


def valid(sample: SampleSpec, steps: int) -> list[int]:
    """Every t whose window the edges allow, one by one."""
    found = []
    for t in range(steps):
        wanted = [t + offset for offset in every_offset(sample)]
        early = sample.edges.start == "drop" and min(wanted) < 0
        late = sample.edges.end == "drop" and max(wanted) >= steps
        if not early and not late:
            found.append(t)
    return found


@given(SAMPLES, st.integers(0, 15))
def test_valid_t_are_those_whose_whole_window_the_edges_allow(
    sample: SampleSpec, steps: int
) -> None:
    first, stop = windows.valid_range(sample, steps)
    assert list(range(first, stop)) == valid(sample, steps)


@given(SAMPLES, OFFSETS, st.integers(1, 12))
def test_rows_repeat_or_zero_what_leaves_the_episode_and_mask_it(
    sample: SampleSpec, offsets: tuple[int, ...], steps: int
) -> None:
    t = np.arange(steps)
    found = windows.rows(t, np.array(offsets), steps, sample)
    column = np.arange(1, steps + 1, dtype=np.float32)[:, None] * 10
    values, mask = windows.window_values(column, found, 3)
    for n in range(steps):
        for r, offset in enumerate(offsets):
            row = n + offset
            edge = sample.edges.start if row < 0 else sample.edges.end
            nearest = min(max(row, 0), steps - 1)
            inside = 0 <= row < steps
            zeroed = not inside and edge == "zero"
            assert found.inside[n, r] == inside
            assert found.index[n, r] == nearest
            assert found.zeroed[n, r] == zeroed
            assert found.offset[n, r] == (offset if inside or zeroed else nearest - n)
            assert values[n, r].tolist() == [0 if zeroed else (nearest + 1) * 10, 0, 0]
            assert mask[n, r].tolist() == [inside, False, False]
