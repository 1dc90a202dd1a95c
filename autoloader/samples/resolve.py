"""Resolves a spec against the datasets on disk: checks and binds all that a reader needs.

Not here: opening files for data (``graph``), sample counts (``counts``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from autoloader.catalog import (
    Feature,
    ShardSlice,
    VersionDirectory,
    check_source,
    files,
    locate_version,
    open_source,
)
from autoloader.catalog.metadata import LEROBOT
from autoloader.errors import SpecError, UnsupportedError, nearest
from autoloader.samples.draws import dataset_key
from autoloader.samples.features import flags_of, forms_of
from autoloader.samples.layout import BatchLayout
from autoloader.samples.scaling import Scaling, scaling_of
from autoloader.samples.statistics import NormalizationStatistics
from autoloader.spec import DatasetSpec, PipelineSpec, SampleSpec
from autoloader.transforms.copies import reversed_cameras
from autoloader.transforms.derive import plan_derivation
from autoloader.transforms.fields import (
    NumericField,
    check_camera,
    check_language,
    check_same_kind,
    find_feature,
    numeric_field,
)
from autoloader.transforms.keep import Keep
from autoloader.transforms.transform import Transform, bind_transform, with_derivation
from autoloader.units import MIB

REMOTE_RECORD_BYTES = 8 * MIB
"""What a record of remote data counts as where its metadata does not say how large it is."""
REMOTE_BUFFER_BYTES = 16 * MIB
"""What TensorFlow's remote files read at once (``graph.tensorflow``)."""

FieldName = Literal["action", "state"]


@dataclass(frozen=True, slots=True)
class ResolvedDataset:
    """One dataset of one split, its fields bound to real features.

    Attributes:
        name, index: its name, and its place in ``dataset_names``.
        weight: as the spec says; relative.
        directory: what lies on disk.
        slices: records of the split, by shard; a provenance's ``shard`` counts these.
        key: start of all its keyed draws.
        sample: what a sample holds.
        stride: every how many frames.
        cameras: canonical camera → the features one is drawn from; missing cameras are absent.
        action, state: bound numeric fields, or ``None``.
        language: the features one is drawn from; empty where there is none.
        scaling: "action" and "state" → how they are normalised; absent ones are not.
        keep: rules that leave some t out, or ``None``.
        transform: what rewrites each episode first, or ``None``.
        held: name in the batch → what else samples hold.
        present: camera → the flag that says whether it is there.
        turn: (k, n): of each episode's samples every n-th is taken, from the k-th on
            (``order.parts``).
        reversed: cameras whose first and last channels change places.
        files_are: which copy of the dataset its files were taken for, and why; "" where nothing
            hangs on it.
        num_samples: of a pass, where the spec says it; else ``None``. An index counts by itself.
    """

    name: str
    index: int
    weight: float
    directory: VersionDirectory
    slices: tuple[ShardSlice, ...]
    key: int
    sample: SampleSpec
    stride: int
    cameras: Mapping[str, tuple[Feature, ...]]
    action: NumericField | None
    state: NumericField | None
    language: tuple[Feature, ...]
    scaling: Mapping[str, Scaling] = field(default_factory=dict)
    keep: Keep | None = field(default=None, compare=False)
    transform: Transform | None = field(default=None, compare=False)
    held: Mapping[str, Feature] = field(default_factory=dict)
    present: Mapping[str, Feature] = field(default_factory=dict)
    turn: tuple[int, int] = (0, 1)
    reversed: frozenset[str] = frozenset()
    files_are: str = ""
    num_samples: int | None = None

    @property
    def remote(self) -> bool:
        """Whether its files lie on a file system that only TensorFlow opens."""
        return files.is_remote(self.directory.path)

    @property
    def streamable(self) -> bool:
        """Whether its files can be read as a stream; else by index alone."""
        return self.directory.file_format != LEROBOT

    @property
    def records(self) -> int:
        """Episodes of the split."""
        return sum(piece.stop - piece.start for piece in self.slices)

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features that its fields name: the files', or those that its transform gives."""
        return self.directory.features if self.transform is None else self.transform.features

    def bound(self, name: FieldName) -> NumericField | None:
        """``action`` or ``state``."""
        return self.action if name == "action" else self.state

    def numeric_features(self) -> dict[str, Feature]:
        """Every feature that ``action`` and ``state`` read, by the path used in their terms."""
        found = {}
        for bound in (self.action, self.state):
            for term in bound.terms if bound else ():
                if term.path is not None:
                    found[term.path] = find_feature(
                        self.features, term.path, field="", dataset=self.name
                    )
        return found

    @property
    def record_bytes(self) -> int:
        """Mean bytes of a record: of local data from file sizes, of remote data from metadata."""
        if self.remote:
            told = self.directory.record_bytes
            of = [told[piece.split] for piece in self.slices if piece.split in told]
            return max([*of, 0]) or REMOTE_RECORD_BYTES
        files = {piece.path for piece in self.slices if piece.stop > piece.start}
        return sum(Path(path).stat().st_size for path in files) // max(1, self.records)


@dataclass(frozen=True, slots=True)
class MixtureSizes:
    """What the memory of a mixture's pipeline hangs on beside its knobs.

    Attributes:
        record_bytes: mean bytes of a record (an episode), by dataset.
        batch_bytes: bytes of one ring slot.
        buffer_bytes: what each open file holds beside, by dataset; absent is nothing.
    """

    record_bytes: dict[str, int]
    batch_bytes: int
    buffer_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResolvedMixture:
    """A spec for one split, ready to be read; ``statistics`` where it is normalised."""

    spec: PipelineSpec
    split: str
    datasets: tuple[ResolvedDataset, ...]
    layout: BatchLayout
    statistics: Mapping[str, NormalizationStatistics] | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it; see ``resolve_plain``."""
        found = self.statistics
        return {
            "spec": self.spec.model_dump(mode="json"),
            "split": self.split,
            "statistics": found and {name: one.plain() for name, one in found.items()},
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Dataset names, by dataset index."""
        return tuple(dataset.name for dataset in self.datasets)

    @property
    def shards(self) -> dict[str, int]:
        """Shards of each dataset's split."""
        return {dataset.name: len(dataset.slices) for dataset in self.datasets}

    @property
    def sizes(self) -> MixtureSizes:
        """What its memory hangs on; asks the file system."""
        return MixtureSizes(
            {one.name: one.record_bytes for one in self.datasets},
            self.layout.slot_bytes,
            {one.name: REMOTE_BUFFER_BYTES for one in self.datasets if one.remote},
        )


def resolve(spec: PipelineSpec, split: str = "train") -> ResolvedMixture:
    """Open every dataset's metadata and bind the spec's fields to it.

    Reads no data, but one episode of a dataset that has a transform, to try it.

    Nothing is normalised yet: see ``normalised``.

    Raises:
        SourceError: a dataset's directory is missing or broken.
        SpecError: a split, feature or width that cannot be.
    """
    datasets: list[ResolvedDataset] = []
    for declared in spec.datasets:
        expression = _split_of(declared, split)
        if expression is not None:
            datasets.append(_resolve_dataset(spec, declared, expression, split, len(datasets)))
    if not datasets:
        raise SpecError(
            f"no dataset takes part in split {split!r}",
            remedy=f"give at least one dataset a split expression for {split!r}",
            path="datasets",
        )
    first = datasets[0].sample
    layout = BatchLayout(
        batch_size=spec.batch.size,
        cameras={name: camera.size for name, camera in spec.cameras.items()},
        frames=first.frames,
        action_rows=first.action_rows,
        action_width=_width(spec, datasets, "action"),
        state_rows=len(first.state_offsets),
        state_width=_width(spec, datasets, "state"),
        action_steps=first.action_steps,
        features=forms_of([(dataset.name, dataset.held) for dataset in datasets]),
    )
    return ResolvedMixture(spec, split, tuple(datasets), layout)


def _split_of(declared: DatasetSpec, split: str) -> str | None:
    if split not in declared.split:
        raise SpecError(
            f"datasets[{declared.name}].split: has no {split!r}",
            remedy=f"add {split}: EXPRESSION, or {split}: null to leave the dataset out; "
            + nearest(split, declared.split),
            path=f"datasets[{declared.name}].split",
        )
    return declared.split[split]


def check_places(spec: PipelineSpec, split: str) -> None:
    """Whether the local datasets of a split are where the spec says; costs next to nothing.

    Raises:
        SourceError: a dataset's directory is missing, or is none of TFDS.
        SpecError: a name that is none of TFDS.
    """
    for declared in spec.datasets:
        local = not files.is_remote(declared.path or declared.data_dir or "")
        if local and _split_of(declared, split) is not None:
            check_source(_path_of(declared), dataset=declared.name)


def _path_of(declared: DatasetSpec) -> str:
    if declared.path is not None:
        return declared.path
    return locate_version(declared.tfds or "", declared.data_dir or "", dataset=declared.name)


def _resolve_dataset(
    spec: PipelineSpec, declared: DatasetSpec, expression: str, split: str, index: int
) -> ResolvedDataset:
    name, where = declared.name, f"datasets[{declared.name}]"
    directory = open_source(_path_of(declared), dataset=name)
    _check_place(declared, directory, where)
    slices = directory.resolve(expression, field=f"{where}.split.{split}")
    transform = None
    features: Mapping[str, Feature] = directory.features
    if declared.transform is not None:
        _check_whole_episodes(directory, where)
        transform = bind_transform(declared.transform, features, slices, where=where, dataset=name)
        features = transform.features
    derivation, expressions = plan_derivation(declared, features, where=where)
    if derivation is not None:
        _check_whole_episodes(directory, where)
        transform = with_derivation(transform, derivation, directory.features, slices, dataset=name)
        features = transform.features

    def found(feature_path: str, field: str) -> Feature:
        return find_feature(features, feature_path, field=f"{where}.{field}", dataset=name)

    turned, files_are = reversed_cameras(declared, directory.features, where=where)
    cameras = {}
    for camera, choice in declared.images.items():
        cameras[camera] = tuple(found(p, f"images.{camera}") for p in choice.paths)
        for feature in cameras[camera]:
            check_camera(feature, field=f"{where}.images.{camera}")
    language: tuple[Feature, ...] = ()
    if declared.language is not None:
        language = tuple(found(p, "language") for p in declared.language.paths)
        for feature in language:
            check_language(feature, field=f"{where}.language")
        check_same_kind(language, field=f"{where}.language")
    fields = {
        key: numeric_field(expression_, features, field=f"{where}.{key}", dataset=name)
        for key, expression_ in expressions.items()
    }
    if not cameras and not fields:
        raise SpecError(
            f"{where}: takes neither images nor action nor state",
            remedy="name at least one field of the dataset",
            path=where,
        )
    sample = spec.sample_of(name)
    _check_relative(sample, fields, where)
    keep = None
    if declared.keep is not None and declared.keep.looks_at_texts:
        keep = Keep(declared.keep, features, language, where=where, dataset=name)
    return ResolvedDataset(
        name=name,
        index=index,
        weight=declared.weight,
        directory=directory,
        slices=slices,
        key=dataset_key(spec.seed, name),
        sample=sample,
        stride=declared.stride,
        cameras=cameras,
        action=fields.get("action"),
        state=fields.get("state"),
        language=language,
        keep=keep,
        transform=transform,
        present=flags_of(declared.images, found, where),
        held={key: found(p, f"features.{key}") for key, p in declared.features.items()},
        reversed=turned,
        files_are=files_are,
        num_samples=declared.num_samples,
    )


def _check_place(declared: DatasetSpec, directory: VersionDirectory, where: str) -> None:
    """Refuse what remote data cannot have."""
    if declared.keep is not None and files.is_remote(directory.path):
        raise SpecError(
            f"{where}.keep: {directory.path} is remote, and rules ask for texts of every record",
            remedy="use a transform that drops episodes (return None) and bars steps (valid), or "
            "copy the dataset to a local disk",
            path=f"{where}.keep",
        )


def _check_whole_episodes(directory: VersionDirectory, where: str) -> None:
    """Refuse rules that rewrite episodes of a format whose episodes are no records."""
    if directory.file_format == LEROBOT:
        raise UnsupportedError(
            f"{where}: {directory.path} is a LeRobot dataset; a transform, steps, or an op that "
            "sees whole episodes is not supported yet for it",
            remedy="leave it out, or convert the dataset to RLDS",
            path=where,
        )


def _check_relative(sample: SampleSpec, fields: Mapping[str, NumericField], where: str) -> None:
    """Refuse differences between columns that are not there."""
    place = f"{where}.sample.action_relative_to_state"
    for dim in sample.action_relative_to_state if "action" in fields else ():
        if "state" not in fields:
            raise SpecError(
                f"{place}: the dataset has an action, and no state to take away from it",
                remedy="name its state, or set sample: {action_relative_to_state: []} for it",
                path=place,
            )
        for name, bound in fields.items():
            if dim >= bound.width:
                raise SpecError(
                    f"{place}: {dim}, but {name} has {bound.width} columns",
                    remedy=f"name dims that action and state have; allowed: 0 to "
                    f"{min(one.width for one in fields.values()) - 1}",
                    path=place,
                )


def resolve_plain(plain: Mapping[str, Any]) -> ResolvedMixture:
    """The mixture that another process resolved, from ``ResolvedMixture.plain``.

    Raises:
        SourceError, SpecError: the files are no longer as they were there.
    """
    mixture = resolve(PipelineSpec.model_validate(plain["spec"]), plain["split"])
    if (known := plain["statistics"]) is None:
        return mixture
    found = {name: NormalizationStatistics.from_plain(one) for name, one in known.items()}
    return normalised(mixture, found)


def normalised(
    mixture: ResolvedMixture, statistics: Mapping[str, NormalizationStatistics]
) -> ResolvedMixture:
    """The mixture with ``spec.normalize`` applied to every dataset.

    Raises:
        SpecError: a dataset has no statistics, or they do not fit it.
    """
    fitted = dict(statistics)
    for dataset in mixture.datasets:
        if dataset.name in fitted:
            widths = [bound.width if bound else 0 for bound in (dataset.action, dataset.state)]
            fitted[dataset.name] = fitted[dataset.name].fitted(*widths)
    datasets = tuple(
        replace(dataset, scaling=_scaling(mixture.spec, dataset, fitted))
        for dataset in mixture.datasets
    )
    return replace(mixture, datasets=datasets, statistics=fitted)


def _scaling(
    spec: PipelineSpec, dataset: ResolvedDataset, statistics: Mapping[str, NormalizationStatistics]
) -> dict[str, Scaling]:
    scaling = {}
    for key, bound in (("action", dataset.action), ("state", dataset.state)):
        how = getattr(spec.normalize, key, None)
        if how is None or bound is None:
            continue
        found = getattr(statistics.get(dataset.name), key, None)
        if found is None:
            raise SpecError(
                f"normalize.statistics: there are none for {key} of dataset {dataset.name!r}",
                remedy="compute them for this spec: autoloader stats --spec SPEC --out FILE",
                path="normalize.statistics",
            )
        scaling[key] = scaling_of(how, found, bound.width, field=key, dataset=dataset.name)
    return scaling


def _width(spec: PipelineSpec, datasets: list[ResolvedDataset], field: str) -> int:
    widths = {
        dataset.name: bound.width for dataset in datasets if (bound := getattr(dataset, field))
    }
    widest = max(widths.values(), default=0)
    fixed = spec.pad_to.get("action" if field == "action" else "state")
    if fixed is None:
        return widest
    if widest > fixed:
        name = next(name for name, width in widths.items() if width == widest)
        raise SpecError(
            f"pad_to.{field}: {fixed}, but dataset {name!r} has {widest} columns",
            remedy=f"set pad_to.{field} to at least {widest}",
            path=f"pad_to.{field}",
        )
    return fixed
