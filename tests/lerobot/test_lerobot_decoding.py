"""Frames of one keyframe that a run shows are decoded once, whatever the order and the threads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from lerobot_checks import TOP, spec_of
from lerobot_files import LeRobotFiles

from autoloader.decode.frames import UndecodableFrameError, VideoDecoder
from autoloader.formats.frames import VideoFrame, share
from autoloader.samples.resolve import resolve

FILES = LeRobotFiles(lengths=(40,), gop=20)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FILES.write(tmp_path_factory.mktemp("decoding") / "arm")


@pytest.fixture
def frames(root: Path) -> list[VideoFrame]:
    """Every frame of an episode of two keyframes, in any order."""
    (dataset,) = resolve(spec_of(root)).datasets
    found: list[Any] = [*dataset.directory.first_frames(dataset.slices[0].path, 0, TOP, 40)]
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


def check(root: Path, shown: Sequence[VideoFrame], pictures: Sequence[Any]) -> None:
    wanted = FILES.frames(root, TOP, 0)
    for frame, picture in zip(shown, pictures, strict=True):
        np.testing.assert_array_equal(picture, wanted[frame.number])


def test_each_packet_is_fed_once_for_all_frames_of_a_run(
    root: Path, frames: list[VideoFrame], packets: list[int]
) -> None:
    decoder = VideoDecoder()
    check(root, frames, [decoder.picture(one) for one in share(frames)])
    assert len(packets) == len(frames)


def test_a_damaged_frame_does_not_take_those_before_it_along(
    root: Path, frames: list[VideoFrame]
) -> None:
    first = [one for one in frames if one.number < 20]
    damaged = [one if one.number < 12 else replace(one, data=cut(one, 12)) for one in first]
    decoder, pictures = VideoDecoder(), {}
    for one in share(damaged):
        try:
            pictures[one.number] = decoder.picture(one).copy()
        except UndecodableFrameError:
            assert one.number >= 12
    whole = [one for one in first if one.number < 12 - 3]  # frames may depend on some that follow
    check(root, whole, [pictures[one.number] for one in whole])


def cut(frame: VideoFrame, number: int) -> memoryview:
    """A frame's stretch, with nothing but 255 from a frame's packet on."""
    data = bytearray(frame.data)
    at = next(start for start, _, held in frame.packets if held >= number)
    data[at:] = b"\xff" * (len(data) - at)
    return memoryview(bytes(data))
