"""The judge of control scenarios: who crossed the floor, who turned round, when it settled."""

from typing import Any

import pytest

from autoloader.spec.knobs import KnobLimits, Knobs
from bench.control.judge import below_floor, given_back, reversals, settle_s
from bench.control.scenario import READERS, load_scenarios
from bench.control.static import SETTINGS, settings_for
from bench.scenario import load_scenarios as load_timed

FLOOR = 1000 * 2**20
MIB = 2**20


def sample(at_s: float, room_mib: int, loader_mib: int) -> dict[str, Any]:
    return {
        "at": at_s,
        "room": FLOOR + room_mib * MIB,
        "loader": loader_mib * MIB,
        "ring": 0,
        "frames": 0,
    }


def test_frames_must_be_back_as_far_as_they_are_missing():
    def seen(at_s: float, room_mib: int, frames_mib: int) -> dict[str, Any]:
        return {**sample(at_s, room_mib, 0), "frames": frames_mib * MIB}

    margin, pinned = 256 * MIB, 64 * MIB
    calm = [seen(0.0, 300, 500), seen(1.0, 256, 500)]
    assert given_back(calm, FLOOR, margin, pinned) == (0, 0.0)
    part = [*calm, seen(2.0, 156, 500), seen(2.5, 200, 420), seen(2.6, 256, 400)]
    due, back_s = given_back(part, FLOOR, margin, pinned)
    assert (due, back_s) == (100 * MIB, pytest.approx(0.6))
    never = [*calm, seen(2.0, 156, 500), seen(9.0, 156, 450)]
    assert given_back(never, FLOOR, margin, pinned) == (100 * MIB, None)
    whole = [seen(0.0, -900, 500), seen(0.3, -900, 64), seen(9.0, -900, 60)]
    assert given_back(whole, FLOOR, margin, pinned) == (436 * MIB, pytest.approx(0.3))
    others = [seen(0.0, 156, 500), seen(0.9, 400, 500)]  # whoever needed it has let go
    assert given_back(others, FLOOR, margin, pinned) == (100 * MIB, pytest.approx(0.9))


def test_the_loader_is_to_blame_for_frames_that_it_took():
    seen = [sample(0.0, 300, 500), {**sample(0.1, -50, 500), "frames": 350 * MIB}]
    assert below_floor(seen, FLOOR) == (1, 1, 50 * MIB)


def test_the_loader_is_to_blame_where_headroom_would_have_lasted_without_its_growth():
    seen = [sample(0.0, 300, 500), sample(0.05, 100, 700), sample(0.1, -50, 850)]
    assert below_floor(seen, FLOOR) == (1, 1, 50 * MIB)


def test_others_are_to_blame_where_they_would_have_crossed_alone():
    seen = [sample(0.0, 300, 500), sample(0.05, -10, 520), sample(0.1, -200, 540)]
    assert below_floor(seen, FLOOR) == (2, 0, 0)


def test_a_batch_that_passes_after_a_crossing_by_others_is_no_crossing_of_the_loader():
    seen = [sample(0.0, 300, 500), sample(0.05, -100, 500)]
    seen += [sample(0.1 + number / 20, -10, 520) for number in range(40)]
    assert below_floor(seen, FLOOR)[1] == 0
    slow = [sample(0.0, 300, 500), sample(1.0, -5, 530)]
    assert below_floor(slow, FLOOR)[1] == 1
    assert below_floor(slow, FLOOR, 40 * MIB)[1] == 0
    later = [sample(3.0, 300, 500), sample(5.0, -10, 520)]
    assert below_floor(seen + later, FLOOR)[1] == 1


def test_what_settles_must_stay_settled():
    hungry = [(float(at), at + 0.5, 48) for at in range(10)]
    calm = [(float(at), float(at), 48) for at in range(10, 30)]
    assert settle_s([*hungry, *calm], 0.0, 30.0, 0.0) == pytest.approx(10.0)
    again = [(float(at), at + 0.5, 48) for at in range(30, 40)]
    assert settle_s([*hungry, *calm, *again], 0.0, 40.0, 0.0) is None


def decision(at_s: float, slots: int, to: int, **own: Any) -> dict[str, Any]:
    values = {"changes": {"ring_slots": to}, "knobs": {}, "verdict": None, **own}
    return {
        "kind": "decision",
        "pipeline": 0,
        "at_s": at_s,
        "observation": {"knobs": {"ring_slots": slots}},
        "decision": {"state": {"name": "GROW"}, **values},
    }


def test_a_knob_that_turns_round_within_its_hold_off_is_found():
    log = [decision(0.0, 8, 12), decision(10.0, 12, 8), decision(30.0, 8, 12)]
    assert reversals(log) == [("ring_slots", 10.0)]


def test_every_scenario_is_read_and_the_timed_bench_does_not_see_them():
    found = load_scenarios()
    assert len(found) >= 16
    for one in found.values():
        assert all(event.what for event in one.script)
        assert one.floor_bytes > 0
        assert one.window_s <= one.after_s
        assert "cache_bytes" not in one.knobs_of("stream")
    assert not set(found) & set(load_timed())


@pytest.mark.parametrize("reader", READERS)
def test_static_settings_are_many_legal_and_the_same_every_time(reader: Any):
    found = settings_for(reader)
    assert len(found) == SETTINGS
    assert found == settings_for(reader)
    for one in found:
        knobs = Knobs.build({"reader": reader, **one})
        knobs.check(KnobLimits(cpus=64, shards={"a": 4}))
