"""The samples of a planned run: where their frames lie, and all else that a batch holds of them.

Both readers' samples are made here, over the columns of an index: of many episodes and datasets at
once, or of a walked record, which is an index of one episode (``index.records``).

Theory of operation. Samples are put in the order of their dataset and episode, and datasets with
the same ``sample`` settings side by side, so that windows are computed once for each setting and
every dataset's values are a slice. What depends on a dataset's own features (which columns, which
camera, which text) is gathered dataset by dataset, shard by shard. At the end the rows go back to
the order of the positions. Nothing is done sample by sample but looking up its text.

A frame that several samples of a run show is listed, read and held once.

Not here: which samples are drawn (``sampling.plan``), their bytes (``pipeline.read.planned``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.host.frozen import frozen
from autoloader.index.dataset import DatasetIndex, FramePlaces, GatheredEpisodes
from autoloader.samples import draws, windows
from autoloader.samples.block import (
    SampleBlock,
    by_sample,
    different_frames,
    field_windows,
    linked_rows,
)
from autoloader.samples.layout import PROVENANCE, BatchLayout, empty_columns, text_places
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import held_role
from autoloader.samples.transforms.fields import FIELDS, FieldName, NumericField
from autoloader.sampling.plan import PlannedSamples
from autoloader.spec import SampleSpec

Ints = NDArray[np.int64]
_Columns = dict[str, NDArray[Any]]


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
    ranges: dict[str, FramePlaces]
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
        keys = [draws.fold(dataset.key, draws.PURPOSE_ORDER) for dataset in datasets]
        self._keys = np.asarray(keys, dtype=np.uint64)
        self._has = {
            camera: np.asarray([camera in d.cameras for d in datasets], dtype=np.bool_)
            for camera in layout.cameras
        }
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
        for part in [part for part in work.parts if part.dataset.present]:
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
            columns["has_action"][part.rows] = part.dataset.action is not None
        for group in work.groups():
            for name in FIELDS:
                if any(part.dataset.bound(name) for part in group.parts):
                    steps, stride = work.steps[group.rows, None], work.stride[group.rows, None]
                    width = columns[name].shape[-1]
                    columns[name][group.rows], columns[f"{name}_mask"][group.rows] = field_rows(
                        group, name, work.ledger[group.rows, 4], steps, stride, width
                    )
        texts: Sequence[bytes] = [text for part in work.parts for text in _texts(work, part)]
        if self._layout.features:
            texts = _fill_features(self._layout, work, columns, texts)
        # Back to the order of the positions.
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
            frame_zeroed=window.zeroed[row_of],
            datasets=columns["dataset_index"].tolist(),
            linked=linked,
        )
        shards = {path for part in work.parts for path in part.episodes.shards()}
        shown = (raw // work.stride[:, None])[row_of]
        sample = work.order[first // raw.shape[1]]
        return block, PlannedReads(files, shards, ranges, shown, work.steps[row_of], sample)

    def _sorted(self, planned: PlannedSamples, indexes: Sequence[DatasetIndex]) -> _SortedSamples:
        of = planned.dataset.astype(np.int64)
        order = np.lexsort((planned.episode, of, self._setting_of[of]))
        dataset, episode = of[order], planned.episode[order]
        edges = [0, *((dataset[1:] != dataset[:-1]).nonzero()[0] + 1).tolist(), len(order)]
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
            parts.append(
                Part(rows, int(self._setting_of[number]), self._datasets[number], episodes)
            )
        stride = self._stride[dataset]
        return _SortedSamples(
            order, parts, dataset, ledger, stride, -(-steps // stride), self._keys[dataset]
        )

    def places(self, planned: PlannedSamples) -> tuple[list[str], list[FramePlaces]]:
        """Files, and by camera where in them the frames of the samples lie, one for each use."""
        work = self._sorted(planned, self._indexes)
        raw = _frame_windows(work).index * work.stride[:, None]
        files, ranges = _ranges(work, list(self._has), raw)
        return files, list(ranges.values())


@frozen
class Part:
    """The samples of one dataset, their rows among the sorted ones, the number of its settings."""

    rows: slice
    setting: int
    dataset: ResolvedDataset
    episodes: GatheredEpisodes


@frozen
class Group:
    """Samples of datasets with the same settings, and their rows among the sorted ones."""

    rows: slice
    sample: SampleSpec
    parts: list[Part]

    def each(self) -> Iterator[tuple[Part, slice]]:
        """Every part, and its rows among those of the group."""
        for part in self.parts:
            yield part, slice(part.rows.start - self.rows.start, part.rows.stop - self.rows.start)


def field_rows(
    group: Group, name: FieldName, t: Ints, steps: Ints, stride: Ints, width: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """A field's final rows [n, R, width] and their mask, for the n samples of a group.

    With a chunk of actions per step of the window [n, W, R, width].

    Args:
        group: samples, and the episodes that they are of.
        name: name of the field.
        t: [n] steps of the strided episodes.
        steps: [n, 1] steps of each strided episode.
        stride: [n, 1] stride of each episode.
        width: number of columns to pad to.
    """
    at, window = field_windows(group.sample, name, t, steps)
    chunks = len(at) // max(1, len(t))
    # Gathered by sample; put together, and finished, by chunk.
    raw = window.index.reshape(len(t), -1) * stride
    values = np.zeros((*window.index.shape, width), np.float32)
    mask = np.zeros(values.shape, np.bool_)
    finish, base = group.sample.finish(name), None
    if finish.relative:
        base = _states(group, at.reshape(len(t), -1) * stride, width)
    for part, own in group.each():
        if (field := part.dataset.bound(name)) is not None:
            each = slice(own.start * chunks, own.stop * chunks)
            found = _evaluated(field, part.episodes, raw[own])
            values[each, :, : field.width] = found.reshape(-1, *values.shape[1:2], field.width)
            mask[each, :, : field.width] = window.inside[each, :, None]
    values, mask = windows.finished_values(values, mask, window, finish, base)
    for part, own in group.each():
        if name in part.dataset.scaling:
            each = slice(own.start * chunks, own.stop * chunks)
            nothing = ~mask[each, :, 0] if finish.summed else window.zeroed[each]
            part.dataset.scaling[name].apply(values[each], nothing)
    return by_sample(group.sample, name, values), by_sample(group.sample, name, mask)


def _states(group: Group, raw: Ints, width: int) -> NDArray[np.float32]:
    """[n · k, ≥ width] the states at raw steps [n, k] of a group's samples; zero where none is."""
    every = [(own, part, one) for part, own in group.each() if (one := part.dataset.state)]
    widest = max([width, *(one.width for _, _, one in every)])
    found = np.zeros((*raw.shape, widest), np.float32)
    for own, part, one in every:
        found[own, :, : one.width] = _evaluated(one, part.episodes, raw[own])
    return found.reshape(-1, widest)


@frozen
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
    parts: list[Part]
    dataset: Ints
    ledger: Ints
    stride: Ints
    steps: Ints
    keys: NDArray[np.uint64]

    def groups(self) -> Iterator[Group]:
        """The parts, those with the same settings together."""
        for _, some in groupby(self.parts, key=lambda part: part.setting):
            parts = list(some)
            rows = slice(parts[0].rows.start, parts[-1].rows.stop)
            yield Group(rows, parts[0].dataset.sample, parts)

    def episode_keys(self, rows: slice) -> NDArray[np.uint64]:
        """``block.episode_key`` of each of these samples."""
        return draws.fold_array(self.keys[rows], *self.ledger[rows, 1:4].T)


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
    columns = {path: episodes.column(path, raw).reshape(raw.size, -1) for path in field.reads}
    return field.evaluate(columns, raw.size).reshape(*raw.shape, field.width)


def _ranges(
    work: _SortedSamples, cameras: Sequence[str], raw: Ints
) -> tuple[list[str], dict[str, FramePlaces]]:
    """Files, and by camera the places of the frames at raw steps [n, F], row by row."""
    numbers: dict[str, int] = {}
    ranges = {}
    for camera in cameras:
        places = FramePlaces.nowhere(raw.shape)
        for part in work.parts:
            features = part.dataset.cameras.get(camera, ())
            number = sorted(part.dataset.cameras).index(camera) if features else 0
            drawn = _drawn(work, part, len(features), draws.PURPOSE_CAMERA, number)
            for k, feature in enumerate(features):
                own: Any = slice(None) if drawn is None else drawn == k
                found = part.episodes.frames(feature.path, raw[part.rows], numbers)
                if found.make is not None and places.make is None:
                    places = places._replace(make=np.full(raw.shape, None))
                pairs: Iterable[tuple[Any, Any]] = zip(places, found, strict=True)
                for column, values in pairs:
                    if column is not None:
                        column[part.rows][own] = None if values is None else values[own]
        ranges[camera] = places.at(slice(None))
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


def _texts(work: _SortedSamples, part: Part) -> list[bytes]:
    """The language of a dataset's samples, UTF-8."""
    features = part.dataset.language
    if not features:
        return [b""] * len(part.episodes.steps)
    raw_t = work.ledger[part.rows, 4] * work.stride[part.rows]
    told = [part.episodes.language(feature.path, raw_t) for feature in features]
    words = part.dataset.words
    if words.names or words.several:
        keys = draws.words_drawn(work.episode_keys(part.rows), work.ledger[part.rows, 4])
        told = [
            words.told(one.path, texts, keys) for one, texts in zip(features, told, strict=True)
        ]
    drawn = _drawn(work, part, len(features), draws.PURPOSE_LANGUAGE)
    if drawn is None:
        return told[0]
    return [told[choice][k] for k, choice in enumerate(drawn.tolist())]


def _drawn(work: _SortedSamples, part: Part, count: int, *purpose: int) -> Ints | None:
    """[n] which of ``count`` features each sample's episode has; ``None`` where there is one."""
    if count < 2:
        return None
    keys = work.episode_keys(part.rows)
    parts = (np.full(len(keys), number, np.int64) for number in purpose)
    return draws.choose_array(draws.fold_array(keys, *parts), count)


def _fill_features(
    layout: BatchLayout, work: _SortedSamples, columns: _Columns, languages: Sequence[bytes]
) -> Sequence[bytes]:
    """Fill the further features of all samples, and their masks; ``columns`` hold zeros.

    Returns:
        Every sample's one text: its language [n], and behind it the texts of its features.
    """
    forms, count = layout.features, len(work.order)
    texts: dict[str, list[list[bytes]]] = {
        name: [[b""] * count for _ in range(forms[name].rows(layout.state_rows))]
        for name in text_places(forms, layout.state_rows)
    }
    for group in work.groups():
        t, steps = work.ledger[group.rows, 4], work.steps[group.rows, None]
        _, window = field_windows(group.sample, "state", t, steps)
        for part, own in group.each():
            held, zeroed = part.dataset.held, window.zeroed[own]
            raw = window.index[own] * work.stride[part.rows, None]
            numbers = [name for name in held if name not in texts]
            stored = [(held_role(held[name]), held[name].path) for name in numbers]
            for name, pieces in zip(numbers, part.episodes.several(stored, raw), strict=True):
                column = columns[f"features/{name}"][part.rows]
                column[:] = np.concatenate(pieces).reshape(column.shape)
                if forms[name].per_step:
                    column[zeroed] = 0
            for name in held:
                of_steps = forms[name].per_step
                inside: Any = window.inside[own] if of_steps else True
                columns[f"feature_mask/{name}"][part.rows] = inside
                for row, mine in enumerate(texts.get(name, ())):
                    told = part.episodes.language(held[name].path, raw[:, row])
                    for k in np.flatnonzero(zeroed[:, row]).tolist() if of_steps else ():
                        told[k] = b""
                    mine[part.rows] = told
    if not texts:
        return languages
    parts = [languages, *(row for rows in texts.values() for row in rows)]
    for number, some in enumerate(parts):
        columns["text_length"][:, number] = np.fromiter(map(len, some), np.int64, count)
    return [b"".join(sample) for sample in zip(*parts, strict=True)]
