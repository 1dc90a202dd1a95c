"""The stream reader: order, draws, and every record of a pass once, from any cursor."""

import collections
import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rlds_files import Written, episode, write_dataset, written_steps
from streams import (
    dataset_of,
    episodes_of_pass,
    every_sample,
    mixture_of,
    stream_knobs,
    stream_reader,
)

from autoloader.decode.frames import FrameDecoder
from autoloader.host.threads import all_ended
from autoloader.pipeline.graph.reader import PASSES
from autoloader.samples.block import EmptyEpisode, ReaderStart, SampleBlock
from autoloader.samples.draws import PURPOSE_SHARDS, fold, ordered
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sampling.cursor import DatasetCursor

LENGTHS = [[3, 1, 4], [2, 6], [5, 2, 2, 1], [7]]


written = written_steps(LENGTHS)


def places(items: Iterator[SampleBlock | EmptyEpisode]) -> list[tuple[int, int]]:
    return [(item.place.shard, item.place.record) for item in items]


EVERY = [(shard, record) for shard, part in enumerate(LENGTHS) for record in range(len(part))]


@pytest.mark.parametrize("cycle", [1, 2, 4])
@pytest.mark.parametrize("parse", [1, 4])
def test_a_pass_gives_every_record_once_and_each_shard_in_order(
    cycle: int, parse: int, written: Written
):
    mixture = mixture_of(written)
    for pass_ in (0, 3):
        found = places(
            episodes_of_pass(mixture, 0, pass_, cycle_length=cycle, parse_parallel_calls=parse)
        )
        assert sorted(found) == EVERY
        for shard in range(len(LENGTHS)):
            records = [record for s, record in found if s == shard]
            assert records == sorted(records)


def test_threads_that_walk_hold_no_end_of_the_process_and_end_with_their_stream(written: Written):
    mixture = mixture_of(written)
    stream = stream_reader(mixture)(mixture.datasets[0]).open(
        ReaderStart(0, (0,) * len(LENGTHS)), stream_knobs(parse_parallel_calls=3)
    )
    next(stream)
    walkers = [one for one in threading.enumerate() if one.name.startswith("autoloader-walk")]
    assert [one.daemon for one in walkers] == [True] * 3
    stream.close()
    assert all_ended(walkers, within_s=None)


def test_one_shard_at_a_time_comes_in_the_keyed_order_of_its_pass(written: Written):
    mixture = mixture_of(written, seed=11)
    key = mixture.datasets[0].key
    orders = []
    for pass_ in range(4):
        found = [shard for shard, _ in places(episodes_of_pass(mixture, 0, pass_))]
        wanted = ordered(fold(key, PURPOSE_SHARDS, pass_), np.arange(4)).tolist()
        assert list(dict.fromkeys(found)) == wanted
        orders.append(tuple(wanted))
    assert len(set(orders)) > 1


def test_an_ordered_reader_gives_one_order_however_many_shards_it_reads_side_by_side(
    written: Written,
):
    from autoloader.pipeline.graph.reader import StreamReader

    mixture = mixture_of(written)
    orders = set()
    for calls in (1, 2, 4, 4, 4):
        reader = StreamReader(mixture.datasets[0], mixture.layout, ordered=True)
        knobs = stream_knobs(cycle_length=4, num_parallel_calls=calls)
        items = reader.open(DatasetCursor.of(mixture.datasets[0]).start(), knobs)
        orders.add(tuple(places(itertools.islice(items, 30))))
    assert len(orders) == 1


def test_a_slice_of_a_split_gives_its_records_alone(written: Written):
    mixture = mixture_of(dataset_of(written, split="train[2:7]"))
    found = sorted(places(episodes_of_pass(mixture)))
    assert found == [(0, 2), (1, 0), (1, 1), (2, 0), (2, 1)]
    twice = mixture_of(dataset_of(written, split="train[:1]+train[:2]"))
    assert sorted(places(episodes_of_pass(twice))) == [(0, 0), (1, 0), (1, 1)]


def test_a_stream_goes_on_behind_the_passes_that_one_graph_holds(tmp_path: Path):
    mixture = mixture_of(write_dataset(tmp_path, [[episode(0, 1)], [episode(1, 1)]]))
    source = stream_reader(mixture)(mixture.datasets[0])
    seen: collections.Counter[int] = collections.Counter()
    for item in source.open(ReaderStart(1, (0, 1)), stream_knobs()):
        seen[item.place.pass_] += 1
        if item.place.pass_ == PASSES + 5:
            break
    assert seen[1] == 1
    assert all(seen[pass_] == 2 for pass_ in range(2, PASSES + 5))


# --- resume -------------------------------------------------------------------------------------


def take_some(
    mixture: ResolvedMixture, cursor: DatasetCursor, samples: int, rng: random.Random, **knobs: Any
) -> list[tuple[int, int, int, int, int]]:
    """Take about that many samples from ``cursor`` on, from several open episodes at random."""
    reader = stream_reader(mixture)(mixture.datasets[0])
    items = reader.open(cursor.start(), stream_knobs(**knobs))
    held: list[tuple[SampleBlock, list[int]]] = []
    found = []
    while len(found) < samples:
        while len(held) < 3:
            item = next(items)
            taken = cursor.taken(item.place)
            if taken is None:
                continue
            if isinstance(item, EmptyEpisode):
                cursor.close(item.place)
            else:
                held.append((item, list(range(taken, len(item)))))
        samples_of, left = rng.choice(held)
        k = left.pop(0)
        place = samples_of.place
        cursor.take(place.pass_, place.shard, place.record, len(samples_of))
        found.append((0, place.pass_, place.shard, place.record, int(samples_of.t[k])))
        held = [entry for entry in held if entry[1]]
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("per_episode", ["all", 2])
def test_reopening_at_random_cursors_with_random_knobs_neither_loses_nor_doubles_a_sample(
    seed: int, per_episode: Any, written: Written
):
    sample = {"frame_offsets": [0, 2], "edges": {"end": "drop"}, "per_episode": per_episode}
    mixture = mixture_of(written, sample=sample)
    rng = random.Random(seed)
    cursor = DatasetCursor.of(mixture.datasets[0])
    found = []
    while cursor.pass_ < 2:
        knobs = {
            "cycle_length": rng.choice([1, 2, 4]),
            "parse_parallel_calls": rng.choice([1, 3]),
            "stream_prefetch": rng.choice([0, 2]),
        }
        found += take_some(mixture, cursor, rng.randrange(1, 9), rng, **knobs)
        saved = cursor.state()
        cursor = DatasetCursor.of(mixture.datasets[0])
        cursor.restore(saved)
    for pass_ in (0, 1):
        seen = collections.Counter(one for one in found if one[1] == pass_)
        assert set(seen) == every_sample(mixture, 0, pass_)
        assert set(seen.values()) == {1}


# --- what a sample holds ------------------------------------------------------------------------


def only(mixture: ResolvedMixture, **knobs: Any) -> dict[tuple[int, int], SampleBlock]:
    found = {}
    for item in episodes_of_pass(mixture, **knobs):
        assert isinstance(item, SampleBlock)
        found[item.place.shard, item.place.record] = item
    return found


def shown(encoded: bytes) -> tuple[int, int]:
    """(episode, step) of a frame, read from its colour."""
    from autoloader.spec import CameraSpec

    out = np.empty((12, 16, 3), np.uint8)
    FrameDecoder(CameraSpec(size=(12, 16))).decode_into(encoded, out)
    red, green, _ = out.reshape(-1, 3).mean(axis=0)
    return round((red - 4) / 8), round((green - 2) / 4)


def test_a_frame_is_held_once_and_unused_ones_are_left_behind(tmp_path: Path):
    written = write_dataset(tmp_path, [[episode(0, 30)]])
    mixture = mixture_of(written, sample={"frame_offsets": [0, 5], "per_episode": 2})
    found = only(mixture)[0, 0]
    used = {min(t + offset, 29) for t in found.t.tolist() for offset in (0, 5)}
    assert len(found.frames["primary"]) == len(used)
