"""What decoding a picture may take: pixels × scans, and memory."""

import io
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rlds_files import jpeg
from slow_pictures import SCANS_MOST, slow_jpeg

from autoloader.decode import frames as costs
from autoloader.decode.frames import FrameDecoder, UndecodableFrameError
from autoloader.host.units import MIB
from autoloader.samples.block import DECODED_TOGETHER_BYTES
from autoloader.spec import CameraSpec

LONG_S = 30.0


def written(**options: object) -> bytes:
    """A picture of noise, as Pillow writes it."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "JPEG", **options)
    return file.getvalue()


def decode(encoded: bytes) -> np.ndarray:
    out = np.empty((12, 16, 3), np.uint8)
    FrameDecoder(CameraSpec(size=(12, 16))).decode_into(encoded, out)
    return out


@pytest.mark.parametrize(
    ("encoded", "scans"),
    [
        (jpeg(1, 1), 1),
        (written(quality=100), 1),
        (written(progressive=True), 10),
        (written(exif=Image.Exif(), comment=b"\xff\xda" * 20), 1),
        (slow_jpeg(64, 64, 20), 20),
        (slow_jpeg(64, 64, SCANS_MOST), SCANS_MOST),
    ],
)
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_scans_are_counted_from_the_bytes(encoded: bytes, scans: int, kind: type):
    assert costs.scans_of(kind(encoded))[0] == scans


def test_a_picture_of_too_many_pixels_in_scans_is_refused_with_number_and_variable():
    with pytest.raises(UndecodableFrameError, match=r"in 883 scans.*AUTOLOADER_PICTURE_COST"):
        decode(slow_jpeg(1000, 1000, SCANS_MOST))
    assert decode(slow_jpeg(1000, 1000, 200, 40)).std() == 0  # 2.0e8 of 2.7e8


def test_the_variable_lifts_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(costs.VARIABLE, "1e9")
    assert costs.most_cost() == 10**9
    monkeypatch.setattr(costs, "most", costs.most_cost())
    assert decode(slow_jpeg(1000, 1000, SCANS_MOST, 40)).std() == 0


def test_large_pictures_share_room_and_a_larger_one_goes_alone():
    room = costs.DecodeRoom(lambda: None)
    half, inside = DECODED_TOGETHER_BYTES // 2, threading.Event()

    def alone() -> None:
        with room.taken(3 * DECODED_TOGETHER_BYTES):
            inside.set()

    with room.taken(half):
        with room.taken(half):
            thread = threading.Thread(target=alone)
            thread.start()
        assert not inside.is_set()
    assert inside.wait(LONG_S)
    thread.join(LONG_S)


def test_a_picture_for_which_there_is_no_memory_waits_and_is_then_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
):
    readings = iter([100 * MIB, 100 * MIB, 600 * MIB])
    with costs.DecodeRoom(lambda: next(readings)).taken(575 * MIB):
        assert next(readings, None) is None
    monkeypatch.setattr(costs, "MEMORY_WAIT_S", 0.0)
    room = costs.DecodeRoom(lambda: 100 * MIB)
    for _ in range(2):
        with (
            pytest.raises(costs.CostlyPictureError, match=r"0\.56 GiB .* only 100\.0 MiB are"),
            room.taken(575 * MIB),
        ):
            pass


def test_processes_that_share_a_file_take_turns(tmp_path: Path):
    import fcntl
    import os

    path = tmp_path / "ring"
    path.write_bytes(b"")
    with path.open("r+b") as file:
        room = costs.DecodeRoom(lambda: None)
        room.share(file.fileno())
        ready, go = os.pipe(), os.pipe()
        other = os.fork()
        if not other:
            fcntl.lockf(file.fileno(), fcntl.LOCK_EX, 1, 0)
            os.write(ready[1], b".")
            os.read(go[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        inside = threading.Event()

        def enter() -> None:
            with room.taken(DECODED_TOGETHER_BYTES):
                inside.set()

        thread = threading.Thread(target=enter)
        thread.start()
        assert not inside.wait(0.05)
        os.write(go[1], b".")
        os.waitpid(other, 0)
        assert inside.wait(LONG_S)
        thread.join(LONG_S)
        for end in (*ready, *go):
            os.close(end)
