"""Damaged and hostile HDF5 files: named, never a wrong picture, memory bounded."""

import math
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hdf5_files import HEIGHT, LAYOUTS, WIDTH, pictures, write_aloha, write_robomimic

from autoloader import AutoLoader, PipelineSpec
from autoloader.decode.frames import FrameDecoder, UndecodableFrameError
from autoloader.errors import AutoloaderError, SourceError
from autoloader.formats import open_source
from autoloader.formats.arrays import DEFLATE, ArrayCodec, inflated_by_zlib
from autoloader.formats.frames import ArrayPicture, SlabRead
from autoloader.spec import CameraSpec

TOP = "observations/images/top"
STEPS = 8


def external_link(file: h5py.File) -> None:
    with h5py.File(Path(file.filename).with_name("other.dat"), "w") as other:
        other.create_dataset("top", data=pictures(0, 0, STEPS))
    file[TOP] = h5py.ExternalLink("other.dat", "/top")


def soft_link(file: h5py.File) -> None:
    file.create_dataset("elsewhere", data=pictures(0, 0, STEPS))
    file[TOP] = h5py.SoftLink("/elsewhere")


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((STEPS, HEIGHT, WIDTH, 3), np.uint8)
    layout[...] = h5py.VirtualSource("other.h5", "a", (STEPS, HEIGHT, WIDTH, 3))
    file.create_virtual_dataset(TOP, layout)


def external_file(file: h5py.File) -> None:
    whole = STEPS * HEIGHT * WIDTH * 3
    file.create_dataset(TOP, (STEPS, HEIGHT, WIDTH, 3), "u1", external=[("raw.bin", 0, whole)])


def never_written(file: h5py.File) -> None:
    file.create_dataset(TOP, (STEPS, HEIGHT, WIDTH, 3), "u1")


def a_chunk_missing(file: h5py.File) -> None:
    array = file.create_dataset(TOP, (STEPS, HEIGHT, WIDTH, 3), "u1", chunks=(2, 24, 32, 3))
    array[:4] = pictures(0, 0, 4)


def other_filter(file: h5py.File) -> None:
    file.create_dataset(TOP, data=pictures(0, 0, STEPS), scaleoffset=0)


def vast_chunks(file: h5py.File) -> None:
    file.create_dataset(TOP, (STEPS, 3000, 3000, 3), "u1", chunks=(8, 3000, 3000, 3))


def vast_pictures(file: h5py.File) -> None:
    shape = (STEPS, 90_000, 90_000, 3)
    file.create_dataset(TOP, shape, "u1", chunks=(1, 64, 64, 3), compression="gzip")


def many_chunks(file: h5py.File) -> None:
    file.create_dataset(TOP, (STEPS, 4000, 4000, 3), "u1", chunks=(1, 2, 2, 1))


def few_rows(file: h5py.File) -> None:
    file.create_dataset(TOP, data=pictures(0, 0, STEPS - 1))


def scattered(file: h5py.File) -> None:
    array = file.create_dataset(TOP, (STEPS, HEIGHT, WIDTH, 3), "u1", chunks=(8, 12, 32, 3),
                                compression="gzip")  # fmt: skip
    array[:, :12] = pictures(0, 0, STEPS)[:, :12]
    file.flush()
    file.create_dataset("between", data=np.zeros(2**21, np.uint8))
    array[:, 12:] = pictures(0, 0, STEPS)[:, 12:]


REFUSED: dict[Callable[[h5py.File], None], str] = {
    external_link: "an external link, which is not followed",
    soft_link: "a soft link, which is not followed",
    virtual: "a virtual dataset",
    external_file: "other files",
    never_written: "never written",
    a_chunk_missing: "2 chunks were never written",
    other_filter: r"filter scaleoffset \(6\)",
    vast_chunks: "its chunks have .*, and the limit is",
    vast_pictures: "are supported",
    many_chunks: "chunks, and the limit is",
    few_rows: "has 7 rows, and the episode has 8 steps",
    scattered: "lie far apart in the file",
}


def written(folder: Path, write: Callable[[h5py.File], None]) -> Path:
    """An episode with a good camera, and one that ``write`` makes."""
    path = folder / "episode_0.hdf5"
    write_aloha(path, 0, STEPS, {"good": "contiguous"})
    with h5py.File(path, "r+") as file:
        write(file)
    return path


@pytest.mark.parametrize("write", REFUSED, ids=lambda one: one.__name__)
def test_what_is_not_read_is_refused_by_its_name(
    tmp_path: Path, write: Callable[[h5py.File], None]
):
    path = written(tmp_path, write)
    tracemalloc.start()
    try:
        directory = open_source(tmp_path, dataset="arms")
        slices = directory.splits["train"]
        directory.check_first(slices, ["observations/images/good"], [])
        with pytest.raises(SourceError, match=REFUSED[write]) as refused:
            directory.check_first(slices, [TOP], [])
        assert "; " not in refused.value.what  # the remedy says what to do, once
        with pytest.raises(ValueError, match=REFUSED[write]):
            directory.first_frames(str(path), 0, TOP, 1)
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()
    assert str(path) in refused.value.what


def spec_of(folder: Path, camera: str = TOP, **more: Any) -> PipelineSpec:
    return PipelineSpec.from_mapping(
        {
            "schema_version": 1,
            "datasets": [
                {"name": "arms", "path": str(folder), "action": "action", "images": {"top": camera}}
            ],
            "cameras": {"top": {"size": [HEIGHT, WIDTH]}},
            "batch": {"size": 4, "drop_last": False},
            "mixing": {"epoch": "pass"},
            "metadata": "full",
            **more,
        }
    )


@pytest.mark.parametrize("layout", ["gzip", "lzf", "fletcher32", "checked"])
def test_a_flipped_byte_never_gives_another_picture(tmp_path: Path, layout: str):
    path = tmp_path / "episode_0.hdf5"
    write_aloha(path, 0, STEPS, {"top": layout})
    directory = open_source(tmp_path, dataset="arms")
    frames = directory.first_frames(str(path), 0, TOP, STEPS)
    decoder, good = FrameDecoder(CameraSpec(size=(HEIGHT, WIDTH))), pictures(0, 0, STEPS)
    out, drawn, told = np.empty((HEIGHT, WIDTH, 3), np.uint8), np.random.default_rng(3), 0
    for t, one in enumerate(frames):
        assert isinstance(one, ArrayPicture)
        for _ in range(6):
            data = bytearray(one.data)
            data[drawn.integers(len(data))] ^= 1 << drawn.integers(8)
            slab = SlabRead(one.slab.origin, one.slab.chunks)
            hurt = replace(one, data=memoryview(data), slab=slab)
            try:
                decoder.decode_into(hurt, out)
            except UndecodableFrameError:
                told += 1
            else:
                if layout != "lzf":  # it has no checksum
                    np.testing.assert_array_equal(out, good[t])
    assert told > 0


@pytest.mark.parametrize("hurt", ["whole", "cut", "larger", "shorter", "changed", "empty"])
def test_gzip_is_undone_and_refused_as_by_zlib(hurt: str):
    codec = ArrayCodec((8, 8, 3), (2, 8, 8, 3), (DEFLATE,))
    size = math.prod(codec.chunk) + {"larger": 100, "shorter": -100}.get(hurt, 0)
    data = zlib.compress(np.random.default_rng(1).integers(0, 9, size, np.uint8).tobytes())
    if hurt == "changed":
        data = data[:90] + bytes([data[90] ^ 4]) + data[91:]
    data = {"cut": data[:-9], "empty": b""}.get(hurt, data)

    def outcome(undo: Callable[[], Any]) -> bytes | str:
        try:
            return bytes(undo())
        except ValueError as error:
            return str(error)

    found = outcome(lambda: codec.unpacked(memoryview(data), 0, len(data), 0))
    if hurt == "shorter":
        assert found == "a chunk unpacks to 284 bytes instead of 384"
    else:
        assert found == outcome(lambda: inflated_by_zlib(data, math.prod(codec.chunk) + 4))


def test_a_damaged_slab_costs_the_samples_that_show_it(tmp_path: Path, one_child: None):
    for episode in range(2):
        write_aloha(tmp_path / f"episode_{episode}.hdf5", episode, STEPS, {"top": "gzip"})
    path = tmp_path / "episode_1.hdf5"
    with h5py.File(path) as file:
        chunk = file[TOP].id.get_chunk_info(0)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset + chunk.size // 2)
        raw.write(b"\xaa" * 8)
    spec = spec_of(tmp_path, errors={"max_corrupt_ratio": 0.9})
    with AutoLoader(spec, output="numpy", ram_floor="64MiB") as loader:
        for batch in loader:
            for row, (_, _, shard, _, t) in enumerate(batch["provenance"].tolist()):
                np.testing.assert_array_equal(
                    batch["images"]["top"][row, 0], pictures(0, shard, STEPS)[t]
                )
                assert shard == 0 or t >= 5
        told = " ".join(map(str, loader.quarantined()))
    assert "gzip data is damaged" in told


def test_a_file_that_is_cut_off_is_named_with_its_bytes(tmp_path: Path):
    path = tmp_path / "d.hdf5"
    write_robomimic(path, {"demo_0": 9, "demo_1": 7})
    whole = path.stat().st_size
    with path.open("r+b") as raw:
        raw.truncate(whole * 2 // 3)
    with pytest.raises(SourceError, match=rf"{path}: it is cut off: it has .* of {whole:,} bytes"):
        open_source(tmp_path, dataset="d")


def test_one_cut_episode_of_many_is_left_out_by_its_name(tmp_path: Path, one_child: None):
    for episode in range(3):
        write_aloha(tmp_path / f"episode_{episode}.hdf5", episode, STEPS, {"top": "contiguous"})
    with (tmp_path / "episode_1.hdf5").open("r+b") as raw:
        raw.truncate(5000)
    spec = spec_of(tmp_path, errors={"max_corrupt_ratio": 0.5})
    with AutoLoader(spec, output="numpy", ram_floor="64MiB") as loader:
        shards = {int(place[2]) for batch in loader for place in batch["provenance"]}
        (told,) = loader.quarantined()
    assert shards == {0, 2}
    assert "episode_1.hdf5" in str(told)
    assert "it is cut off" in str(told)


def test_an_episode_of_other_lengths_is_left_out(tmp_path: Path, one_child: None):
    path = tmp_path / "d.hdf5"
    write_robomimic(path, {"demo_0": 9, "demo_1": 7, "demo_2": 8})
    with h5py.File(path, "r+") as file:
        file["data/demo_1"].attrs["num_samples"] = 6
        file["data/demo_2/obs"].move("agentview_image", "moved")
    spec = spec_of(tmp_path, "obs/agentview_image", errors={"max_corrupt_ratio": 0.9})
    spec = PipelineSpec.from_mapping(
        spec.model_dump(mode="json") | {"datasets": [
            {"name": "d", "path": str(tmp_path), "action": "actions",
             "images": {"top": "obs/agentview_image"}}
        ]}
    )  # fmt: skip
    with AutoLoader(spec, output="numpy", ram_floor="64MiB") as loader:
        records = {int(place[3]) for batch in loader for place in batch["provenance"]}
        told = " ".join(map(str, loader.quarantined()))
    assert records == {0}
    assert "demo_1/actions has 7 rows, and the episode has 6 steps" in told
    assert "the file has no data/demo_2/obs/agentview_image" in told


@pytest.mark.parametrize("rows", ["<u2", "<f4", "|i1", "|u1"])
def test_a_camera_of_another_type_than_elsewhere_costs_its_episode(
    tmp_path: Path, rows: str, one_child: None
):
    for episode in range(2):
        write_aloha(tmp_path / f"episode_{episode}.hdf5", episode, STEPS, {"top": "contiguous"})
    with h5py.File(tmp_path / "episode_1.hdf5", "r+") as file:
        del file[TOP]
        file[TOP] = np.ones((STEPS, HEIGHT, WIDTH, 4 if rows == "|u1" else 3), rows)
    spec = spec_of(tmp_path, errors={"max_corrupt_ratio": 0.5})
    with AutoLoader(spec, output="numpy", ram_floor="64MiB") as loader:
        shards = {int(place[2]) for batch in loader for place in batch["provenance"]}
        (told,) = loader.quarantined()
    assert shards == {0}
    assert f"{TOP} is {np.dtype(rows)} of shape ({HEIGHT}, {WIDTH}, " in str(told)
    assert "image of uint8 in other episodes" in str(told)


@pytest.mark.parametrize("place", ["heap", "table"])
def test_a_damaged_heap_is_named(tmp_path: Path, place: str):
    path = tmp_path / "episode_0.hdf5"
    write_aloha(path, 0, STEPS, {"top": "heaps"})
    whole = path.read_bytes()
    with h5py.File(path) as file:
        table = file[TOP].id.get_offset()
    at = whole.index(b"GCOL") if place == "heap" else table + 4
    path.write_bytes(whole[:at] + b"\xff\xff\xff\xff" + whole[at + 4 :])
    directory = open_source(tmp_path, dataset="arms")
    with pytest.raises(AutoloaderError, match="no rows at byte"):
        directory.check_first(directory.splits["train"], [TOP], [])


def test_a_group_that_leads_back_to_itself_ends(tmp_path: Path):
    path = written(tmp_path, lambda file: LAYOUTS["contiguous"](file, TOP, pictures(0, 0, STEPS)))
    with h5py.File(path, "r+") as file:
        file["observations/again"] = file["observations"]
    assert 3 < len(open_source(tmp_path, dataset="arms").features) < 40
    with h5py.File(path, "r+") as file:
        for name in "abc":
            file[f"observations/{name}"] = file["observations"]
    with pytest.raises(SourceError, match="more than 1024 arrays, or its"):
        open_source(tmp_path, dataset="arms")
