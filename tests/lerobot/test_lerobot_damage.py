"""Damaged LeRobot datasets: an episode that does not fit is left out with its numbers."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_checks import TOP, check, info_of, samples_of, spec_of
from lerobot_files import FPS, HEIGHT, WIDTH, LeRobotFiles, picture, write_video
from streams import opened

from autoloader import AutoLoader, PipelineSpec
from autoloader.errors import AutoloaderError, SourceError, SpecError
from autoloader.samples.resolve import resolve

BEARS = {"max_corrupt_ratio": 0.9}
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
ROWS = "data/chunk-000/file-000.parquet"


def edit(path: Path, column: str, change: Callable[[list], list], kind: Any = None) -> None:  # type: ignore[type-arg]
    table = pq.read_table(path)
    kind = kind or table.schema.field(column).type
    values = pa.array(change(table.column(column).to_pylist()), kind)
    pq.write_table(table.set_column(table.column_names.index(column), column, values), path)


def drift(root: Path, files: LeRobotFiles) -> None:
    """Times that run away from the frame rate, in episode 1."""
    del files
    edit(
        root / ROWS, "timestamp", lambda old: [*old[:12], *(1.1 * t for t in old[12:19]), *old[19:]]
    )


def starts_elsewhere(root: Path, files: LeRobotFiles) -> None:
    """A merge that wrote the same start for two episodes of a file."""
    del files
    edit(root / EPISODES, f"videos/{TOP}/from_timestamp", lambda old: [0.0, 0.0, *old[2:]])


def wrong_file(root: Path, files: LeRobotFiles) -> None:
    """A merge that points to the file of another part."""
    del files
    edit(root / EPISODES, f"videos/{TOP}/file_index", lambda old: [0, 0, 0, 1])


def cut_video(root: Path, files: LeRobotFiles) -> None:
    video = files.video(root, TOP, 2)
    video.write_bytes(video.read_bytes()[: video.stat().st_size // 2])


def fewer_frames(root: Path, files: LeRobotFiles) -> None:
    video = files.video(root, TOP, 2)
    frames = [picture(0, 2, k) for k in range(20)] + [picture(0, 3, k) for k in range(8)]
    write_video(video, frames, files.codec, files.gop)


def missing_video(root: Path, files: LeRobotFiles) -> None:
    files.video(root, TOP, 2).unlink()


def other_rate(root: Path, files: LeRobotFiles) -> None:
    video = files.video(root, TOP, 2)
    frames = [picture(0, 2, k) for k in range(20)] + [picture(0, 3, k) for k in range(9)]
    write_video(video, frames, files.codec, files.gop, fps=2 * FPS)


def lost_rows(root: Path, files: LeRobotFiles) -> None:
    del files
    table = pq.read_table(root / ROWS)
    pq.write_table(pa.concat_tables([table.slice(0, 5), table.slice(6)]), root / ROWS)


def no_rows(root: Path, files: LeRobotFiles) -> None:
    del files
    pq.write_table(pq.read_table(root / ROWS).slice(0, 0), root / ROWS)


def cut_rows(root: Path, files: LeRobotFiles) -> None:
    del files
    rows = root / ROWS
    rows.write_bytes(rows.read_bytes()[:-100])


def unknown_task(root: Path, files: LeRobotFiles) -> None:
    del files
    edit(root / ROWS, "task_index", lambda old: [*old[:19], *[9] * 20])


def beyond_64_bits(root: Path, files: LeRobotFiles) -> None:
    """A number that int64 cannot hold, in episode 1."""
    del files
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["observation.state"]["dtype"] = "int64"
    (root / "meta/info.json").write_text(json.dumps(info))
    edit(root / ROWS, "observation.state", lambda old: [*old[:12], [1e30, 0.0], *old[13:]])


def beyond_float32(root: Path, files: LeRobotFiles) -> None:
    """A number that float32 cannot hold, in episode 1."""
    del files
    doubles = pa.list_(pa.float64())
    edit(root / ROWS, "observation.state", lambda old: [*old[:12], [1e300, 0], *old[13:]], doubles)


@pytest.mark.parametrize(
    ("damage", "lost", "words"),
    [
        (drift, {1}, ("row 6", "0.660 s", "10 frames a second", "0.600 s")),
        (starts_elsewhere, {1}, ("frames 0 to 6 are of episode 1", "0 to 11 of episode 0")),
        (wrong_file, {0, 1, 2}, ("frames 0 to 11 are of episode 0", "of episode 2")),
        (cut_video, {2, 3}, ("the video cannot be read",)),
        (fewer_frames, {2, 3}, ("it has 28 frames", "2 to 3, should have 29")),
        (missing_video, {2, 3}, ("No such file",)),
        (other_rate, {2, 3}, ("should be at", "10 frames a second")),
        (lost_rows, {0}, ("11 rows", "lists 12")),
        (no_rows, {0, 1, 2}, ("no row of episode 1", "lists 12")),
        (cut_rows, {0, 1, 2}, ("Parquet file cannot be read",)),
        (beyond_64_bits, {1}, ("observation.state: row 0 of episode 1", "does not fit the dtype")),
        (beyond_float32, {1}, ("observation.state: row 0 of episode 1", "does not fit the dtype")),
        (unknown_task, {2}, ("task 9 of episode 2",)),
    ],
)
def test_what_does_not_fit_is_left_out_and_everything_else_is_right(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path, LeRobotFiles], None],
    lost: set[int],
    words: tuple[str, ...],
):
    files = LeRobotFiles()
    root = files.write(tmp_path / "arm")
    damage(root, files)
    found = samples_of(spec_of(root, errors=BEARS))
    check(files, root, found, {"top": TOP}, without=lost)
    for word in words:
        assert word in caplog.text


def test_episodes_of_two_parquet_files_may_not_share_frames_of_a_video(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    files = LeRobotFiles(rows_a_file=1)
    root = files.write(tmp_path / "arm")
    starts_elsewhere(root, files)
    check(files, root, samples_of(spec_of(root, errors=BEARS)), {"top": TOP}, without={1})
    assert "frames 0 to 6 are of episode 1" in caplog.text


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"codebase_version": "v4.0"}, SourceError, ("v4.0", "v2.1, v3.0")),
        ({"fps": 0}, SourceError, ("fps is 0",)),
        ({"fps": "fast"}, SourceError, ("fps is 'fast'",)),
        ({"features": []}, SourceError, ("lists no features",)),
        ({"features": {"action": 3}}, SourceError, ("'action'",)),
        ({"splits": {"train": "all"}}, SourceError, ("'all'", "FIRST:LAST")),
        ({"data_path": "../{chunk_index}.parquet"}, SourceError, ("not a path below",)),
        ({"data_path": "{nothing}.parquet"}, SourceError, ("nothing",)),
        ({"data_path": "{chunk_index:0999999999d}"}, SourceError, ()),
    ],
)
def test_broken_metadata_is_told_with_its_file(
    tmp_path: Path, changes: dict[str, object], error: type[AutoloaderError], words: tuple[str, ...]
):
    root = info_of(LeRobotFiles(lengths=(4, 3)).write(tmp_path / "arm"), **changes)
    with pytest.raises(error) as caught:
        AutoLoader(spec_of(root), ram_floor="200MB", isolation="thread", controller=False)
    for word in words:
        assert word in str(caught.value) + caught.value.remedy


def test_depth_videos_are_refused_by_name(tmp_path: Path):
    camera = {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "info": {"video.is_depth_map": True}}
    root = LeRobotFiles(lengths=(4, 3)).write(tmp_path / "arm")
    features = json.loads((root / "meta/info.json").read_text())["features"]
    info_of(root, features={**features, TOP: camera})
    with pytest.raises(SpecError) as caught:
        AutoLoader(spec_of(root), ram_floor="200MB", isolation="thread", controller=False)
    for word in ("depth", TOP, "images.top"):
        assert word in str(caught.value)


def test_integers_without_names_as_language_and_depth_cameras_are_refused_by_name(tmp_path: Path):
    root = LeRobotFiles(lengths=(4, 3)).write(tmp_path / "arm")
    common = {"name": "arm", "path": str(root), "action": "action"}
    cameras = {"top": {"size": [HEIGHT, WIDTH]}}
    for language in ("task_index", "observation.state"):
        dataset = {**common, "images": {"top": TOP}, "language": language}
        with pytest.raises(AutoloaderError, match=language) as caught:
            resolve(PipelineSpec.from_mapping({"datasets": [dataset], "cameras": cameras}))
        assert caught.value.remedy
    depth = {"top": {**cameras["top"], "depth": "uint16"}}
    with pytest.raises(SpecError, match="not a depth frame"):
        resolve(
            PipelineSpec.from_mapping(
                {"datasets": [{**common, "images": {"top": TOP}}], "cameras": depth}
            )
        )


def test_a_frame_whose_packets_are_damaged_later_is_a_flagged_repeat(tmp_path: Path):
    files = LeRobotFiles(codec="libx264", gop=2)
    root = files.write(tmp_path / "arm")
    samples_of(spec_of(root))  # the index is there now
    video = files.video(root, TOP, 2)
    kept = video.stat()
    data = bytearray(video.read_bytes())
    data[200:600] = np.random.default_rng(0).bytes(400)
    with video.open("r+b") as file:
        file.write(data)
    os.utime(video, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    with opened(spec_of(root, errors=BEARS), controller=False) as loader:
        rows = sum(len(batch["action"]) for batch in loader)
    assert rows == sum(files.lengths)
