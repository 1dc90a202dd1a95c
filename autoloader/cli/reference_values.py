"""The values that a sample should hold, and whether ``keep`` allows it, from an episode's steps.

``autoloader verify`` compares the loader with these reference values. So this module is slow and
straightforward on purpose, and uses nothing of the loader's own arithmetic (``samples``).

Not here: reading the steps (``cli.tfds_reader``), comparing (``cli.comparison``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.cli.tfds_reader import Step, text_at, value_at
from autoloader.spec import (
    CameraSpec,
    FieldExpression,
    FieldNormalizeSpec,
    KeepSpec,
    LanguageChoice,
    SampleSpec,
)
from autoloader.spec.keep import key_parts, matcher

Rows = NDArray[np.float64]


class ReferenceSample:
    """One sample of an episode.

    Args:
        steps: every ``stride``-th step.
        t: where it stands.
        sample: what it holds.
        action, state: the dataset's fields.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        t: int,
        sample: SampleSpec,
        action: FieldExpression | None,
        state: FieldExpression | None,
    ) -> None:
        self._steps = steps
        self._t = t
        self._sample = sample
        self._fields = {"action": action, "state": state}

    @property
    def summed(self) -> bool:
        """Whether the action is a sum, whose last bit depends on the order of adding."""
        return self._sample.action_reduce == "sum"

    def frame(self, offset: int) -> tuple[Step | None, int, bool]:
        """(step or ``None`` where the frame is black, realised offset, whether it is inside)."""
        row, inside, zero = self._row(offset)
        return (None if zero else self._steps[row]), (offset if zero else row - self._t), inside

    def rows(self, name: str) -> tuple[Rows, NDArray[np.bool_], NDArray[np.bool_]] | None:
        """(values [R, width], inside [R], zeroed [R]) of a field before normalisation.

        Chunks of several steps of the window are one behind the other.
        """
        expression = self._fields[name]
        if expression is None:
            return None
        sample = self._sample
        if name == "action" and sample.action_per == "step":
            chunks = [
                self._rows(name, expression, *self._row(offset)) for offset in sample.frame_offsets
            ]
            values, inside, zeroed = (np.concatenate(part) for part in zip(*chunks, strict=True))
            return values, inside, zeroed
        return self._rows(name, expression, self._t, True, False)

    def _rows(
        self, name: str, expression: FieldExpression, at: int, real: bool, blank: bool
    ) -> tuple[Rows, NDArray[np.bool_], NDArray[np.bool_]]:
        """The rows that count from step ``at``, which may stand for one outside the episode."""
        sample = self._sample
        offsets = list(sample.state_offsets)
        if name == "action":
            offsets = list(sample.action_offsets)
        values, insides, zeros = [], [], []
        for offset in offsets:
            row, inside, zero = self._row(offset, at)
            inside, zero = inside and real, zero or blank
            value = numbers(self._steps[row], expression)
            state = self._fields["state"]
            if name == "action" and sample.action_relative_to_state and state is not None:
                base = numbers(self._steps[at], state)
                for dim in sample.action_relative_to_state:
                    value[dim] -= base[dim]
            values.append(np.zeros_like(value) if zero else value)
            insides.append(inside)
            zeros.append(zero)
        if name == "action" and sample.action_reduce == "sum":
            total = np.zeros_like(values[0])
            for value, inside in zip(values, insides, strict=True):
                if inside:
                    total = total + value
            values, insides, zeros = [total], [any(insides)], [not any(insides)]
        stacked = np.stack(values).astype(np.float64)
        return stacked, np.asarray(insides), np.asarray(zeros)

    def feature(
        self, path: str | None, like: Any, *, per_step: bool
    ) -> tuple[list[Any], list[bool]]:
        """(values, inside) of a feature that samples hold: by row, or one of the episode.

        Args:
            path: of the feature; ``None`` where the dataset names none.
            like: the loader's value of one row, whose zero stands for what is not there.
            per_step: whether it has a row for each of the state's.
        """
        offsets = self._sample.state_offsets if per_step else (0,)
        values, insides = [], []
        for row, inside, zero in map(self._row, offsets):
            there = path is not None and not zero
            values.append(value_at(self._steps[row], path or "") if there else _nothing(like))
            insides.append(path is not None and (inside or not per_step))
        return [
            one.decode("utf-8", "replace") if isinstance(one, bytes) else np.asarray(one).tolist()
            for one in values
        ], insides

    def _row(self, offset: int, at: int | None = None) -> tuple[int, bool, bool]:
        """(step within the episode, whether it was asked for, whether zero stands for it)."""
        wanted, last = (self._t if at is None else at) + offset, len(self._steps) - 1
        if wanted < 0:
            return 0, False, self._sample.edges.start == "zero"
        if wanted > last:
            return last, False, self._sample.edges.end == "zero"
        return wanted, True, False


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
    values = values.reshape(values.shape[:2])
    size = camera.size
    if camera.fit == "stretch":
        return _nearest(values, size)
    ratios = [size[axis] / values.shape[axis] for axis in (0, 1)]
    scale = max(ratios) if camera.fit == "crop" else min(ratios)
    if camera.fit == "crop":
        cut = [min(values.shape[a], max(1, round(size[a] / scale))) for a in (0, 1)]
        top, left = ((values.shape[axis] - cut[axis]) // 2 for axis in (0, 1))
        return _nearest(values[top : top + cut[0], left : left + cut[1]], size)
    inner = [min(size[a], max(1, round(values.shape[a] * scale))) for a in (0, 1)]
    top, left = ((size[axis] - inner[axis]) // 2 for axis in (0, 1))
    padded = np.zeros(size, values.dtype)
    padded[top : top + inner[0], left : left + inner[1]] = _nearest(values, inner)
    return padded


def _nearest(values: NDArray[Any], size: Sequence[int]) -> NDArray[Any]:
    down, right = (
        np.floor((np.arange(size[axis]) + 0.5) * values.shape[axis] / size[axis]).astype(int)
        for axis in (0, 1)
    )
    return np.asarray(values[down][:, right])


def said_at(step: Step, path: str, choice: LanguageChoice, labels: Sequence[str]) -> list[str]:
    """The texts of which a sample at a step may have any.

    Args:
        step: which.
        path: of the language feature.
        choice: what the spec says of it.
        labels: names of a class label, where the spec gives none.
    """
    value = np.asarray(value_at(step, path))
    if value.dtype.kind in "iu" and value.size == 1:
        names = dict(choice.names) or dict(enumerate(labels))
        return [names.get(value.item(), "")]
    if not choice.several:
        return [text_at(step, path)]
    texts = [one.decode() if isinstance(one, bytes) else str(one) for one in value.tolist()]
    spoken = [one for one in texts if one.strip()] or [""]
    return spoken[:1] if choice.several == "first" else spoken


def why_not_kept(
    keep: KeepSpec, language: Callable[[], bool], step: Step, number: int, listed: Mapping[str, Any]
) -> str | None:
    """The rule that a step breaks, or ``None``.

    Args:
        keep: the rules.
        language: whether every language feature of the step says something.
        step: which step.
        number: its place in the episode, before the stride.
        listed: what the file of ranges holds.
    """
    if keep.language == "required" and not language():
        return "keep.language"
    for path in keep.flags:
        if not bool(value_at(step, path)):
            return f"keep.flags.{path}"
    for path, pattern in keep.match.items():
        if not matcher(pattern)(text_at(step, path)):
            return f"keep.match.{path}"
    if keep.ranges is not None:
        key = "".join(
            text + ("" if path is None else _key_text(step, path))
            for text, path in key_parts(keep.ranges.key)
        )
        if not any(start <= number < stop for start, stop in listed.get(key, ())):
            return "keep.ranges"
    return None


def _key_text(step: Step, path: str) -> str:
    value = np.asarray(value_at(step, path))
    whole = value.ndim == 0 and value.dtype.kind in "iu"
    return str(int(value)) if whole else text_at(step, path)


def normalised_rows(
    values: Rows, zeroed: NDArray[np.bool_], how: FieldNormalizeSpec, found: Mapping[str, Any]
) -> Rows:
    """``values`` normalised column by column with statistics ``found``, in float64."""
    done = values.copy()
    for column in range(values.shape[1]):
        constant = "min" in found and found["min"][column] == found["max"][column]
        if how.arithmetic == "openvla" and constant and how.method != "mean_std":
            done[:, column] = 0.0
            continue
        if not found["mask"][column]:
            continue
        x = values[:, column]
        if how.method == "min_max":
            low, high = found["min"][column], found["max"][column]
        elif how.method == "mean_std":
            low, high = found["mean"][column], found["mean"][column] + found["std"][column]
        else:
            low, high = found["q01"][column], found["q99"][column]
        if how.arithmetic != "autoloader":
            added = 1e-6 if how.arithmetic == "openpi" else 1e-8
            if how.arithmetic == "lerobot" and how.method != "mean_std" and high > low:
                added = 0.0
            above = x - float(np.float32(low))  # as the values: near constant, the bound decides
            done[:, column] = above / (high - low + added)
            if how.method != "mean_std":
                done[:, column] = 2 * done[:, column] - 1
        elif constant or not high > low:
            done[:, column] = 0.0
        elif how.method == "mean_std":
            done[:, column] = (x - low) / (high - low)
        else:
            done[:, column] = 2 * (x - low) / (high - low) - 1
        if how.clip:
            done[:, column] = done[:, column].clip(-1, 1)
    done[zeroed] = 0.0
    return done
