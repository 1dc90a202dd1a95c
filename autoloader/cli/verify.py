"""``autoloader verify``: samples of a loader against plain readers, on the user's own data.

Not here: reading plainly (``formats.plain``), what a sample should hold (``cli.witness``).
"""

from __future__ import annotations

import copy
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import typer

from autoloader.cli import witness
from autoloader.cli.output import answered, emit_document, note_some, progress_bar
from autoloader.errors import MissingExtraError, SourceError
from autoloader.formats import DatasetFormat, ShardSlice
from autoloader.formats.dataset import PlainReader
from autoloader.formats.plain import Step, value_at
from autoloader.host.extras import require
from autoloader.loader import AutoLoader
from autoloader.samples.resolve import STILL_FPS, ResolvedDataset
from autoloader.spec import PipelineSpec
from autoloader.spec.fields import WIDTHS
from autoloader.spec.sample import EdgesSpec

DIFFERS = 4
"""Exit code where a value differs."""
GREY_LEVELS = 2.0
"""Mean absolute difference that two JPEG decoders and resizers may have in a frame."""
_BATCH = 8


def show_differences(declared: PipelineSpec, samples: int, given: Mapping[str, Any]) -> None:
    """Compare samples with plain readers of the same files; exit code 4 if they differ.

    Exit code 2 if some part of them could not be compared.

    Args:
        declared: spec of the mixture.
        samples: number of samples, shared over all datasets.
        given: arguments of the loader, by name.
    """
    declared = evenly(declared)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # TensorFlow would take the whole of a GPU's memory
    if any(one.transform and one.transform.framework != "numpy" for one in declared.datasets):
        from autoloader.pipeline.graph import user_functions

        user_functions.enter()  # TensorFlow comes here anyway, with TFDS
    with AutoLoader(declared, output="numpy", rank=0, world_size=1, **given) as loader:
        found = Comparer(declared, loader)
        blind: defaultdict[str, list[str]] = defaultdict(list)
        for name, one in found.left_out.items():
            blind[one.remedy].append(name)
        note_some(f"{', '.join(names)}: not compared: {why}" for why, names in blind.items())
        rows = list(taken(loader, samples))
        with progress_bar("comparing with the files") as advance:
            for done in found.rows(rows):
                advance(done, len(rows))
    document = {
        "samples": dict(found.samples),
        "numbers": found.numbers,
        "frames": found.frames,
        "texts": found.texts,
        "largest_frame_difference": round(found.largest, 3),
        "differences": found.differences,
        "not_compared": list(found.left_out),
    }
    if not answered(document):
        emit_document(document | {"differences": len(found.differences)})
    note_some(f"differs: {difference}" for difference in found.differences)
    if found.differences:
        raise typer.Exit(DIFFERS)
    if found.left_out:
        raise typer.Exit(next(iter(found.left_out.values())).exit_code)


def evenly(spec: Any) -> Any:
    """``spec`` with every dataset as often as any other, without end, and places told."""
    locality = spec.mixing.locality  # passes of several lanes overlap
    return spec.having(
        datasets=tuple(one.having(weight=1.0) for one in spec.datasets),
        weights="explicit", metadata="full", augment={}, errors={"non_finite": "keep"},
        batch={"size": _BATCH, "drop_last": True},
        mixing={"epoch": "forever", "block_length": 1, "on_stall": "wait", "unit": "sample",
                "locality": locality and locality.having(lanes=1)},
    )  # fmt: skip


def taken(loader: Any, count: int) -> Iterator[dict[str, Any]]:
    """``count`` samples, each a row with arrays of its own."""
    left = count
    for batch in loader:
        rows = len(batch["language"])
        yield from (_row(batch, k) for k in range(min(left, rows)))
        left -= rows
        if left <= 0:
            return


def _row(part: Any, k: int) -> Any:
    """Row ``k`` of a batch, or of a part of it."""
    if isinstance(part, Mapping):
        return {key: _row(inner, k) for key, inner in part.items()}
    return copy.copy(part[k])


def labels_of(dataset: ResolvedDataset) -> dict[str, list[str]]:
    """Path of a class label → its names, for the witness."""
    every = dataset.words.names.items()
    return {path: [text.decode() for text in names.values()] for path, names in every}


def _lengths(directory: DatasetFormat) -> Iterator[tuple[int, int]]:
    """(number, steps) of each numbered episode."""
    for path, each in directory.steps.items() if directory.numbered else ():
        numbers = directory.numbers_of(ShardSlice(path, 0, 0, len(each), ""))
        yield from zip(numbers.tolist(), map(int, each), strict=True)


def _frames_of(camera: str) -> str:
    return f"frames of {camera}"


class Comparer:
    """Holds rows against the witness.

    Args:
        spec: spec of the mixture.
        loader: open loader over ``spec``.

    Attributes:
        samples: dataset → number of samples compared.
        numbers, frames, texts: number of values compared.
        largest: largest difference of a frame, in grey levels.
        differences: differences found, a sentence each.
        left_out: names of datasets, and "frames of CAMERA", that cannot be compared → why; an error
            of them is raised if no dataset can.
    """

    def __init__(self, spec: Any, loader: Any) -> None:
        self.samples: Counter[str] = Counter()
        self.numbers = self.frames = self.texts = 0
        self.largest = 0.0
        self.differences: list[str] = []
        self._spec = spec
        self._mixture, self._quarantined = loader.plan.mixture, loader.quarantined
        self._statistics: Mapping[str, Any] = loader.normalization or {}
        self._readers: dict[int, PlainReader[Any]] = {}
        self.left_out: dict[str, MissingExtraError] = {}
        for index, one in enumerate(self._mixture.datasets):
            try:
                self._readers[index] = one.directory.plain_reader(one.timestamps)
            except MissingExtraError as error:
                self.left_out[one.name] = error
        if not self._readers:
            raise next(iter(self.left_out.values()))
        for camera, how in spec.cameras.items():
            try:
                if how.resize.startswith("tf_"):  # else NumPy or Pillow resizes the witness
                    require("tensorflow", f"the comparison of frames by resize: {how.resize}")
            except MissingExtraError as error:
                self.left_out[_frames_of(camera)] = error
        self._weights: dict[int, dict[tuple[int, int], float]] = {}
        self._episode: tuple[tuple[int, int, int], witness.Episode] | None = None
        self._place: tuple[int, ...] = ()

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[int]:
        """Compare the first samples of a loader; gives how many are done."""
        rows = [row for row in rows if int(row["provenance"][0]) in self._readers]
        places = Counter(tuple(row["provenance"].tolist()) for row in rows)
        damaged = {one.dataset for one in self._quarantined()}  # others come in place of these
        counted = {one.index for one in self._mixture.datasets
                   if not one.drawn_by_weight and one.name not in damaged}  # fmt: skip
        for index in self._readers.keys() & counted:
            self._passes(index, {place for place in places if place[0] == index})
        for place, count in places.items():
            if count > 1 and place[0] in counted:
                self._differs("t", f"the sample came {count} times", place)
        ordered = sorted(rows, key=lambda row: row["provenance"].tolist())  # an episode's together
        for done, row in enumerate(ordered):
            self._row(row)
            yield done + 1

    def _passes(self, index: int, came: Set[tuple[int, ...]]) -> None:
        """Look for missing samples in the passes that are over: those before the last begun one."""
        over = range(max((place[1] for place in came), default=0))
        for shard, piece in enumerate(self._mixture.datasets[index].slices if over else ()):
            for record in range(piece.start, piece.stop):
                try:
                    episode = self._read(index, shard, record)
                except SourceError:  # damaged: it has no sample
                    continue
                for pass_ in over:
                    for t in episode.drawn(pass_, shard, record):
                        place = (index, pass_, shard, record, t)
                        if place not in came:
                            self._differs("t", f"missing in pass {pass_}", place)

    def _row(self, row: Mapping[str, Any]) -> None:
        """Compare one sample."""
        index, pass_, shard, record, t = row["provenance"].tolist()
        name = self._mixture.datasets[index].name
        self._place = (index, pass_, shard, record, t)
        self.samples[name] += 1
        episode = self._read(index, shard, record)
        if (rule := episode.why_not(t)) is not None:
            self._differs(rule, f"step {t} of {len(episode.steps)} has no sample")
            if rule == "t":
                return
        elif t not in episode.drawn(pass_, shard, record):
            self._differs("sample.per_episode", "another step is drawn in this pass")
        expected = episode.at(t, pass_, shard, record)
        for field_ in ("action", "state"):
            self._numbers(row, field_, expected, name)
        self._frames(row, expected)
        self._language(row, episode, episode.steps[t])
        self._features(row, expected, episode.declared)
        self._weight(row, episode)

    def _weight(self, row: Mapping[str, Any], episode: witness.Episode) -> None:
        """Compare the weight of a sample; one that is drawn weighs something."""
        index, _, shard, record, t = self._place
        how, wanted = episode.declared.sample_weight, 1.0
        if how is not None:
            dataset = self._mixture.datasets[index]
            reach = episode.sample.action_horizon * dataset.stride
            if index not in self._weights:
                lengths = dict(_lengths(dataset.directory))
                self._weights[index] = witness.weights_of(how, reach, lengths)
            number = int(dataset.directory.numbers_of(dataset.slices[shard])[record])
            wanted = self._weights[index].get((number, t * dataset.stride), 1.0)
            if how.use == "draw":
                if not wanted:
                    self._differs("sample_weight", "a sample of weight 0 is drawn")
                wanted = 1.0
        self.numbers += "sample_weight" in row
        if not np.isclose(row.get("sample_weight", 1.0), wanted, rtol=1e-5, atol=1e-6):
            self._differs("sample_weight", f"loader {row['sample_weight']}, file {wanted}")

    def _read(self, index: int, shard: int, record: int) -> witness.Episode:
        """An episode as the user's function and the dataset's words leave it."""
        key = (index, shard, record)
        if self._episode is None or self._episode[0] != key:
            dataset, reader = self._mixture.datasets[index], self._readers[index]
            declared = self._spec.dataset(dataset.name)
            steps, valid = reader.episode(dataset.slices[shard], record), None
            if declared.transform is not None:
                made = witness.TransformedEpisode(
                    steps, dataset.directory.features, declared.transform
                )
                steps, valid = made.steps, made.valid
            still = dataset.directory.still
            fps = dataset.directory.fps or declared.fps or (STILL_FPS if still else None)
            sample = witness.sample_in_frames(self._spec, dataset.name, fps)
            if still:  # a picture fills the window
                own = {"edges": EdgesSpec(), "per_episode": "all"}
                sample = sample.model_copy(update=own)
            self._episode = key, witness.Episode(
                steps, declared, sample, valid=valid, labels=labels_of(dataset),
                key=witness.key_of(self._spec.seed, dataset.name),
            )  # fmt: skip
        return self._episode[1]

    def _numbers(self, row: Mapping[str, Any], name: str, expected: Any, dataset: str) -> None:
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
                told = self._statistics[dataset]
                rows = told.get("action_rows", ()) if name == "action" else ()
                values = witness.normalised_rows(values, zeroed, how, told[key], rows)
                exact = False
            exact = exact and not (name == "action" and expected.summed)
            declared, sample = expected.episode.declared, expected.episode.sample
            terms = getattr(declared, name).terms
            if name == "action" and sample.action_relative_to_state:
                terms += declared.state.terms
            exact = exact and not any(op.name in WIDTHS for term in terms for op in term.ops)
            wanted[:, : values.shape[1]] = values
            inside[:, : values.shape[1]] = there[:, None]
        self.numbers += got.size
        held = np.array_equal if exact else partial(np.allclose, rtol=1e-5, atol=1e-4)
        if not held(got, wanted, equal_nan=True):
            self._differs(name, f"loader {got.tolist()}, files {wanted.tolist()}")
        if not np.array_equal(mask, inside):
            self._differs(f"{name}_mask", f"loader {mask.tolist()}, {inside.tolist()}")

    def _frames(self, row: Mapping[str, Any], expected: witness.Sample) -> None:
        declared, plan = expected.episode.declared, expected.frames()
        told = row["frame_offset"].tolist()
        if told != [offset for _, offset, _ in plan]:
            self._differs("frame_offset", f"{told}, {[one[1] for one in plan]}")
        for camera, frames in row["images"].items():
            choices = declared.images[camera].paths if camera in declared.images else ()
            flag = declared.images[camera].present if choices else ""
            lacks = [bool(flag) and s is not None and not value_at(s, flag) for s, _, _ in plan]
            seen = [
                (None if lack else step, bool(choices) and real and not lack)
                for (step, _, real), lack in zip(plan, lacks, strict=True)
            ]
            inside = [there for _, there in seen]
            if row["frame_mask"][camera].tolist() != inside:
                self._differs(f"frame_mask/{camera}", f"expected {inside}")
            turned = camera in self._mixture.datasets[int(row["provenance"][0])].reversed
            for number, (step, _) in enumerate(
                seen if _frames_of(camera) not in self.left_out else ()
            ):
                self.frames += 1
                if self._spec.cameras[camera].depth:
                    self._depth(frames[number], step, choices, camera)
                    continue
                shown = frames[number][..., ::-1] if turned else frames[number]
                off = min(
                    (self._distance(shown, step, path, camera) for path in choices),
                    default=float(shown.max()),
                )
                self.largest = max(self.largest, off)
                if off > GREY_LEVELS:
                    self._differs(f"images/{camera} {number}", f"off by {off:.1f} levels")

    def _distance(self, frame: Any, step: Any, path: str, camera: str) -> float:
        """Mean absolute difference in grey levels."""
        if step is None:
            return float(frame.max())
        picture = np.asarray(value_at(step, path))
        if picture.shape[-1] == 1:
            picture = np.repeat(picture, 3, axis=-1)
        wanted = witness.fitted_picture(picture, self._spec.cameras[camera])
        return float(np.abs(frame.astype(np.int16) - wanted).mean())

    def _depth(self, frame: Any, step: Any, choices: tuple[str, ...], camera: str) -> None:
        """Compare a depth frame, to the bit."""
        how = self._spec.cameras[camera]
        stored = [value_at(step, path) for path in choices if step is not None]
        wanted = [witness.nearest_frame(one, how).astype(how.depth) for one in stored]
        wanted = wanted or [np.zeros_like(frame)]
        if all(frame.tobytes() != one.tobytes() for one in wanted):
            off = min(int((frame[..., 0] != one.reshape(frame.shape[:2])).sum()) for one in wanted)
            self._differs(f"images/{camera}: depth", f"{off} of {frame.size} values differ")

    def _language(self, row: Mapping[str, Any], episode: witness.Episode, step: Step) -> None:
        said = episode.said(step)
        choices = [text for texts in said for text in texts] if said else [""]
        self.texts += 1
        if row["language"] not in choices:
            self._differs("language", f"loader {row['language']!r}, files {choices!r}")

    def _features(self, row: Mapping[str, Any], expected: Any, declared: Any) -> None:
        for name, found in row.get("features", {}).items():
            mask = row["feature_mask"][name]
            rows = list(found) if mask.ndim else [found]
            wanted, inside = expected.feature(
                declared.features.get(name), rows[0], per_step=mask.ndim == 1
            )
            self.numbers += sum(np.size(one) for one in rows)
            got = [one if isinstance(one, str) else one.tolist() for one in rows]
            if got != wanted and repr(got) != repr(wanted):  # NaN is not equal to itself
                self._differs(f"features.{name}", f"loader {got}, files {wanted}")
            if np.atleast_1d(mask).tolist() != inside:
                self._differs(f"feature_mask.{name}", f"expected {inside}")

    def _differs(self, what: str, how: str, place: Sequence[int] | None = None) -> None:
        """Note a difference at a place, or in the sample that is being compared."""
        index, _, shard, record, t = place or self._place
        dataset = self._mixture.datasets[index]
        where = f"{dataset.name}, {Path(dataset.slices[shard].path).name}, record {record}, t {t}"
        self.differences.append(f"{where}: {what}: {how[:300]}")
