"""Frames of one keyframe are decoded together, and few decodes are made twice; pixels stay."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from lerobot_checks import TOP, check, samples_of, spec_of
from lerobot_files import HEIGHT, WIDTH, LeRobotFiles

from autoloader.decode.frames import FrameDecoder, UndecodableFrameError
from autoloader.decode.jobs import PendingBatch, RowDecoding, joined_by_keyframes
from autoloader.decode.message import BatchMessage
from autoloader.formats import frames as stored_frames
from autoloader.formats.frames import SharedFrames, VideoFrame, share
from autoloader.samples.block import SampleBlock
from autoloader.samples.resolve import resolve
from autoloader.spec import CameraSpec

FILES = LeRobotFiles(lengths=(40,), gop=20)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FILES.write(tmp_path_factory.mktemp("decoding") / "arm")


def frames_of(root: Path, count: int = 40) -> list[VideoFrame]:
    """Frames of the first episode, in any order."""
    (dataset,) = resolve(spec_of(root)).datasets
    found: list[Any] = [*dataset.directory.first_frames(dataset.slices[0].path, 0, TOP, count)]
    random.Random(3).shuffle(found)
    return found


@pytest.fixture
def packets(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all packets that a decoder is fed from now on."""
    fed: list[int] = []
    real = av.Packet

    def packet(data: Any) -> Any:
        fed.append(len(data))
        return real(data)

    monkeypatch.setattr(av, "Packet", packet)
    return fed


def together(shown: Sequence[VideoFrame]) -> dict[int, Any]:
    """Number of a frame → its pixels, of those that came."""
    out = [np.empty((HEIGHT, WIDTH, 3), np.uint8) for _ in shown]
    decoder = FrameDecoder(CameraSpec(size=(HEIGHT, WIDTH)))
    return {shown[k].number: out[k] for k in decoder.decode_together(shown, out)}


def test_frames_of_a_keyframe_take_each_packet_once(root: Path, packets: list[int]):
    shown, wanted = frames_of(root), FILES.frames(root, TOP, 0)
    for first in (0, 20):
        found = together([one for one in shown if first <= one.number < first + 20])
        for number in range(first, first + 20):
            np.testing.assert_array_equal(found[number], wanted[number])
    assert len(packets) == len(shown)


@pytest.mark.parametrize("codec", ["libx264", "libx265", "libsvtav1"])
def test_frames_that_nobody_wants_change_no_pixel(tmp_path: Path, codec: str):
    files = LeRobotFiles(lengths=(40,), gop=40, codec=codec)
    made = files.write(tmp_path / "arm")
    wanted = files.frames(made, TOP, 0)
    shown = {one.number: one for one in frames_of(made)}
    for numbers in ((0,), (5, 17), (1, 2, 3), (39,), (7, 22, 23, 38)):
        found = together([shown[number] for number in numbers])
        for number in numbers:
            np.testing.assert_array_equal(found[number], wanted[number])


@pytest.fixture
def skips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which frames decoders are told to leave out from now on."""
    told: list[str] = []
    real = av.CodecContext

    class Context:
        """A decoder that notes it."""

        def __init__(self, context: Any) -> None:
            super().__setattr__("_context", context)

        @classmethod
        def create(cls, name: str, mode: Any) -> Context:
            return cls(real.create(name, mode))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._context, name)

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "skip_frame":
                told.append(value)
            setattr(self._context, name, value)

    monkeypatch.setattr(av, "CodecContext", Context)
    return told


@pytest.mark.parametrize(("layers", "leaves_out"), [(1, True), (3, False)])
def test_of_a_stream_with_temporal_sub_layers_no_frame_is_left_out(
    tmp_path: Path, skips: list[str], layers: int, leaves_out: bool
):
    params = f"log-level=none:bframes=3:b-pyramid=1:temporal-layers={layers}"
    options = {"x265-params": params}
    files = LeRobotFiles(lengths=(40,), gop=40, codec="libx265", options=options)
    made = files.write(tmp_path / "arm")
    shown, wanted = {one.number: one for one in frames_of(made)}, files.frames(made, TOP, 0)
    for numbers in ((17,), (7, 22, 23, 38)):
        found = together([shown[number] for number in numbers])
        for number in numbers:
            np.testing.assert_array_equal(found[number], wanted[number])
    assert ("NONREF" in skips) == leaves_out


def test_a_damaged_frame_does_not_take_those_before_it_along(root: Path):
    first = [one for one in frames_of(root) if one.number < 20]
    damaged = [one if one.number < 12 else replace(one, data=cut(one, 12)) for one in first]
    wanted, out = FILES.frames(root, TOP, 0), np.empty((HEIGHT, WIDTH, 3), np.uint8)
    assert len(together(damaged)) < len(damaged)
    decoder, alone = FrameDecoder(CameraSpec(size=(HEIGHT, WIDTH))), set()
    for one in damaged:
        try:
            decoder.decode_into(one, out)
        except UndecodableFrameError:
            assert one.number >= 12
        else:
            alone.add(one.number)
            if one.number < 12 - 3:  # frames may depend on some that follow
                np.testing.assert_array_equal(out, wanted[one.number])
    assert alone >= set(range(12 - 3))


def cut(frame: VideoFrame, number: int) -> memoryview:
    """A frame's stretch, with nothing but 255 from a frame's packet on."""
    data = bytearray(frame.data)
    at = next(start for start, _, held in frame.packets if held >= number)
    data[at:] = b"\xff" * (len(data) - at)
    return memoryview(bytes(data))


def run_of(root: Path, rows: Sequence[Sequence[int]]) -> SampleBlock:
    """Samples of a run that show these frames of the first episode."""
    stored = sorted(frames_of(root), key=lambda one: one.number)
    shared = dict(share(dict(enumerate(stored)), [0] * len(stored)))
    shown = np.asarray(rows)
    return SampleBlock(
        columns={},
        texts=[b""],
        frames={"top": [shared[number] for number in range(len(stored))]},
        frame_row=shown,
        frame_zeroed=np.zeros(shown.shape, np.bool_),
        datasets=[0] * len(shown),
        videos={"top"},
    )


def decoded_batch(run: SampleBlock, first: int, size: int) -> Any:
    """[size, F, H, W, 3] what a batch shows of samples of a run."""
    images = np.zeros((size, run.frame_row.shape[1], HEIGHT, WIDTH, 3), np.uint8)
    pending = PendingBatch(BatchMessage(0, size, 0), {"images/top": images})
    decoders = {"top": FrameDecoder(CameraSpec(size=(HEIGHT, WIDTH)))}
    decoding = RowDecoding(pending, run, first, decoders, "arm", {"top": {}})
    for rows in joined_by_keyframes([[row] for row in range(size)], run, first):
        decoding.run(rows)
    assert pending.done.is_set()
    assert not pending.bad
    return images


@pytest.mark.parametrize(("room", "fed_again"), [(2**25, False), (0, True)])
def test_frames_of_later_batches_are_decoded_with_the_first_and_wait_where_there_is_room(
    root: Path, packets: list[int], monkeypatch: pytest.MonkeyPatch, room: int, fed_again: bool
):
    monkeypatch.setattr(stored_frames, "MOST_KEPT_BYTES", room)
    rows = [[0, 5, 5], [3, 18, 30], [4, 16, 18], [7, 9, 30]]
    wanted, run, fed = FILES.frames(root, TOP, 0), run_of(root, rows), []
    for first in (0, 2):
        images = decoded_batch(run, first, 2)
        fed.append(len(packets))
        for row in range(2):
            np.testing.assert_array_equal(images[row], [wanted[k] for k in rows[first + row]])
    assert fed[0] <= 40
    assert (fed[1] > fed[0]) == fed_again
    del run
    assert SharedFrames._kept_bytes == 0


def test_rows_that_show_frames_of_one_keyframe_are_one_job(root: Path):
    run = run_of(root, [[0, 1], [25, 26], [2, 3], [27, 28], [1, 4]])
    assert joined_by_keyframes([[k] for k in range(5)], run, 0) == [[0, 2, 4], [1, 3]]
    across = run_of(root, [[0, 1], [25, 26], [19, 20]])
    assert joined_by_keyframes([[k] for k in range(3)], across, 0) == [[0, 1, 2]]


def test_a_loader_over_long_keyframe_distances_gives_every_sample_right(root: Path):
    check(FILES, root, samples_of(spec_of(root), decode_threads=2), {"top": TOP})
    gc.collect()  # a loader that was closed may lie in a circle
    assert SharedFrames._kept_bytes == 0


def test_batches_wait_whole_and_in_their_order(root: Path, monkeypatch: pytest.MonkeyPatch):
    shared = SharedFrames({one.number: one for one in frames_of(root, 20)})
    monkeypatch.setattr(stored_frames, "MOST_KEPT_BYTES", 6 * 100)
    batches = {5: [16, 17], 10: [17, 18, 19], 15: [12, 13, 14], 20: [15]}
    chosen = shared.choose(batches, 100)
    assert chosen == [16, 17, 18, 19]  # the third has no room, and what follows does not go first
    picture = np.zeros(100, np.uint8)
    for row in chosen:
        shared.keep(row, picture if row != 18 else None)
    assert shared.take(17, 5) is picture
    assert shared.take(17, 10) is picture
    assert shared.take(17, 10) is None  # both have had it
    assert shared.take(18, 10) is None
    assert shared.take(16, 15) is picture  # of a batch that waits for nothing: it stays
    assert SharedFrames._kept_bytes == 2 * 100
    del shared
    assert SharedFrames._kept_bytes == 0


def test_no_room_is_lost_where_the_collector_drops_a_run_while_it_is_counted(root: Path):
    frames = {one.number: one for one in frames_of(root, 20)}
    dropped = [SharedFrames(frames) for _ in range(4)]
    for one in dropped:
        assert one.choose({5: [19]}, 100) == [19]
    del one

    class Collecting(int):
        """A number of bytes at whose product a run is dropped."""

        def __rmul__(self, other: int) -> int:
            if dropped:
                dropped.pop()
            return int(self) * other

    shared = SharedFrames(frames)
    assert shared.choose({5: [18, 19]}, Collecting(100)) == [18, 19]
    shared.keep(18, None)
    dropped.clear()
    assert SharedFrames._kept_bytes == 100
    del shared
    assert SharedFrames._kept_bytes == 0


def test_pictures_that_save_little_have_a_part_of_the_room(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    shared = SharedFrames({one.number: one for one in frames_of(root, 20)})
    monkeypatch.setattr(stored_frames, "MOST_KEPT_BYTES", 4 * 100)
    assert shared.choose({5: [0, 1]}, 100) == []
    assert sorted(shared.choose({5: [19]}, 100)) == [19]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_a_start_reckons_with_the_frames_that_wait(root: Path):
    assert resolve(spec_of(root)).sizes.request_bytes == stored_frames.MOST_KEPT_BYTES


def test_a_fork_has_a_room_of_its_own(root: Path):
    """The lock of the room is held, and the room is full, when the process forks."""
    frames = {one.number: one for one in frames_of(root, 20)}
    whole = stored_frames.MOST_KEPT_BYTES
    of_the_parent = SharedFrames(frames)
    assert of_the_parent.choose({5: [19]}, whole) == [19]
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with SharedFrames._room_lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that waits for the lock
        own = SharedFrames(frames)
        chosen = own.choose({5: [19]}, whole)
        del of_the_parent
        gc.collect()
        os._exit(chosen != [19] or SharedFrames._kept_bytes != whole)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert SharedFrames._kept_bytes == whole
    del of_the_parent
    assert SharedFrames._kept_bytes == 0
