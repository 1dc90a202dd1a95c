"""Whether a pipeline may start at all: predicted bytes against headroom and floor."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.controller.admission import (
    CYCLE_BYTES,
    STREAM_BYTES,
    StartPrice,
    admit_start,
    price_start,
)
from autoloader.errors import BudgetInfeasibleError
from autoloader.host.units import GIB
from autoloader.samples.resolve import MixtureSizes
from autoloader.spec.knobs import Knobs

SIZES = MixtureSizes({"a": 1_000_000, "b": 5_000_000}, 10_000_000)


def price(reader: str = "stream", **knobs: Any) -> StartPrice:
    return price_start(Knobs.build({"reader": reader, **knobs}), SIZES)


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_pipeline_starts_exactly_where_it_leaves_the_floor_free(headroom: int, floor: int):
    least = price(ring_slots=4)
    left = headroom - floor - least.total_bytes
    if left >= 0:
        assert admit_start(least, headroom_bytes=headroom, ram_floor_bytes=floor) == left
        return
    with pytest.raises(BudgetInfeasibleError) as caught:
        admit_start(least, headroom_bytes=headroom, ram_floor_bytes=floor)
    assert caught.value.exit_code == 3


def test_a_refusal_has_the_numbers():
    least = StartPrice(dict(zip("abcd", (GIB, 2 * GIB, 3 * GIB, 4 * GIB), strict=True)))
    with pytest.raises(BudgetInfeasibleError) as caught:
        admit_start(least, headroom_bytes=8 * GIB, ram_floor_bytes=5 * GIB)
    for number in ("10.00 GiB", "1.00 GiB", "2.00 GiB", "3.00 GiB", "4.00 GiB", "8.00", "5.00"):
        assert number in caught.value.what
    assert "ram_floor" in caught.value.remedy


@pytest.mark.parametrize(
    ("knob", "more"),
    [("ring_slots", 9), ("cycle_length", 4), ("stream_prefetch", 5), ("parse_parallel_calls", 4)],
)
def test_more_of_a_knob_costs_more(knob: str, more: int):
    assert price(**{knob: more}).total_bytes > price().total_bytes


def test_one_more_slot_costs_one_more_batch():
    assert price(ring_slots=9).parts["ring"] - price(ring_slots=8).parts["ring"] == 10_000_000


def test_a_stream_costs_more_with_each_shard_that_it_reads_side_by_side():
    knobs = Knobs.build({"reader": "stream", "cycle_length": 3, "b.cycle_length": 2})
    sizes = replace(SIZES, buffer_bytes={"a": 1000})
    found = price_start(knobs, sizes, ranks=2).parts["streams"]
    assert found == 2 * (2 * STREAM_BYTES + (2 + 1) * CYCLE_BYTES + 3 * 1000)


def test_a_reader_without_tensorflow_costs_less_and_no_streams():
    indexed = price(reader="indexed")
    assert indexed.parts["framework"] < price().parts["framework"]
    assert indexed.parts["streams"] == 0
    assert price(reader="indexed", read_ahead=30).parts["queued"] > indexed.parts["queued"]
