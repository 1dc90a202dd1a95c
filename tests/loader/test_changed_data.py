"""Data that is replaced during a run: its samples never mix with those of before."""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rlds_files import episode, write_dataset
from streams import dataset_of, spec_of

from autoloader import AutoLoader
from autoloader.errors import SourceError
from autoloader.formats.files import descriptors

KNOBS = {"ring_slots": 4, "decode_threads": 1, "io_threads": 1, "read_ahead": 1, "cache_bytes": 0}


@pytest.fixture
def two(tmp_path: Path) -> tuple[Any, Path, Path]:
    """A dataset behind a link, and one of as many samples, of episodes from 10 on."""
    old, new = (
        write_dataset(tmp_path / name, [[episode(first + n, 9)] for n in range(4)])
        for name, first in (("old", 0), ("new", 10))
    )
    (tmp_path / "now").symlink_to(old.path)
    spec = spec_of(
        dataset_of(old) | {"path": str(tmp_path / "now")},
        batch={"size": 2},
        mixing={"epoch": "forever"},
    )
    return spec, tmp_path / "now", new.path


def opened(spec: Any, isolation: str) -> AutoLoader:
    return AutoLoader(
        spec, isolation=isolation, output="numpy", ram_floor=0, knobs=KNOBS, controller=False
    )


def swap(link: Path, place: Path) -> None:
    other = link.with_name("next")
    other.symlink_to(place)
    other.replace(link)


def episodes(batches: Iterator[dict[str, Any]]) -> Iterator[tuple[float, int]]:
    """Number of each sample's episode, by its state and by its frame."""
    for batch in batches:
        red = batch["images"]["primary"][:, 0, 0, 0, 0]
        yield from zip(batch["state"][:, 0, 0].tolist(), (red // 8).tolist(), strict=True)


@pytest.mark.parametrize("how", ["a kill", "a kill of a stream", "a pause", "other weights"])
def test_a_pipeline_that_begins_anew_refuses_other_data_of_as_many_samples(
    two: tuple[Any, Path, Path], how: str
):
    spec, link, new = two
    spec = spec.model_copy(update={"reader": "stream" if "stream" in how else "auto"})
    with opened(spec, "process" if "kill" in how else "thread") as loader:
        rows = episodes(iter(loader))
        assert len({state for state, _ in itertools.islice(rows, 60)}) == 4  # all files are open
        swap(link, new)
        if "kill" in how:
            os.kill(loader.statistics().worker_pid, signal.SIGKILL)
        elif how == "a pause":
            loader.suspend()
        else:
            loader.set_weights({"robot": 1.0})
        with pytest.raises(SourceError, match="its files were changed after the loader"):
            assert all(state == red < 10 for state, red in rows)


def test_a_file_that_is_opened_again_is_the_one_that_was_indexed(
    two: tuple[Any, Path, Path], monkeypatch: pytest.MonkeyPatch
):
    spec, link, new = two
    monkeypatch.setattr(descriptors, "_most", 1)
    with opened(spec, "thread") as loader:
        rows = episodes(iter(loader))
        assert len({state for state, _ in itertools.islice(rows, 40)}) == 4
        swap(link, new)
        with pytest.raises(SourceError, match="another file was put in its place"):
            assert all(state == red < 10 for state, red in rows)


def test_a_file_that_is_written_to_in_its_place_is_told_and_refused_where_its_size_changes(
    two: tuple[Any, Path, Path], caplog: pytest.LogCaptureFixture
):
    spec, link, new = two
    with opened(spec, "thread") as loader:
        rows = episodes(iter(loader))
        next(rows)
        for file in link.glob("*.tfrecord*"):
            os.utime(file)
        assert all(state == red < 10 for state, red in itertools.islice(rows, 200))
        assert "was written to or touched while it is read" in caplog.text
        for file in link.glob("*.tfrecord*"):
            file.write_bytes((new / file.name).read_bytes())
        with pytest.raises(SourceError, match=r"it was written to|cannot be read any more"):
            assert all(state == red < 10 for state, red in rows)
