"""Damaged shards: whole records are indexed, the others are named with their reasons."""

from pathlib import Path

import pytest
from index_views import EpisodeView
from rlds_files import Written, episode, jpeg, write_dataset, write_steps
from streams import dataset_of, mixture_of

from autoloader.formats import records
from autoloader.index import DatasetIndex, open_dataset_index


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Two shards of four episodes."""
    return write_steps(tmp_path / "data", [[2, 3, 4, 5]] * 2)


def open_index(written: Written, **own: object) -> DatasetIndex:
    return open_dataset_index(mixture_of(dataset_of(written, **own)).datasets[0])


def whole(index: DatasetIndex) -> list[tuple[int, int]]:
    """Slice and record of every episode, its frames held to what was written."""
    for e in range(index.episodes):
        view = EpisodeView(index, e)
        number = 4 * view.slice + view.record
        offsets, lengths = view.frames("observation/image")
        data = Path(view.path).read_bytes()
        frames = [data[at : at + size] for at, size in zip(offsets, lengths, strict=True)]
        assert frames == [jpeg(number, step) for step in range(2 + view.record)]
        assert set(view.column("observation/state")[:, 0].tolist()) == {number}
    return list(zip(index.slice_of.tolist(), index.record_of.tolist(), strict=True))


ALL = [(s, r) for s in range(2) for r in range(4)]


def test_a_shard_with_fewer_records_than_its_metadata_says_is_named(written: Written):
    file = written.files[1]
    file.write_bytes(file.read_bytes()[: written.offsets[1][3]])
    index = open_index(written)
    assert whole(index) == ALL[:7]
    assert index.damaged[0][:2] == (1, 3)
    assert "fewer records" in index.damaged[0].reason


def test_damage_outside_of_the_split_is_not_reported(written: Written):
    written.break_payload(0, 0)
    index = open_index(written, split={"train": "train[2:]"})
    assert index.damaged == ()
    assert index.episodes == 6


def test_damage_is_remembered_in_the_index(written: Written):
    written.break_payload(0, 1)
    written.truncate(1, 1)
    assert open_index(written).damaged == open_index(written).damaged != ()


def test_features_that_differ_in_length_are_named_with_their_lengths(tmp_path: Path):
    record = episode(0, 3, **{"observation/image": [jpeg(0, 0)] * 2})
    written = write_dataset(tmp_path, [[record, episode(1, 2)]])
    (bad,) = open_index(written).damaged
    assert "action has 3, observation/image has 2" in bad.reason


@pytest.mark.parametrize("large_bytes", [1, 64])
def test_records_above_the_usual_size_are_indexed_alike(
    written: Written, monkeypatch: pytest.MonkeyPatch, large_bytes: int
):
    monkeypatch.setattr(records, "LARGE_BYTES", large_bytes)
    monkeypatch.setattr(records, "PIECE_BYTES", 100)
    written.break_payload(1, 0)
    assert whole(open_index(written)) == [at for at in ALL if at != (1, 0)]
