"""The frame table holds what is shown next soonest, within its bytes, and lends right pixels."""

import contextlib
import os
import resource
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoloader.cache.slab import FILE_BITS, CameraFrames, FrameSlab, Lease
from autoloader.cache.table import FrameTable
from autoloader.errors import PipelineError
from autoloader.sampling.schedule import NEVER

SIZE = (48, 64)
FRAME = 48 * 64 * 3
CAMERAS = {"primary": SIZE, "wrist": (24, 32)}
FRAME_BYTES = {camera: 3 * height * width for camera, (height, width) in CAMERAS.items()}


def picture(key: int, camera: str = "primary") -> np.ndarray:
    shown = np.full((*CAMERAS[camera], 3), key % 256, np.uint8)
    shown[0, :8] = np.frombuffer(np.int64(key).tobytes() * 3, np.uint8).reshape(8, 3)
    return shown


@pytest.fixture
def table() -> Iterator[FrameTable]:
    made = FrameTable(FRAME_BYTES, 2, room_bytes=2**26)
    yield made
    made.close()


def frames(keys: np.ndarray, next_use: np.ndarray) -> CameraFrames:
    keys = np.asarray(keys, np.int64)
    own = np.zeros(len(keys), np.int64)
    return CameraFrames(keys, np.asarray(next_use, np.int64), own, own + 1)


def filled(lease: Lease, rows: slice = slice(None)) -> None:
    """Its new frames lie in their slots, as far as the table knows."""
    for camera, slots in lease.slots.items():
        own = slots[rows]
        lease.written[camera][own[own >= 0]] = True


class Player:
    """Shows frames of one camera run by run, as a reader does; two runs are under way at a time."""

    def __init__(self, table: FrameTable, order: np.ndarray, run: int = 16) -> None:
        self.table, self.order, self.run = table, order, run
        self.next_use = np.full(len(order), NEVER)
        last: dict[int, int] = {}
        for position in range(len(order) - 1, -1, -1):
            self.next_use[position] = last.get(order[position], NEVER)
            last[order[position]] = position
        self.under_way: list[tuple[Lease, np.ndarray]] = []
        self.at = 0

    def begin(self) -> None:
        rows = slice(self.at, self.at + self.run)
        keys = self.order[rows]
        lease = self.table.ask(["file"], {"primary": frames(keys, self.next_use[rows])}, self.at, 1)
        self.under_way.append((lease, keys))
        self.at += self.run

    def step(self, *, check: bool = True) -> None:
        """Begin a run, fill the one before."""
        self.begin()
        if len(self.under_way) > 1:
            self.fill(check=check)

    def fill(self, *, lost: bool = False, check: bool = True) -> None:
        lease, keys = self.under_way.pop(0)
        slab = lease.slab
        for k, key in enumerate(keys.tolist()):
            slot = int(lease.slots["primary"][k])
            if slot < 0:
                continue
            if not check:
                lease.written["primary"][slot] = True
            elif lease.written["primary"][slot]:
                out = np.empty((1, FRAME), np.uint8)
                slab.gather("primary", np.asarray([slot]), out)
                np.testing.assert_array_equal(out[0], picture(key).reshape(-1))
            elif not lost:
                slab.put("primary", slot, picture(key))
        lease.give_up()

    def play(self) -> None:
        while self.at + self.run <= len(self.order):
            self.step()
        while self.under_way:
            self.fill()


def passes(samples: int, count: int, seed: int = 0) -> np.ndarray:
    """Positions of a dataset of so many frames, each shown once a pass, in an order of its own."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(samples) for _ in range(count)])


def test_what_a_decode_costs_is_known_as_long_as_one_pipeline_is_there(table: FrameTable):
    unknown = np.full(2, np.nan)
    table.claim("first", 10 * FRAME, lambda: np.asarray([1e-3, 10e-3]))
    table.claim("second", 10 * FRAME, lambda: unknown)
    table.claim("second", 20 * FRAME, lambda: np.asarray([1e-3, 10e-3]))
    table.leave("first")
    keys = np.arange(40)
    asked = CameraFrames(keys, 100 + keys, keys % 2, np.ones(40, np.int64))
    kept = table.ask(["file"], {"primary": asked}, 0, 1).slots["primary"] >= 0
    assert kept[1::2].sum() >= 18
    assert not kept[::2].any()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_budget_moves_to_shown_pixels_are_right_and_bytes_stay_within(data: st.DataObject):
    table = FrameTable(FRAME_BYTES, 1, room_bytes=2**24)
    player = Player(table, passes(30, 5, data.draw(st.integers(0, 9))), run=6)
    try:
        while player.at + 6 <= len(player.order) or player.under_way:
            moves = ["fill", "lose"] if player.under_way else []
            if player.at + 6 <= len(player.order) and len(player.under_way) < 3:
                moves += ["begin", "begin"]
            move = data.draw(st.sampled_from([*moves, "resize"]))
            if move == "begin":
                player.begin()
            elif move == "resize":
                table.resize(data.draw(st.integers(0, 35)) * FRAME)
            else:
                player.fill(lost=move == "lose")
            counts = table.counts()
            pinned = set[int]().union(
                *(lease.slots["primary"].tolist() for lease, _ in player.under_way)
            ) - {-1}
            assert counts.held_bytes <= max(counts.budget_bytes, len(pinned) * FRAME)
        assert table.slab.allocated_bytes() <= table.budget_bytes + 2 * FRAME + 60 * 4096
        table.resize(0)
        assert table.counts().slots == 0
        assert table.slab.allocated_bytes() <= 4 * 4096
    finally:
        table.close()


def test_frames_of_a_mapped_slab_are_those_that_another_mapping_put_there(table: FrameTable):
    slab = table.shared_slab()
    other = FrameSlab(FRAME_BYTES, room_bytes=slab.room_bytes, descriptor=os.dup(slab.descriptor))
    slab.put("wrist", 7, picture(3, "wrist"))
    out = np.empty((2, 24 * 32 * 3), np.uint8)
    other.gather("wrist", np.asarray([7, 0]), out)
    np.testing.assert_array_equal(out[0], picture(3, "wrist").reshape(-1))
    assert not out[1].any()


@contextlib.contextmanager
def limited(limit: int, to: int) -> Iterator[None]:
    """A limit of this process for a while."""
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (to, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(limit, before)


def test_where_the_kernel_refuses_the_memory_nothing_is_cached_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
):
    table = FrameTable(FRAME_BYTES, 1, room_bytes=2**26)
    with limited(resource.RLIMIT_FSIZE, 2**20):
        table.resize(50 * FRAME)
        assert table.shared_slab() is None
    assert table.budget_bytes == 0
    assert "ulimit -f" in caplog.text
    table.close()


def test_address_space_that_cannot_be_had_is_told_with_the_remedy():
    with pytest.raises(PipelineError, match="address space") as raised:
        FrameSlab(FRAME_BYTES, room_bytes=2**50)
    assert "ulimit -v" in raised.value.remedy


def test_files_are_the_same_for_all_who_ask_however_each_of_them_numbers_them(table: FrameTable):
    table.resize(20 * FRAME)
    keys = np.asarray([5, (1 << FILE_BITS) + 5])
    first = table.ask(["a", "b"], {"primary": frames(keys, np.asarray([70, 80]))}, 0, 1)
    filled(first)
    first.give_up()
    second = table.ask(["b", "c"], {"primary": frames(keys, np.asarray([170, 180]))}, 9, 1)
    assert second.cached["primary"].tolist() == [True, False]
    assert second.slots["primary"][0] == first.slots["primary"][1]
    second.give_up()
