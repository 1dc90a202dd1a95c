"""Pictures inside Parquet files: every way in which writers pack them, and damage."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_checks import SIDE, TOP, check, samples_of, spec_of
from lerobot_files import LeRobotFiles, stored
from streams import opened, spec_file

from autoloader.cli.app import main
from autoloader.formats.files import UnreadableError
from autoloader.formats.frames import PackedPicture
from autoloader.formats.lerobot.parquet import PictureTable, read_pictures

ROWS = "data/chunk-000/file-000.parquet"
BEARS = {"max_corrupt_ratio": 0.9}
PACKED = ("none", "snappy", "zstd", "gzip", "brotli")
PAGES: tuple[Mapping[str, Any], ...] = (
    {},
    {"use_dictionary": False, "row_group_size": 7},
    {"use_dictionary": False, "write_batch_size": 3, "data_page_size": 200_000},
)


def values() -> list[bytes | None]:
    """Some that repeat, some that pack well, some above a piece of snappy, one of no bytes."""
    rng = np.random.default_rng(0)
    often = rng.bytes(900)
    mixed: list[bytes | None] = [often, rng.bytes(3), None, b"ab" * 5000, rng.bytes(150_000), b""]
    return [*mixed, often, *(rng.bytes(20_000 + k) for k in range(12)), None, b"x" * 300_000]


def table_of(folder: Path, **how: Any) -> tuple[PictureTable, bytes]:
    """The places of ``values`` in a file written so, and the file."""
    rows = [one if one is None else {"bytes": one, "path": "p"} for one in values()]
    column = pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    pq.write_table(pa.table({"a.b": column}), folder / "x.parquet", **how)
    path = folder / "x.parquet"
    return read_pictures(str(path), "a.b", len(rows)), path.read_bytes()


def picture_at(table: PictureTable, file: bytes, row: int) -> PackedPicture:
    first = int(table.offset[row])
    data = memoryview(file)[first : first + int(table.length[row])]
    return PackedPicture(
        data, table.codec, *(int(one[row]) for one in (table.unpacked, table.start, table.size))
    )


def test_pages_of_version_2_are_refused_by_name(tmp_path: Path):
    with pytest.raises(UnreadableError, match="pages of version 2"):
        table_of(tmp_path, data_page_version="2.0")


@pytest.mark.parametrize("pages", PAGES)
@pytest.mark.parametrize("packed", PACKED)
def test_each_value_is_found_however_pages_are_packed(
    tmp_path: Path, packed: str, pages: Mapping[str, Any]
):
    table, file = table_of(tmp_path, compression=packed, **pages)
    for row, value in enumerate(values()):
        if value is None:
            assert table.offset[row] == -1
        else:
            assert bytes(picture_at(table, file, row).picture()) == value


@pytest.mark.parametrize("packed", PACKED)
def test_pages_of_one_picture_over_and_over_are_read(tmp_path: Path, packed: str):
    rows, path = [{"bytes": np.random.default_rng(0).bytes(9000)}] * 2000, tmp_path / "x.parquet"
    column = pa.array(rows, pa.struct([("bytes", pa.binary())]))
    pq.write_table(pa.table({"a": column}), path, compression=packed, use_dictionary=False)
    table = read_pictures(str(path), "a", len(rows))
    last = picture_at(table, path.read_bytes(), len(rows) - 1).picture()
    assert bytes(last) == rows[0]["bytes"]


def test_a_damaged_stretch_is_told_and_gives_no_picture(tmp_path: Path):
    table, file = table_of(tmp_path, compression="zstd")
    picture = picture_at(table, b"\7" * len(file), 0)
    with pytest.raises(UnreadableError, match="page is damaged"):
        picture.picture()


@pytest.mark.parametrize(("version", "packed"), [("v2.1", "snappy"), ("v3.0", "snappy"),
                                                 ("v3.0", "none")])  # fmt: skip
def test_samples_show_the_pictures_of_their_steps_beside_a_video(
    tmp_path: Path, version: str, packed: str
):
    files = LeRobotFiles(version=version, pictures=[SIDE], written={"compression": packed})
    root = files.write(tmp_path / "arm")
    both = {"images": {"top": TOP, "side": SIDE}}
    sizes = {"top": {"size": [64, 96]}, "side": {"size": [64, 96]}}
    spec = spec_of(root, dataset=both, cameras=sizes)
    check(files, root, samples_of(spec), {"top": TOP, "side": SIDE})
    held = samples_of(spec, epochs=3, cache_bytes=64 * 2**20)
    check(files, root, held, {"top": TOP, "side": SIDE})


def rewritten(root: Path, pictures: list[Any]) -> None:
    table = pq.read_table(root / ROWS)
    at = table.column_names.index(SIDE)
    column = pa.array(pictures, table.schema.field(SIDE).type)
    pq.write_table(table.set_column(at, SIDE, column), root / ROWS)


def test_an_episode_with_a_row_without_a_picture_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    files = LeRobotFiles(cameras={}, pictures=[SIDE])
    root = files.write(tmp_path / "arm")
    pictures = [stored(0, e, k) for e in range(3) for k in range(files.lengths[e])]
    pictures[14] = {"bytes": None, "path": "images/frame_000002.png"}
    rewritten(root, pictures)
    spec = spec_of(root, dataset={"images": {"top": SIDE}}, errors=BEARS)
    check(files, root, samples_of(spec), {"top": SIDE}, without={1})
    assert "row 2 of episode 1 has no picture" in caplog.text


def test_verify_bears_a_camera_without_pictures_that_the_spec_does_not_use(tmp_path: Path):
    files = LeRobotFiles(cameras={}, pictures=[TOP, SIDE])
    root = files.write(tmp_path / "arm")
    rewritten(root, [None] * sum(files.lengths[:3]))
    spec = spec_file(tmp_path, spec_of(root))
    assert main(["verify", "--spec", str(spec), "-n", "20", "--ram-floor", "64MiB"]) == 0


def test_a_picture_that_is_damaged_later_is_a_flagged_repeat(tmp_path: Path):
    whole = {"compression": "none"}
    files = LeRobotFiles(cameras={}, pictures=[SIDE], rows_a_file=4, written=whole)
    root = files.write(tmp_path / "arm")
    spec = spec_of(root, dataset={"images": {"top": SIDE}}, errors=BEARS)
    samples_of(spec)  # the index is there now
    rows = root / ROWS
    kept, data = rows.stat(), bytearray(rows.read_bytes())
    at = data.index(stored(0, 2, 5)["bytes"])
    data[at : at + 40] = bytes(40)
    with rows.open("r+b") as file:
        file.write(data)
    os.utime(rows, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    found = samples_of_all(spec)
    assert len(found) == sum(files.lengths)
    assert len(set(found)) < len(found)


def samples_of_all(spec: Any) -> list[tuple[int, ...]]:
    """Provenance of every row of an epoch, repeats included."""

    with opened(spec, controller=False) as loader:
        return [tuple(row) for batch in loader for row in batch["provenance"].tolist()]
