"""The samples of a planned run: where their frames lie, and all else that a batch holds of them.

What ``samples.block`` does for one episode's samples, this does for samples of many episodes of
many datasets at once, over the index's columns.

Theory of operation. Samples are put in the order of their dataset and episode, and datasets with
the same ``sample`` settings side by side, so that windows are computed once for each setting and
every dataset's values are a slice. What depends on a dataset's own features (which columns, which
camera, which text) is gathered dataset by dataset, shard by shard. At the end the rows go back to
the order of the positions. Nothing is done sample by sample but looking up its text.

A frame that several samples of a run show is listed, read and held once.

Not here: which samples are drawn (``sampling.plan``), their bytes (``pipeline.read.planned``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.frames import Encoded, VideoFrame, share
from autoloader.index.dataset import DatasetIndex, GatheredEpisodes, MakeFrame
from autoloader.samples import windows
from autoloader.samples.block import (
    SampleBlock,
    by_sample,
    different_frames,
    field_windows,
    linked_rows,
)
from autoloader.samples.draws import (
    PURPOSE_CAMERA,
    PURPOSE_LANGUAGE,
    PURPOSE_ORDER,
    choose_array,
    fold,
    fold_array,
    words_drawn,
)
from autoloader.samples.layout import PROVENANCE, BatchLayout, FeatureRows, empty_columns
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import held_role
from autoloader.samples.transforms.fields import FieldName, NumericField
from autoloader.sampling.plan import PlannedSamples
from autoloader.spec import SampleSpec

Ints = NDArray[np.int64]
_Columns = dict[str, NDArray[Any]]

_FIELDS: tuple[FieldName, ...] = ("action", "state")


@dataclass(slots=True)
class FrameRanges:
    """Places of m encoded frames of a camera.

    Attributes:
        file: [m] int32 number in ``PlannedReads.files``; −1: nothing is to be read, as the sample
            has no such picture or the frame is cached.
        offset: [m] int64 first byte in the file.
        length: [m] int32 number of bytes.
        key: [m] int64 number that no other frame of the same file has.
        make: [m] function that turns the bytes of a stretch into a frame; ``None`` where the bytes
            are a frame; an empty list where all are.
    """

    file: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int32]
    key: NDArray[np.int64]
    make: list[MakeFrame | None]

    def at(self, rows: Ints) -> FrameRanges:
        """Places of the frames ``rows``."""
        make = [self.make[row] for row in rows.tolist()] if self.make else []
        return FrameRanges(
            self.file[rows], self.offset[rows], self.length[rows], self.key[rows], make
        )

    def finish(self, frames: list[Encoded | None], datasets: Sequence[int]) -> None:
        """Make frames of the bytes that were read, in place; ``None`` stays.

        Args:
            frames: bytes of the frames.
            datasets: index of the dataset of each frame.
        """
        for row, make in enumerate(self.make):
            data = frames[row]
            if make is not None and isinstance(data, memoryview):
                frames[row] = make(data)
        videos = {row: one for row, one in enumerate(frames) if isinstance(one, VideoFrame)}
        for row, one in share(videos, datasets):
            frames[row] = one


@dataclass(slots=True)
class PlannedReads:
    """Stretches of files that the frames of a block are made of.

    Attributes:
        files: paths of the files that frames lie in.
        shards: paths of the shard files whose indexes were asked.
        ranges: camera → places of its m frames.
        shown: [n, F] int64 numbers, in the strided episode, of the frames that each sample shows.
        steps: [n] int64 steps of each sample's strided episode.
        sample: [m] int64 number of a sample that shows each frame.
    """

    files: list[str]
    shards: set[str]
    ranges: dict[str, FrameRanges]
    shown: Ints
    steps: Ints
    sample: Ints


class RunPlanner:
    """Works out the samples of runs of one mixture; for any number of threads.

    Args:
        datasets: datasets of the mixture, in order.
        layout: shapes of the mixture's batches.
        indexes: index of each dataset; none where every run brings its own.
        chained: [D] of which datasets neighbours are likely to share frames.
    """

    def __init__(
        self,
        datasets: Sequence[ResolvedDataset],
        layout: BatchLayout,
        indexes: Sequence[DatasetIndex],
        chained: Sequence[bool],
    ) -> None:
        self._datasets = datasets
        self._layout = layout
        self._indexes = indexes
        self._chained = np.asarray(chained, dtype=np.bool_)
        settings: list[SampleSpec] = []
        for dataset in datasets:
            if dataset.sample not in settings:
                settings.append(dataset.sample)
        self._setting_of = np.asarray([settings.index(d.sample) for d in datasets], dtype=np.int64)
        self._stride = np.asarray([d.stride for d in datasets], dtype=np.int64)
        self._numbers = np.asarray([dataset.index for dataset in datasets], dtype=np.int64)
        keys = [fold(dataset.key, PURPOSE_ORDER) for dataset in datasets]
        self._keys = np.asarray(keys, dtype=np.uint64)
        self._has = {
            camera: np.asarray([camera in d.cameras for d in datasets], dtype=np.bool_)
            for camera in layout.cameras
        }
        self._fields = [
            {name: bound for name in _FIELDS if (bound := dataset.bound(name)) is not None}
            for dataset in datasets
        ]
        # Which of a dataset's cameras is shown is drawn for each pass.
        drawn = [any(len(features) > 1 for features in d.cameras.values()) for d in datasets]
        self._drawn = np.asarray(drawn, dtype=np.bool_)

    def run(
        self, planned: PlannedSamples, indexes: Sequence[DatasetIndex] = ()
    ) -> tuple[SampleBlock, PlannedReads]:
        """The samples, and where the frames lie that the caller has yet to read into them.

        Args:
            planned: the samples, by dataset and episode.
            indexes: index of each dataset; default: those of the mixture.
        """
        work = self._sorted(planned, indexes or self._indexes)
        columns = empty_columns(self._layout, len(planned.t))
        columns["ledger"][:] = work.ledger
        window = _frame_windows(work)
        columns["frame_offset"][:] = window.offset
        for camera, has in self._has.items():
            columns[f"frame_mask/{camera}"][:] = window.inside & has[work.dataset, None]
        raw = window.index * work.stride[:, None]
        files, ranges = _ranges(work, list(self._has), raw)
        for part in work.parts:
            flags = part.dataset.present
            stored = [(held_role(feature), feature.path) for feature in flags.values()]
            found = part.episodes.several(stored, raw[part.rows])
            for camera, pieces in zip(flags, found, strict=True):
                there = np.concatenate(pieces)[..., 0] != 0
                columns[f"frame_mask/{camera}"][part.rows] &= there
                file = ranges[camera].file.reshape(raw.shape)[part.rows]
                file[np.broadcast_to(~there, file.shape)] = -1
        if self._layout.weighted:
            columns["sample_weight"][:] = _weights(work)
        for part in work.parts if self._layout.flagged else ():
            columns["has_action"][part.rows] = "action" in part.fields
        texts: Sequence[bytes]
        texts = [text for part in work.parts for text in _texts(work, part)]
        forms, rows = self._layout.features, self._layout.state_rows
        features = FeatureRows(forms, rows, columns, len(planned.t)) if forms else None
        for group in work.groups():
            for name in _FIELDS:
                if any(name in part.fields for part in group.parts):
                    columns[name][group.rows], columns[f"{name}_mask"][group.rows] = self._values(
                        work, group, name
                    )
            if features is not None:
                _gather_features(features, work, group)
        if features is not None:
            texts = features.joined(texts)
        return self._in_order(work, window.zeroed, raw, files, ranges, columns, texts)

    def _sorted(self, planned: PlannedSamples, indexes: Sequence[DatasetIndex]) -> _SortedSamples:
        of = planned.dataset.astype(np.int64)
        order = np.lexsort((planned.episode, of, self._setting_of[of]))
        dataset, episode = of[order], planned.episode[order]
        edges = [0, *(np.flatnonzero(dataset[1:] != dataset[:-1]) + 1).tolist(), len(order)]
        parts = []
        ledger = np.ones((len(order), len(PROVENANCE) + 1), np.int64)
        ledger[:, 0], ledger[:, 1] = self._numbers[dataset], planned.pass_[order]
        ledger[:, 4] = planned.t[order]
        steps = np.empty(len(order), np.int64)
        for start, stop in pairwise(edges):
            rows, number = slice(start, stop), int(dataset[start])
            episodes = indexes[number].episodes_at(episode[rows])
            ledger[rows, 2], ledger[rows, 3] = episodes.slice_of, episodes.record_of
            steps[rows] = episodes.steps
            setting = int(self._setting_of[number])
            own = self._datasets[number], self._fields[number]
            parts.append(_Part(rows, setting, *own, episodes))
        stride = self._stride[dataset]
        return _SortedSamples(
            order, parts, dataset, ledger, stride, -(-steps // stride), self._keys[dataset]
        )

    def places(self, planned: PlannedSamples) -> tuple[list[str], list[FrameRanges]]:
        """Files, and by camera where in them the frames of the samples lie, one for each use."""
        work = self._sorted(planned, self._indexes)
        raw = _frame_windows(work).index * work.stride[:, None]
        files, ranges = _ranges(work, list(self._has), raw)
        return files, list(ranges.values())

    def _values(
        self, work: _SortedSamples, group: _Group, name: FieldName
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """A field's final rows for the samples of a group."""
        rows, sample = group.rows, group.sample
        layout = self._layout
        width = layout.action_width if name == "action" else layout.state_width
        t, stride = work.ledger[rows, 4], work.stride[rows, None]
        at, window = field_windows(sample, name, t, work.steps[rows, None])
        chunks = len(at) // max(1, len(t))
        # Gathered by sample; put together, and finished, by chunk.
        raw = window.index.reshape(len(t), -1) * stride
        raw_at = at.reshape(len(t), -1) * stride
        values = np.zeros((*window.index.shape, width), np.float32)
        mask = np.zeros(values.shape, np.bool_)
        finish, base = sample.finish(name), None
        if finish.relative:
            base = np.zeros((len(at), max(width, layout.state_width)), np.float32)
        for part in group.parts:
            own = slice(part.rows.start - rows.start, part.rows.stop - rows.start)
            each = slice(own.start * chunks, own.stop * chunks)
            field, state = part.fields.get(name), part.fields.get("state")
            if field is None:
                continue
            found = _evaluated(field, part.episodes, raw[own])
            values[each, :, : field.width] = found.reshape(-1, *values.shape[1:2], field.width)
            mask[each, :, : field.width] = window.inside[each, :, None]
            if base is not None and state is not None:
                found = _evaluated(state, part.episodes, raw_at[own])
                base[each, : state.width] = found.reshape(-1, state.width)
        values, mask = windows.finished_values(values, mask, window, finish, base)
        for part in group.parts:
            if name in part.dataset.scaling:
                start, stop = part.rows.start - rows.start, part.rows.stop - rows.start
                own = slice(start * chunks, stop * chunks)
                nothing = ~mask[own, :, 0] if finish.summed else window.zeroed[own]
                part.dataset.scaling[name].apply(values[own], nothing)
        return by_sample(sample, name, values), by_sample(sample, name, mask)

    def _in_order(
        self,
        work: _SortedSamples,
        zeroed: NDArray[np.bool_],
        raw: Ints,
        files: list[str],
        ranges: dict[str, FrameRanges],
        columns: _Columns,
        texts: Sequence[bytes],
    ) -> tuple[SampleBlock, PlannedReads]:
        """Back to the order of the positions."""
        row_of = np.empty(len(work.order), np.int64)
        row_of[work.order] = np.arange(len(row_of))
        if (row_of[1:] < row_of[:-1]).any():
            columns = {name: column[row_of] for name, column in columns.items()}
        columns["provenance"] = columns["ledger"][:, : len(PROVENANCE)]
        columns["dataset_index"] = columns["ledger"][:, 0]
        number, first = different_frames(work.ledger, raw, self._drawn[work.dataset])
        frame_row = number[row_of]
        linked = linked_rows(frame_row) if self._chained[work.dataset].any() else None
        ranges = {camera: found.at(first) for camera, found in ranges.items()}
        block = SampleBlock(
            columns=columns,
            texts=[texts[row] for row in row_of.tolist()],
            frames={},
            frame_row=frame_row,
            frame_zeroed=zeroed[row_of],
            datasets=columns["dataset_index"].tolist(),
            linked=linked,
        )
        shards = {path for part in work.parts for path in part.episodes.shards()}
        shown = (raw // work.stride[:, None])[row_of]
        sample = work.order[first // raw.shape[1]]
        return block, PlannedReads(files, shards, ranges, shown, work.steps[row_of], sample)


@dataclass(frozen=True, slots=True)
class _Part:
    """The samples of one dataset, their rows among the sorted ones, the number of its settings."""

    rows: slice
    setting: int
    dataset: ResolvedDataset
    fields: Mapping[FieldName, NumericField]
    episodes: GatheredEpisodes


@dataclass(frozen=True, slots=True)
class _Group:
    """Samples of datasets with the same settings, and their rows among the sorted ones."""

    rows: slice
    sample: SampleSpec
    parts: list[_Part]


@dataclass(frozen=True, slots=True)
class _SortedSamples:
    """n samples sorted by settings and dataset.

    Attributes:
        order: [n] where each is among the positions.
        dataset: [n] int64 number of each sample's dataset.
        ledger: [n, 6] int64, see ``samples.layout``.
        stride: [n] int64 stride of each sample's dataset.
        steps: [n] int64, of the strided episode.
        keys: [n] uint64, of each sample's dataset.
    """

    order: Ints
    parts: list[_Part]
    dataset: Ints
    ledger: Ints
    stride: Ints
    steps: Ints
    keys: NDArray[np.uint64]

    def groups(self) -> Iterator[_Group]:
        """The parts, those with the same settings together."""
        for _, some in groupby(self.parts, key=lambda part: part.setting):
            parts = list(some)
            rows = slice(parts[0].rows.start, parts[-1].rows.stop)
            yield _Group(rows, parts[0].dataset.sample, parts)

    def episode_keys(self, rows: slice) -> NDArray[np.uint64]:
        """``block.episode_key`` of each of these samples."""
        return fold_array(self.keys[rows], *self.ledger[rows, 1:4].T)


def _frame_windows(work: _SortedSamples) -> windows.WindowRows:
    """Rows of the frames that each sample shows."""
    found = []
    for group in work.groups():
        rows, sample = group.rows, group.sample
        keys = work.keys[rows] if sample.goal == "none" else work.episode_keys(rows)
        t, steps = work.ledger[rows, 4], work.steps[rows, None]
        found.append(windows.frame_rows(t, steps, sample, keys))
    if len(found) == 1:
        return found[0]
    return windows.WindowRows(
        np.concatenate([one.index for one in found]),
        np.concatenate([one.inside for one in found]),
        np.concatenate([one.zeroed for one in found]),
        np.concatenate([one.offset for one in found]),
    )


def _evaluated(field: NumericField, episodes: GatheredEpisodes, raw: Ints) -> NDArray[np.float32]:
    """[n, R, width] a field at raw steps [n, R]."""
    columns = {path: episodes.column(path, raw) for path in field.reads}
    flat = {path: column.reshape(raw.size, -1) for path, column in columns.items()}
    return field.evaluate(flat, raw.size).reshape(*raw.shape, field.width)


def _ranges(
    work: _SortedSamples, cameras: Sequence[str], raw: Ints
) -> tuple[list[str], dict[str, FrameRanges]]:
    """Files, and by camera the places of the frames at raw steps [n, F], row by row."""
    numbers: dict[str, int] = {}
    ranges = {}
    for camera in cameras:
        columns: list[NDArray[Any]] = [
            np.full(raw.shape, -1, np.int32), np.zeros(raw.shape, np.int64),
            np.zeros(raw.shape, np.int32), np.zeros(raw.shape, np.int64),
        ]  # fmt: skip
        make: NDArray[Any] | None = None
        for part in work.parts:
            features = part.dataset.cameras.get(camera, ())
            number = sorted(part.dataset.cameras).index(camera) if features else 0
            drawn = _drawn(work, part, len(features), PURPOSE_CAMERA, number)
            for k, feature in enumerate(features):
                own: Any = slice(None) if drawn is None else drawn == k
                found = part.episodes.frames(feature.path, raw[part.rows], numbers)
                places: list[NDArray[Any]] = [found.file, found.offset, found.length, found.key]
                for column, values in zip(columns, places, strict=True):
                    column[part.rows][own] = values[own]
                if found.make is not None:
                    make = np.full(raw.shape, None) if make is None else make
                    make[part.rows][own] = found.make[own]
        file, offset, length, key = (column.ravel() for column in columns)
        made = [] if make is None else make.ravel().tolist()
        ranges[camera] = FrameRanges(file, offset, length, key, made)
    return list(numbers), ranges


def _weights(work: _SortedSamples) -> NDArray[np.float32]:
    """[n] the weight of each sample; 1 of datasets that give none."""
    found = np.ones(len(work.order), np.float32)
    for part in work.parts:
        weights, at = part.dataset.weights, part.episodes
        if weights is not None and weights.use == "batch":
            steps = work.ledger[part.rows, 4] * work.stride[part.rows]
            found[part.rows] = weights.at(at.slice_of, at.record_of, steps)
    return found


def _texts(work: _SortedSamples, part: _Part) -> list[bytes]:
    """The language of a dataset's samples, UTF-8."""
    features = part.dataset.language
    if not features:
        return [b""] * len(part.episodes.steps)
    raw_t = work.ledger[part.rows, 4] * work.stride[part.rows]
    told = [part.episodes.language(feature.path, raw_t) for feature in features]
    words = part.dataset.words
    if words.names or words.several:
        keys = words_drawn(work.episode_keys(part.rows), work.ledger[part.rows, 4])
        told = [
            words.told(one.path, texts, keys) for one, texts in zip(features, told, strict=True)
        ]
    drawn = _drawn(work, part, len(features), PURPOSE_LANGUAGE)
    if drawn is None:
        return told[0]
    return [told[choice][k] for k, choice in enumerate(drawn.tolist())]


def _drawn(work: _SortedSamples, part: _Part, count: int, *purpose: int) -> Ints | None:
    """[n] which of ``count`` features each sample's episode has; ``None`` where there is one."""
    if count < 2:
        return None
    keys = work.episode_keys(part.rows)
    parts = (np.full(len(keys), number, np.int64) for number in purpose)
    return choose_array(fold_array(keys, *parts), count)


def _gather_features(found: FeatureRows, work: _SortedSamples, group: _Group) -> None:
    """Put the further features of a group's samples into ``found``.

    Masks and edges are those of all the samples; only the values are gathered by dataset.
    """
    t, steps = work.ledger[group.rows, 4], work.steps[group.rows, None]
    _, window = field_windows(group.sample, "state", t, steps)
    raw = window.index * work.stride[group.rows, None]
    counts = [len(part.episodes.steps) for part in group.parts]
    numbers: dict[str, list[NDArray[Any]]] = {}
    texts: dict[str, list[list[bytes]]] = {}
    for name, form in found.forms.items():
        if form.kind == "text":
            texts[name] = [[] for _ in range(form.rows(raw.shape[1]))]
        else:
            numbers[name] = []
    at = 0
    for part, count in zip(group.parts, counts, strict=True):
        own, given = raw[at : at + count], part.dataset.held
        at += count
        there = [name for name in numbers if name in given]
        stored = [(held_role(given[name]), given[name].path) for name in there]
        for name, pieces in zip(there, part.episodes.several(stored, own), strict=True):
            numbers[name] += pieces
        for name in numbers.keys() - given.keys():
            numbers[name].append(found.nothing(name, count))
        for name, by_row in texts.items():
            for row, told in enumerate(by_row):
                told += (
                    part.episodes.language(given[name].path, own[:, row])
                    if name in given
                    else [b""] * count
                )
    for name in found.forms:
        has = np.repeat([name in part.dataset.held for part in group.parts], counts)
        if name in texts:
            found.texts(name, group.rows, texts[name], window, has)
        else:
            found.numbers(name, group.rows, np.concatenate(numbers[name]), window, has)
