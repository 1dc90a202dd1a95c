"""Damaged files: what is broken is named once, what is whole comes, and nothing hangs."""

import collections
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rlds_files import Written, episode, example, jpeg, write_dataset, write_steps
from streams import Running, dataset_of, episodes_of_pass, every_sample, every_strategy, mixture_of

from autoloader.errors import PipelineError, SourceError
from autoloader.index.counting import count_mixture
from autoloader.samples.block import EmptyEpisode

Breaker = Callable[[Written, int], None]
STEPS = 4
RECORDS = 4
"""Of a shard in which each kind of damage is, at record 1."""


def build(folder: Path, name: str = "robot", *, bad: Any = None) -> Written:
    """Three shards of five episodes; ``bad`` in the place of record 2 of shard 1."""
    shards: list[list[Any]] = [[episode(5 * s + r, STEPS) for r in range(5)] for s in range(3)]
    if bad is not None:
        shards[1][2] = bad
    return write_dataset(folder, shards, name=name)


def replaced(**features: Any) -> dict[str, Any]:
    return episode(7, STEPS, **features)


def without(path: str) -> dict[str, Any]:
    return {key: value for key, value in replaced().items() if key != path}


def cut(written: Written, shard: int, size: int) -> None:
    os.truncate(written.files[shard], size)


FILE_DAMAGE: dict[str, tuple[Breaker, list[int], str]] = {
    "payload": (lambda w, s: w.break_payload(s, 1), [1], "its checksum is wrong"),
    "length": (lambda w, s: w.break_length(s, 1), [1, 2, 3], "checksum of its length"),
    "truncated": (lambda w, s: w.truncate(s, 1), [1, 2, 3], "truncated"),
    "short": (lambda w, s: cut(w, s, w.offsets[s][2]), [2, 3], "ends before"),
    "empty": (lambda w, s: cut(w, s, 0), [0, 1, 2, 3], "ends before"),
}
FILE_DAMAGE |= {
    f"length of {length:,} bytes": (
        partial(Written.claim_length, record=1, length=length),
        [1, 2, 3],
        "truncated",
    )
    for length in (2**62, 2**40, 2**63 + 5, 2**64 - 1)
}
RECORD_DAMAGE: dict[str, tuple[Any, str]] = {
    "no example": (b"\xff\xfe no example", "unexpected field"),
    "no example, but text": (b"no example", "unexpected field"),
    "nothing": (b"", "missing"),
    "other features": (example({"other": [1.0]}), "missing"),
    "action missing": (without("action"), "missing"),
    "image missing": (without("observation/image"), "missing"),
    "action too short": (replaced(action=[1.0] * 7), "7 values"),
    "action of other length": (replaced(action=[1.0] * 6), "differ in their number"),
    "images fewer than steps": (replaced(**{"observation/image": [jpeg(7, 0)] * 3}), "differ"),
    "texts fewer than steps": (
        replaced(language_instruction=[b"one"]),
        "language_instruction has 1",
    ),
}
LOST = {
    (shard, record): words
    for shard, (_, lost, words) in enumerate(
        [*FILE_DAMAGE.values(), *((None, [1], words) for _, words in RECORD_DAMAGE.values())]
    )
    for record in lost
}
"""(shard, record) that is lost in ``damaged`` → what is said of it."""
SHARDS = len(FILE_DAMAGE) + len(RECORD_DAMAGE) + 1


def damaged(folder: Path, name: str = "robot") -> Written:
    """A shard of each damage, and one that is whole."""
    shards: list[list[Any]] = [
        [episode(RECORDS * s + r, STEPS) for r in range(RECORDS)] for s in range(SHARDS)
    ]
    for shard, (bad, _) in enumerate(RECORD_DAMAGE.values(), start=len(FILE_DAMAGE)):
        shards[shard][1] = bad
    written = write_dataset(folder, shards, name=name)
    for shard, (breaker, _, _) in enumerate(FILE_DAMAGE.values()):
        breaker(written, shard)
    return written


@pytest.mark.parametrize("cycle", [1, 3])
def test_damage_costs_the_records_it_hides_and_no_other_and_each_is_named(
    cycle: int, tmp_path: Path
):
    mixture = mixture_of(damaged(tmp_path))
    for pass_ in (0, 1):
        items = list(episodes_of_pass(mixture, 0, pass_, cycle_length=cycle))
        assert sorted((i.place.shard, i.place.record) for i in items) == [
            (shard, record) for shard in range(SHARDS) for record in range(RECORDS)
        ]
        empty = {
            (item.place.shard, item.place.record): item.reason or ""
            for item in items
            if isinstance(item, EmptyEpisode)
        }
        assert empty.keys() == LOST.keys()
        for place, words in LOST.items():
            assert words in empty[place], place


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"nonsense" * 50])
def test_files_that_hold_nothing_any_more_end_in_a_source_error_and_never_spin(
    content: bytes, tmp_path: Path
):
    written = build(tmp_path)
    mixture = mixture_of(written)
    for file in written.files:
        file.write_bytes(content)
    with pytest.raises(SourceError, match="robot"):
        list(episodes_of_pass(mixture))


# --- through a pipeline -------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["python", "choose", "sample"])
def test_a_damaged_dataset_is_quarantined_by_name_while_passes_are_complete_and_weights_hold(
    strategy: str, tmp_path: Path
):
    broken = damaged(tmp_path, "broken")
    whole = write_steps(tmp_path, [[STEPS] * 10], name="whole")
    mixture = mixture_of(
        dataset_of(broken, weight=1),
        dataset_of(whole, weight=2),
        errors={"max_corrupt_ratio": 0.6},
        mixing={"strategy": strategy},
    )
    with Running(mixture, {"cycle_length": 2, "num_parallel_calls": 2}) as running:
        got = running.until_pass(2)
        bad_records = running.pipeline.quarantined()
    for pass_ in (0, 1):
        seen = got.of_pass(0, pass_)
        assert set(seen) == every_sample(mixture, 0, pass_)
        assert set(seen.values()) == {1}
    assert {(b.shard, b.record) for b in bad_records} == LOST.keys()
    assert len(bad_records) == len(LOST)
    assert all((b.dataset, b.path) == ("broken", str(broken.files[b.shard])) for b in bad_records)
    assert all(b.reason for b in bad_records)
    share = sum(row[0] == 1 for row in got.rows) / len(got.rows)
    # At most 16 blocks owed, and one due; four standard deviations where turns are drawn.
    drawn = 4 * (2 / 9 * len(got.rows)) ** 0.5 if strategy == "sample" else 0
    assert abs(share - 2 / 3) * len(got.rows) <= 17 + drawn


def by_passes(*datasets: Any, **top: Any) -> Any:
    """A mixture whose epoch is one pass of every dataset."""
    return mixture_of(*datasets, weights="natural", **top)


def epochs_of(rows: list[tuple[int, ...]], samples: int) -> list[list[tuple[int, ...]]]:
    return [rows[at : at + samples] for at in range(0, len(rows), samples)]


@every_strategy
def test_a_record_found_broken_when_read_is_made_up_for_so_that_epochs_stay_passes(
    strategy: str, tmp_path: Path
):
    broken, whole = build(tmp_path, "broken"), build(tmp_path, "whole")
    mixing = {"strategy": strategy}
    mixture = by_passes(broken, whole, errors={"max_corrupt_ratio": 0.1}, mixing=mixing)
    count_mixture(mixture)
    seen = broken.files[1].stat()
    broken.break_payload(1, 2)
    os.utime(broken.files[1], ns=(seen.st_atime_ns, seen.st_mtime_ns))  # as a disk does it
    rows: list[tuple[int, ...]] = []
    shown: list[list[int]] = []
    start = None
    for batches in (5, 38, 90):  # broken off and gone on with twice
        with Running(mixture, {"cycle_length": 2, "num_parallel_calls": 2}, start=start) as running:
            got = running.batches(batches - len(rows) // 4)
            start = running.place()
        rows += got.rows
        shown += got.joined("provenance").tolist()
    assert running.order.pass_samples == (15 * STEPS, 15 * STEPS)
    for number, epoch in enumerate(epochs_of(rows, 30 * STEPS)):
        assert {row[1] for row in epoch} == {number}
        for dataset in (0, 1):
            came = collections.Counter(row[:5] for row in epoch if row[0] == dataset)
            assert every_sample(mixture, dataset, number) <= set(came)
            assert sum(came.values()) == 15 * STEPS
    made_up = [
        (row, place) for row, place in zip(rows, shown, strict=True) if list(row[:5]) != place
    ]
    assert len(made_up) == 3 * STEPS
    assert {row[:1] + row[2:4] for row, _ in made_up} == {(0, 1, 2)}
    for row, place in made_up:
        assert tuple(place) in every_sample(mixture, 0, place[1])
        assert row[4] == place[4]


def test_files_that_were_changed_since_the_count_end_a_run_of_passes(tmp_path: Path):
    broken, whole = build(tmp_path, "broken"), build(tmp_path, "whole")
    running = Running(by_passes(broken, whole))
    broken.break_payload(1, 2)
    with pytest.raises(SourceError, match="have 56 samples now, and had 60") as caught, running:
        running.batches(30)
    assert caught.value.dataset == "broken"


@pytest.mark.parametrize("frames", ["truncated", "no picture", "nothing"])
def test_an_undecodable_frame_is_quarantined_and_its_rows_repeat_their_own_dataset(
    frames: str, tmp_path: Path
):
    good = [jpeg(7, step) for step in range(STEPS)]
    bad = {"truncated": good[2][:-40], "no picture": b"no picture at all", "nothing": b""}[frames]
    broken = build(
        tmp_path, "broken", bad=replaced(**{"observation/image": [*good[:2], bad, good[3]]})
    )
    whole = write_dataset(tmp_path, [[episode(20, STEPS)]], name="whole")
    mixture = mixture_of(broken, whole, errors={"max_corrupt_ratio": 0.1}, batch={"size": 8})
    with Running(mixture) as running:
        got = running.until_pass(1)
        (record,) = running.pipeline.quarantined()
    assert (record.dataset, record.shard, record.record) == ("broken", 1, 2)
    assert "cannot be decoded" in record.reason
    assert set(got.of_pass(0, 0)) == every_sample(mixture, 0, 0)  # the ledger counts it
    row = got.samples.index((0, 0, 1, 2, 2))
    ledger, provenance = got.joined("ledger"), got.joined("provenance")
    assert ledger[row, :5].tolist() == [0, 0, 1, 2, 2]
    assert provenance[row, 0] == 0
    assert provenance[row].tolist() != ledger[row, :5].tolist()
    source = [r for r in range(8 * (row // 8), 8 * (row // 8) + 8) if r != row]
    twin = next(r for r in source if provenance[r].tolist() == provenance[row].tolist())
    for name in ("images/primary", "action", "state", "frame_offset", "dataset_index"):
        assert (got.joined(name)[row] == got.joined(name)[twin]).all(), name
    assert got.texts[row] == got.texts[twin]
    others = [r for r in range(len(ledger)) if r != row]
    assert (ledger[others, :5] == provenance[others]).all()


def test_more_damage_than_the_spec_bears_is_a_source_error_with_the_numbers(tmp_path: Path):
    broken = build(tmp_path)
    for shard in range(3):
        broken.break_payload(shard, 1)
    mixture = mixture_of(broken, errors={"max_corrupt_ratio": 0.15})  # 2 of 15
    with pytest.raises(SourceError) as caught, Running(mixture) as running:
        running.until_pass(2)
    assert "3 of the 15 episodes in this split are bad" in caught.value.what
    assert "max_corrupt_ratio=0.15" in caught.value.what
    assert caught.value.dataset == "robot"


def test_one_bad_record_is_borne_even_where_none_is_allowed(tmp_path: Path):
    broken = build(tmp_path)
    broken.break_payload(0, 0)
    mixture = mixture_of(broken, errors={"max_corrupt_ratio": 0})
    with Running(mixture) as running:
        running.until_pass(2)
        assert len(running.pipeline.quarantined()) == 1


def test_a_batch_of_which_nothing_decodes_is_a_source_error(tmp_path: Path):
    bad = [episode(0, 8, **{"observation/image": [b"broken"] * 8})]
    mixture = mixture_of(write_dataset(tmp_path, [bad]))
    with Running(mixture) as running, pytest.raises(SourceError, match="none of the 4 samples"):
        running.batches(2)


def test_a_dataset_that_dies_in_the_midst_stops_the_run_with_its_name(tmp_path: Path):
    one = build(tmp_path, "one")
    two = build(tmp_path, "two")
    mixture = mixture_of(one, two)
    with Running(mixture, {"stream_prefetch": 0, "queue_samples": 1}) as running:
        running.batches(1)
        for file in two.files:
            file.unlink()
        with pytest.raises(SourceError, match="'two'") as caught:
            running.until_pass(4)
    assert caught.value.exit_code == 4
    assert not isinstance(caught.value, PipelineError)


def test_a_dataset_that_dies_may_be_dropped_and_the_rest_goes_on(tmp_path: Path):
    one = build(tmp_path, "one")
    two = build(tmp_path, "two")
    mixture = mixture_of(one, two, errors={"dead_dataset": "drop"})
    with Running(mixture, {"stream_prefetch": 0, "queue_samples": 1}) as running:
        running.batches(1)
        for file in two.files:
            file.unlink()
        while running.cursors[0].pass_ < 4:
            running.batch()
        tail = running.got.rows[-40:]
    assert {row[0] for row in tail} == {0}
