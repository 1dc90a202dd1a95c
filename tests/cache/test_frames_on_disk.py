"""Frames on a disk: the right ones or none, whatever happens to the file and to those who write."""

import fcntl
import gc
import hashlib
import inspect
import logging
import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from rlds_files import PLAIN, episode, image, png, write_dataset
from streams import spec_of
from user_groups import give_to_another_group, give_to_own_group

from autoloader import AutoLoader
from autoloader.cache import disk as disk_module
from autoloader.cache.disk import KEY_BYTES, DiskRoom, FramesOnDisk
from autoloader.controller.profile import Profile
from autoloader.controller.profiles import shipped_profiles_dir
from autoloader.decode.decoders import DecodeRequest, StoredDecoder
from autoloader.decode.frames import FrameDecoder
from autoloader.host.units import MIB
from autoloader.spec import CameraSpec

SHAPE = (24, 32, 3)
FRAME = 24 * 32 * 3


def key_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()[:KEY_BYTES]


def picture(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, SHAPE, np.uint8)


def opened(folder: Path, size: int = MIB) -> FramesOnDisk:
    """Files close with the last who has them: ``del`` ends a run."""
    return FramesOnDisk(DiskRoom(str(folder), size), {FRAME})


def there(disk: FramesOnDisk, numbers: range) -> list[int]:
    """The frames that are there; none is another one's."""
    found = []
    for number in numbers:
        out = np.empty(SHAPE, np.uint8)
        if disk.load(key_of(number), out):
            np.testing.assert_array_equal(out, picture(number))
            found.append(number)
    return found


def fill(disk: FramesOnDisk, numbers: range) -> None:
    for number in numbers:
        disk.store(key_of(number), picture(number))


def test_the_next_run_finds_what_the_last_one_kept(tmp_path: Path):
    disk = opened(tmp_path / "new")
    assert there(disk, range(40)) == []
    fill(disk, range(40))
    assert there(disk, range(80)) == list(range(40))
    del disk
    assert there(opened(tmp_path / "new"), range(80)) == list(range(40))
    assert (tmp_path / "new" / f"frames-{FRAME}.cache").stat().st_size <= MIB


@pytest.mark.parametrize("at", ["header", "entries", "slots", "cut", "all"])
def test_a_damaged_file_costs_frames_and_gives_no_wrong_one(tmp_path: Path, at: str):
    disk = opened(tmp_path)
    fill(disk, range(200))
    path = tmp_path / f"frames-{FRAME}.cache"
    del disk
    size = path.stat().st_size
    noise = np.random.default_rng(0).integers(0, 255, size, np.uint8).tobytes()
    with path.open("r+b") as file:
        if at == "cut":
            file.truncate(size // 2)
        begin, end = {"header": (0, 8), "entries": (4096, 9000), "slots": (size // 3, size)}.get(
            at, (0, size if at == "all" else 0)
        )
        file.seek(begin)
        file.write(noise[begin:end])
    disk = opened(tmp_path)
    left = there(disk, range(200))
    assert len(left) < 200
    assert bool(left) == (at in ("entries", "slots"))
    fill(disk, range(200))
    assert len(there(disk, range(200))) > len(left)


@pytest.mark.parametrize("flipped", [0x01, 0x80, 0xFF])
def test_no_damaged_byte_of_a_header_ends_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, flipped: int
):
    fill(opened(tmp_path, MIB // 4), range(20))
    path = tmp_path / f"frames-{FRAME}.cache"
    before = path.read_bytes()
    for at in range(disk_module._HEADER.size):
        path.write_bytes(before[:at] + bytes([before[at] ^ flipped]) + before[at + 1 :])
        caplog.clear()
        disk = opened(tmp_path, MIB // 4)
        assert caplog.text.count(str(path)) == 1
        assert there(disk, range(20)) == []
        fill(disk, range(20, 40))
        assert there(disk, range(40)) == list(range(20, 40))
        del disk
        for aside in tmp_path.glob("*.aside-*"):
            aside.unlink()


@pytest.mark.parametrize("run", [2**32 - 1, 2**32 - 2, 2**31])
def test_the_number_of_a_run_may_be_any(tmp_path: Path, run: int):
    fill(opened(tmp_path), range(20))
    path = tmp_path / f"frames-{FRAME}.cache"
    header = disk_module._Header.of(path.read_bytes()[: disk_module._HEADER.size])
    assert header is not None
    with path.open("r+b") as file:
        file.write(header._replace(run=run).packed())
    for _ in range(4):
        disk = opened(tmp_path)
        fill(disk, range(20, 40))
        assert len(there(disk, range(20, 40))) == 20
        del disk


def target_of(place: Path, kind: str) -> Path | None:
    """Put something of another's in a file's place; what must stay as it is."""
    target = place.parent.parent / "precious"
    target.write_bytes(b"precious " * 1000)
    if kind == "link":
        place.symlink_to(target)
    elif kind == "dangling":
        target.unlink()
        place.symlink_to(target)
    elif kind == "name":
        os.link(target, place)
    elif kind == "text":
        place.write_bytes(target.read_bytes())
        return place
    elif kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "another's":
        place.write_bytes(target.read_bytes())
        os.chown(place, 4321, 4321)
        return place
    elif kind == "written by all":
        place.write_bytes(target.read_bytes())
        place.chmod(0o666)
        return place
    return target


@pytest.mark.parametrize(
    "kind", ["link", "dangling", "name", "text", "folder", "pipe", "another's", "written by all"]
)
def test_what_is_not_this_users_file_is_set_aside_as_it_is_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
):
    if kind == "another's" and os.geteuid():
        pytest.skip("only root makes another user's file")
    folder = tmp_path / "frames"
    folder.mkdir()
    place = folder / f"frames-{FRAME}.cache"
    target = target_of(place, kind)
    with caplog.at_level(logging.WARNING):
        disk = opened(folder)
    assert caplog.text.count(f"{place} is not used") == 1
    (aside,) = folder.glob("*.aside-*")
    assert aside.name in caplog.text
    kept = aside if target == place else target
    assert kept.exists() == (kind != "dangling")
    if kind != "dangling":
        assert kept.read_bytes() == b"precious " * 1000
    fill(disk, range(20))
    del disk
    assert there(opened(folder), range(20)) == list(range(20))
    assert caplog.text.count(f"{place} is not used") == 1


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o775])
def test_a_folder_that_others_may_write_to_is_done_without_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
):
    folder = tmp_path / "frames"
    sizes = {FRAME, 2 * FRAME}
    disk = FramesOnDisk(DiskRoom(str(folder), MIB), sizes)
    fill(disk, range(20))
    del disk
    folder.chmod(mode)
    if not mode & 0o002:
        give_to_another_group(folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with caplog.at_level(logging.WARNING):
        disk = FramesOnDisk(DiskRoom(str(folder), MIB), sizes)
    assert not disk
    assert caplog.text.count("others may write to") == 1
    assert f"chmod go-w {folder}" in caplog.text
    assert there(disk, range(20)) == []
    fill(disk, range(20))
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    folder.chmod(0o700)
    assert there(FramesOnDisk(DiskRoom(str(folder), MIB), sizes), range(20)) == list(range(20))


def test_a_folder_that_the_users_own_group_may_write_to_is_used(tmp_path: Path):
    folder = tmp_path / "frames"
    fill(opened(folder), range(20))
    give_to_own_group(folder)
    folder.chmod(0o775)
    assert there(opened(folder), range(20)) == list(range(20))


def test_a_folder_that_is_made_is_this_users_alone(tmp_path: Path):
    before = os.umask(0)
    try:
        disk = opened(tmp_path / "a" / "frames")
    finally:
        os.umask(before)
    fill(disk, range(3))
    assert (tmp_path / "a" / "frames").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "a" / "frames")
    del disk
    assert there(opened(tmp_path / "link"), range(3)) == [0, 1, 2]


def test_a_file_cut_while_it_is_in_use_is_no_crash(tmp_path: Path):
    disk = opened(tmp_path)
    fill(disk, range(100))
    os.truncate(tmp_path / f"frames-{FRAME}.cache", 5000)
    assert len(there(disk, range(100))) < 100
    fill(disk, range(100, 200))
    there(disk, range(200))


def test_a_second_job_goes_without_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    fill(opened(tmp_path), range(10))
    with (tmp_path / f"frames-{FRAME}.cache").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with caplog.at_level(logging.WARNING):
            disk = opened(tmp_path)
        assert "another job uses it" in caplog.text
        assert there(disk, range(10)) == []
        fill(disk, range(10))
    assert there(opened(tmp_path), range(10)) == list(range(10))


def test_where_there_is_no_room_it_goes_without_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB // 2, before[1]))
    try:
        with caplog.at_level(logging.WARNING):
            disk = opened(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "no room for" in caplog.text
    fill(disk, range(10))
    assert there(disk, range(10)) == []
    assert there(opened(tmp_path, 5000), range(10)) == []
    assert "too few" in caplog.text


def test_a_writer_killed_in_the_middle_leaves_right_frames(tmp_path: Path):
    script = f"""
import hashlib
import numpy as np
from autoloader.cache.disk import *
SHAPE = {SHAPE}
{inspect.getsource(key_of)}
{inspect.getsource(picture)}
disk = FramesOnDisk(DiskRoom({str(tmp_path)!r}, {MIB}), {{{FRAME}}})
for number in range(10**6):
    disk.store(key_of(number % 300), picture(number % 300))
    if number == 150:
        print("half", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with process:
        said = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert said == "half\n"
    assert len(there(opened(tmp_path), range(300))) > 140


# --- which frames are worth it --------------------------------------------------------------------


class Counting(FrameDecoder):
    """Counts what it decodes."""

    decoded = 0

    def decode_into(self, encoded: object, out: np.ndarray) -> None:
        self.decoded += 1
        super().decode_into(encoded, out)


def encoded(number: int, suffix: str, size: int) -> bytes:
    shown = np.random.default_rng(number).integers(100, 108, (size, size, 3), np.uint8)
    done, data = cv2.imencode(suffix, shown)
    assert done
    return data.tobytes()


def decoder(folder: Path, size: int) -> tuple[StoredDecoder, Counting]:
    camera = CameraSpec(size=(size, size))
    plain = Counting(camera)
    room = DiskRoom(str(folder), 8 * MIB)
    stored = FramesOnDisk(room, {size * size * 3})
    return StoredDecoder(plain, DecodeRequest(camera).digest, stored), plain


def test_a_frame_that_is_cheap_to_decode_is_not_kept(tmp_path: Path):
    stored, plain = decoder(tmp_path, 256)
    frames = [encoded(number, ".jpg", 256) for number in range(3)]
    out = np.empty((256, 256, 3), np.uint8)
    stored._seconds[frames[0][:3]] = 4e-4 / len(frames[0])  # a clock under load may say anything
    stored.decode_into(frames[0], out)
    assert not stored._disk.load(stored._key(frames[0]), out)
    assert plain.decoded == 1


def test_a_loader_whose_profile_lends_it_a_disk_gives_the_same_batches_from_there(tmp_path: Path):
    written = write_dataset(
        tmp_path / "data",
        [[episode(number, 6, encode=partial(png, height=480, width=640)) for number in range(3)]],
        features={**PLAIN, "observation/image": image(480, 640)},
    )
    spec = spec_of(
        written,
        reader="indexed",
        cameras={"primary": {"size": [32, 32]}},
        batch={"size": 6},
        mixing={"epoch": 18},
    )
    profile = Profile.from_yaml(shipped_profiles_dir() / "local_dev.yaml").to_yaml()
    lent = f"cache: {{disk: {tmp_path / 'frames'}, bytes: 8MiB}}\n"
    (tmp_path / "lent.yaml").write_text(profile + lent)

    def batches(named: str, epochs: int) -> tuple[list[np.ndarray], int]:
        gc.collect()
        with AutoLoader(spec, profile=named, isolation="thread", output="numpy") as loader:
            shown = [b["images"]["primary"].copy() for _ in range(epochs) for b in loader]
            return shown, loader.statistics().cache.from_disk

    plain, none = batches("local_dev", 3)
    first, _ = batches(str(tmp_path / "lent.yaml"), 3)
    second, all_of_it = batches(str(tmp_path / "lent.yaml"), 3)
    for one, two, three in zip(plain, first, second, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)
    assert none == 0
    assert all_of_it >= 18 - 4  # the first frames, in several threads, tell the cost
