"""Videos that are cut, refreshed bit by bit, or of another codec: the frames are PyAV's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lerobot_checks import TOP, check, samples_of, spec_of
from lerobot_files import HEIGHT, WIDTH, LeRobotFiles, decoded, picture, write_video

from autoloader.decode.frames import FrameDecoder
from autoloader.formats.files import UnreadableError
from autoloader.formats.videos import first_frames_of, read_packets
from autoloader.spec import CameraSpec

STEPS = 40
SHOWN = [picture(0, 0, k) for k in range(STEPS)]
REFRESHED = {"x264-params": "intra-refresh=1:bframes=0"}


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_frames_that_an_edit_list_hides_are_no_steps(tmp_path: Path, version: str) -> None:
    files = LeRobotFiles(lengths=(20, 9), version=version)
    root, before = files.write(tmp_path / "arm"), [picture(0, 9, k) for k in range(5)]
    for video in {files.video(root, TOP, episode) for episode in (0, 1)}:
        write_video(video, [*before, *decoded(video)], "libx264", gop=12, hidden=len(before))
        assert len(read_packets(str(video)).offset) == len(decoded(video)) + len(before)
    check(files, root, samples_of(spec_of(root)), {"top": TOP})


@pytest.mark.parametrize(
    ("name", "codec", "options", "hidden"),
    [
        ("cut.mp4", "libx264", {}, 17),
        ("refreshed.mp4", "libx264", REFRESHED, 0),
        ("pictures.mov", "png", {}, 0),
    ],
)
def test_frames_in_any_order_are_those_of_the_whole_video(
    tmp_path: Path, name: str, codec: str, options: dict[str, str], hidden: int
) -> None:
    path = tmp_path / name
    write_video(path, SHOWN, codec, 12, hidden=hidden, **options)
    wanted = decoded(path)
    assert len(wanted) == len(read_packets(str(path))) == STEPS - hidden
    frames = first_frames_of(str(path), 0, len(wanted))
    decoder, out = FrameDecoder(CameraSpec(size=(HEIGHT, WIDTH))), np.empty_like(SHOWN[0])
    for number in np.random.default_rng(0).permutation(len(wanted)).tolist():
        decoder.decode_into(frames[number], out)
        np.testing.assert_array_equal(out, wanted[number])


@pytest.mark.parametrize("name", ["arm.mkv", "arm.ts"])
def test_a_file_that_wraps_its_packets_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_video(path, SHOWN, "libx264", 12)
    with pytest.raises(UnreadableError, match=r"^its packets do not lie .*-c copy OUT\.mp4"):
        read_packets(str(path))
