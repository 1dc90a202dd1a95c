"""Samples of one dataset drawn from many episodes: the windows of a planned run, computed at once.

What ``sampling.episode`` does for one episode's samples, this does for samples of different
episodes over their columns. The result has the face of ``EpisodeSamples``. Of a dataset whose
samples are chained, a frame that several samples use is listed, read and held once.

Not here: which samples are drawn (``index.plan``), their bytes (``runtime.planned``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autoloader.sampling import windows
from autoloader.sampling.draws import (
    PURPOSE_CAMERA,
    PURPOSE_LANGUAGE,
    PURPOSE_ORDER,
    fold,
    fold_array,
)
from autoloader.sampling.episode import Place, episode_key
from autoloader.sampling.fields import NumericField
from autoloader.sampling.layout import BatchLayout
from autoloader.sampling.record import draw_choice
from autoloader.sampling.resolve import ResolvedDataset
from autoloader.sampling.scaling import Scaling


class IndexedEpisode(Protocol):
    """An episode as the index holds it; see ``index.dataset.EpisodeView``."""

    @property
    def path(self) -> str:
        """Its file."""
        ...

    @property
    def slice(self) -> int:
        """Number of its slice."""
        ...

    @property
    def record(self) -> int:
        """Its number in the file."""
        ...

    @property
    def steps(self) -> int:
        """Raw steps."""
        ...

    def frames(self, feature_path: str) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Byte offsets and lengths in the file, [steps] each."""
        ...

    def column(self, feature_path: str) -> NDArray[np.float32]:
        """[steps, width]."""
        ...

    def language(self, feature_path: str, steps: NDArray[np.int64]) -> list[bytes]:
        """UTF-8 texts at raw steps; one for all where the feature is the episode's."""
        ...


@dataclass(frozen=True, slots=True)
class FrameRange:
    """Where one encoded frame lies."""

    path: str
    offset: int
    length: int


@dataclass(slots=True)
class PlannedGroup:
    """n samples of one dataset, in the order in which they come; see ``EpisodeSamples``.

    Attributes:
        places: of each sample's episode.
        ranges: camera → where every frame lies, row by row; ``frames`` holds their bytes, later.
        linked: [n] whether a sample shares a frame with the one before it; ``None`` where the
            dataset is not chained, and no frame is looked for twice.
    """

    places: Sequence[Place]
    t: NDArray[np.int64]
    ranges: Mapping[str, Sequence[FrameRange]]
    frames: dict[str, Sequence[bytes]]
    frame_row: NDArray[np.int64]
    frame_mask: NDArray[np.bool_]
    frame_zeroed: NDArray[np.bool_]
    frame_offset: NDArray[np.int32]
    action: NDArray[np.float32]
    action_mask: NDArray[np.bool_]
    state: NDArray[np.float32]
    state_mask: NDArray[np.bool_]
    language: Sequence[bytes]
    linked: Sequence[bool] | None = None

    def place_at(self, k: int) -> Place:
        """Where sample k's episode lies."""
        return self.places[k]


def plan_group(
    dataset: ResolvedDataset,
    layout: BatchLayout,
    episodes: Sequence[IndexedEpisode],
    passes: Sequence[int],
    t: NDArray[np.int64],
    *,
    chained: bool = False,
) -> PlannedGroup:
    """The windows of samples of one dataset.

    Args:
        dataset: whose samples.
        layout: widths to pad to.
        episodes: of each sample.
        passes: of each sample.
        t: [n] int64, strided.
        chained: whether neighbours are likely to share frames, so that these are looked for.
    """
    sample, stride = dataset.sample, dataset.stride
    places = [
        Place(dataset.index, pass_, episode.slice, episode.record)
        for episode, pass_ in zip(episodes, passes, strict=True)
    ]
    steps = np.asarray([-(-episode.steps // stride) for episode in episodes], dtype=np.int64)
    window = windows.frame_rows(t, steps[:, None], sample, _keys(dataset, places, sample.goal))
    raw_index = window.index * stride
    frame_row = np.arange(raw_index.size, dtype=np.int64).reshape(raw_index.shape)
    linked = first = None
    if chained:
        frame_row, first = _shared_frames(places, raw_index)
        linked = _linked(frame_row)
    raw = raw_index.tolist()
    ranges: dict[str, list[FrameRange]] = {}
    for number, (camera, choices) in enumerate(sorted(dataset.cameras.items())):
        found = ranges[camera] = []
        for k, episode in enumerate(episodes):
            at = 0
            if len(choices) > 1:
                key = episode_key(dataset, places[k])
                at = draw_choice(key, PURPOSE_CAMERA, number, len(choices))
            offsets, lengths = episode.frames(choices[at].path)
            found.extend(
                FrameRange(episode.path, int(offsets[row]), int(lengths[row])) for row in raw[k]
            )
        if first is not None:
            ranges[camera] = [found[at] for at in first]
    action, action_mask = _values(
        dataset.action,
        episodes,
        _action_rows(dataset, t, steps),
        stride,
        layout.action_width,
        layout.action_rows,
        summed=sample.action_reduce == "sum",
        dims=sample.action_relative_to_state,
        base=_state_at(dataset, episodes, t * stride),
        scaling=dataset.scaling.get("action"),
    )
    state_offsets = np.asarray(sample.state_offsets, np.int64)
    state, state_mask = _values(
        dataset.state,
        episodes,
        windows.rows(t, state_offsets, steps[:, None], sample),
        stride,
        layout.state_width,
        layout.state_rows,
        scaling=dataset.scaling.get("state"),
    )
    return PlannedGroup(
        places=places,
        t=t,
        ranges=ranges,
        frames={},
        frame_row=frame_row,
        frame_mask=window.inside,
        frame_zeroed=window.zeroed,
        frame_offset=window.offset,
        action=action,
        action_mask=action_mask,
        state=state,
        state_mask=state_mask,
        language=_texts(dataset, episodes, places, t * stride),
        linked=linked,
    )


def _shared_frames(
    places: Sequence[Place], raw: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[int]]:
    """Numbers of the different frames, in the order in which they come.

    Args:
        places: of each sample; a camera may differ between passes, so a pass is part of a frame.
        raw: [n, F] raw steps.

    Returns:
        [n, F] the number of each frame, and for every number the flat place of its first use.
    """
    number: dict[Place, int] = {}
    of = np.asarray([number.setdefault(place, len(number)) for place in places], dtype=np.int64)
    flat = (of[:, None] * (int(raw.max(initial=0)) + 1) + raw).ravel()
    _, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[inverse.ravel()].reshape(raw.shape), first[order].tolist()


def _linked(frame_row: NDArray[np.int64]) -> list[bool]:
    """Of each sample, whether it shares a frame with the one before."""
    shared = (frame_row[1:, :, None] == frame_row[:-1, None, :]).any(axis=(1, 2))
    return [False, *shared.tolist()]


def _action_rows(
    dataset: ResolvedDataset, t: NDArray[np.int64], steps: NDArray[np.int64]
) -> windows.Rows:
    sample = dataset.sample
    offsets = sample.action_start + np.arange(sample.action_horizon, dtype=np.int64)
    return windows.rows(t, offsets, steps[:, None], sample)


def _keys(dataset: ResolvedDataset, places: Sequence[Place], goal: str) -> NDArray[np.uint64]:
    """[n] the key of each sample's episode in its pass; where nothing asks for it, zeros."""
    if goal == "none":
        return np.zeros(len(places), np.uint64)
    start = np.full(len(places), fold(dataset.key, PURPOSE_ORDER), np.uint64)
    parts = np.asarray([place.numbers()[1:] for place in places], np.int64)
    return fold_array(start, parts[:, 0], parts[:, 1], parts[:, 2])


def _state_at(
    dataset: ResolvedDataset, episodes: Sequence[IndexedEpisode], raw_t: NDArray[np.int64]
) -> NDArray[np.float32] | None:
    """[n, w] the state at t, where the action is relative to it."""
    if dataset.state is None or not dataset.sample.action_relative_to_state:
        return None
    return dataset.state.evaluate(
        {
            path: np.stack([e.column(path)[at] for e, at in zip(episodes, raw_t, strict=True)])
            for path in dataset.state.paths()
        },
        len(episodes),
    )


def _values(
    bound: NumericField | None,
    episodes: Sequence[IndexedEpisode],
    window: windows.Rows,
    stride: int,
    width: int,
    rows: int,
    *,
    summed: bool = False,
    dims: Sequence[int] = (),
    base: NDArray[np.float32] | None = None,
    scaling: Scaling | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    count, horizon = window.index.shape
    if bound is None:
        shape = (count, rows, width)
        return np.zeros(shape, np.float32), np.zeros(shape, np.bool_)
    raw = window.index * stride
    columns = {
        path: np.concatenate([e.column(path)[raw[k]] for k, e in enumerate(episodes)])
        for path in bound.paths()
    }
    flat = bound.evaluate(columns, count * horizon)
    index = np.arange(count * horizon, dtype=np.int64).reshape(count, horizon)
    local = windows.Rows(index, window.inside, window.zeroed, window.offset)
    shape_values = windows.summed_values if summed else windows.window_values
    values, mask = shape_values(flat, local, width, dims=dims, base=base)
    if scaling is not None:
        scaling.apply(values, ~mask[..., 0] if summed else window.zeroed)
    return values, mask


def _texts(
    dataset: ResolvedDataset,
    episodes: Sequence[IndexedEpisode],
    places: Sequence[Place],
    raw_t: NDArray[np.int64],
) -> list[bytes]:
    if not dataset.language:
        return [b""] * len(episodes)
    texts = []
    for k, episode in enumerate(episodes):
        at = 0
        if len(dataset.language) > 1:
            key = episode_key(dataset, places[k])
            at = draw_choice(key, PURPOSE_LANGUAGE, 0, len(dataset.language))
        texts.append(episode.language(dataset.language[at].path, raw_t[k : k + 1])[0])
    return texts
