"""Knobs: which combinations may run, and that clamping always ends at a legal one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.errors import KnobError
from autoloader.spec.knobs import KNOBS, STREAM_KNOBS, DatasetKnobs, KnobLimits, Knobs

NAMES = ("a", "b", "c")
INTEGERS = {
    name: field
    for name, field in Knobs.model_fields.items()
    if name not in ("reader", "decode", "datasets")
}


def bounds(name: str) -> tuple[int, int]:
    low, high = 0, 64
    for rule in INTEGERS[name].metadata:
        low = getattr(rule, "ge", low)
        high = getattr(rule, "le", high)
    return low, high


@st.composite
def knob_values(draw: st.DrawFn) -> dict[str, Any]:
    """Legal values as far as one knob goes, for the mixture and for some of its datasets."""
    values: dict[str, Any] = {}
    for name in INTEGERS:
        if draw(st.booleans()):
            low, high = bounds(name)
            values[name] = draw(st.integers(low, min(high, 100)))
    for dataset in draw(st.sets(st.sampled_from(NAMES))):
        for knob in draw(st.sets(st.sampled_from(STREAM_KNOBS), min_size=1)):
            low, high = bounds(knob)
            values[f"{dataset}.{knob}"] = draw(st.integers(low, min(high, 100)))
    for prefix in ("", *(f"{name}." for name in NAMES)):
        cycle = values.get(f"{prefix}cycle_length", values.get("cycle_length", 1))
        calls = f"{prefix}num_parallel_calls"
        if prefix == "" or calls in values or f"{prefix}cycle_length" in values:
            values[calls] = min(values.get(calls, values.get("num_parallel_calls", 1)), cycle)
    return values


limits_drawn = st.builds(
    KnobLimits,
    cpus=st.integers(1, 64),
    shards=st.fixed_dictionaries({name: st.integers(1, 80) for name in NAMES}),
    block_length=st.integers(1, 200),
    batch_bytes=st.sampled_from([0, 1, 2**20, 2**30]),
    budget_bytes=st.none() | st.integers(0, 2**34),
)


def total_cycle(knobs: Knobs, limits: KnobLimits) -> int:
    return sum(
        min(knobs.for_dataset(name).cycle_length, shards) for name, shards in limits.shards.items()
    )


@given(knob_values(), limits_drawn)
def test_clamping_always_ends_at_legal_knobs(values: dict[str, Any], limits: KnobLimits):
    legal, clamps = Knobs.build(values).clamp(limits)
    legal.check(limits)
    assert legal.clamp(limits) == (legal, [])
    assert total_cycle(legal, limits) <= 4 * limits.cpus + len(limits.shards)
    for name in NAMES:
        own = legal.for_dataset(name)
        assert own.num_parallel_calls <= own.cycle_length
        assert own.queue_samples >= limits.block_length
    assert len({clamp.knob for clamp in clamps}) == len(clamps)
    for clamp in clamps:
        assert clamp.value != clamp.legal
        assert clamp.rule


@given(knob_values())
def test_knobs_written_flat_and_built_again_are_the_same(values: dict[str, Any]):
    knobs = Knobs.build(values)
    assert Knobs.build(knobs.flat()) == knobs
    assert Knobs.build({}, base=knobs) == knobs
    assert knobs.changed(knobs) == {}


@given(knob_values(), limits_drawn)
def test_legal_knobs_pass_the_check_and_others_are_refused_with_a_legal_choice(
    values: dict[str, Any], limits: KnobLimits
):
    knobs = Knobs.build(values)
    _, clamps = knobs.clamp(limits)
    if not clamps:
        knobs.check(limits)
        return
    with pytest.raises(KnobError) as caught:
        knobs.check(limits)
    assert f"{clamps[0].knob}={clamps[0].value}" in caught.value.what
    assert str(clamps[0].legal) in caught.value.remedy


LIMITS = KnobLimits(cpus=2, shards={"a": 4, "b": 16, "c": 1}, block_length=2)


def test_the_ring_fits_its_budget_but_never_goes_below_four_slots():
    limits = KnobLimits(cpus=2, shards={"a": 1}, batch_bytes=10, budget_bytes=65)
    assert Knobs.build({"ring_slots": 20}).clamp(limits)[0].ring_slots == 6
    tight = KnobLimits(cpus=2, shards={"a": 1}, batch_bytes=10, budget_bytes=1)
    assert Knobs.build({"ring_slots": 20}).clamp(tight)[0].ring_slots == 4


def test_a_value_that_no_dataset_uses_is_not_what_gets_lowered():
    limits = KnobLimits(cpus=1, shards={"a": 16, "b": 16})
    own = {"a.cycle_length": 3, "b.cycle_length": 3}
    legal, clamps = Knobs.build({"cycle_length": 12, **own}).clamp(limits)
    assert clamps == []
    assert legal.cycle_length == 12


# --- what no pipeline could run -----------------------------------------------------------------


def test_more_parallel_calls_of_one_dataset_than_its_cycle_length_are_refused():
    own = {"num_parallel_calls": 4, "cycle_length": 2}
    for form in ({f"a.{knob}": value for knob, value in own.items()}, {"datasets": {"a": own}}):
        with pytest.raises(KnobError, match="'a'"):
            Knobs.build({"cycle_length": 4, **form})


def test_common_parallel_calls_follow_the_smaller_cycle_length_of_a_dataset():
    knobs = Knobs.build({"cycle_length": 4, "num_parallel_calls": 4, "a.cycle_length": 2})
    assert (knobs.num_parallel_calls, knobs.for_dataset("a").num_parallel_calls) == (4, 2)


@pytest.mark.parametrize(
    ("values", "word"),
    [({"cycle_lenght": 2}, "cycle_length"), ({"a.cycle_lenght": 2}, "cycle_length"),
     ({"a.ring_slots": 8}, "cycle_length"), ({"ring_slots": 1}, "ring_slots"),
     ({"ring_slots": 65}, "ring_slots"), ({"ring_slots": "many"}, "ring_slots"),
     ({"a.cycle_length": 0}, "cycle_length"), ({"reader": "fast"}, "reader"),
     ({"datasets": {"a": {"cycle_length": True}}}, "a.cycle_length"),
     ({"datasets": 3}, "datasets")],
)  # fmt: skip
def test_an_unknown_knob_or_a_value_out_of_range_is_refused(values: dict[str, Any], word: str):
    with pytest.raises(KnobError) as caught:
        Knobs.build(values)
    assert word in str(caught.value)


# --- what they say ------------------------------------------------------------------------------


def test_every_knob_has_a_class_and_every_description_is_there():
    assert set(KNOBS) == set(Knobs.model_fields) - {"datasets"}
    assert set(STREAM_KNOBS) == set(DatasetKnobs.model_fields)
    for name, field in Knobs.model_fields.items():
        assert field.description, name


@pytest.mark.parametrize(
    ("cpus", "threads", "processes", "slots"),
    [(1, 2, 1, 8), (2, 2, 1, 8), (6, 6, 1, 8), (8, 8, 2, 8), (16, 16, 4, 8), (256, 16, 4, 8)],
)
def test_a_host_begins_with_threads_for_its_processors(
    cpus: int, threads: int, processes: int, slots: int
):
    knobs = Knobs().for_processors(cpus)
    assert (knobs.decode_threads, knobs.decode_processes) == (threads, processes)
    assert knobs.ring_slots == slots
    small = Knobs(ring_slots=4).for_processors(cpus)
    assert small.ring_slots == (4 if processes == 1 else 2 * processes)
    wide = Knobs(decode_threads=24, decode_processes=8)
    assert wide.for_processors(cpus).decode_threads == 24


def test_a_dataset_has_its_own_values_over_the_common_ones():
    knobs = Knobs.build({"cycle_length": 4, "num_parallel_calls": 2, "a.cycle_length": 3})
    assert (knobs.for_dataset("a").cycle_length, knobs.for_dataset("b").cycle_length) == (3, 4)
    assert knobs.for_dataset("a").num_parallel_calls == 2
    assert knobs.for_dataset(None).cycle_length == 4


def test_a_choice_that_is_refused_lists_all_choices():
    with pytest.raises(KnobError, match="it should be 'auto', 'stream' or 'indexed'"):
        Knobs.build({"reader": "fast"})
