"""A run is as long as its decoders and its frames want it, and no longer."""

from __future__ import annotations

from autoloader.pipeline.indexed import (
    HELD_RUN_SAMPLES,
    LEAST_RUN_SAMPLES,
    RUN_BYTES,
    RUN_SAMPLES,
    run_samples,
)


def test_few_decoders_large_frames_and_many_ranks_make_runs_short() -> None:
    assert run_samples(1, 1, 25_000.0) == run_samples(2, 1, 25_000.0) == 96
    assert run_samples(64, 1, 25_000.0) == RUN_SAMPLES
    assert run_samples(64, 1, RUN_BYTES / 10) == 10
    assert run_samples(64, 1, 2.0 * RUN_BYTES) == 1
    assert run_samples(2, 8, 25_000.0) == LEAST_RUN_SAMPLES
    assert run_samples(64, 2, 0.0) == RUN_SAMPLES // 2


def test_runs_pin_a_small_part_of_what_the_frame_cache_has_room_for() -> None:
    lengths = [run_samples(64, 1, 1.0, 0.5, room) for room in (0, 400, 800, 20_000)]
    assert lengths == [LEAST_RUN_SAMPLES, 40, 80, 2 * RUN_SAMPLES]
    assert run_samples(64, 1, 1.0, 0.25, 800) == 160, "it pins half as many frames"
    assert run_samples(64, 1, 1.0, 1.0, 800) == 160, "no others want the room"


def test_a_run_of_which_most_is_held_has_more_samples_up_to_the_longest() -> None:
    lengths = [run_samples(2, 1, 100_000.0, held) for held in (0.0, 0.5, 0.9, 1.0)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 96
    assert lengths[1] == 192
    assert lengths[-1] == HELD_RUN_SAMPLES
    assert run_samples(64, 1, 1.0, 0.75) == HELD_RUN_SAMPLES
