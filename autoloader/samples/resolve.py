"""Resolves a spec against the datasets on disk: checks and binds all that a reader needs.

The way goes down once: which datasets take part in a split (``find_sources``), each of them opened
and bound (``bind_dataset``), the layout of their batches (``resolve``). ``samples.transforms`` has
a binder for what rewrites episodes, and one for each part of a sample.

Not here: opening files for data (``pipeline.graph``, ``index``), sample counts
(``samples.transforms.keep``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

from autoloader.errors import SourceError, SpecError, UnsupportedError, UsageError
from autoloader.formats import DatasetFormat, Feature, ShardSlice, files, locate_version
from autoloader.formats.features import SLAB, VIDEO
from autoloader.formats.frames import MOST_KEPT_BYTES, MOST_SLAB_BYTES
from autoloader.formats.sources import format_for, open_source
from autoloader.formats.tables import StoredFeature, Wanted
from autoloader.host.frozen import frozen
from autoloader.host.units import MIB
from autoloader.samples.draws import dataset_key
from autoloader.samples.layout import BatchLayout, forms_of
from autoloader.samples.statistics import NormalizationStatistics, Scaling, scaling_of
from autoloader.samples.transforms.binding import Words, bind_cameras, bind_language, framed
from autoloader.samples.transforms.fields import FieldName, NumericField, bind_numbers, find_feature
from autoloader.samples.transforms.keep import Keep
from autoloader.samples.transforms.transform import Transform, bind_episodes
from autoloader.samples.weights import SampleWeights, read_weights
from autoloader.spec import DatasetSpec, PipelineSpec, SampleSpec
from autoloader.spec.fields import WIDTHS, FieldTerm
from autoloader.spec.model import Timestamps
from autoloader.spec.sample import DeltaTimestamps, EdgesSpec
from autoloader.storage.places import has_client
from autoloader.telemetry.progress import doing, told

_MOST_SIZED = 1024
REMOTE_RECORD_BYTES = 8 * MIB
"""What a record of remote data counts as where its metadata does not say how large it is."""


@dataclass(frozen=True)
class ResolvedDataset:
    """One dataset of one split, its fields bound to real features.

    Attributes:
        name, index: name of the dataset, and its number in ``dataset_names``.
        weight: as the spec says; relative.
        directory: the dataset on disk.
        slices: records of the split, by shard; a provenance's ``shard`` counts these.
        key: start of all its keyed draws.
        sample: the spec's description of a sample.
        stride: every how many frames.
        cameras: canonical camera → the features one is drawn from; missing cameras are absent.
        action, state: bound numeric fields, or ``None``.
        language: the features one is drawn from; empty where there is none.
        words: rule by which texts become a sample's text.
        scaling: "action" and "state" → how they are normalised; absent ones are not.
        keep: rules that leave some t out, or ``None``.
        transform: transform that rewrites each episode first, or ``None``.
        held: name in the batch → further feature that samples hold.
        present: camera → feature that says whether its picture is there.
        turn: (k, n): of each episode's samples every n-th is taken, from the k-th on
            (``sampling.dealing``).
        reversed: cameras whose first and last channels change places.
        files_are: copy of the dataset that the files were taken for, and the reason; "" where the
            copy makes no difference.
        timestamps: rule by which rows get their frames.
        num_samples: number of samples of a pass, as the spec says; ``None``: an index counts.
        weights: weights of its samples, or ``None``.
    """

    name: str
    index: int
    weight: float
    directory: DatasetFormat
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
    timestamps: Timestamps = "check"
    num_samples: int | None = None
    weights: SampleWeights | None = field(default=None, compare=False)
    words: Words = field(default_factory=Words)

    @property
    def remote(self) -> bool:
        """True if its files lie where only a client reaches them."""
        return files.is_remote(self.directory.path)

    @property
    def indexable(self) -> bool:
        """True if its files can be read by index: they are local, or a client gives ranges."""
        return not self.remote or has_client(self.directory.path)

    @property
    def streamable(self) -> bool:
        """True if its files can be read as a stream; else by index alone."""
        return self.directory.streamable

    @property
    def drawn_by_weight(self) -> bool:
        """True if its samples are drawn by their weights."""
        return self.weights is not None and self.weights.use == "draw"

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
        paths = [path for one in (self.action, self.state) if one for path in one.paths()]
        return {path: find_feature(self.features, path, field="") for path in paths}

    @cached_property
    def record_bytes(self) -> int:
        """Mean bytes of a record, from file sizes: the same wherever the files lie.

        Videos beside the shards count too; of a thousand shards at most. Of remote data that no
        client gives ranges of, what the metadata says.

        Raises:
            SourceError: a remote file cannot be asked for.
        """
        paths = sorted({piece.path for piece in self.slices if piece.stop > piece.start})
        if self.remote and not self.indexable:
            told = self.directory.record_bytes
            of = [told[piece.split] for piece in self.slices if piece.split in told]
            return max([*of, 0]) or REMOTE_RECORD_BYTES
        if self.remote:
            from autoloader.storage.store import store, together  # local data goes without

            with files.reading(self.directory.path, dataset=self.name):
                return sum(together(store.size, paths)) // max(1, self.records)
        shown = {StoredFeature("frames", one.key, one.path, "bytes", 1, per_step=True)
                 for several in self.cameras.values() for one in several}  # fmt: skip
        wanted = Wanted(tuple(shown), self.transform)
        few = paths[:: len(paths) // _MOST_SIZED + 1]
        present = (one for one in few if os.path.exists(one))
        sizes = (self.directory.identity(one, wanted).size for one in present)
        return sum(sizes) * len(paths) // max(1, len(few) * self.records)


BLOCK_SLACK = 1.125
"""Blocks have so many samples, not bytes: some are larger, and all have their windows' edges."""
LEAST_BLOCK_BYTES = 64 * MIB
REMOTE_BUFFER_BYTES = 16 * MIB
"""What TensorFlow's remote files read at once (``pipeline.graph.tensorflow``)."""


@frozen
class MixtureSizes:
    """Sizes that decide the memory of a mixture's pipeline, beside its knobs.

    Attributes:
        record_bytes: mean bytes of a record (an episode), by dataset.
        batch_bytes: bytes of one ring slot.
        buffer_bytes: dataset → bytes that each open file holds beside; absent: none.
        block_bytes: most bytes of the blocks of ``mixing.locality``; 0 without it.
        request_bytes: most bytes of requests to stores under way, and of unpacked slabs and decoded
            frames of videos that wait; 0 of other local data.
        picture_bytes: bytes of the largest declared picture, decoded; 0: none is declared.
        run_bytes: bytes that a batch reads, by the index; 0: frames lie in no slabs and a batch is
            small, or an index is not built yet.
    """

    record_bytes: dict[str, int]
    batch_bytes: int
    buffer_bytes: Mapping[str, int] = field(default_factory=dict)
    block_bytes: int = 0
    request_bytes: int = 0
    picture_bytes: int = 0
    run_bytes: int = 0


@frozen
class ResolvedMixture:
    """A spec for one split, ready to be read.

    Attributes:
        statistics: those that it is normalised with; ``None``: it is not.
        call: hash of the function ``batch.call`` when the loader began; "" where none is known.
        content: dataset → hash of what its index held then, or of the sizes of files that are
            streamed; "" where neither is known.
        names: names of the datasets, by dataset index.
    """

    spec: PipelineSpec
    split: str
    datasets: tuple[ResolvedDataset, ...]
    layout: BatchLayout
    statistics: Mapping[str, NormalizationStatistics] | None = None
    call: str = ""
    content: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(dataset.name for dataset in self.datasets))

    def plain(self) -> dict[str, Any]:
        """All that ``split.resolve_plain`` makes the mixture of again, as values of JSON."""
        found = self.statistics
        return {
            "spec": self.spec.model_dump(mode="json"),
            "split": self.split,
            "statistics": found and {name: one.plain() for name, one in found.items()},
            "beside": self.beside,
            "call": self.call,
            "content": dict(self.content),
        }

    def disk_kept_free(self, floor_bytes: int | None) -> AbstractContextManager[None]:
        """Keep bytes free on the disk that shards are fetched to; see ``storage.shards``."""
        if not any(one.remote for one in self.datasets):
            return nullcontext()
        from autoloader.storage.shards import kept_free  # local data goes without

        return kept_free(floor_bytes)

    @property
    def beside(self) -> dict[str, list[str]]:
        """Dataset → what files that its spec names held: of its transform, ranges and weights."""
        return {
            one.name: [
                one.transform.identity if one.transform else "",
                one.keep.identity if one.keep else "",
                one.weights.digest if one.weights else "",
            ]
            for one in self.datasets
        }

    @property
    def shards(self) -> dict[str, int]:
        """Shards of each dataset's split."""
        return {dataset.name: len(dataset.slices) for dataset in self.datasets}

    @property
    def shown(self) -> Iterator[Feature]:
        """Features that cameras show."""
        return (one for of in self.datasets for some in of.cameras.values() for one in some)

    @property
    def encodings(self) -> set[str | None]:
        """Encodings of the features that cameras show."""
        return {one.encoding for one in self.shown}

    @property
    def in_slabs(self) -> bool:
        """True if frames of a dataset lie in slabs: each is read and unpacked with others."""
        return SLAB in self.encodings

    @property
    def sizes(self) -> MixtureSizes:
        """Sizes that decide its memory; asks the file system."""
        remote = [one for one in self.datasets if one.remote]
        request_bytes = 0
        if remote:
            from autoloader.storage.shards import IN_FLIGHT_BYTES

            request_bytes = IN_FLIGHT_BYTES
        request_bytes += MOST_SLAB_BYTES * self.in_slabs
        request_bytes += MOST_KEPT_BYTES * (VIDEO in self.encodings)
        pictures = (prod(k or 0 for k in one.shape) for one in self.shown if one.kind == "image")
        return MixtureSizes(
            {one.name: one.record_bytes for one in self.datasets},
            self.layout.slot_bytes,
            {one.name: REMOTE_BUFFER_BYTES for one in remote},
            self._block_bytes(),
            request_bytes,
            max(pictures, default=0),
        )

    def _block_bytes(self) -> int:
        """Two windows of each dataset: the one in use, and the one that is read meanwhile.

        At least what the runs that are read ahead show, where windows are small.
        """
        near = self.spec.mixing.locality
        if near is None:
            return 0
        window = (near.window + 1) * near.block
        wholes = [one.record_bytes * one.records for one in self.datasets]
        pairs = sum(2 * min(window, whole + near.block) for whole in wholes)
        return max(LEAST_BLOCK_BYTES, int(BLOCK_SLACK * pairs))


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
    """Scaling of a dataset's normalised fields."""
    scaling = {}
    for key, bound in (("action", dataset.action), ("state", dataset.state)):
        how = spec.normalize_of(dataset.name, key)
        if how is None or bound is None:
            continue
        found = getattr(statistics.get(dataset.name), key, None)
        if found is None:
            raise SpecError(
                f"normalize.statistics: dataset {dataset.name!r} has no statistics of {key}",
                remedy="run autoloader stats SPEC -o FILE, and set normalize.statistics to FILE",
            )
        rows = (statistics[dataset.name].action_rows or ()) if key == "action" else ()
        scaling[key] = scaling_of(
            how, found, bound.width, field=key, dataset=dataset.name, rows=rows,
            horizon=dataset.sample.action_rows,
        )  # fmt: skip
    return scaling


@frozen
class DatasetSource:
    """A dataset that takes part in a split; nothing is open yet.

    Attributes:
        spec: spec of the mixture.
        declared: the dataset as the spec declares it.
        split: name of the split that is read.
        expression: the records that the split takes of it.
    """

    spec: PipelineSpec
    declared: DatasetSpec
    split: str
    expression: str

    @property
    def where(self) -> str:
        """Path of the dataset in the spec."""
        return f"datasets[{self.declared.name}]"

    @property
    def remote(self) -> bool:
        """True if its files lie where only a client reaches them."""
        return files.is_remote(self.declared.path or self.declared.data_dir or "")

    def path(self) -> str:
        """Its directory; of remote data this may ask the store.

        Raises:
            SourceError: there is none of that name.
            SpecError: a name that is none of TFDS.
        """
        name = self.declared.name
        if self.declared.path is not None:
            return self.declared.path
        return locate_version(self.declared.tfds or "", self.declared.data_dir or "", dataset=name)

    def format(self, path: str) -> type[DatasetFormat]:
        """The format of its directory. Raises SpecError where there is no such format."""
        return format_for(path, dataset=self.declared.name, kind=self.declared.kind)

    def metadata_files(self) -> list[str]:
        """Files of a remote dataset that opening it reads, where the spec names its directory."""
        path = self.declared.path
        if not self.remote or path is None:
            return []
        return [files.join(path, name) for name in self.format(path).read_first]

    def open(self) -> tuple[DatasetFormat, tuple[ShardSlice, ...]]:
        """Open the directory, and the records of the split, by shard.

        Raises:
            SourceError: its directory is missing or broken.
            SpecError: the expression names a split that is not there; or no such format.
        """
        declared = self.declared
        directory = open_source(self.path(), dataset=declared.name, kind=declared.kind)
        directory = framed(directory, declared, self.spec.cameras)
        if declared.media is not None:
            directory = directory.with_media(declared.media)
        if declared.episodes is not None:
            directory = self._of_episodes(directory, declared.episodes)
        slices = directory.resolve(self.expression, field=f"{self.where}.split.{self.split}")
        return directory, slices

    def _of_episodes(self, directory: DatasetFormat, numbers: Sequence[int]) -> DatasetFormat:
        where = f"{self.where}.episodes"
        if not directory.numbered:
            raise SpecError(
                f"{where}: {directory.path} holds {directory.title} data, whose "
                "episodes have no numbers",
                remedy="leave episodes out, and cut the split: train[:90%]",
            )
        known = set(directory.episode_numbers)
        least, most = min(known, default=0), max(known, default=0)
        lost = sorted(set(numbers) - known)
        if lost or not numbers:
            told = f"there is no episode {lost[0]}" if lost else "it is empty"
            raise SpecError(
                f"{where}: {told}; {directory.path} has {len(known)} episodes, numbered {least} to "
                f"{most}{' with gaps' * (most - least >= len(known))}",
                remedy="list only episodes that the dataset has",
            )
        return directory.with_episodes(numbers)


def find_sources(spec: PipelineSpec, split: str) -> tuple[DatasetSource, ...]:
    """The datasets of a split, in the order of the spec; costs next to nothing.

    Raises:
        SourceError: a local dataset's directory is missing, or is no dataset.
        SpecError: a dataset does not say what it gives to the split, or none takes part; or there
            is no format of its kind.
    """
    found = []
    for declared in spec.datasets:
        if split not in declared.split:
            where, known = f"datasets[{declared.name}].split", ", ".join(sorted(declared.split))
            example = f"part: '{split}' to {where}, and ask for the split part"
            if "[" not in split:
                example = f"{split}: 'train[90%:]' to {where}, or {split}: null to leave it out"
            raise SpecError(
                f"{where}: it declares no split {split!r}",
                remedy=f"choose one of: {known}; or add {example}",
            )
        expression = declared.split[split]
        if expression is not None:
            found.append(DatasetSource(spec, declared, split, expression))
    if not found:
        raise SpecError(
            f"no dataset takes part in split {split!r}",
            remedy=f"add it to the split of at least one dataset, such as {split}: 'train[90%:]'",
            path="datasets",
        )
    for source in found:
        if not source.remote:
            path = source.path()
            source.format(path).check(path, dataset=source.declared.name)
    return tuple(found)


def bind_dataset(source: DatasetSource, index: int) -> ResolvedDataset:
    """A dataset of a split, bound.

    Reads no data, but one episode of a dataset that has a transform, to try it.

    Args:
        source: dataset that takes part in a split.
        index: number of the dataset in ``dataset_names``.

    Raises:
        SourceError: its directory is missing or broken.
        SpecError: a split, feature or rule that cannot be.
    """
    declared = source.declared
    where = source.where
    name = declared.name
    directory, slices = source.open()
    shown = declared.images or declared.action or declared.state
    if not shown and not directory.still:
        raise SpecError(
            f"{where}: the dataset has no images, no action and no state in the spec",
            remedy="add at least one of them, such as action: action",
        )
    timed = declared.timestamps
    if timed != "check" and not directory.numbered:
        raise SpecError(
            f"{where}.timestamps: {timed}, but {directory.path} holds {directory.title} data, "
            "whose rows have no times",
            remedy="leave timestamps out",
        )
    sample = sample_in_frames(source.spec.sample_of(name), declared, directory)
    episodes = bind_episodes(declared, directory, slices, where=where)
    features = episodes.features
    cameras = bind_cameras(declared, source.spec.cameras, features, directory.features, where=where)
    numbers = bind_numbers(episodes.fields, sample, features, where=where)
    scaled = source.spec.normalize.action if source.spec.normalize else None
    if scaled and scaled.arithmetic.startswith("gr00t") and declared.action is not None:
        parts = zip(declared.action.terms, numbers["action"].widths, strict=True)
        _refuse_relative_poses(parts, sample, directory, where=where)
    language = bind_language(declared, features, directory, where=where)
    held = {
        own: find_feature(features, path, field=f"{where}.features.{own}")
        for own, path in declared.features.items()
    }
    named = (*language.language, *held.values(), *(language.keep.features if language.keep else ()))
    pictures = [one.key for choices in cameras.cameras.values() for one in choices]
    if declared.transform is not None:  # it names them anew
        pictures = []
    directory.check_first(slices, pictures, named)
    weights = None
    if (how := declared.sample_weight) is not None:
        reach = sample.action_horizon * declared.stride
        weights = read_weights(how, directory, slices, reach, where=where)
    return ResolvedDataset(
        name=name,
        index=index,
        weight=declared.weight,
        directory=directory,
        slices=slices,
        key=dataset_key(source.spec.seed, name),
        sample=sample,
        stride=declared.stride,
        action=numbers.get("action"),
        state=numbers.get("state"),
        transform=episodes.transform,
        held=held,
        timestamps=timed,
        num_samples=declared.num_samples,
        weights=weights,
        **cameras._asdict(),
        **language._asdict(),
    )


def _refuse_relative_poses(
    action: Iterable[tuple[FieldTerm, int]],
    sample: SampleSpec,
    directory: DatasetFormat,
    *,
    where: str,
) -> None:
    """Refuse actions relative to the state that are poses: GR00T has no statistics of them.

    A pose is a term with a rotation among its ops, or columns of a pose in ``modality.json``.

    Args:
        action: terms of the action, as the spec has them, each with its number of columns.
        sample: the spec's description of a sample of the dataset.
        directory: the dataset on disk.
        where: path of the dataset in the spec.

    Raises:
        UnsupportedError: an action that is relative to the state is a pose.
    """
    from autoloader.formats.lerobot.modality import MODALITY_FILE, Modality  # others go without

    relative, first = set(sample.action_relative_to_state), 0
    local = relative and not files.is_remote(directory.path)
    named = local and os.path.isfile(f"{directory.path}/{MODALITY_FILE}")
    poses = Modality.read(directory.path, "n1.6", dataset=directory.dataset).poses if named else {}
    for term, width in action:
        own = relative & {*range(first, first := first + width)}
        start, stop, _ = term.columns or (0, None, None)
        names = [
            f"action.{key} of {MODALITY_FILE}"
            for key, one in poses.items()
            if one.original_key == term.path
            and (stop is None or stop < 0 or one.start < stop)
            and (start or 0) < one.end
        ]
        names += [f"it has {op.name}" for op in term.ops if op.name in WIDTHS]
        if own and names:
            raise UnsupportedError(
                f"{where}.sample.action_relative_to_state: column {min(own)} of the whole action, "
                f"from {term.text()!r}, is part of a pose ({names[0]}), which cannot be relative",
                remedy="leave the columns of that pose out of action_relative_to_state",
            )


def resolve(
    spec: PipelineSpec, split: str = "train", *, once_found: Callable[[], object] | None = None
) -> ResolvedMixture:
    """Open every dataset's metadata and bind the spec's fields to it.

    Reads no data, but one episode of a dataset that has a transform, to try it.

    Nothing is normalised yet: see ``normalised``.

    Args:
        spec: spec of the mixture.
        split: name of the split that is read.
        once_found: called when the local datasets are known to be there, before any is opened:
            what takes long can begin meanwhile.

    Raises:
        SourceError: a dataset's directory is missing or broken.
        SpecError: a split, feature or width that cannot be.
    """
    bound = []
    with told("reading metadata"):
        sources = find_sources(spec, split)
        if once_found is not None:
            once_found()
        files.ask_ahead([path for source in sources for path in source.metadata_files()])
        for index, source in enumerate(sources):
            doing(f"dataset {source.declared.name} ({index + 1} of {len(sources)})")
            bound.append(bind_dataset(source, index))
    datasets = tuple(bound)
    first = datasets[0].sample
    layout = BatchLayout(
        batch_size=spec.batch.size,
        cameras={name: camera.shape[:2] for name, camera in spec.cameras.items()},
        frames=first.frames,
        action_rows=first.action_rows,
        action_width=_width_of(spec, datasets, "action"),
        state_rows=len(first.state_offsets),
        state_width=_width_of(spec, datasets, "state"),
        action_steps=first.action_steps,
        called={k: (g.dtype, g.shape) for k, g in spec.batch.gives.items() if g.dtype != "text"},
        depth={name: camera.depth for name, camera in spec.cameras.items() if camera.depth},
        features=forms_of([(dataset.name, dataset.held) for dataset in datasets]),
        weighted=any(one.weights and not one.drawn_by_weight for one in datasets),
        flagged=any(one.directory.still for one in datasets),
    )
    return ResolvedMixture(spec, split, datasets, layout)


REMEDY_OF_CHANGES = (
    "start the program again, with or without the change; to continue this run, load a "
    "state_dict() that was saved before, or that this loader still gives"
)


def check_content(mixture: ResolvedMixture, name: str, found: str) -> None:
    """Refuse files that hold other data than those that the loader counted when it began.

    Args:
        mixture: the mixture, with what is known of them.
        name: name of the dataset.
        found: as ``content`` of the mixture, of the dataset's files now.

    Raises:
        SourceError: they do.
    """
    if mixture.content.get(name) not in (None, "", found):
        raise SourceError(
            f"dataset {name!r}: its files were changed after the loader began: samples of old and "
            "new data would mix",
            remedy=REMEDY_OF_CHANGES,
        )


_BESIDE = ("the module of its transform", "keep.ranges.file", "sample_weight.file")
"""Entries of ``ResolvedMixture.beside``, for people."""


def resolve_plain(plain: Mapping[str, Any]) -> ResolvedMixture:
    """The mixture that another process resolved, from ``ResolvedMixture.plain``.

    Raises:
        SourceError, SpecError: the files are no longer as they were there.
    """
    mixture = resolve(PipelineSpec(**plain["spec"]), plain["split"])
    mixture = replace(mixture, call=plain["call"], content=plain["content"])
    for name, own in mixture.beside.items():
        for now, before, what in zip(own, plain["beside"][name], _BESIDE, strict=True):
            if now != before:
                raise SpecError(
                    f"datasets[{name}]: {what} was changed after the loader began: samples of old "
                    "and new would mix",
                    remedy=REMEDY_OF_CHANGES,
                )
    if (known := plain["statistics"]) is None:
        return mixture
    found = {name: NormalizationStatistics.from_plain(one) for name, one in known.items()}
    return normalised(mixture, found)


def _width_of(spec: PipelineSpec, datasets: Sequence[ResolvedDataset], name: FieldName) -> int:
    """Columns of ``action`` or ``state`` in a batch: the widest dataset's, or ``pad_to``.

    Raises:
        SpecError: a dataset has more columns than ``pad_to`` says.
    """
    widths = {dataset.name: bound.width for dataset in datasets if (bound := dataset.bound(name))}
    widest = max(widths.values(), default=0)
    fixed = spec.pad_to.get(name)
    if fixed is None:
        return widest
    if widest > fixed:
        dataset = next(one for one, width in widths.items() if width == widest)
        raise SpecError(
            f"pad_to.{name}: {fixed} is too small: the {name} of dataset {dataset!r} has {widest} "
            "columns",
            remedy=f"set pad_to.{name} to {widest} or more",
        )
    return fixed


_LARGEST_DIFFERENCE = 1e-6
STILL_FPS = 1e6
"""Of records without a second step: any offset in seconds lies outside."""


def sample_in_frames(
    sample: SampleSpec, declared: DatasetSpec, directory: DatasetFormat
) -> SampleSpec:
    """``sample`` with all offsets in (strided) frames.

    Args:
        sample: sample that the spec asks of the dataset.
        declared: the dataset as the spec declares it.
        directory: the dataset on disk.

    Raises:
        SpecError: its frame rate is not known, or not what the spec says; or a time lies beside
            its frames.
    """
    fps, where = _fps(declared, directory), f"datasets[{declared.name}]"
    if directory.still:
        sample = sample.model_copy(update={"edges": EdgesSpec(), "per_episode": "all"})
        fps = STILL_FPS
    if not sample.delta_timestamps:
        return sample
    if fps is None:
        raise SpecError(
            f"{where}.sample.delta_timestamps: {directory.title} datasets do not say how many "
            "frames a second they have",
            remedy="set fps for this dataset, or write offsets in frames: frame_offsets, "
            "state_offsets, action_start and action_horizon",
            path=f"{where}.fps",
        )
    found = sample.delta_timestamps.in_frames(fps / (declared.stride * declared.steps.every), where)
    return sample.model_copy(update={**found, "delta_timestamps": DeltaTimestamps()})


def _fps(declared: DatasetSpec, directory: DatasetFormat) -> float | None:
    """Frames a second of a dataset; ``None``: unknown. ``SpecError``: spec and files differ."""
    told = directory.fps
    if told is None:
        return declared.fps
    if declared.fps is not None and abs(declared.fps - told) > _LARGEST_DIFFERENCE * told:
        field = f"datasets[{declared.name}].fps"
        raise SpecError(
            f"{field}: {declared.fps:g} in the spec, and {told:g} in the {directory.title} dataset",
            remedy="leave fps out of the spec, or correct the one that is wrong",
        )
    return told


@frozen
class SampleLocation:
    """Where a sample lies on disk.

    Attributes:
        dataset: name of the dataset it is of.
        path: path of the TFRecord file.
        record: the episode's number in that file.
        t: number of the (strided) frame in the episode.
        step: the episode's step that t is, before the stride.
        pass_: number of the dataset's pass in which the sample came.
    """

    dataset: str
    path: str
    record: int
    t: int
    step: int
    pass_: int


def locate(mixture: ResolvedMixture, provenance: Any) -> SampleLocation:
    """The place of one row of ``batch["provenance"]``.

    Raises:
        UsageError: ``provenance`` is no such row, or of another mixture.
    """
    try:
        index, pass_, shard, record, t = (int(number) for number in provenance)
        dataset = dict(enumerate(mixture.datasets))[index]
        path = dict(enumerate(dataset.slices))[shard].path
    except (TypeError, ValueError, KeyError):
        told, shape = f"provenance {provenance!r:.80}", tuple(getattr(provenance, "shape", ()))
        if isinstance(provenance, Mapping) or len(shape) > 1:
            told = f"an array of shape {list(shape)}" if shape else "a whole batch"
        raise UsageError(
            f"{told} does not name a sample of this loader",
            remedy='give one row of its batch["provenance"]: dataset, pass, shard, episode, t',
        ) from None
    return SampleLocation(dataset.name, path, record, t, t * dataset.stride, pass_)
