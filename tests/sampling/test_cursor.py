"""Cursors: any interleaving folds to the same place, and a place costs little to keep."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.errors import UsageError
from autoloader.samples.block import Place
from autoloader.sampling.cursor import DatasetCursor

STARTS, COUNTS = (0, 3, 10), (4, 2, 5)
Event = tuple[str, int, int, int, int]
"""("take" or "close", pass, shard, record, samples of the episode)."""


def samples_of(pass_: int, shard: int, record: int) -> int:
    """How many samples an episode gives in a pass; some give none."""
    return (pass_ + 2 * shard + record) % 4


def events(pass_: int, starts: Sequence[int], counts: Sequence[int]) -> list[list[Event]]:
    """Per record of a pass, in the order in which they must be folded."""
    found = []
    for shard, (start, count) in enumerate(zip(starts, counts, strict=True)):
        for record in range(start, start + count):
            total = samples_of(pass_, shard, record)
            if total:
                found.append([("take", pass_, shard, record, total)] * total)
            else:
                found.append([("close", pass_, shard, record, 0)])
    return found


def interleaved(groups: list[list[Event]], rng: random.Random) -> list[Event]:
    """One random order that keeps each episode's."""
    order = [number for number, group in enumerate(groups) for _ in group]
    rng.shuffle(order)
    left = [list(group) for group in groups]
    return [left[number].pop(0) for number in order]


def fold(cursor: DatasetCursor, event: Event) -> None:
    kind, pass_, shard, record, total = event
    if kind == "take":
        cursor.take(pass_, shard, record, total)
    else:
        cursor.close(Place(0, pass_, shard, record))


def cursor_of(key: int = 5) -> DatasetCursor:
    return DatasetCursor(STARTS, COUNTS, key)


def asked(cursor: DatasetCursor) -> list[Any]:
    """Everything a reader can ask a cursor, over three passes."""
    found: list[Any] = [cursor.pass_, cursor.start()]
    for pass_ in range(3):
        for shard, (start, count) in enumerate(zip(STARTS, COUNTS, strict=True)):
            places = [Place(0, pass_, shard, record) for record in range(start, start + count)]
            found += [cursor.taken(place) for place in places]
    return found


@given(st.randoms(use_true_random=False), st.integers(0, 60))
def test_a_cursor_knows_what_is_taken_of_every_episode(rng: random.Random, count: int):
    line = interleaved(events(0, STARTS, COUNTS) + events(1, STARTS, COUNTS), rng)
    cursor = cursor_of()
    seen: dict[tuple[int, int, int], int] = {}
    done: set[tuple[int, int, int]] = set()
    for event in line[:count]:
        fold(cursor, event)
        place = event[1], event[2], event[3]
        seen[place] = seen.get(place, 0) + (event[0] == "take")
        if event[0] == "close" or seen[place] == event[4]:
            done.add(place)
    for pass_ in (0, 1):
        for shard, (start, records) in enumerate(zip(STARTS, COUNTS, strict=True)):
            for record in range(start, start + records):
                place = pass_, shard, record
                wanted = None if place in done else seen.get(place, 0)
                assert cursor.taken(Place(0, *place)) == wanted
    full = sum(COUNTS)
    whole = [sum(place[0] == pass_ for place in done) == full for pass_ in (0, 1)]
    assert cursor.pass_ == (0 if not whole[0] else 1 if not whole[1] else 2)
    skip = cursor.start().skip
    for shard, start in enumerate(STARTS):
        for number in range(COUNTS[shard]):
            place = cursor.pass_, shard, start + number
            assert (number >= skip[shard]) or place in done
        if skip[shard] < COUNTS[shard]:
            assert (cursor.pass_, shard, start + skip[shard]) not in done


@given(st.randoms(use_true_random=False), st.integers(0, 60))
def test_a_state_restored_from_json_is_the_same_cursor_and_goes_on_alike(
    rng: random.Random, count: int
):
    line = interleaved(events(0, STARTS, COUNTS) + events(1, STARTS, COUNTS), rng)
    cursor = cursor_of()
    for event in line[:count]:
        fold(cursor, event)
    state = json.loads(json.dumps(cursor.state()))
    again = cursor_of()
    again.restore(state)
    assert asked(again) == asked(cursor)
    assert again.state() == cursor.state()
    for event in line[count:]:
        fold(cursor, event)
        fold(again, event)
        assert asked(again) == asked(cursor)
    assert cursor.pass_ == again.pass_ == 2


@pytest.mark.parametrize(
    ("starts", "counts"),
    [((0,), (12,)), ((0, 0, 0), (4, 2, 5)), ((0, 3, 10), (2, 4, 5)), ((0, 3), (6, 5))],
)
def test_a_state_of_other_files_is_refused(starts: tuple[int, ...], counts: tuple[int, ...]):
    cursor = cursor_of()
    cursor.take(0, 1, 3, 1)
    other = DatasetCursor(starts, counts, 5)
    with pytest.raises(UsageError, match="saved for other files"):
        other.restore(cursor.state())


def test_the_state_of_29_datasets_of_a_thousand_shards_stays_below_64_kb():
    rng = random.Random(3)
    states = {}
    for dataset in range(29):
        shards, records, cycle = 1000, 20, 16
        cursor = DatasetCursor([0] * shards, [records] * shards, dataset)
        order = cursor._order(0)
        # An interleave of 16 shards, stopped in the midst of the pass.
        live, at = dict.fromkeys(order[:cycle], 0), cycle
        for _ in range(rng.randrange(5_000, 15_000)):
            shard = rng.choice(list(live))
            cursor.close(Place(dataset, 0, shard, live[shard]))
            live[shard] += 1
            if live[shard] == records:
                del live[shard]
                live[order[at]] = 0
                at += 1
        for shard, record in list(live.items())[:8]:
            cursor.take(0, shard, record, 30)
        states[f"a_dataset_with_a_name_{dataset}"] = cursor.state()
    assert len(json.dumps(states)) <= 64_000
