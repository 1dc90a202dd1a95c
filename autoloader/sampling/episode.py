"""One episode as a reader hands it over: encoded frames, and every sample's rows ready to copy.

Frames stay compressed and are held once, however many samples use them; the numeric windows of
all the episode's samples are computed in one go, so that a sample costs array copies only.

Not here: where the bytes come from (``graph``), decoding (``runtime``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoloader.sampling import windows
from autoloader.sampling.draws import PURPOSE_ORDER, fold
from autoloader.sampling.layout import BatchLayout
from autoloader.sampling.resolve import FieldName, ResolvedDataset
from autoloader.spec import SampleSpec

Encoded = bytes | memoryview
"""A frame as it lies in its file."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an episode lies: dataset index, pass, shard (slice) and record in the shard's file."""

    dataset: int
    pass_: int
    shard: int
    record: int

    def numbers(self) -> tuple[int, int, int, int]:
        """(dataset, pass, shard, record)."""
        return self.dataset, self.pass_, self.shard, self.record


@dataclass(frozen=True, slots=True)
class EpisodeSamples:
    """The n samples of one episode, in the order in which they come.

    Attributes:
        place: where it lies.
        t: [n] int64, in (strided) frames.
        frames: camera → encoded frames, as many as the samples use.
        frame_row: [n, F] int64, into ``frames``.
        frame_mask, frame_zeroed: [n, F] bool.
        frame_offset: [n, F] int32.
        action, action_mask: [n, H, A] float32, bool.
        state, state_mask: [n, Fs, S] float32, bool.
        language: UTF-8 text of each sample, or one for all.
        nbytes: bytes held.
    """

    place: Place
    t: NDArray[np.int64]
    frames: Mapping[str, Sequence[bytes]]
    frame_row: NDArray[np.int64]
    frame_mask: NDArray[np.bool_]
    frame_zeroed: NDArray[np.bool_]
    frame_offset: NDArray[np.int32]
    action: NDArray[np.float32]
    action_mask: NDArray[np.bool_]
    state: NDArray[np.float32]
    state_mask: NDArray[np.bool_]
    language: Sequence[bytes]
    nbytes: int

    def __len__(self) -> int:
        return len(self.t)

    def place_at(self, k: int) -> Place:
        """Where sample k's episode lies."""
        del k
        return self.place

    def source_at(self, k: int) -> Place:
        """Where what sample k shows lies; another place only where it stands for a broken one."""
        return self.place_at(k)

    def text(self, k: int) -> bytes:
        """UTF-8 language of sample k."""
        return self.language[k if len(self.language) > 1 else 0]


@dataclass(frozen=True, slots=True)
class StandIns(EpisodeSamples):
    """Samples in the place of those of a broken record: repeats of a whole episode's.

    Attributes:
        source: where that episode lies.
    """

    source: Place

    def source_at(self, k: int) -> Place:
        """See ``EpisodeSamples.source_at``."""
        del k
        return self.source


def stand_ins(episode: EpisodeSamples, place: Place, count: int) -> StandIns:
    """``count`` samples for the record at ``place``: those of ``episode``, again and again."""
    at = np.arange(count) % len(episode)
    several = len(episode.language) > 1
    return StandIns(
        place=place,
        t=episode.t[at],
        frames=episode.frames,
        frame_row=episode.frame_row[at],
        frame_mask=episode.frame_mask[at],
        frame_zeroed=episode.frame_zeroed[at],
        frame_offset=episode.frame_offset[at],
        action=episode.action[at],
        action_mask=episode.action_mask[at],
        state=episode.state[at],
        state_mask=episode.state_mask[at],
        language=[episode.language[k] for k in at.tolist()] if several else episode.language,
        nbytes=episode.nbytes,
        source=episode.place,
    )


def episode_key(dataset: ResolvedDataset, place: Place) -> int:
    """The key of all draws of one episode in one pass."""
    return fold(dataset.key, PURPOSE_ORDER, place.pass_, place.shard, place.record)


def build_samples(
    dataset: ResolvedDataset,
    layout: BatchLayout,
    place: Place,
    *,
    steps: int,
    t: NDArray[np.int64],
    frames: Mapping[str, Sequence[bytes]],
    frame_row: NDArray[np.int64],
    columns: Mapping[str, NDArray[np.float32]],
    language: Sequence[bytes],
) -> EpisodeSamples:
    """Compute every sample's windows from an episode's columns.

    Args:
        dataset: whose episode it is.
        layout: widths to pad to.
        place: where it lies.
        steps: (strided) frames of the episode.
        t: [n] int64, in the order in which samples come.
        frames: camera → encoded frames.
        frame_row: [n, F] int64 into ``frames``.
        columns: feature path → [steps, width] float32.
        language: one text, or one for each sample, UTF-8.
    """
    keys = np.full(len(t), episode_key(dataset, place), dtype=np.uint64)
    window = windows.frame_rows(t, steps, dataset.sample, keys)
    action, action_mask = _field(dataset, layout, "action", t, steps, columns)
    state, state_mask = _field(dataset, layout, "state", t, steps, columns)
    held = sum(len(frame) for encoded in frames.values() for frame in encoded)
    held += action.nbytes + state.nbytes + action_mask.nbytes + state_mask.nbytes
    return EpisodeSamples(
        place=place,
        t=t,
        frames=frames,
        frame_row=frame_row,
        frame_mask=window.inside,
        frame_zeroed=window.zeroed,
        frame_offset=window.offset,
        action=action,
        action_mask=action_mask,
        state=state,
        state_mask=state_mask,
        language=language or (b"",),
        nbytes=held,
    )


def _field(
    dataset: ResolvedDataset,
    layout: BatchLayout,
    name: FieldName,
    t: NDArray[np.int64],
    steps: int,
    columns: Mapping[str, NDArray[np.float32]],
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    width = layout.action_width if name == "action" else layout.state_width
    rows = layout.action_rows if name == "action" else layout.state_rows
    if dataset.bound(name) is None:
        shape = (len(t), rows, width)
        return np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.bool_)
    return field_rows(dataset, name, t, steps, columns, width)


def field_rows(
    dataset: ResolvedDataset,
    name: FieldName,
    t: NDArray[np.int64],
    steps: int,
    columns: Mapping[str, NDArray[np.float32]],
    width: int,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """A field's final rows [n, R, width] float32 and their mask, for the samples at ``t`` [n].

    Args:
        dataset: has the field.
        name: which one.
        t: [n] int64.
        steps: (strided) frames of the episode.
        columns: feature path → [steps, feature width] float32.
        width: to pad to.
    """
    sample = dataset.sample
    bound = dataset.bound(name)
    assert bound is not None
    values = bound.evaluate(columns, steps)
    window = windows.rows(t, field_offsets(sample, name), steps, sample)
    dims, base = sample.action_relative_to_state if name == "action" else (), None
    if dims and dataset.state is not None:
        base = dataset.state.evaluate(columns, steps)[t]
    summed = name == "action" and sample.action_reduce == "sum"
    found, mask = windows.window_values(values, window, width, dims=dims, base=base, summed=summed)
    if name in dataset.scaling:
        dataset.scaling[name].apply(found, ~mask[..., 0] if summed else window.zeroed)
    return found, mask


def field_offsets(sample: SampleSpec, name: FieldName) -> NDArray[np.int64]:
    """[R] int64: which rows relative to t a field takes, before any sum."""
    if name == "state":
        return np.asarray(sample.state_offsets, dtype=np.int64)
    return sample.action_start + np.arange(sample.action_horizon, dtype=np.int64)
