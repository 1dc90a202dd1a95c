"""Index files: built when missing or stale, whole at any time, shared by any number of builders."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_views import EpisodeView, open_in
from rlds_files import Written, jpeg, write_steps
from streams import dataset_of, mixture_of
from user_groups import give_to_another_group, give_to_own_group

from autoloader.errors import SourceError
from autoloader.formats import tfds
from autoloader.formats.tables import Section, ShardTables
from autoloader.index import DatasetIndex
from autoloader.index import records as records_module
from autoloader.index import shard as shard_module
from autoloader.index.shard import HEADER
from autoloader.samples.resolve import ResolvedDataset


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Three shards of two episodes."""
    return write_steps(tmp_path / "data", [[3, 4]] * 3)


@pytest.fixture
def dataset(written: Written) -> ResolvedDataset:
    return mixture_of(written).datasets[0]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class Builds:
    """Counts shard files that are indexed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        self._read = tfds.read_tables
        monkeypatch.setattr(tfds, "read_tables", self)

    def __call__(self, path: str, *arguments: Any) -> ShardTables:
        self.paths.append(path)
        return self._read(path, *arguments)

    def count(self) -> int:
        """Since the last call."""
        count = len(self.paths)
        self.paths.clear()
        return count


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    return Builds(monkeypatch)


def check(index: DatasetIndex) -> None:
    """All values of ``written``."""
    assert index.steps.tolist() == [3, 4] * 3
    for e in range(6):
        view = EpisodeView(index, e)
        offsets, lengths = view.frames("observation/image")
        with Path(view.path).open("rb") as file:
            for step in range(view.steps):
                file.seek(int(offsets[step]))
                assert file.read(int(lengths[step])) == jpeg(e, step)
        assert view.column("observation/state")[:, 0].tolist() == [e] * view.steps
        assert view.column("action")[:, 1].tolist() == list(range(view.steps))
        assert view.language("language_instruction", np.arange(1)) == [f"episode {e}".encode()]


def index_files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.index"))


def flip(path: Path, position: int) -> None:
    """Damage one byte, and nothing else, as a failing disk does."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


# -- building and opening -----------------------------------------------------------------------


def test_a_build_that_was_interrupted_goes_on_where_it_was(
    dataset: ResolvedDataset, cache: Path, builds: Builds
):
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_in(cache, dataset, progress=stop, threads=1)
    already = builds.count()
    assert 1 <= already == len(index_files(cache))
    check(open_in(cache, dataset)[0])
    assert builds.count() == 3 - already


def test_only_the_shard_that_changed_is_indexed_again(
    dataset: ResolvedDataset, written: Written, cache: Path, builds: Builds
):
    open_in(cache, dataset)[0]
    builds.count()
    before = written.files[1].stat()
    os.utime(written.files[1], ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    check(open_in(cache, dataset)[0])
    assert builds.paths == [str(written.files[1])]


def test_an_index_of_the_version_before_is_built_again(
    dataset: ResolvedDataset, cache: Path, builds: Builds, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as before:
        before.setattr(shard_module, "VERSION", 1)
        open_in(cache, dataset)[0]
    assert builds.count() == 3
    check(open_in(cache, dataset)[0])
    assert builds.count() == 3


def test_a_flipped_bit_anywhere_in_an_index_is_noticed(
    written: Written, cache: Path, builds: Builds
):
    (dataset,) = mixture_of(dataset_of(written, split={"train": "train[:2]"})).datasets

    def values() -> list[object]:
        index = open_in(cache, dataset)[0]
        found: list[object] = [index.steps.tolist(), index.damaged]
        for e in range(index.episodes):
            view = EpisodeView(index, e)
            found += [part.tolist() for part in view.frames("observation/image")]
            found += [view.column(path).tolist() for path in ("action", "observation/state")]
            found += [view.language("language_instruction", np.arange(view.steps))]
        return found

    good = values()
    (place,) = index_files(cache)
    content = place.read_bytes()
    rebuilt = 0
    for position in range(len(content)):
        if position % 7 and position > HEADER.size:
            continue
        builds.count()
        flip(place, position)
        assert values() == good, position
        if builds.count():
            rebuilt += 1
            assert place.read_bytes() == content
        else:  # the schema is for people, and zeros between sections are for alignment
            assert place.read_bytes() != content
            place.write_bytes(content)
    assert rebuilt > HEADER.size


def test_damage_found_at_the_first_touch_is_repaired_from_the_data(
    dataset: ResolvedDataset, cache: Path, builds: Builds, caplog: pytest.LogCaptureFixture
):
    open_in(cache, dataset)[0]
    builds.count()
    index = open_in(cache, dataset)[0]
    for place in index_files(cache):
        flip(place, section_at(place, Section.COLUMN) + 2)
    check(index)
    assert builds.count() == 3
    assert "is damaged and is built anew" in caplog.text
    check(open_in(cache, dataset)[0])
    assert builds.count() == 0


def section_at(place: Path, kind: Section) -> int:
    """Byte offset of the first section of a kind."""
    content = place.read_bytes()
    count = HEADER.unpack_from(content)[2]
    entries = shard_module.ENTRY.iter_unpack(
        content[HEADER.size : HEADER.size + count * shard_module.ENTRY.size]
    )
    return next(offset for found, _, _, offset, *_ in entries if found == kind)


def test_an_index_that_goes_away_while_it_is_used_is_built_from_the_data(
    dataset: ResolvedDataset, cache: Path, builds: Builds
):
    index = open_in(cache, dataset)[0]
    builds.count()
    for place in index_files(cache):
        place.unlink()
    check(index)
    assert builds.count() == len(index_files(cache)) == 3


def test_data_that_change_while_they_are_used_are_an_error_where_the_index_is_gone(
    dataset: ResolvedDataset, written: Written, cache: Path
):
    index = open_in(cache, dataset)[0]
    for place in index_files(cache):
        place.unlink()
    os.utime(written.files[0], ns=(0, 0))
    with pytest.raises(SourceError, match="written to while it was indexed or read"):
        index.column(0, "action")


def test_data_that_are_written_while_they_are_indexed_are_an_error(
    dataset: ResolvedDataset, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    real, times = records_module.parse_example, itertools.count(5)

    def touching(*arguments: object, **named: object) -> object:
        os.utime(dataset.slices[0].path, ns=(5, next(times)))
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(records_module, "parse_example", touching)
    with pytest.raises(SourceError, match="written to while") as caught:
        open_in(cache, dataset, threads=1)[0]
    assert caught.value.dataset == "robot"


def test_a_missing_shard_file_is_a_source_error(
    dataset: ResolvedDataset, written: Written, cache: Path
):
    written.files[2].unlink()
    with pytest.raises(SourceError, match=f"{written.files[2]} cannot be read"):
        open_in(cache, dataset)[0]


# -- places ------------------------------------------------------------------------------------


def test_an_index_beside_the_data_travels_with_them(
    dataset: ResolvedDataset, written: Written, cache: Path, tmp_path: Path, builds: Builds
):
    check(open_in(cache, dataset, beside=True)[0])
    assert not cache.exists()
    assert len(index_files(written.path / shard_module.BESIDE_FOLDER)) == builds.count() == 3
    written.path.parent.rename(tmp_path / "moved")
    written.path = tmp_path / "moved/1.0.0"
    moved = mixture_of(written).datasets[0]
    check(open_in(cache, moved)[0])
    assert builds.count() == 0


def test_an_index_that_cannot_be_written_serves_from_memory(
    dataset: ResolvedDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").touch()
    index = open_in(tmp_path / "file/below", dataset)[0]
    check(index)
    for shard in index.shards.values():
        shard.verify()
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        f"indexes cannot be kept in {tmp_path / 'file/below'}, and are built at every start: "
        "Not a directory"
    ]


def test_a_full_disk_leaves_no_half_file(
    dataset: ResolvedDataset, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shard_module.os, "fsync", full)
    check(open_in(cache, dataset)[0])
    assert list(cache.iterdir()) == []


def test_what_a_killed_builder_left_is_removed_when_it_is_old(
    dataset: ResolvedDataset, cache: Path
):
    cache.mkdir()
    old, new, other = (cache / name for name in (".a.index.12.tmp", ".b.index.34.tmp", "notes.tmp"))
    for path in (old, new, other):
        path.touch()
    os.utime(old, ns=(0, 0))
    os.utime(other, ns=(0, 0))
    open_in(cache, dataset)[0]
    assert [path.exists() for path in (old, new, other)] == [False, True, True]


# -- several builders ---------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["precious", "nowhere"])
def test_a_link_in_an_indexes_place_gives_way_and_its_target_is_left(
    dataset: ResolvedDataset, cache: Path, tmp_path: Path, builds: Builds, target: str
):
    check(open_in(cache, dataset)[0])
    place = index_files(cache)[0]
    content = place.read_bytes()
    (tmp_path / "precious").write_bytes(content if target == "precious" else b"precious")
    place.unlink()
    place.symlink_to(tmp_path / target)
    builds.count()
    check(open_in(cache, dataset)[0])
    assert builds.count() == 1
    assert not place.is_symlink()
    assert place.read_bytes() == content
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_an_index_in_a_folder_that_others_may_write_to_is_not_used_and_that_is_said_once(
    dataset: ResolvedDataset,
    cache: Path,
    builds: Builds,
    caplog: pytest.LogCaptureFixture,
    mode: int,
):
    check(open_in(cache, dataset)[0])
    cache.chmod(mode)
    if not mode & 0o002:
        give_to_another_group(cache)
    builds.count()
    for _ in range(2):
        check(open_in(cache, dataset)[0])
        assert builds.count() == 3
    warned = [one for one in caplog.records if one.levelname == "WARNING"]
    assert [f"chmod go-w {cache}" in one.getMessage() for one in warned] == [True]
    with pytest.raises(SourceError, match="others may write to it"):
        open_in(cache, dataset, keep=True)
    cache.chmod(0o755)
    builds.count()
    check(open_in(cache, dataset)[0])
    assert builds.count() == 0


def test_an_index_made_with_a_umask_that_lets_the_users_own_group_write_is_used(
    dataset: ResolvedDataset, cache: Path, builds: Builds
):
    check(open_in(cache, dataset)[0])
    for place in (cache, *index_files(cache)):
        give_to_own_group(place)
        place.chmod(place.stat().st_mode | 0o020)
    builds.count()
    check(open_in(cache, dataset)[0])
    assert builds.count() == 0


@pytest.mark.parametrize("of", ["all", "another user"])
def test_an_index_file_that_another_user_may_have_written_is_built_anew(
    dataset: ResolvedDataset, cache: Path, builds: Builds, of: str
):
    if of == "another user" and os.geteuid():
        pytest.skip("only root makes another user's file")
    check(open_in(cache, dataset)[0])
    place = index_files(cache)[1]
    if of == "all":
        place.chmod(0o666)
    else:
        os.chown(place, 4321, 4321)
    builds.count()
    for built in (1, 0):
        check(open_in(cache, dataset)[0])
        assert builds.count() == built
    assert place.stat().st_uid == os.geteuid()
    assert not place.stat().st_mode & 0o022


@pytest.mark.parametrize(
    ("data", "folder", "used"),
    [(0o755, 0o755, True), (0o775, 0o775, True), (0o755, 0o757, False), (0o775, 0o777, False)],
)
def test_who_may_write_the_data_may_write_the_index_beside_it_and_nobody_else(
    written: Written,
    dataset: ResolvedDataset,
    cache: Path,
    builds: Builds,
    data: int,
    folder: int,
    used: bool,
):
    written.path.chmod(data)
    open_in(cache, dataset, beside=True)[0]
    beside = written.path / shard_module.BESIDE_FOLDER
    assert len(list(beside.iterdir())) == 3
    beside.chmod(folder)
    builds.count()
    check(open_in(cache, dataset)[0])
    assert builds.count() == (0 if used else 3)


_BUILDER = """
import json, sys
import numpy as np
from pathlib import Path
from autoloader.index import open_indexes, opening
from autoloader.samples.resolve import resolve
from autoloader.spec import PipelineSpec

mixture = resolve(PipelineSpec.from_yaml(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
told = []
opening.index_directory = lambda: Path(sys.argv[2])
indexes = open_indexes(mixture.datasets, progress=lambda *at: told.append(at))
sums = []
for index in indexes:
    for e in range(index.episodes):
        one = index.episodes_at(np.array([e]))
        steps = np.arange(index.steps[e])[None]
        for path in index.dataset.numeric_features():
            sums.append(float(index.column(e, path).astype("float64").sum()))
        for feature in next(iter(index.dataset.cameras.values())):
            found = one.frames(feature.path, steps, {})
            sums.append(int(found.offset.sum() + found.length.sum()))
assert "tensorflow" not in sys.modules and "torch" not in sys.modules
print(json.dumps([sums, told]))
"""


def test_two_processes_that_build_at_once_give_one_good_index(
    demo_mix: Path, cache: Path, builds: Builds
):
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _BUILDER, str(demo_mix), str(cache)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    sums = [json.loads(output)[0] for output in outputs]
    assert sums[0] == sums[1]
    from autoloader.samples.resolve import resolve
    from autoloader.spec import PipelineSpec

    mixture = resolve(PipelineSpec.from_yaml(demo_mix))
    for index in open_in(cache, *mixture.datasets):
        for shard in index.shards.values():
            shard.verify()
    assert builds.count() == 0
    assert not list(cache.glob("*.tmp"))
    assert not list(cache.glob(".*"))
