"""Batches are bit for bit the same, and in the same order, whatever the frame cache holds."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlds_files import (
    PLAIN,
    Written,
    episode,
    image,
    jpeg,
    once,
    write_dataset,
    write_steps,
)
from streams import Playing, dataset_of, mixture_of, spec_of

from autoloader import AutoLoader
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sampling.dealing import Ranks
from autoloader.sampling.plan import NextUse
from autoloader.spec.knobs import Knobs
from autoloader.telemetry.statistics import CacheStatistics
from autoloader.tune.measurement import measure

FRAME = 24 * 32 * 3
Batch = dict[str, np.ndarray]


def hold(one: Playing, cache_bytes: int) -> None:
    one.knobs = Knobs.build({"cache_bytes": cache_bytes}, base=one.knobs)
    one.pipeline.retune(one.knobs)


def counts(one: Playing) -> CacheStatistics:
    return one.pipeline.activity().cache


written = once(
    lambda folder: [
        write_steps(folder, [range(9, 13)], first=10 * k, name=name)
        for k, name in enumerate(("one", "two"))
    ]
)


def mixture(
    written: list[Written], second: dict[str, Any] | None = None, **fields: Any
) -> ResolvedMixture:
    spec = {
        "cameras": {"primary": {"size": [24, 32]}},
        "sample": {"frame_offsets": [0, 2]},
        "batch": {"size": 7},
        **fields,
    }
    return mixture_of(written[0], dataset_of(written[1], **(second or {})), **spec)


Play = Callable[..., Playing]


@pytest.fixture
def play() -> Iterator[Play]:
    playing: list[Playing] = []

    def begin(*given: Any, **knobs: Any) -> Playing:
        playing.append(Playing(*given, **knobs))
        return playing[-1]

    yield begin
    for one in playing:
        one.close()


def assert_same(one: Batch, other: Batch) -> None:
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


SPECS: dict[str, dict[str, Any]] = {
    "plain": {},
    "zeros beyond the edges": {"sample": {"frame_offsets": [0, 2], "edges": {"end": "zero"}}},
    "a camera that one dataset lacks": {
        "cameras": {"primary": {"size": [24, 32]}, "wrist": {"size": [12, 16]}}
    },
    "chained": {
        "weights": "natural",
        "sample": {"frame_offsets": [0, 2], "edges": {"end": "drop"}},
        "mixing": {"chain": True, "block_length": 4},
    },
    "drawn turns": {"mixing": {"strategy": "sample"}},
    "goals": {"sample": {"frame_offsets": [0], "goal": "uniform"}},
}


@pytest.mark.parametrize("name", SPECS)
def test_held_frames_show_what_decoded_frames_show(written: list[Written], play: Play, name: str):
    wrists = {"primary": "observation/image", "wrist": "observation/image"}
    fields = SPECS[name]
    own = {"images": wrists} if "wrist" in fields.get("cameras", {}) else {}
    mixed = mixture(written, own, **fields)
    plain = play(mixed)
    batches = plain.batches(60)
    assert counts(plain) == CacheStatistics()
    plain.close()
    hits = []
    for frames in (50, 1000):
        cached = play(mixed, cache_bytes=frames * FRAME)
        for batch in batches:
            assert_same(batch, cached.batch())
        assert counts(cached).held_bytes <= frames * FRAME
        hits.append(counts(cached).hits)
        cached.close()
    assert hits[1] > hits[0] > 0


def test_next_uses_are_planned_only_where_frames_may_be_evicted(
    written: list[Written], play: Play, monkeypatch: pytest.MonkeyPatch
):
    mixed = mixture(written)
    batches = play(mixed).batches(80)
    planned, after = [], NextUse.after
    monkeypatch.setattr(NextUse, "after", lambda *given: planned.append(1) or after(*given))
    cached = play(mixed, cache_bytes=1000 * FRAME)
    for number, batch in enumerate(batches):
        if number == 40:
            assert not planned
            assert counts(cached).hits > counts(cached).misses > 0
            hold(cached, 40 * FRAME)
        assert_same(batch, cached.batch())
    assert planned
    assert 0 < counts(cached).held_bytes <= 40 * FRAME


def test_each_camera_that_one_is_drawn_from_counts_among_all_frames(
    tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch
):
    views = ["observation/image", "observation/side"]
    records = [
        [episode(k, 10, **{views[1]: [jpeg(90 + k, t) for t in range(10)]})] for k in range(4)
    ]
    written = write_dataset(tmp_path, records, features={**PLAIN, views[1]: image()})
    mixed = mixture_of(dataset_of(written, images={"primary": {"any_of": views}}),
                       cameras={"primary": {"size": [24, 32]}})  # fmt: skip
    planned, after = [], NextUse.after
    monkeypatch.setattr(NextUse, "after", lambda *given: planned.append(1) or after(*given))
    whole = play(mixed, cache_bytes=80 * FRAME)
    whole.batches(3)
    assert not planned
    whole.close()
    play(mixed, cache_bytes=79 * FRAME).batches(3)
    assert planned


@settings(max_examples=5)
@given(data=st.data())
def test_batches_are_the_same_while_the_cache_moves_at_random(
    written: list[Written], data: st.DataObject
):
    mixed = mixture(written)
    plain = Playing(mixed)
    batches = plain.batches(40)
    plain.close()
    cached = Playing(mixed, cache_bytes=60 * FRAME, decode_threads=3)
    try:
        for batch in batches:
            move = data.draw(st.sampled_from(["hold", "drop", "next", "next", "next"]))
            if move == "hold":
                hold(cached, data.draw(st.sampled_from([0, 3, 20, 80, 500])) * FRAME)
            elif move == "drop":
                cached.pipeline.drop()
            assert_same(batch, cached.batch())
    finally:
        cached.close()


def test_decode_processes_share_what_is_held_and_survive_kills_and_random_shrinks(
    written: list[Written], play: Play
):
    mixed = mixture(written)
    plain = play(mixed)
    batches = plain.batches(150)
    plain.close()
    cached = play(mixed, cache_bytes=1000 * FRAME, decode_processes=3, ring_slots=6)
    random = np.random.default_rng(0)
    for number, batch in enumerate(batches):
        assert_same(batch, cached.batch())
        if number in (40, 60):
            assert counts(cached).hits > 0
            victims = cached.pipeline.activity().processes
            os.kill(victims[random.integers(len(victims))], signal.SIGKILL)
        elif number < 110 and random.random() < 0.2:
            hold(cached, int(random.choice([0, 3, 20, 80, 1000])) * FRAME)
        elif number == 110:
            cached.knobs = Knobs.build({"decode_processes": 1}, base=cached.knobs)
            hold(cached, 1000 * FRAME)
    assert counts(cached).hits > 0


def test_ranks_of_a_node_share_what_is_held_and_neither_sees_the_others_frames(
    written: list[Written], play: Play
):
    mixed = mixture(written)
    both = [Ranks(rank, 2) for rank in (0, 1)]
    plain = [play(mixed, rank) for rank in both]
    wanted = [one.batches(60) for one in plain]
    for one in plain:
        one.close()
    first, second = (play(mixed, rank, cache_bytes=500 * FRAME) for rank in both)
    for number in range(60):
        assert_same(wanted[0][number], first.batch())
        assert_same(wanted[1][number], second.batch())
    assert counts(first).budget_bytes == counts(second).budget_bytes == 1000 * FRAME
    # Both go on building ahead.
    before, between, after = counts(first), counts(second), counts(first)
    assert before.hits <= between.hits <= after.hits
    assert before.hits + before.misses <= between.hits + between.misses <= after.hits + after.misses
    assert after.hits > after.misses
    second.close()
    assert counts(first).budget_bytes == 500 * FRAME
    first.batches(30)


def test_what_a_decode_costs_is_still_asked_when_another_pipeline_over_the_mixture_has_closed(
    written: list[Written], play: Play
):
    mixed = mixture(written)
    first, second = (play(mixed, cache_bytes=50 * FRAME) for _ in range(2))
    both = [one.batch() for one in (first, second)]
    assert_same(*both)
    table = second.pipeline._reader._frames
    assert table is first.pipeline._reader._frames
    first.close()
    asked: list[np.ndarray] = []
    costs = second.pipeline._frame_costs
    second.pipeline._frame_costs = lambda: asked.append(costs()) or asked[-1]
    hold(second, 40 * FRAME)
    before = len(asked)
    for _ in range(20):
        table._costs_at_s = float("-inf")
        second.batch()
    assert len(asked) > before
    assert (asked[-1] > 0).any()
    second.close()
    assert not table._claims


def test_a_child_that_is_killed_begins_again_with_nothing_held_and_the_same_batches(
    written: list[Written],
):
    datasets = [dataset_of(one) for one in written]
    spec = spec_of(
        *datasets, cameras={"primary": {"size": [24, 32]}}, batch={"size": 7}, reader="indexed"
    )

    def run(cache_bytes: int, kill_at: int) -> list[Any]:
        knobs = {"cache_bytes": cache_bytes, "ring_slots": 4, "decode_threads": 2}
        came: list[Any] = []
        with AutoLoader(spec, knobs=knobs, ram_floor="64MiB", output="numpy") as loader:
            while len(came) < 60:
                for batch in loader:
                    came.append((batch["provenance"].copy(), batch["images"]["primary"].copy()))
                    if len(came) == kill_at:
                        assert loader.statistics().cache.hits > 0
                        os.kill(loader.statistics().worker_pids[0], signal.SIGKILL)
            cache = loader.statistics().cache
        assert cache.hits > 0 or not cache_bytes
        return came[:60]

    for plain, cached in zip(run(0, 0), run(2**24, 30), strict=True):
        np.testing.assert_array_equal(plain[0], cached[0])
        np.testing.assert_array_equal(plain[1], cached[1])


@pytest.mark.parametrize("processes", [1, 2])
def test_the_peak_of_a_measurement_has_the_frames_once(written: list[Written], processes: int):
    spec = spec_of(
        *(dataset_of(one) for one in written),
        cameras={"primary": {"size": [384, 512]}},
        batch={"size": 7},
        reader="indexed",
    )
    knobs = {"ring_slots": 4, "decode_threads": 2, "decode_processes": processes}
    common = {"ram_floor": "64MiB", "output": "numpy", "controller": False}
    plain, held = (
        measure(
            partial(AutoLoader, spec, knobs={**knobs, "cache_bytes": cache_bytes}, **common),
            warmup=40,
            batches=10,
        )
        for cache_bytes in (0, 2**29)
    )
    frames = held["cache"]["held_bytes"]
    assert frames > 2**25
    assert held["peak_rss_bytes"] - plain["peak_rss_bytes"] == pytest.approx(frames, rel=0.4)
