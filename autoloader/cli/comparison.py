"""Compares samples of a loader with what plain readers find in their files: TFDS, or PyAV.

Not here: reading (``cli.tfds_reader``, ``cli.lerobot_reader``), transforms
(``cli.reference_transform``), the values a sample should have (``cli.reference_values``), showing
what differs (``cli.verify``).
"""

from __future__ import annotations

import copy
import functools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autoloader.catalog.metadata import LEROBOT, VersionDirectory

if TYPE_CHECKING:
    from autoloader.cli.lerobot_reader import LeRobotReader
    from autoloader.cli.reference_steps import DerivedEpisode
    from autoloader.cli.tfds_reader import TfdsReader

GREY_LEVELS = 2.0
"""Mean absolute difference that two JPEG decoders and resizers may have in a frame."""
_BATCH = 8
_ARRAYS = ("frame_offset", "action", "action_mask", "state", "state_mask", "provenance")


def evenly(spec: Any) -> Any:
    """``spec`` with every dataset as often as any other, without end, and places told."""
    datasets = tuple(one.model_copy(update={"weight": 1.0}) for one in spec.datasets)
    return spec.model_copy(
        update={
            "datasets": datasets,
            "weights": "explicit",
            "metadata": "full",
            "augment": {},
            "batch": spec.batch.model_copy(update={"size": _BATCH, "drop_last": True}),
            "mixing": spec.mixing.model_copy(
                update={"epoch": "forever", "block_length": 1, "on_stall": "wait"}
            ),
        }
    )


@dataclass
class Comparison:
    """What was compared, and what differs."""

    samples: Counter[str] = field(default_factory=Counter)
    numbers: int = 0
    frames: int = 0
    texts: int = 0
    largest: float = 0.0
    differences: list[str] = field(default_factory=list)


def taken(loader: Any, count: int) -> Iterator[dict[str, Any]]:
    """``count`` samples, each a row with arrays of its own."""
    taken = 0
    for batch in loader:
        for k in range(len(batch["language"])):
            if taken == count:
                return
            taken += 1
            yield {
                "images": {name: frames[k].copy() for name, frames in batch["images"].items()},
                "frame_mask": {name: mask[k].copy() for name, mask in batch["frame_mask"].items()},
                "language": batch["language"][k],
                "features": {
                    name: copy.copy(one[k]) for name, one in batch.get("features", {}).items()
                },
                "feature_mask": {
                    name: one[k].copy() for name, one in batch.get("feature_mask", {}).items()
                },
                **{key: batch[key][k].copy() for key in _ARRAYS},
            }


def _seen(step: Any, flag: str) -> tuple[Any, bool]:
    """(the step whose picture is shown, ``None`` for a black one; whether a flag says absent)."""
    from autoloader.cli.tfds_reader import value_at

    absent = bool(flag) and step is not None and not value_at(step, flag)
    return (None if absent else step), absent


def _reader_of(directory: VersionDirectory, *, by_row: bool) -> TfdsReader | LeRobotReader:
    """What reads a dataset's episodes plainly."""
    if directory.file_format == LEROBOT:
        from autoloader.cli.lerobot_reader import LeRobotReader

        return LeRobotReader(directory, by_row=by_row)
    from autoloader.cli.tfds_reader import TfdsReader

    return TfdsReader(directory)


class Comparer:
    """Holds rows against plain readers; rows of one episode come together."""

    def __init__(self, spec: Any, loader: Any, found: Comparison) -> None:
        self._spec = spec
        self._mixture = loader.plan.mixture
        self._statistics: Mapping[str, Any] = loader.normalization or {}
        self._found = found
        self._readers = [
            _reader_of(one.directory, by_row=one.by_row) for one in self._mixture.datasets
        ]
        self._episode: tuple[tuple[int, int, int], DerivedEpisode] | None = None
        self._ranges: dict[str, Any] = {}

    def row(self, row: Mapping[str, Any]) -> None:
        """Compare one sample."""
        from autoloader.cli.reference_values import ReferenceSample

        index, _, shard, record, t = row["provenance"].tolist()
        dataset = self._mixture.datasets[index]
        declared = self._spec.dataset(dataset.name)
        episode = self._steps(index, shard, record)
        every, valid = episode.steps, episode.valid
        steps = every[:: dataset.stride]
        where = f"{dataset.name}, {Path(dataset.slices[shard].path).name}, record {record}, t {t}"
        self._found.samples[dataset.name] += 1
        if t >= len(steps):
            self._differs(where, "t", f"there are {len(steps)} steps")
            return
        expected = ReferenceSample(steps, t, dataset.sample, episode.action, episode.state)
        self._allowed(declared, every, t * dataset.stride, valid, where)
        for name in ("action", "state"):
            self._numbers(row, name, expected, dataset.name, where)
        self._frames(row, expected, declared, dataset.sample, steps, t, where)
        self._language(row, declared, steps[t], where)
        self._features(row, expected, declared, where)

    def _steps(self, index: int, shard: int, record: int) -> DerivedEpisode:
        """An episode's steps before the stride, as a function and the dataset's words leave it."""
        from autoloader.cli.reference_steps import DerivedEpisode
        from autoloader.cli.reference_transform import TransformedEpisode

        key = (index, shard, record)
        if self._episode is None or self._episode[0] != key:
            dataset = self._mixture.datasets[index]
            steps = self._readers[index].episode(dataset.slices[shard], record)
            valid = [True] * len(steps)
            declared = self._spec.dataset(dataset.name)
            if declared.transform is not None:
                made = TransformedEpisode(steps, dataset.directory.features, declared.transform)
                steps, valid = made.steps, made.valid
            self._episode = key, DerivedEpisode(steps, valid, declared)
        return self._episode[1]

    def _allowed(
        self, declared: Any, steps: list[Any], number: int, valid: list[bool], where: str
    ) -> None:
        """Whether a transform and the rules of ``keep`` let step ``number`` be t."""
        from autoloader.cli.reference_values import why_not_kept

        if not valid[number]:
            self._differs(where, "transform.valid", "the function, or keep.moving, bars it")
        if declared.keep is None:
            return
        listed = {}
        if declared.keep.ranges is not None:
            file = declared.keep.ranges.file
            if file not in self._ranges:
                self._ranges[file] = json.loads(Path(file).read_text(encoding="utf-8"))
            listed = self._ranges[file]
        anywhere = declared.keep.language == "anywhere"
        if anywhere and not any(any(self._speak(declared, step)) for step in steps):
            self._differs(where, "keep.language", "no step of the episode has an instruction")
        spoken = functools.partial(lambda step: all(self._speak(declared, step)), steps[number])
        rule = why_not_kept(declared.keep, spoken, steps[number], number, listed)
        if rule is not None:
            self._differs(where, rule, f"step {number} does not keep this rule")

    def _numbers(
        self, row: Mapping[str, Any], name: str, expected: Any, dataset: str, where: str
    ) -> None:
        from autoloader.cli.reference_values import normalised_rows
        from autoloader.spec.ops import WIDTHS

        *rows, width = row[name].shape
        shape = (math.prod(rows), width)  # no -1: a mixture without this field has no columns
        got, mask = row[name].reshape(shape), row[f"{name}_mask"].reshape(shape)
        found = expected.rows(name)
        wanted = np.zeros(got.shape)
        inside = np.zeros(got.shape, dtype=bool)
        exact = True
        if found is not None:
            values, there, zeroed = found
            how = self._spec.normalize_of(dataset, name)
            if how is not None:
                key = "action" if name == "action" else "proprio"
                values = normalised_rows(values, zeroed, how, self._statistics[dataset][key])
                exact = False
            exact = exact and not (name == "action" and expected.summed)
            terms = getattr(self._spec.dataset(dataset), name).terms
            exact = exact and not any(op.name in WIDTHS for term in terms for op in term.ops)
            wanted[:, : values.shape[1]] = values
            inside[:, : values.shape[1]] = there[:, None]
        self._found.numbers += got.size
        equal = np.array_equal(got, wanted) if exact else np.allclose(got, wanted, 1e-5, 1e-4)
        if not equal:
            self._differs(where, name, f"loader {got.tolist()}, files {wanted.tolist()}")
        if not np.array_equal(mask, inside):
            self._differs(where, f"{name}_mask", f"loader {mask.tolist()}, {inside.tolist()}")

    def _frames(
        self, row: Mapping[str, Any], expected: Any, declared: Any, sample: Any,
        steps: list[Any], t: int, where: str,
    ) -> None:  # fmt: skip
        told = row["frame_offset"].tolist()
        plan = [expected.frame(offset) for offset in sample.frame_offsets]
        if sample.goal == "uniform":  # drawn: any later frame will do, and then that one it is
            goal = t + told[-1]
            if not (t < goal < len(steps) or t == goal == len(steps) - 1):
                self._differs(where, "goal", f"offset {told[-1]} of {len(steps)} steps")
                return
            plan.append((steps[goal], told[-1], True))
        if told != [offset for _, offset, _ in plan]:
            self._differs(where, "frame_offset", f"{told}, {[one[1] for one in plan]}")
        for camera, frames in row["images"].items():
            choices = declared.images[camera].paths if camera in declared.images else ()
            flag = declared.images[camera].present if choices else ""
            seen = [_seen(step, flag) for step, _, _ in plan]
            inside = [
                bool(choices) and real and not absent
                for (_, _, real), (_, absent) in zip(plan, seen, strict=True)
            ]
            if row["frame_mask"][camera].tolist() != inside:
                self._differs(where, f"frame_mask/{camera}", f"expected {inside}")
            turned = camera in self._mixture.datasets[int(row["provenance"][0])].reversed
            for number, (step, _) in enumerate(seen):
                self._found.frames += 1
                if self._spec.cameras[camera].depth:
                    self._depth(frames[number], step, choices, camera, f"{where}: images/{camera}")
                    continue
                shown = frames[number][..., ::-1] if turned else frames[number]
                off = min(
                    (self._distance(shown, step, path, camera) for path in choices),
                    default=float(shown.max()),
                )
                self._found.largest = max(self._found.largest, off)
                if off > GREY_LEVELS:
                    self._differs(where, f"images/{camera} {number}", f"off by {off:.1f} levels")

    def _distance(self, frame: Any, step: Any, path: str, camera: str) -> float:
        """Mean absolute difference in grey levels."""
        from autoloader.cli.tfds_reader import value_at

        if step is None:
            return float(frame.max())
        picture = np.asarray(value_at(step, path))
        if picture.shape[-1] == 1:
            picture = np.repeat(picture, 3, axis=-1)
        wanted, how = picture, self._spec.cameras[camera]
        if picture.shape[:2] != tuple(how.size):
            from autoloader.graph.resize import fitted_picture  # brings TensorFlow

            wanted = fitted_picture(picture, how)
        return float(np.abs(frame.astype(np.int16) - wanted).mean())

    def _depth(
        self, frame: Any, step: Any, choices: tuple[str, ...], camera: str, where: str
    ) -> None:
        """Compare a depth frame, to the bit."""
        from autoloader.cli.reference_values import nearest_frame
        from autoloader.cli.tfds_reader import value_at

        how = self._spec.cameras[camera]
        stored = [value_at(step, path) for path in choices if step is not None]
        wanted = [nearest_frame(one, how).astype(how.depth) for one in stored]
        wanted = wanted or [np.zeros_like(frame)]
        if all(frame.tobytes() != one.tobytes() for one in wanted):
            off = min(int((frame[..., 0] != one.reshape(how.size)).sum()) for one in wanted)
            self._differs(where, "depth", f"{off} of {frame.size} values differ")

    def _language(self, row: Mapping[str, Any], declared: Any, step: Any, where: str) -> None:
        said = self._said(declared, step)
        choices = [text for texts in said for text in texts] if said else [""]
        self._found.texts += 1
        if row["language"] not in choices:
            self._differs(where, "language", f"loader {row['language']!r}, files {choices!r}")

    def _said(self, declared: Any, step: Any) -> list[list[str]]:
        """The texts that each language feature of a step may give."""
        from autoloader.cli.reference_values import said_at

        choice = declared.language
        dataset = next(one for one in self._mixture.datasets if one.name == declared.name)
        labels = {
            path: [text.decode() for text in names.values()]
            for path, names in dataset.words.names.items()
        }
        paths = choice.paths if choice else ()
        return [said_at(step, path, choice, labels.get(path, ())) for path in paths]

    def _speak(self, declared: Any, step: Any) -> list[bool]:
        """Whether each language feature of a step says something."""
        return [any(text.strip() for text in texts) for texts in self._said(declared, step)]

    def _features(self, row: Mapping[str, Any], expected: Any, declared: Any, where: str) -> None:
        for name, found in row["features"].items():
            mask = row["feature_mask"][name]
            rows = list(found) if mask.ndim else [found]
            wanted, inside = expected.feature(
                declared.features.get(name), rows[0], per_step=mask.ndim == 1
            )
            self._found.numbers += sum(np.size(one) for one in rows)
            got = [one if isinstance(one, str) else one.tolist() for one in rows]
            if got != wanted:
                self._differs(where, f"features.{name}", f"loader {got}, files {wanted}")
            if np.atleast_1d(mask).tolist() != inside:
                self._differs(where, f"feature_mask.{name}", f"expected {inside}")

    def _differs(self, where: str, what: str, how: str) -> None:
        self._found.differences.append(f"{where}: {what}: {how[:300]}")
