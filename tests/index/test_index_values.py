"""The index gives what the records hold: frames, numbers and texts, held to plain parses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_views import EpisodeView, number_of, open_in
from rlds_files import PLAIN, episode, write_dataset
from streams import dataset_of, every_sample, mixture_of

from autoloader.formats.records import parse_example, read_records
from autoloader.index import DatasetIndex, count_indexed, open_dataset_index
from autoloader.samples.resolve import ResolvedDataset, resolve
from autoloader.samples.transforms.fields import is_text, text_of_points
from autoloader.spec import PipelineSpec


def records_of(dataset: ResolvedDataset) -> list[tuple[int, int, int, bytes]]:
    """Slice, record, payload offset and payload of every record, read plainly."""
    found = []
    for number, piece in enumerate(dataset.slices):
        for one in read_records(piece.path, piece.start, piece.stop):
            assert one.number is not None
            assert one.payload is not None
            found.append((number, one.number, one.offset, one.payload))
    return found


def check_against_parses(index: DatasetIndex, dataset: ResolvedDataset) -> int:
    """Holds every episode to a plain parse of its record; the frames that were compared."""
    records = records_of(dataset)
    assert index.episodes == len(records) == len(index.steps)
    assert index.damaged == ()
    assert (index.steps.dtype, index.slice_of.dtype, index.record_of.dtype) == ("i4", "i4", "i8")
    compared = 0
    for e, (number, record, _, payload) in enumerate(records):
        view = EpisodeView(index, e)
        assert (view.path, view.slice, view.record) == (dataset.slices[number].path, number, record)
        assert (index.slice_of[e], index.record_of[e], index.steps[e]) == (
            number,
            record,
            view.steps,
        )
        assert number_of(index, number, record) == e
        values = parse_example(payload)
        with Path(view.path).open("rb") as file:
            for feature in (one for choices in dataset.cameras.values() for one in choices):
                offsets, lengths = view.frames(feature.path)
                assert offsets.shape == lengths.shape == (view.steps,)
                assert (offsets.dtype, lengths.dtype) == (np.int64, np.int32)
                for step, (start, stop) in enumerate(values[feature.key].ranges):
                    file.seek(int(offsets[step]))
                    assert file.read(int(lengths[step])) == payload[start:stop]
                    compared += 1
        for path, feature in dataset.numeric_features().items():
            held = values[feature.key].values
            assert held is not None
            column = view.column(path)
            assert column.dtype == np.float32
            np.testing.assert_array_equal(column, held.astype(np.float32).reshape(view.steps, -1))
        for feature in dataset.language:
            value = values[feature.key]
            if is_text(feature):
                texts = [payload[start:stop] for start, stop in value.ranges]
            else:
                rows = value.values.astype(np.int64).reshape(-1, int(feature.shape[0] or 1))
                texts = [text_of_points(row) for row in rows]
            steps = np.arange(view.steps)
            whole = texts if feature.per_step else texts * view.steps
            assert view.language(feature.path, steps) == whole
            if feature.per_step:
                assert view.language(feature.path, steps[::-2]) == texts[::-2]
    return compared


def test_every_frame_number_and_text_of_the_demo_mixture_is_found(
    demo_spec: PipelineSpec, tmp_path: Path
):
    mixture = resolve(demo_spec)
    indexes = open_in(tmp_path, *mixture.datasets)
    for dataset, index in zip(mixture.datasets, indexes, strict=True):
        compared = check_against_parses(index, dataset)
        assert compared == sum(map(len, dataset.cameras.values())) * index.steps.sum()
        count = count_indexed(index)
        assert (count.samples, count.damaged) == (len(every_sample(mixture, dataset.index, 0)), ())


def one_dataset(folder: Path, *records: Any, features: Any = PLAIN, **own: Any) -> ResolvedDataset:
    written = write_dataset(folder, [list(records)], features=features)
    return mixture_of(dataset_of(written, **own)).datasets[0]


def test_an_episode_without_steps_is_an_episode(tmp_path: Path):
    index = open_dataset_index(one_dataset(tmp_path, episode(0, 0), episode(1, 2)))
    assert index.steps.tolist() == [0, 2]
    assert EpisodeView(index, 0).frames("observation/image")[0].shape == (0,)
    assert EpisodeView(index, 1).column("action")[1].tolist() == [np.float32(1.01), 1]


def test_arrays_of_an_index_cannot_be_written_to(tmp_path: Path):
    index = open_dataset_index(one_dataset(tmp_path, episode(0, 2)))
    with pytest.raises(ValueError, match="read-only"):
        index.column(0, "action")[0] = 0
