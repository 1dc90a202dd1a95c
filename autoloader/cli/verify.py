"""``autoloader verify``: samples of a loader against plain TFDS, on the user's own data.

Not here: reading with TFDS (``cli.tfds_reader``), transforms (``cli.reference_transform``), the
values that a sample should hold (``cli.reference_values``).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from autoloader.cli import options
from autoloader.cli.output import emit, emit_json, emit_table, note_some, progress_bar
from autoloader.extras import require

if TYPE_CHECKING:
    from autoloader.cli.compare_specs import SpecComparison

if TYPE_CHECKING:
    from autoloader.cli.reference_steps import DerivedEpisode

DIFFERS = 4
"""Exit code where a value differs."""
GREY_LEVELS = 2.0
"""Mean absolute difference that two JPEG decoders and resizers may have in a frame."""
_BATCH = 8
_ARRAYS = ("frame_offset", "action", "action_mask", "state", "state_mask", "provenance")


def verify(
    spec: options.SpecFile,
    samples: Annotated[
        int, typer.Option("-n", "--samples", min=1, help="Samples, shared over all datasets.")
    ] = 200,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Compare with this spec, not with TFDS.", callback=options.with_transforms
        ),
    ] = None,
    split: options.Split = "train",
    ram_floor: options.RamFloor = None,
    _no_transforms: options.NoTransforms = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Compare samples with plain TFDS, or with another spec's; exit code 4 if they differ."""
    if against is not None:
        _verify_against(spec, against, samples, split, ram_floor, as_json=as_json)
        return
    require("tensorflow_datasets", "the comparison with plain TFDS")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # TensorFlow would take the whole of a GPU's memory
    from autoloader.loader import AutoLoader
    from autoloader.spec import PipelineSpec

    declared = evenly(PipelineSpec.from_yaml(spec))
    if any(one.transform and one.transform.framework != "numpy" for one in declared.datasets):
        from autoloader.graph import user_functions

        user_functions.enter()  # TensorFlow comes here anyway, with TFDS
    options.read_remote_here(declared)
    found = Comparison()
    with AutoLoader(
        declared, split=split, ram_floor=ram_floor, output="numpy", rank=0, world_size=1
    ) as loader:
        compare = _Comparer(declared, loader, found)
        rows = sorted(_taken(loader, samples), key=lambda row: row["provenance"].tolist())
        with progress_bar("comparing with TFDS") as advance:
            for done, row in enumerate(rows):
                compare.row(row)
                advance(done + 1, len(rows))
    document = {
        "samples": dict(found.samples),
        "numbers": found.numbers,
        "frames": found.frames,
        "texts": found.texts,
        "largest_frame_difference": round(found.largest, 3),
        "differences": found.differences,
    }
    if as_json:
        emit_json(document)
    else:
        emit_table(("dataset", "samples"), found.samples.items())
        emit(
            f"{found.numbers} numbers equal, {found.frames} frames (mean difference at most "
            f"{found.largest:.2f} grey levels), {found.texts} texts"
            if not found.differences
            else f"{len(found.differences)} differences"
        )
    note_some(f"differs: {difference}" for difference in found.differences)
    if found.differences:
        raise typer.Exit(DIFFERS)


def _verify_against(
    spec: Path, against: Path, samples: int, split: str, ram_floor: str | None, *, as_json: bool
) -> None:
    from autoloader.cli.compare_specs import compare_specs
    from autoloader.spec import PipelineSpec

    here, there = PipelineSpec.from_yaml(spec), PipelineSpec.from_yaml(against)
    for one in (here, there):
        options.read_remote_here(one)
    with progress_bar("reading both specs") as advance:
        found = compare_specs(
            here, there, split=split, samples=samples, ram_floor=ram_floor, advance=advance
        )
    if as_json:
        emit_json({"same": found.same, **asdict(found)})
    else:
        _show_comparison(found, against)
    if not found.same:
        raise typer.Exit(DIFFERS)


def _show_comparison(found: SpecComparison, against: Path) -> None:
    emit_table(
        ("dataset", "steps in both", "only here", "only there", "differs in"),
        ([name, one.samples, len(one.only_here), len(one.only_there),
          ", ".join(one.differing) or "nothing"] for name, one in found.datasets.items()),
    )  # fmt: skip
    for where, names in (("here", found.only_here), (f"in {against}", found.only_there)):
        for name in names:
            emit(f"{name}: only {where}")
    for name, one in found.datasets.items():
        for part, how in one.differing.items():
            columns = f", columns {', '.join(map(str, how.columns))}" if how.columns else ""
            most = "" if how.largest is None else f", by {how.largest:.6g} at most"
            emit(f"{name}: {part}: {how.samples} of {one.samples}{columns}{most}; {how.first}")
        for words, steps in (("here", one.only_here), ("there", one.only_there)):
            if steps:
                some = ", ".join(f"{t} of episode {e}" for e, t in steps[:5])
                emit(f"{name}: only {words}: step {some}{', …' if len(steps) > 5 else ''}")


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


def _taken(loader: Any, count: int) -> Iterator[dict[str, Any]]:
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
                **{key: batch[key][k].copy() for key in _ARRAYS},
            }


class _Comparer:
    """Holds rows against TFDS; rows of one episode come together."""

    def __init__(self, spec: Any, loader: Any, found: Comparison) -> None:
        from autoloader.cli.tfds_reader import TfdsReader

        self._spec = spec
        self._mixture = loader.plan.mixture
        self._statistics: Mapping[str, Any] = loader.normalization or {}
        self._found = found
        self._tfds_readers = [TfdsReader(dataset.directory) for dataset in self._mixture.datasets]
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

    def _steps(self, index: int, shard: int, record: int) -> DerivedEpisode:
        """An episode's steps before the stride, as a function and the dataset's words leave it."""
        from autoloader.cli.reference_steps import DerivedEpisode
        from autoloader.cli.reference_transform import TransformedEpisode

        key = (index, shard, record)
        if self._episode is None or self._episode[0] != key:
            dataset = self._mixture.datasets[index]
            steps = self._tfds_readers[index].episode(dataset.slices[shard], record)
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
        from autoloader.cli.tfds_reader import text_at

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
        language = declared.language.paths if declared.language else ()
        if declared.keep.language == "anywhere" and not any(
            text_at(step, path).strip() for step in steps for path in language
        ):
            self._differs(where, "keep.language", "no step of the episode has an instruction")
        rule = why_not_kept(declared.keep, language, steps[number], number, listed)
        if rule is not None:
            self._differs(where, rule, f"step {number} does not keep this rule")

    def _numbers(
        self, row: Mapping[str, Any], name: str, expected: Any, dataset: str, where: str
    ) -> None:
        from autoloader.cli.reference_values import normalised_rows
        from autoloader.spec.ops import WIDTHS

        got, mask = row[name], row[f"{name}_mask"]
        found = expected.rows(name)
        wanted = np.zeros(got.shape)
        inside = np.zeros(got.shape, dtype=bool)
        exact = True
        if found is not None:
            values, there, zeroed = found
            how = getattr(self._spec.normalize, name, None)
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
            self._differs(where, name, f"loader {got.tolist()}, TFDS {wanted.tolist()}")
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
            inside = [bool(choices) and one[2] for one in plan]
            if row["frame_mask"][camera].tolist() != inside:
                self._differs(where, f"frame_mask/{camera}", f"expected {inside}")
            for number, (step, _, _) in enumerate(plan):
                self._found.frames += 1
                off = min(
                    (self._distance(frames[number], step, path, camera) for path in choices),
                    default=float(frames[number].max()),
                )
                self._found.largest = max(self._found.largest, off)
                if off > GREY_LEVELS:
                    self._differs(where, f"images/{camera} {number}", f"off by {off:.1f} levels")

    def _distance(self, frame: Any, step: Any, path: str, camera: str) -> float:
        """Mean absolute difference in grey levels."""
        from autoloader.cli.tfds_reader import value_at
        from autoloader.graph.resize import fitted_picture

        if step is None:
            return float(frame.max())
        picture = np.asarray(value_at(step, path))
        if picture.shape[-1] == 1:
            picture = np.repeat(picture, 3, axis=-1)
        wanted = fitted_picture(picture, self._spec.cameras[camera])
        return float(np.abs(frame.astype(np.int16) - wanted).mean())

    def _language(self, row: Mapping[str, Any], declared: Any, step: Any, where: str) -> None:
        from autoloader.cli.tfds_reader import text_at

        choices = (
            [text_at(step, path) for path in declared.language.paths] if declared.language else [""]
        )
        self._found.texts += 1
        if row["language"] not in choices:
            self._differs(where, "language", f"loader {row['language']!r}, TFDS {choices!r}")

    def _differs(self, where: str, what: str, how: str) -> None:
        self._found.differences.append(f"{where}: {what}: {how[:300]}")
