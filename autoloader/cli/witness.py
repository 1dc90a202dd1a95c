"""Samples of a dataset, worked out a second time from its files.

``autoloader verify`` and the tests hold both readers against it. So this module is slow and
straightforward on purpose, goes through the steps one by one, and shares nothing with the loader
but the spec: an import contract keeps it from ``samples``, ``samples.transforms``, ``sampling``,
``index``, ``pipeline.graph``, ``decode`` and ``pipeline.read``.

A user's function gets a number in the place of each decoded picture; where it returns that number,
the picture is put back.

Not here: reading the steps (``formats.plain``), comparing (``cli.verify``).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError
from autoloader.formats import Feature
from autoloader.formats.plain import Step, text_at, value_at
from autoloader.spec import (
    AnyOf,
    CameraSpec,
    DatasetSpec,
    FieldExpression,
    FieldNormalizeSpec,
    FieldTerm,
    KeepSpec,
    PipelineSpec,
    SampleSpec,
    TransformSpec,
)
from autoloader.spec.fields import FieldOp
from autoloader.spec.mixture import ColumnsNormalizeSpec
from autoloader.spec.sample import SampleWeightSpec, key_parts, matcher

Rows = NDArray[np.float64]
_Columns = list[NDArray[np.float32]]
_METADATA = "episode_metadata"
_TRAJECTORY = "traj_metadata"
_VALID = "valid"
_PICTURES = 7 << 50
_MASK = 2**64 - 1
_ORDER, _GOAL = 1, 11

# -- draws ---------------------------------------------------------------------------------------


def splitmix64(value: int) -> int:
    """The hash of a 64-bit number."""
    z = (value + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _fold(key: int, *parts: int) -> int:
    for part in parts:
        key = splitmix64(key ^ part)
    return key


def key_of(seed: int, name: str) -> int:
    """The key of all draws of a dataset."""
    return int.from_bytes(
        hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest(), "little"
    )


# -- episodes and samples ------------------------------------------------------------------------


def sample_in_frames(spec: PipelineSpec, name: str, fps: float | None) -> SampleSpec:
    """Content of a dataset's samples; offsets in seconds become offsets in its frames."""
    sample, declared = spec.sample_of(name), spec.dataset(name)
    if not sample.delta_timestamps or fps is None:
        return sample
    rate = fps / declared.stride / declared.steps.every
    return sample.model_copy(update=sample.delta_timestamps.in_frames(rate, name))


class Episode:
    """One episode as the spec's words for its dataset leave it.

    Args:
        steps: as the user's function leaves them, or as they lie in the file.
        declared: the dataset as the spec has it.
        sample: the spec's description of a sample, in frames.
        valid: for each of ``steps``, whether it may be t; ``None``: all may.
        labels: path of a class label → its names.
        key: key of the dataset, see ``key_of``.

    Attributes:
        steps: every ``stride``-th step that is left, with the values that ops made of terms.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        declared: DatasetSpec,
        sample: SampleSpec,
        *,
        valid: Sequence[bool] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        key: int = 0,
    ) -> None:
        self.declared = declared
        self.sample = sample
        self._labels = labels or {}
        self._key = key
        said = declared.steps
        taken = slice(said.drop_first, None, said.every)
        made = [dict(step) for step in steps[taken]]
        self.fields = {
            "action": _derived(made, "action", declared.action),
            "state": _derived(made, "state", declared.state),
        }
        left = max(0, len(made) - said.drop_last)
        self._every: list[Step] = list(made[:left])
        self._valid = list([True] * len(steps) if valid is None else valid)[taken][:left]
        self.steps = self._every[:: declared.stride]

    def why_not(self, t: int) -> str | None:
        """The word of the spec for which step t has no sample; ``None`` where it has one."""
        if not 0 <= t < len(self.steps):
            return "t"
        return self.edge(t) or self.rule(t * self.declared.stride)

    def drawn(self, pass_: int, shard: int, record: int) -> list[int]:
        """The t that have a sample in a pass, in the order in which an episode gives them."""
        key = _fold(self._key, _ORDER, pass_, shard, record)
        found = [t for t in range(len(self.steps)) if self.why_not(t) is None]
        found.sort(key=lambda t: splitmix64(t ^ key))
        count = self.sample.per_episode
        return found if count == "all" else found[:count]

    def at(self, t: int, pass_: int, shard: int, record: int) -> Sample:
        """The sample at t, in this pass, of the episode that lies there."""
        return Sample(self, t, _fold(self._key, _ORDER, pass_, shard, record, _GOAL, t))

    def said(self, step: Step) -> list[list[str]]:
        """The texts that each language feature of a step may give."""
        choice = self.declared.language
        if choice is None:
            return []
        return [_said_at(step, path, choice, self._labels.get(path, ())) for path in choice.paths]

    def edge(self, t: int) -> str | None:
        """The edge that drops t."""
        sample = self.sample
        chunks = [0, *sample.frame_offsets] if sample.action_per == "step" else [0]
        rows = [start + row for start in chunks for row in sample.action_offsets]
        for offset in (*sample.frame_offsets, *sample.state_offsets, *rows):
            if t + offset < 0 and sample.edges.start == "drop":
                return "sample.edges.start"
            if t + offset >= len(self.steps) and sample.edges.end == "drop":
                return "sample.edges.end"
        return None

    def rule(self, number: int) -> str | None:
        """The function's mask, or the rule of ``keep``, that bars a step before the stride."""
        if not self._valid[number]:
            return "transform.valid"
        keep, step = self.declared.keep, self._every[number]
        if keep is None:
            return None
        if keep.moving is not None:
            moves = np.abs(numbers(step, keep.moving.path))
            if not (moves > np.asarray(keep.moving.above, np.float32)).any():
                return "keep.moving"
        if keep.language == "anywhere" and not self._speaks_anywhere:
            return "keep.language"
        if keep.language == "required" and not all(map(_speaks, self.said(step))):
            return "keep.language"
        return _broken(keep, step, number)

    @cached_property
    def _speaks_anywhere(self) -> bool:
        return any(_speaks(texts) for step in self._every for texts in self.said(step))


@dataclass(frozen=True)
class Sample:
    """One sample of an episode.

    Attributes:
        episode: episode that the sample is of.
        t: step of the episode at which the sample stands.
        draw: random number that the sample's goal is drawn by.
    """

    episode: Episode
    t: int
    draw: int

    @property
    def summed(self) -> bool:
        """True where the action is a sum: its last bit depends on the order of adding."""
        return self.episode.sample.action_reduce == "sum"

    def frames(self) -> list[tuple[Step | None, int, bool]]:
        """Of each frame: step or ``None`` where it is black, realised offset, whether it is inside.

        The goal's is the last.
        """
        steps, found = self.episode.steps, []
        for offset in self.episode.sample.frame_offsets:
            row, inside, zero = self._row(offset)
            found.append((None if zero else steps[row], offset if zero else row - self.t, inside))
        if self.episode.sample.goal == "uniform":
            left = len(steps) - 1 - self.t
            goal = self.t + 1 + splitmix64(self.draw) % left if left else self.t
            found.append((steps[goal], goal - self.t, True))
        return found

    def rows(self, name: str) -> tuple[Rows, NDArray[np.bool_], NDArray[np.bool_]] | None:
        """(values [R, width], inside [R], zeroed [R]) of a field before normalisation.

        Chunks of several steps of the window are one behind the other.
        """
        expression, sample = self.episode.fields[name], self.episode.sample
        if expression is None:
            return None
        action, state = name == "action", self.episode.fields["state"]
        starts = [(self.t, True, False)]
        if action and sample.action_per == "step":
            starts = [self._row(offset) for offset in sample.frame_offsets]
        found: list[tuple[NDArray[np.float32], bool, bool]] = []
        for at, real, blank in starts:  # which may stand for a step outside the episode
            chunk = []
            for offset in sample.action_offsets if action else sample.state_offsets:
                row, inside, zero = self._row(offset, at)
                value = numbers(self.episode.steps[row], expression)
                if action and sample.action_relative_to_state and state is not None:
                    base = numbers(self.episode.steps[at], state)
                    for dim in sample.action_relative_to_state:
                        value[dim] -= base[dim]
                if action and not (inside and real):
                    value[list(sample.action_zero_outside)] = 0.0
                if zero or blank:
                    value = np.zeros_like(value)
                chunk.append((value, inside and real, zero or blank))
            if action and sample.action_reduce == "sum":
                total = np.zeros_like(chunk[0][0])
                for value, inside, _ in chunk:
                    total = total + value if inside else total
                some = any(inside for _, inside, _ in chunk)
                chunk = [(total, some, not some)]
            found += chunk
        values, insides, zeros = zip(*found, strict=True)
        return np.stack(values).astype(np.float64), np.asarray(insides), np.asarray(zeros)

    def feature(
        self, path: str | None, like: Any, *, per_step: bool
    ) -> tuple[list[Any], list[bool]]:
        """(values, inside) of a feature that samples hold: by row, or one of the episode.

        Args:
            path: path of the feature; ``None`` where the dataset names none.
            like: the loader's value of one row, whose zero stands for what is not there.
            per_step: whether it has a row for each of the state's.
        """
        offsets = self.episode.sample.state_offsets if per_step else (0,)
        values, insides = [], []
        for row, inside, zero in map(self._row, offsets):
            there = path is not None and not zero
            values.append(
                value_at(self.episode.steps[row], path or "") if there else _nothing(like)
            )
            insides.append(path is not None and (inside or not per_step))
        return [
            one.decode("utf-8", "replace") if isinstance(one, bytes) else _single(one).tolist()
            for one in values
        ], insides

    def _row(self, offset: int, at: int | None = None) -> tuple[int, bool, bool]:
        """(step within the episode, whether it was asked for, whether zero stands for it)."""
        wanted, last = (self.t if at is None else at) + offset, len(self.episode.steps) - 1
        if wanted < 0:
            return 0, False, self.episode.sample.edges.start == "zero"
        if wanted > last:
            return last, False, self.episode.sample.edges.end == "zero"
        return wanted, True, False


def _single(value: Any) -> NDArray[Any]:
    """A number or array as samples hold it: every float becomes float32."""
    plain = np.asarray(value)
    return plain.astype(np.float32) if plain.dtype.kind == "f" else plain


def _nothing(like: Any) -> Any:
    return "" if isinstance(like, str) else np.zeros_like(like)


def numbers(step: Step, expression: FieldExpression) -> NDArray[np.float32]:
    """A numeric field of one step, spelled out from its terms; float32."""
    parts = []
    for term in expression.terms:
        if term.path is None:
            parts.append(np.full(term.constants, term.value, np.float32))
            continue
        part = np.asarray(value_at(step, term.path)).astype(np.float32).reshape(-1)[term.slice()]
        for op in term.ops:
            if op.name == "clip":
                part = part.clip(np.float32(op.values[0]), np.float32(op.values[1]))
            elif op.name == "invert":
                part = np.float32(1) - part
            else:
                part = part * np.float32(op.values[0])
        parts.append(part)
    return np.concatenate(parts)


def nearest_frame(stored: Any, camera: CameraSpec) -> NDArray[Any]:
    """[H, W] values of a depth frame [h, w] or [h, w, 1], taken at the nearest places."""
    values = np.asarray(stored)
    return _fitted(values.reshape(values.shape[:2]), camera, _nearest)


def fitted_picture(picture: NDArray[np.uint8], camera: CameraSpec) -> NDArray[np.uint8]:
    """[H, W, 3] uint8 of a decoded picture [h, w, 3]; TensorFlow makes its own methods alone."""
    origin, _, method = camera.resize.rpartition("_")
    if camera.resize == "nearest":
        return _fitted(picture, camera, _nearest)
    plain = {"bilinear": _weighed, "area": _by_opencv, "lanczos3": _by_pillow}
    how = {"": plain[method], "tf": _by_tensorflow, "pillow": _by_pillow}[origin]
    return _fitted(picture, camera, partial(how, method=method))


def _by_opencv(values: NDArray[Any], size: Sequence[int], method: str) -> NDArray[Any]:
    import cv2

    del method  # where an axis grows, its area is no mean
    return np.asarray(cv2.resize(values, size[::-1], interpolation=cv2.INTER_AREA))


def _by_tensorflow(values: NDArray[Any], size: Sequence[int], method: str) -> NDArray[Any]:
    import tensorflow as tf

    with tf.device("/CPU:0"):
        found = tf.image.resize(values, size, method=method, antialias=True)
        return np.asarray(tf.saturate_cast(tf.round(found), tf.uint8))


def _by_pillow(values: NDArray[Any], size: Sequence[int], method: str) -> NDArray[Any]:
    from PIL import Image

    how = Image.Resampling[method.removesuffix("3").upper()]
    return np.asarray(Image.fromarray(np.ascontiguousarray(values)).resize((size[1], size[0]), how))


def _weighed(values: NDArray[Any], size: Sequence[int], method: str) -> NDArray[Any]:
    """Each output pixel a weighted mean of its two neighbours along each axis."""
    del method
    for axis, count in enumerate(size):
        pixel, out = np.arange(values.shape[axis]), np.arange(count)[:, None]
        centre = np.clip((out + 0.5) * len(pixel) / count - 0.5, 0, pixel[-1])
        weights = np.maximum(0, 1 - abs(centre - pixel))
        values = np.moveaxis(np.tensordot(weights, values, (1, axis)), 0, axis)
    return np.asarray(np.rint(values), np.uint8)


def _fitted(values: NDArray[Any], camera: CameraSpec, resized: Callable[..., Any]) -> NDArray[Any]:
    """A frame, stretched, cut or padded to the camera's size, as its ``fit`` says."""
    size, shape = camera.size, values.shape
    if shape[:2] == tuple(size):
        return values
    ratios = [size[axis] / shape[axis] for axis in (0, 1)]
    if camera.fit == "stretch":
        return np.asarray(resized(values, size))
    if camera.fit == "crop":
        cut = [min(shape[a], max(1, round(size[a] / max(ratios)))) for a in (0, 1)]
        top, left = ((shape[axis] - cut[axis]) // 2 for axis in (0, 1))
        return np.asarray(resized(values[top : top + cut[0], left : left + cut[1]], size))
    inner = [min(size[a], max(1, round(shape[a] * min(ratios)))) for a in (0, 1)]
    if camera.upstream:
        most = max(shape[axis] / size[axis] for axis in (0, 1))
        inner = [max(1, int(shape[axis] / most)) for axis in (0, 1)]
    top, left = ((size[axis] - inner[axis]) // 2 for axis in (0, 1))
    padded = np.zeros((*size, *shape[2:]), values.dtype)
    padded[top : top + inner[0], left : left + inner[1]] = resized(values, inner)
    return padded


def _nearest(values: NDArray[Any], size: Sequence[int]) -> NDArray[Any]:
    down, right = (
        np.floor((np.arange(size[axis]) + 0.5) * values.shape[axis] / size[axis]).astype(int)
        for axis in (0, 1)
    )
    return np.asarray(values[down][:, right])


def _said_at(step: Step, path: str, choice: AnyOf, labels: Sequence[str]) -> list[str]:
    """The texts of which a sample at a step may have any."""
    value = np.asarray(value_at(step, path))
    if value.dtype.kind in "iu" and value.size == 1:
        names = dict(choice.names) or dict(enumerate(labels))
        return [names.get(value.item(), "")]
    if not choice.several:
        return [text_at(step, path)]
    texts = [one.decode() if isinstance(one, bytes) else str(one) for one in value.tolist()]
    spoken = [one for one in texts if one.strip()] or [""]
    return spoken[:1] if choice.several == "first" else spoken


def _speaks(texts: Sequence[str]) -> bool:
    return any(text.strip() for text in texts)


def _broken(keep: KeepSpec, step: Step, number: int) -> str | None:
    """The rule about flags, matches or ranges that step ``number`` breaks, or ``None``."""
    for path, pattern in keep.match.items():
        if not matcher(pattern)(text_at(step, path)):
            return f"keep.match.{path}"
    for path in keep.flags:
        if not bool(value_at(step, path)):
            return f"keep.flags.{path}"
    if keep.ranges is not None:
        key = "".join(
            text + ("" if path is None else _key_text(step, path))
            for text, path in key_parts(keep.ranges.key)
        )
        file = Path(keep.ranges.file)
        listed = _listed(file, file.stat().st_mtime_ns).get(key, ())
        if not any(start <= number < stop for start, stop in listed):
            return "keep.ranges"
    return None


@lru_cache(maxsize=4)
def _listed(file: Path, mtime_ns: int) -> Mapping[str, Any]:
    """Content of a file of ranges, read again when the file changes."""
    listed: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return listed


def _key_text(step: Step, path: str) -> str:
    value = np.asarray(value_at(step, path))
    return str(int(value)) if value.ndim == 0 and value.dtype.kind in "iu" else text_at(step, path)


_BOUNDS = {"min_max": ("min", "max"), "mean_std": ("mean", "std"), "q01_q99": ("q01", "q99")}
"""Method → the statistics that become -1 and 1, or 0 and the deviation from it."""


def normalised_rows(
    values: Rows,
    zeroed: NDArray[np.bool_],
    how: FieldNormalizeSpec,
    found: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] = (),
) -> Rows:
    """``values`` normalised number by number with statistics ``found``, in float64.

    ``rows`` are statistics of each row, for columns that are normalised by row.
    """
    done = values.copy()
    width = values.shape[1]
    for column in range(width):
        own: FieldNormalizeSpec | ColumnsNormalizeSpec = how
        for one in how.columns:
            if one.mask(width)[column]:
                own = one
        by_row = own is not how and getattr(own, "by_row", False)
        for row in range(len(values)):
            given = rows[row] if by_row else found
            masked = found["mask"][column] or own is not how
            x = values[row, column]
            done[row, column] = _normalised(x, column, own, how.arithmetic, given, masked=masked)
    done[zeroed] = 0.0
    return done


def _normalised(
    x: float,
    column: int,
    how: FieldNormalizeSpec | ColumnsNormalizeSpec,
    arithmetic: str,
    found: Mapping[str, Any],
    *,
    masked: bool,
) -> float:
    """One number, normalised."""
    mean, ours = how.method == "mean_std", arithmetic == "autoloader"
    constant = "min" in found and found["min"][column] == found["max"][column]
    zero = x * 0.0  # what is not finite is NaN
    if arithmetic == "openvla" and constant and how.method not in ("mean_std", "binary"):
        return zero
    if not masked:
        return x
    if how.method == "binary":
        return x if np.isnan(x) else float(x > 0.5)
    first, last = _BOUNDS[how.method]
    low, high = found[first][column], found[last][column]
    high += low if mean else 0.0
    if abs(high - low) < (1 if mean else 2) / np.finfo(np.float32).max:
        high = low  # float32 has no factor as large
    added, flat = 0.0, constant or not high > low if ours else False
    kept = mean or (how.method == "q01_q99" and arithmetic == "gr00t")
    if arithmetic.startswith("gr00t"):
        near = 1e-8 + 1e-5 * abs(low) if arithmetic == "gr00t_n16" and not kept else 0.0
        flat = abs(high - low) <= near or high == low
    elif not ours and (arithmetic != "lerobot" or mean or not high > low):
        added = 1e-6 if arithmetic == "openpi" else 1e-8
    if flat:
        done = x if kept and not ours else zero
    else:  # as the values: near constant, the bound decides
        part = (x - (low if ours else float(np.float32(low)))) / (high - low + added)
        done = part if mean else 2 * part - 1
    return min(max(done, -how.bound), how.bound)


# -- weights -------------------------------------------------------------------------------------


def weights_of(
    how: SampleWeightSpec, reach: int, lengths: Mapping[int, int]
) -> dict[tuple[int, int], float]:
    """Weight of each (episode, step) that a file of weights names.

    Args:
        how: file and column.
        reach: steps over which progress is counted.
        lengths: number of an episode → its steps; of use where rows have a number over all frames.
    """
    if how.file.endswith(".npz"):
        with np.load(how.file) as file:
            columns = {name: file[name].tolist() for name in file.files}
    else:
        from pyarrow import parquet

        columns = parquet.read_table(how.file).to_pydict()
    episodes, steps = (
        next((columns[one] for one in names if one in columns), None)
        for names in (("episode_index", "episode"), ("frame_index", "step"))
    )
    if episodes is None or steps is None:
        every = [(number, step) for number in sorted(lengths) for step in range(lengths[number])]
        places = [every[k] for k in columns["index"]]
    else:
        places = list(zip(episodes, steps, strict=True))
    values = [np.nan if one is None else float(one) for one in columns[how.key]]
    told = dict(zip(places, values, strict=True))
    return _by_progress(told, reach) if how.key.startswith("progress_") else told


def _by_progress(told: Mapping[tuple[int, int], float], reach: int) -> dict[tuple[int, int], float]:
    """LeRobot's weights (RA-BC) by the progress of each step."""
    last: dict[int, int] = {}
    for number, step in told:
        last[number] = max(step, last.get(number, 0))
    gains = {
        (number, step): told.get((number, min(step + reach, last[number])), np.nan) - progress
        for (number, step), progress in told.items()
    }
    known = [gain for gain in gains.values() if not np.isnan(gain)] or [0.0]
    spread = max(float(np.std(known)), 1e-6)
    low, found = max(float(np.mean(known)), 0.0) - 2 * spread, {}
    for place, gain in gains.items():
        if np.isnan(gain) or gain > 0.01:
            found[place] = 1.0
        else:
            soft = min(max((gain - low) / (4 * spread + 1e-6), 0.0), 1.0)
            found[place] = 0.0 if gain < 0 else soft
    return found


# -- ops along the episode ------------------------------------------------------------------------


def _derived(
    steps: list[dict[str, Any]], field: str, expression: FieldExpression | None
) -> FieldExpression | None:
    """The field with its ops along the episode worked out and put into the steps."""
    if expression is None or not steps:
        return expression
    terms = []
    for number, term in enumerate(expression.terms):
        if not term.whole:
            terms.append(term)
            continue
        *_, rows = stages(steps, term)
        key = f"worked out: {field} {number}"
        for step, row in zip(steps, rows, strict=True):
            step[key] = row
        terms.append(FieldTerm(key))
    return FieldExpression(tuple(terms))


def stages(steps: Sequence[Step], term: FieldTerm) -> Iterator[_Columns]:
    """Rows of a term, one for each step: as stored, then behind each of its ops."""
    rows = [numbers(step, FieldExpression((replace(term, ops=()),))) for step in steps]
    yield rows
    for op in term.ops if rows else ():
        rows = _OPS[op.name](rows, op) if op.whole else [_plain(row, op) for row in rows]
        yield rows


def _plain(row: NDArray[np.float32], op: FieldOp) -> NDArray[np.float32]:
    return numbers({"x": row}, FieldExpression((FieldTerm("x", ops=(op,)),)))


def _column_by_column(rule: Callable[[list[np.float32]], list[float]]) -> Callable[..., _Columns]:
    def apply(rows: _Columns, op: FieldOp) -> _Columns:
        columns = [rule(list(column)) for column in np.stack(rows).T]
        return list(np.asarray(columns, np.float32).T)

    return apply


def _rel2abs(signal: list[np.float32]) -> list[float]:
    is_open = None
    found: list[bool | None] = []
    for value in signal:
        if value < np.float32(-0.1):
            is_open = True
        elif value > np.float32(0.1):
            is_open = False
        found.append(is_open)
    known = [one for one in found if one is not None]
    before = not known[0] if known else True
    states = [float(before if one is None else one) for one in found]
    return [math.nan if math.isnan(x) else state for x, state in zip(signal, states, strict=True)]


def _binarise(signal: list[np.float32]) -> list[float]:
    reached, found = float(signal[-1]), []
    for value in reversed(signal):
        if value > np.float32(0.95):
            reached = 1.0
        elif value < np.float32(0.05):
            reached = 0.0
        found.append(math.nan if math.isnan(value) else reached)
    return found[::-1]


def _relabel(signal: list[np.float32]) -> list[float]:
    return [*(float(after - now) for now, after in pairwise(signal)), 0.0]


def _euler(rows: _Columns, op: FieldOp) -> _Columns:
    found = []
    for row in rows:
        x, y, z, w = (float(row[op.order.index(one)]) for one in "xyzw")
        pitch = -np.arcsin(2 * (x * z - y * w))
        yaw = np.arctan2(2 * (x * y + z * w), 1 - 2 * (y * y + z * z))
        roll = np.arctan2(2 * (y * z + x * w), 1 - 2 * (x * x + y * y))
        found.append(np.asarray([roll, pitch, yaw], np.float32))
    return found


def _quaternion(rows: _Columns, op: FieldOp) -> _Columns:
    found = []
    for row in rows:
        half = row.astype(np.float64) / 2
        (sr, sp, sy), (cr, cp, cy) = np.sin(half), np.cos(half)  # roll, pitch, yaw
        x, y = sr * cp * cy - cr * sp * sy, cr * sp * cy + sr * cp * sy
        z, w = cr * cp * sy - sr * sp * cy, cr * cp * cy + sr * sp * sy
        turned = dict(zip("xyzw", (x, y, z, w), strict=True))
        found.append(np.asarray([turned[one] for one in op.order], np.float32))
    return found


def _rotation6d(rows: _Columns, op: FieldOp) -> _Columns:
    return [
        _matrix(row.astype(np.float64), op.order)[:2].ravel().astype(np.float32) for row in rows
    ]


def _matrix(row: NDArray[np.float64], form: str) -> NDArray[np.float64]:
    """Matrix of a rotation in one of the forms that ``rotation6d`` takes."""
    if form == "matrix":
        return row.reshape(3, 3)
    if form in ("xyzw", "wxyz"):
        row = row / np.sqrt(row @ row)
        axis, w = np.asarray([row[form.index(one)] for one in "xyz"]), row[form.index("w")]
        sine = np.linalg.norm(axis)
        return _turn(axis * (2 * np.arctan2(sine, w) / (sine or 1.0)))
    if form == "axis_angle":
        return _turn(row)
    matrix = np.eye(3)
    for angle, letter in zip(row, form[-3:] or "rpy", strict=True):
        turn = _turn(angle * np.eye(3)["rpy".index(letter)])
        matrix = matrix @ turn if form else turn @ matrix
    return matrix


def _turn(axis_angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Matrix of a turn about an axis by its length, in radians; OpenCV works it out."""
    import cv2

    return np.asarray(cv2.Rodrigues(axis_angle)[0])


_OPS: dict[str, Callable[[_Columns, FieldOp], _Columns]] = {
    "rel2abs": _column_by_column(_rel2abs),
    "binarise": _column_by_column(_binarise),
    "relabel": _column_by_column(_relabel),
    "euler": _euler,
    "quaternion": _quaternion,
    "rotation6d": _rotation6d,
}


# -- functions ------------------------------------------------------------------------------------


class TransformedEpisode:
    """An episode as a transform leaves it.

    Args:
        steps: the episode's, of ``TfdsReader.episode``.
        features: the dataset's own, by path.
        transform: the function, and its arguments.

    Attributes:
        steps: T' steps in the same form; none where the function drops the episode.
        valid: [T'] which of them may be t.

    Raises:
        SourceError: the function raises here, and did not in the loader.
    """

    def __init__(
        self, steps: Sequence[Step], features: Mapping[str, Feature], transform: TransformSpec
    ) -> None:
        self._pictures: list[Any] = []
        self.steps: list[Step] = []
        episode = self._episode(steps, features)
        try:
            result = _call(transform, episode, len(steps))
        except Exception as error:  # the user's code
            raise SourceError(
                f"the transform {transform.call} fails on an episode that tfds read: "
                f"{type(error).__name__}: {error}",
                remedy="let the function read only features that the dataset has",
            ) from error
        result = {} if result is None else dict(result)
        once = result.pop(_METADATA, {})
        valid = result.pop(_VALID, None)
        leaves = dict(_leaves(result, ""))
        for t in range(len(next(iter(leaves.values()), ()))):
            own = {path: self._with_picture(rows[t]) for path, rows in leaves.items()}
            self.steps.append({_METADATA: once, **own})
        self.valid = [True] * len(self.steps) if valid is None else [bool(one) for one in valid]

    def _episode(self, steps: Sequence[Step], features: Mapping[str, Feature]) -> dict[str, Any]:
        """Arrays that the function is given."""
        episode: dict[str, Any] = {_METADATA: {}}
        for path, feature in features.items():
            whole = feature.kind == "tensor" and feature.encoding is None
            if feature.kind not in ("image", "text") and not whole:
                continue
            try:
                values = [value_at(step, path) for step in steps]
            except (KeyError, TypeError):  # TFDS gives none, or nests otherwise
                continue
            if feature.per_step:
                rows = self._numbers_for(values) if feature.kind == "image" else _stacked(values)
                _put(episode, path, rows)
            elif values:
                _put(episode[_METADATA], path.removeprefix(f"{_METADATA}/"), values[0])
        return episode

    def _numbers_for(self, pictures: Sequence[Any]) -> NDArray[np.int64]:
        first = len(self._pictures)
        self._pictures += pictures
        return _PICTURES + np.arange(first, len(self._pictures))

    def _with_picture(self, value: Any) -> Any:
        """A step's value as TFDS would give it, its picture put back."""
        if isinstance(value, str):
            return value.encode()
        number = value - _PICTURES if isinstance(value, np.int64) else -1
        return self._pictures[number] if 0 <= number < len(self._pictures) else value


def _call(transform: TransformSpec, episode: dict[str, Any], steps: int) -> Any:
    module, _, name = transform.call.partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    kwargs = json.loads(json.dumps(dict(transform.kwargs)))
    if transform.framework == "tensorflow":
        return _call_eagerly(function, episode, steps, kwargs)
    return function(episode, **kwargs)


def _call_eagerly(
    function: Callable[..., Any], episode: dict[str, Any], steps: int, kwargs: Mapping[str, Any]
) -> Any:
    """A function for trajectories in Octo's form: the metadata repeated for every step."""
    import tensorflow as tf

    def first(value: Any) -> Any:
        return plain(value)[0]

    def plain(value: Any) -> Any:
        return value.numpy() if hasattr(value, "numpy") else value

    with tf.device("/CPU:0"):
        given = tf.nest.map_structure(tf.convert_to_tensor, episode)
        above = tf.nest.map_structure(
            lambda one: tf.repeat(one[None], steps, 0), given.pop(_METADATA)
        )
        given |= {_TRAJECTORY: {_METADATA: above}, "_len": tf.repeat(steps, steps)}
        result = function(given, **kwargs)
        if not isinstance(result, Mapping):
            return result
        left = {k: v for k, v in result.items() if k != _TRAJECTORY and not k.startswith("_")}
        once = result.get(_TRAJECTORY, {}).get(_METADATA, {})
        made = tf.nest.map_structure(plain, left)
        return {**made, _METADATA: tf.nest.map_structure(first, once)}


def _stacked(values: Sequence[Any]) -> NDArray[Any]:
    if not isinstance(values[0], bytes):
        return np.stack([np.asarray(value) for value in values])
    rows = np.empty(len(values), dtype=object)
    rows[:] = values
    return rows


def _put(holder: dict[str, Any], path: str, value: Any) -> None:
    """Nest a value by its path; where a leaf is in the way, the rest of the path is one name."""
    above, _, rest = path.partition("/")
    if rest and isinstance(holder.setdefault(above, {}), dict):
        _put(holder[above], rest, value)
    else:
        holder[path] = value


def _leaves(holder: Mapping[str, Any], above: str) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, value in holder.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}/")
        elif value is not None:
            yield f"{above}{name}", np.asarray(value)
