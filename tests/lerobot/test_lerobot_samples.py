"""Samples of LeRobot datasets: every number and every frame is the one that was written."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_lines import Cli
from ended import python
from index_views import open_in
from lerobot_checks import SIDE, TOP, check, samples_of, spec_of
from lerobot_files import LeRobotFiles, shown

from autoloader import PipelineSpec
from autoloader.formats import lerobot
from autoloader.samples.resolve import resolve


@pytest.mark.parametrize("gop", [1, 2, 20])
@pytest.mark.parametrize("codec", ["libx264", "libx265", "libsvtav1"])
def test_every_codec_and_keyframe_distance_gives_the_frames_that_were_written(
    tmp_path: Path, codec: str, gop: int
):
    files = LeRobotFiles(codec=codec, gop=gop, cameras={TOP: 2, SIDE: 3})
    root = files.write(tmp_path / "arm")
    both = {"images": {"top": TOP, "side": SIDE}}
    sizes = {"top": {"size": [64, 96]}, "side": {"size": [64, 96]}}
    found = samples_of(spec_of(root, dataset=both, cameras=sizes))
    check(files, root, found, {"top": TOP, "side": SIDE})
    if codec != "libsvtav1":  # which shows a frame again where the next one is much like it
        for (episode, t), sample in found.items():
            for number, camera in enumerate(("top", "side")):
                assert shown(sample["frames"][camera][1]) == (number, episode, t)


class Rows(pa.ExtensionType):
    """Lists under a name of their own, as ``datasets`` writes features of two axes."""

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.float32()), "rows of a test")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> "Rows":
        return cls()


@pytest.mark.parametrize("kind", [Rows(), pa.fixed_shape_tensor(pa.float32(), [3])])
def test_numbers_are_read_whatever_type_of_a_package_they_are_of(tmp_path: Path, kind: Any):
    files = LeRobotFiles()
    root = files.write(tmp_path / "arm")
    for path in (root / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        rows = pa.array(table["action"].to_pylist(), kind.storage_type)
        tensors = pa.ExtensionArray.from_storage(kind, rows)
        place = table.column_names.index("action")
        pq.write_table(table.set_column(place, "action", tensors), path)
    pa.register_extension_type(Rows())
    try:
        check(files, root, samples_of(spec_of(root)), {"top": TOP})
    finally:
        pa.unregister_extension_type(Rows().extension_name)


def test_metadata_and_a_video_of_several_parquet_files_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = LeRobotFiles(rows_a_file=1, cameras={TOP: 4}).write(tmp_path / "arm")
    read: list[str] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            read.append(name)
            return real(*arguments, **named)

        return call

    monkeypatch.setattr(lerobot, "packets_of", noted("packets", lerobot.packets_of))
    monkeypatch.setattr(lerobot, "read_episodes", noted("episodes", lerobot.read_episodes))
    (dataset,) = resolve(spec_of(root)).datasets
    index = open_in(tmp_path / "cache", dataset)[0]
    assert len(dataset.slices) == index.episodes == 4
    assert sorted(read) == ["episodes", "packets"]


def test_the_packets_of_videos_that_were_asked_for_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = LeRobotFiles(lengths=(5, 5, 5), cameras={TOP: 1}).write(tmp_path / "arm")
    a, b, c = sorted(map(str, root.rglob("*.mp4")))
    monkeypatch.setattr(lerobot, "MOST_KEPT_PACKETS", 10)
    videos = lerobot.Videos()
    first, *_ = [videos.table(path) for path in (a, b, a, c)]
    assert videos.table(a) is first


def test_pandas_is_not_imported_where_it_is_installed(tmp_path: Path):
    root = LeRobotFiles(cameras={}, pictures=(TOP,)).write(tmp_path / "arm")
    (tmp_path / "pandas.py").write_text("open(__file__ + '.imported', 'w')\nraise ImportError")
    code = f"""
from autoloader import AutoLoader, PipelineSpec
spec = PipelineSpec.from_mapping({spec_of(root).model_dump(mode="json", exclude_unset=True)!r})
with AutoLoader(spec, isolation="thread", output="numpy", ram_floor="64MiB") as loader:
    print(len(next(iter(loader))["action"]))
"""
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    assert int(python("-c", code, env=where).stdout)
    assert not (tmp_path / "pandas.py.imported").exists()


def test_init_writes_an_entry_for_it_beside_rlds_data(tmp_path: Path, cli: Cli):
    LeRobotFiles(lengths=(4, 3)).write(tmp_path / "arm")
    written = tmp_path / "mix.yaml"
    written.write_text(cli("init", tmp_path).out)
    (dataset,) = PipelineSpec.from_yaml(written).datasets
    assert dataset.images["primary"].paths == (TOP,)
    assert [term.path for term in dataset.action.terms] == ["action"]
    assert [term.path for term in dataset.state.terms] == ["observation.state"]
    assert dataset.language.paths == ("task",)
