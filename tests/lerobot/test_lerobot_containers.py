"""Videos that are cut, refreshed bit by bit, or of another codec: the frames are PyAV's."""

import struct
from pathlib import Path

import numpy as np
import pytest
from lerobot_checks import TOP, check, samples_of, spec_of
from lerobot_files import FPS, HEIGHT, WIDTH, LeRobotFiles, decoded, picture, write_video

from autoloader.decode.frames import FrameDecoder
from autoloader.formats.files import UnreadableError
from autoloader.formats.videos import first_frames_of, read_packets
from autoloader.spec import CameraSpec

STEPS = 40
SHOWN = [picture(0, 0, k) for k in range(STEPS)]
REFRESHED = {"x264-params": "intra-refresh=1:bframes=0"}


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_frames_that_an_edit_list_hides_are_no_steps(tmp_path: Path, version: str):
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
        ("refreshed.avi", "libx264", REFRESHED, 0),
        ("pictures.mov", "png", {}, 0),
        ("lossless.avi", "ffv1", {}, 0),  # only the file says how large its pictures are
    ],
)
def test_frames_in_any_order_are_those_of_the_whole_video(
    tmp_path: Path, name: str, codec: str, options: dict[str, str], hidden: int
):
    path = tmp_path / name
    write_video(path, SHOWN, codec, 12, hidden=hidden, **options)
    assert check_any_order(path) == STEPS - hidden


def check_any_order(path: Path) -> int:
    """Hold frames that are decoded one by one against the whole video; how many they are."""
    wanted = decoded(path)
    assert len(wanted) == len(read_packets(str(path)))
    frames = first_frames_of(str(path), 0, len(wanted))
    decoder, out = FrameDecoder(CameraSpec(size=(HEIGHT, WIDTH))), np.empty_like(SHOWN[0])
    for number in np.random.default_rng(0).permutation(len(wanted)).tolist():
        decoder.decode_into(frames[number], out)
        np.testing.assert_array_equal(out, wanted[number])
    return len(wanted)


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_colours_that_only_the_file_tells_are_those_of_the_frames(tmp_path: Path, codec: str):
    path = tmp_path / "colours.mp4"
    write_video(path, [one // np.array([1, 2, 3], np.uint8) for one in SHOWN[:9]], codec, 4)
    plain, data = decoded(path), path.read_bytes()
    told = struct.pack(">I4s4sHHHB", 19, b"colr", b"nclx", 1, 1, 1, 0x80)  # BT.709, full range
    entry = data.index(b"stsd") + 12
    end = entry + int.from_bytes(data[entry : entry + 4], "big")
    data = data[:end] + told + data[end:]
    names = (b"stsd", b"stbl", b"minf", b"mdia", b"trak", b"moov")
    for at in (entry, *(data.index(name) - 4 for name in names)):  # the media lies before them
        size = int.from_bytes(data[at : at + 4], "big") + len(told)
        data = data[:at] + struct.pack(">I", size) + data[at + 4 :]
    path.write_bytes(data)
    assert check_any_order(path) == 9
    assert np.abs(np.subtract(decoded(path), plain, dtype=int)).max() > 9


@pytest.mark.parametrize("begin", [10, 10.5], ids=["on a frame", "between frames"])
def test_an_edit_list_of_several_parts_is_refused_by_name(tmp_path: Path, begin: float):
    path = tmp_path / "parts.mp4"
    write_video(path, SHOWN, "libx264", 8)
    data = path.read_bytes()
    table = data.index(b"elst")
    (ticks,) = struct.unpack_from(">I", data, data.index(b"mdhd") + 16)
    parts = [(1000, 0), (1000, round(begin * ticks / FPS))]  # ms, ticks of the track
    told = b"".join(struct.pack(">Iihh", *part, 1, 0) for part in parts)
    listed = b"elst" + struct.pack(">II", 0, len(parts)) + told
    data = data[:table] + listed + data[table + 4 + 8 + 12 :]
    for box in (b"elst", b"edts", b"trak", b"moov"):  # the media lies before them
        at = data.index(box) - 4
        (size,) = struct.unpack_from(">I", data, at)
        data = data[:at] + struct.pack(">I", size + 12) + data[at + 4 :]
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match=r"^its edit list has several parts; re-encode it"):
        read_packets(str(path))


@pytest.mark.parametrize("name", ["arm.mkv", "arm.ts"])
def test_a_file_that_wraps_its_packets_is_refused(tmp_path: Path, name: str):
    path = tmp_path / name
    write_video(path, SHOWN, "libx264", 12)
    with pytest.raises(UnreadableError, match=r"^its packets are not stored .*-c copy OUT\.mp4"):
        read_packets(str(path))
