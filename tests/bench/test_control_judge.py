"""The judge of control scenarios: who crossed the floor, who turned round, when it settled."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from autoloader.cache.slab import FrameSlab
from autoloader.spec.knobs import KnobLimits, Knobs
from bench.control.judge import below_floor, reversals, settle_s, waiting
from bench.control.memory import (
    PAGE,
    RING_FILE,
    anonymous_bytes,
    available_bytes,
    blocks_bytes,
    headroom_bytes,
    memory_files,
    number_after,
    present_bytes,
    sparse_mapping,
)
from bench.control.scenario import READERS, Event, load_scenarios, size
from bench.control.static import SETTINGS, settings_for
from bench.control.surplus import given_back
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


def test_frames_must_be_back_as_far_as_they_are_missing() -> None:
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


def test_the_loader_is_to_blame_for_frames_that_it_took() -> None:
    seen = [sample(0.0, 300, 500), {**sample(0.1, -50, 500), "frames": 350 * MIB}]
    assert below_floor(seen, FLOOR) == (1, 1, 50 * MIB)


def test_the_loader_is_to_blame_where_headroom_would_have_lasted_without_its_growth() -> None:
    seen = [sample(0.0, 300, 500), sample(0.05, 100, 700), sample(0.1, -50, 850)]
    assert below_floor(seen, FLOOR) == (1, 1, 50 * MIB)


def test_others_are_to_blame_where_they_would_have_crossed_alone() -> None:
    seen = [sample(0.0, 300, 500), sample(0.05, -10, 520), sample(0.1, -200, 540)]
    assert below_floor(seen, FLOOR) == (2, 0, 0)


def test_a_batch_that_passes_after_a_crossing_by_others_is_no_crossing_of_the_loader() -> None:
    seen = [sample(0.0, 300, 500), sample(0.05, -100, 500)]
    seen += [sample(0.1 + number / 20, -10, 520) for number in range(40)]
    assert below_floor(seen, FLOOR)[1] == 0
    slow = [sample(0.0, 300, 500), sample(1.0, -5, 530)]
    assert below_floor(slow, FLOOR)[1] == 1
    assert below_floor(slow, FLOOR, 40 * MIB)[1] == 0
    later = [sample(3.0, 300, 500), sample(5.0, -10, 520)]
    assert below_floor(seen + later, FLOOR)[1] == 1


def test_waiting_is_counted_within_the_window_alone() -> None:
    times = [(0.0, 1.0, 48), (2.0, 4.0, 48), (5.0, 5.0, 48)]
    whole = waiting(times, 0.0, 5.0)
    assert (whole.ratio, whole.a_batch_s) == pytest.approx((0.6, 1.0))
    assert waiting(times, 3.0, 5.0).ratio == pytest.approx(0.5)


def test_enough_is_a_tenth_more_than_the_best_or_next_to_nothing() -> None:
    hungry = waiting([(float(at), at + 0.5, 48) for at in range(10)], 0.0, 10.0)
    assert hungry.within(0.46)
    assert not hungry.within(0.45)
    calm = waiting([(float(at), at + 0.005, 48) for at in range(10)], 0.0, 10.0)
    assert calm.within(0.0)


def test_what_settles_must_stay_settled() -> None:
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


def test_a_knob_that_turns_round_within_its_hold_off_is_found() -> None:
    log = [decision(0.0, 8, 12), decision(10.0, 12, 8), decision(30.0, 8, 12)]
    assert reversals(log) == [("ring_slots", 10.0)]


def test_a_take_back_and_a_forced_shrink_are_no_reversal() -> None:
    back = decision(10.0, 12, 8, verdict="nothing")
    forced = decision(10.0, 12, 6, state={"name": "SHRINK"})
    for second in (back, forced):
        assert reversals([decision(0.0, 8, 12), second]) == []


def test_every_scenario_is_read_and_the_timed_bench_does_not_see_them() -> None:
    found = load_scenarios()
    assert len(found) >= 16
    for one in found.values():
        assert all(event.what for event in one.script)
        assert one.floor_bytes > 0
        assert one.window_s <= one.after_s
        assert "cache_bytes" not in one.knobs_of("stream")
    assert not set(found) & set(load_timed())


def test_what_lasts_of_a_script_is_its_last_word() -> None:
    found = load_scenarios()
    assert found["neighbour"].lasting() == {"pace_s": 0.2}
    assert found["faster"].lasting() == {"pace_s": 0.04}
    assert "limit" in found["lowered"].lasting()
    assert found["gpu"].lasting() == {"pace_s": 0.3}


def test_an_event_says_one_thing() -> None:
    with pytest.raises(ValueError, match="one thing"):
        Event(at_s=1.0, pace_s=0.1, neighbour_burns=1)
    assert size("-150MiB") == -150 * MIB


@pytest.mark.parametrize("reader", READERS)
def test_static_settings_are_many_legal_and_the_same_every_time(reader: Any) -> None:
    found = settings_for(reader)
    assert len(found) == SETTINGS
    assert found == settings_for(reader)
    for one in found:
        knobs = Knobs.build({"reader": reader, **one})
        knobs.check(KnobLimits(cpus=64, shards={"a": 4}))


def test_private_frames_are_seen_in_the_kernels_tables_of_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = os.sysconf("SC_PHYS_PAGES") * PAGE
    slab = FrameSlab({"primary": 5 * PAGE}, room_bytes=room, private=True)
    shown = np.ones((5 * PAGE, 1, 1), np.uint8)
    for slot in range(1, 9001):  # more stretches than one question is answered with
        slab.put("primary", slot, shown)
    slab.punch("primary", np.arange(1, 9001, 2))
    begin, end = sparse_mapping(os.getpid())
    assert present_bytes(os.getpid(), begin, end) == slab.private_bytes == 4500 * 5 * PAGE
    refused = Mock(side_effect=OSError(errno.ENOTTY, "no PAGEMAP_SCAN"))
    monkeypatch.setattr("bench.control.memory.fcntl.ioctl", refused)
    assert present_bytes(os.getpid(), begin, end) == slab.private_bytes
    assert refused.called
    assert present_bytes(2**22 + 1, begin, end) == 0


def test_memory_is_read_without_the_loader(tmp_path: Path) -> None:
    assert number_after("rss 5\ntotal_rss 7\n", "rss") == 5
    assert number_after("rss 5\n", "total_rss") == 0
    assert 0 < headroom_bytes("") <= available_bytes() * 2
    assert anonymous_bytes(os.getpid()) > MIB
    before = set(memory_files(os.getpid(), RING_FILE))
    ring, page = os.memfd_create("autoloader"), os.memfd_create("autoloader-control")
    os.pwrite(ring, bytes(MIB), 0)
    (found,) = set(memory_files(os.getpid(), RING_FILE)) - before
    assert blocks_bytes(found) == MIB
    os.close(ring)
    os.close(page)
    # A v2 group: the host alone where it has no limit, else limit − what cannot be taken back.
    group = tmp_path / "group"
    group.mkdir()
    (group / "cgroup.controllers").write_text("memory")
    (group / "memory.current").write_text(str(900 * MIB))
    (group / "memory.stat").write_text(f"inactive_file {200 * MIB}\nactive_file {100 * MIB}\n")
    (group / "memory.max").write_text("max")
    assert headroom_bytes(str(group)) > 100 * MIB
    (group / "memory.max").write_text(str(650 * MIB))
    assert headroom_bytes(str(group)) == 50 * MIB
