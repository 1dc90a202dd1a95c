"""Every layout of pictures in HDF5 files: the pixels are those that h5py reads, to the bit."""

import sys
import tracemalloc
import zlib
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import simplejpeg
from hdf5_files import HEIGHT, LAYOUTS, WIDTH, padded, write_aloha
from numpy.typing import NDArray
from streams import opened

from autoloader import AutoLoader, PipelineSpec
from autoloader.controller.admission import price_start
from autoloader.decode.frames import FrameDecoder
from autoloader.formats import frames, open_source
from autoloader.formats.arrays import lzf
from autoloader.formats.files import UnreadableError
from autoloader.formats.frames import MOST_SLAB_BYTES, ArrayPicture, SlabRead
from autoloader.formats.hdf5.places import frames_of
from autoloader.host.units import MIB
from autoloader.index.encoded import priced_sizes
from autoloader.samples.block import RUN_BYTES
from autoloader.samples.resolve import resolve
from autoloader.samples.transforms.keep import DatasetCount
from autoloader.spec import CameraSpec

STEPS = (13, 9)
CAMERAS = {name: name for name in LAYOUTS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes with a camera for each layout."""
    found = tmp_path_factory.mktemp("layouts")
    for episode, steps in enumerate(STEPS):
        write_aloha(found / f"episode_{episode}.hdf5", episode, steps, CAMERAS)
    return found


def by_h5py(path: Path, camera: str, t: int) -> NDArray[np.uint8]:
    """The picture that h5py reads; of an encoded one what libjpeg makes of h5py's bytes."""
    with h5py.File(path) as file:
        row = np.asarray(file[f"observations/images/{camera}"][t])
    if row.ndim == 3:
        return row
    data = row.tobytes().ljust(len(padded([row.tobytes()])[0]), b"\0")
    return simplejpeg.decode_jpeg(data, "BGR", fastdct=True)  # OpenCV took RGB for BGR


@pytest.mark.parametrize("camera", LAYOUTS)
def test_pictures_are_those_of_h5py(folder: Path, camera: str):
    check_pictures(folder / "episode_0.hdf5", camera, STEPS[0])


def check_pictures(path: Path, camera: str, steps: int) -> None:
    """Hold the pictures of an episode against h5py's."""
    directory = open_source(path.parent, dataset="layouts")
    decoder = FrameDecoder(CameraSpec(size=(HEIGHT, WIDTH)))
    frames = directory.first_frames(str(path), 0, f"observations/images/{camera}", 100)
    assert len(frames) == steps
    out = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    for t, one in enumerate(frames):
        decoder.decode_into(one, out)
        np.testing.assert_array_equal(out, by_h5py(path, camera, t))


@pytest.mark.parametrize(
    "how", [{"userblock_size": 512}, {"libver": "latest"}, {"fs_strategy": "page"}], ids=str
)
def test_places_are_right_in_every_kind_of_file(tmp_path: Path, how: dict[str, Any]):
    path = tmp_path / "episode_0.hdf5"
    write_aloha(path, 0, STEPS[1], CAMERAS, **how)
    for camera in CAMERAS:
        check_pictures(path, camera, STEPS[1])


def test_places_that_an_old_library_tells_wrong_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_aloha(tmp_path / "a.hdf5", 0, STEPS[1], CAMERAS, userblock_size=512)
    monkeypatch.setattr("h5py.version.hdf5_version_tuple", (1, 14, 2))
    with h5py.File(tmp_path / "a.hdf5") as file, pytest.raises(UnreadableError, match="user block"):
        frames_of(file["observations/images/gzip"], file.filename, bgr=False, rotated=False)


def spec_of(folder: Path, cameras: Any, **more: Any) -> PipelineSpec:
    dataset = {
        "name": "arms", "path": str(folder), "action": "action", "state": "observations/qpos",
        "images": {one: f"observations/images/{one}" for one in cameras},
    }  # fmt: skip
    document = {
        "schema_version": 1,
        "datasets": [dataset],
        "sample": {"frame_offsets": [-1, 0], "action_horizon": 3},
        "cameras": {one: {"size": [HEIGHT, WIDTH]} for one in cameras},
        "batch": {"size": 4, "drop_last": False},
        "mixing": {"epoch": "pass"},
        "metadata": "full",
    }
    return PipelineSpec.from_mapping(document | more)


def test_a_loader_shows_every_layout_to_the_bit(folder: Path, one_child: None):
    seen = 0
    with AutoLoader(
        spec_of(folder, CAMERAS), output="numpy", knobs={"cache_bytes": "64MB"}
    ) as loader:
        for _ in range(2):  # the second pass takes frames from the cache
            for batch in loader:
                for row, (_, _, shard, _, t) in enumerate(batch["provenance"].tolist()):
                    path = folder / f"episode_{shard}.hdf5"
                    for camera in CAMERAS:
                        for f, at in enumerate((max(0, t - 1), t)):
                            np.testing.assert_array_equal(
                                batch["images"][camera][row, f], by_h5py(path, camera, at)
                            )
                    with h5py.File(path) as file:
                        action = file["action"][t : t + 3].astype(np.float32)
                    np.testing.assert_array_equal(batch["action"][row, : len(action)], action)
                    seen += 1
    assert seen == 2 * sum(STEPS)


@pytest.mark.parametrize(
    ("pictures", "height", "frames", "batch"),
    [(20, 50, 2, 64), (1, 200, 8, 64), (1, 200, 8, 4), (5, 200, 16, 4), (0, 0, 2, 128)],
)
def test_a_start_is_priced_by_what_a_batch_reads(
    tmp_path: Path, pictures: int, height: int, frames: int, batch: int
):
    """A picture of noise has 105 KB; 64 samples read more than 16 MiB, and 4 samples fewer."""
    with h5py.File(tmp_path / "noise.hdf5", "w") as file:
        for number in range(12):
            noise = np.random.default_rng(number).integers(0, 256, (20, 200, 176, 3), np.uint8)
            how: dict[str, Any] = {}
            if pictures:
                chunks = (pictures, height, 176, 3)
                how = {"chunks": chunks, "compression": "gzip", "compression_opts": 1}
            file.create_dataset(f"data/demo_{number}/obs/top", data=noise, **how)
            file[f"data/demo_{number}"].attrs["num_samples"] = 20
            file.create_dataset(f"data/demo_{number}/actions", data=np.zeros((20, 2)))
    spec = PipelineSpec.from_mapping({
        "datasets": [{"name": "noise", "path": str(tmp_path / "noise.hdf5"), "action": "actions",
                      "images": {"top": "obs/top"}}],
        "cameras": {"top": {"size": [200, 176]}}, "batch": {"size": batch},
        "sample": {"frame_offsets": [*range(1 - frames, 1)]}, "mixing": {"epoch": "forever"},
    })  # fmt: skip
    mixture = resolve(spec)
    counts = {"noise": DatasetCount(12, 240, 240, 240, 0, (), estimated=False)}
    assert priced_sizes(mixture, [1.0], counts).run_bytes == 0  # before there is an index
    tracemalloc.start()
    try:
        with opened(spec, knobs={"cache_bytes": 0}) as loader:
            some = islice(loader, max(12, 192 // batch))  # the first runs are shorter
            read, knobs = max(loader.statistics().run_bytes for _ in some), loader.knobs
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    price = price_start(knobs, priced_sizes(mixture, [1.0], counts))
    assert read > RUN_BYTES if batch > 4 else read < 1.2 * RUN_BYTES
    assert (knobs.read_ahead + 1) * read <= price.parts["queued"]
    assert most <= price.parts["queued"] + price.parts["requests"] + 16 * MIB


def test_lzf_is_undone_as_h5py_does(tmp_path: Path):
    draws = np.random.default_rng(5)
    for shape in (1, 2, 37, 4096):
        values = np.repeat(draws.integers(0, 3, 4096 // shape + 1), shape)[:4096].astype(np.uint8)
        with h5py.File(tmp_path / f"{shape}.h5", "w") as file:
            array = file.create_dataset("a", data=values, chunks=(4096,), compression="lzf")
            mask, packed = array.id.read_direct_chunk((0,))
        assert mask or lzf(packed, 4096) == values.tobytes()


@pytest.mark.parametrize("camera", ["plain_chunks", "gzip", "gzip_left_out", "checked"])
def test_a_slab_that_is_kept_lets_go_of_the_memory_that_it_was_read_into(
    tmp_path: Path, camera: str
):
    path = tmp_path / "episode_0.hdf5"
    write_aloha(path, 0, STEPS[0], {camera: camera.removesuffix("_left_out")})
    if camera == "gzip_left_out":  # as HDF5 stores a chunk that gzip would make larger
        with h5py.File(path, "r+") as file:
            array = file[f"observations/images/{camera}"]
            chunk = np.asarray(array[:5, :10, :12, :1])
            array.id.write_direct_chunk((0, 0, 0, 0), chunk.tobytes(), filter_mask=1)
    check_pictures(path, camera, STEPS[0])
    found = open_source(tmp_path, dataset="layouts")
    (one,) = found.first_frames(str(path), 0, f"observations/images/{camera}", 1)
    assert isinstance(one, ArrayPicture)
    read = bytearray(one.data)
    slab = SlabRead(("elsewhere", 0), one.slab.chunks)
    np.testing.assert_array_equal(
        ArrayPicture(memoryview(read), one.codec, one.number, slab).stored(), one.stored()
    )
    read.clear()  # which Python refuses as long as something refers to the bytes


def test_a_slab_that_a_planned_sample_shows_is_kept_longest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    found = open_source(folder, dataset="layouts")
    path = "observations/images/gzip"
    pictures = found.first_frames(str(folder / "episode_0.hdf5"), 0, path, STEPS[0])

    def read(step: int, damage: int = 0) -> ArrayPicture:
        one = pictures[step]
        assert isinstance(one, ArrayPicture)
        data, (start, size, _) = bytearray(one.data), one.slab.chunks[0]
        data[start + size // 2] ^= damage
        slab = SlabRead(("planned", step // 5), one.slab.chunks)
        return ArrayPicture(memoryview(data), one.codec, one.number, slab)

    first = read(0)
    monkeypatch.setattr(frames, "MOST_SLAB_BYTES", 2 * first.codec.slab_bytes)
    shown = first.stored()
    for step in (5, 10):  # there is room for two
        read(step).stored()
    np.testing.assert_array_equal(read(0, damage=1).stored(), shown)  # it is not unpacked again
    del first
    for step in (5, 10):
        read(step).stored()
    with pytest.raises(ValueError, match="damaged"):
        read(0, damage=1).stored()


def test_the_key_of_a_gzip_slab_takes_checksums_that_are_there(folder: Path):
    found = open_source(folder, dataset="layouts")
    path = "observations/images/gzip"
    (one,) = found.first_frames(str(folder / "episode_0.hdf5"), 0, path, 1)
    assert isinstance(one, ArrayPicture)
    called: list[object] = []
    sys.setprofile(lambda _, event, what: called.append(what) if event == "c_call" else None)
    try:
        one.slab.key(one.data, one.codec)
    finally:
        sys.setprofile(None)
    assert called
    assert zlib.crc32 not in called


@pytest.mark.parametrize("camera", ["contiguous", "rows_of_frames", "gzip", "plain_chunks"])
def test_a_start_reckons_with_the_slabs_that_are_kept(folder: Path, camera: str):
    mixture = resolve(spec_of(folder, [camera]))
    kept = MOST_SLAB_BYTES if camera in ("gzip", "plain_chunks") else 0
    assert mixture.sizes.request_bytes == kept
