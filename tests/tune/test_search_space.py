"""The search space is legal by construction."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.errors import KnobError
from autoloader.spec.knobs import PIXEL_THREADS, KnobLimits, Knobs
from autoloader.tune.search_space import CALLS_SHARE, SearchSpace, guess


class HypothesisDraws:
    """A trial whose suggestions hypothesis picks and shrinks."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        assert low <= high, name
        assert not log or low >= 1, name
        return int(self._data.draw(st.integers(low, high), label=name))

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return float(self._data.draw(st.floats(low, high), label=name))

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        return self._data.draw(st.sampled_from(choices), label=name)


class FixedDraws:
    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.asked: list[str] = []

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        self.asked.append(name)
        assert low <= self.values[name] <= high
        return int(self.values[name])

    def suggest_float(self, name: str, low: float, high: float) -> float:
        self.asked.append(name)
        assert low <= self.values[name] <= high
        return float(self.values[name])

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        self.asked.append(name)
        assert self.values[name] in choices
        return self.values[name]


@st.composite
def limits(draw: st.DrawFn) -> KnobLimits:
    names = [f"d{n}" for n in range(draw(st.integers(1, 8)))]
    return KnobLimits(
        cpus=draw(st.integers(1, 300)),
        shards={name: draw(st.integers(1, 100)) for name in names},
        block_length=draw(st.sampled_from([1, 2, 8, 300])),
        batch_bytes=draw(st.sampled_from([0, 1, 20_000_000])),
        budget_bytes=draw(st.sampled_from([None, 0, 10**9, 10**12])),
    )


@st.composite
def starts(draw: st.DrawFn, of: KnobLimits) -> Knobs:
    """Any knobs that can be built, per-dataset ones included; not yet clamped."""
    values: dict[str, Any] = {
        "decode_threads": draw(st.integers(1, 512)),
        "ring_slots": draw(st.integers(4, 64)),
        "queue_samples": draw(st.integers(1, 4096)),
        "cycle_length": draw(st.integers(1, 64)),
        "parse_parallel_calls": draw(st.integers(1, 16)),
        "stream_prefetch": draw(st.integers(0, 16)),
        "shuffle_samples": draw(st.sampled_from([0, 1000])),
    }
    values["num_parallel_calls"] = draw(st.integers(1, values["cycle_length"]))
    for name in draw(st.lists(st.sampled_from(sorted(of.shards)), max_size=3, unique=True)):
        cycle = draw(st.integers(1, 64))
        values[f"{name}.cycle_length"] = cycle
        values[f"{name}.num_parallel_calls"] = draw(st.integers(1, cycle))
    return Knobs.build(values)


@given(st.data())
def test_every_point_of_the_space_is_a_legal_knob_set(data: st.DataObject):
    of = data.draw(limits())
    start = data.draw(starts(of))
    space = SearchSpace.around(start, of)
    knobs = space.suggest(HypothesisDraws(data))
    knobs.check(of)  # raises on the first rule broken
    Knobs.build(knobs.flat())
    assert knobs.shuffle_samples == space.start.shuffle_samples
    assert knobs.min_ready_datasets == space.start.min_ready_datasets


@given(st.data())
def test_the_start_and_the_guess_are_points_of_the_space(data: st.DataObject):
    of = data.draw(limits())
    space = SearchSpace.around(data.draw(starts(of)), of)
    for knobs in (space.start, guess(space, batch_size=48)):
        knobs.check(of)
        again = space.suggest(FixedDraws(space.parameters(knobs)))
        assert [getattr(again, knob) for knob in (*space.ranges, "num_parallel_calls")] == [
            getattr(knobs, knob) for knob in (*space.ranges, "num_parallel_calls")
        ]


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_what_cannot_matter_for_the_reader_is_not_searched(reader: str):
    of = KnobLimits(cpus=4, shards={"a": 8})
    start = Knobs.build({"reader": reader})
    asked = set(SearchSpace.around(start, of).parameters(start))
    both = {"ring_slots", *PIXEL_THREADS.values()}
    only = {
        "indexed": {"io_threads", "read_ahead", "decode_processes"},
        "stream": {
            *("queue_samples", "cycle_length", CALLS_SHARE),
            *("parse_parallel_calls", "stream_prefetch"),
        },
    }
    assert asked == both | only[reader]
    one_shard = KnobLimits(cpus=1, shards={"a": 1})
    fewer = set(SearchSpace.around(start, one_shard).parameters(start))
    assert not fewer & {"cycle_length", CALLS_SHARE, "decode_processes"}


def test_a_start_with_knobs_of_a_foreign_dataset_is_refused():
    with pytest.raises(KnobError, match="the mixture has no dataset"):
        SearchSpace.around(
            Knobs.build({"other.cycle_length": 2}), KnobLimits(cpus=2, shards={"d": 2})
        )
