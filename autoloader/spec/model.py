"""The spec's models: one class for each block of the file.

Not here: field expressions (``fields``), files and their errors (``reading``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from autoloader.errors import SpecError, UsageError, nearest, shown
from autoloader.spec.block import Block, wrong
from autoloader.spec.fields import Camera, Expression, Language
from autoloader.spec.mixture import (
    Augmentations,
    BatchSpec,
    CurriculumSpec,
    FieldNormalizeSpec,
    MixingSpec,
    NormalizeOverride,
    NormalizeSpec,
    TransformSpec,
    Weight,
    Weights,
)
from autoloader.spec.reading import NAME_PATTERN, complaint, completed, in_file, read_document
from autoloader.spec.sample import (
    KeepSpec,
    OwnSample,
    Samples,
    SampleSpec,
    SampleWeightSpec,
    StepsSpec,
    merged,
)

Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=100)]
Width = Annotated[int, Field(ge=1, le=10_000)]
FeaturePath = Annotated[str, Field(min_length=1, max_length=1000)]
Location = Annotated[str, Field(min_length=1, max_length=4096)]


Size = tuple[Annotated[int, Field(ge=1, le=4096)], Annotated[int, Field(ge=1, le=4096)]]

IMAGE_TEXT = "image_text"
MOST_PICTURES = 32
TEXTS = ("prompt", "answer", "conversation")

Resize = Literal[
    "bilinear", "area", "lanczos3", "tf_bilinear", "tf_lanczos3", "pillow_bilinear", "nearest"
]


Timestamps = Literal["check", "ignore", "nearest"]


class CameraSpec(Block):
    """Form in which a canonical camera's frames reach the batch.

    Attributes:
        size: height and width in pixels
        resize: bilinear (half-pixel centres), area, antialiased lanczos3; TensorFlow's or Pillow's
            antialiased method; or nearest, which is a depth camera's
        fit: stretch; pad keeps the aspect with black; crop cuts the centre
        depth: a depth camera: frames [B, F, H, W, 1] of this type, values as stored
        placeholder: may be without a dataset that fills it: black, and frame_mask false
    """

    size: Size
    resize: Resize = "bilinear"
    fit: Literal["stretch", "pad", "crop"] = "stretch"
    depth: Literal["uint16", "float32"] | None = None
    placeholder: bool = False

    @property
    def dtype(self) -> str:
        """NumPy's name of the type of a frame's values."""
        return self.depth or "uint8"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of a frame."""
        return (*self.size, 1 if self.depth else 3)

    @property
    def upstream(self) -> bool:
        """True if frames are resized and padded as another project does, to one grey level."""
        return self.resize.startswith(("tf_", "pillow_"))

    @field_validator("size", mode="before")
    @classmethod
    def _two_numbers(cls, raw: Any) -> Any:
        if isinstance(raw, (list, tuple)) and len(raw) == 2:
            return raw
        raise wrong(f"{shown(raw)} is not allowed", "it should be a list [height, width]")

    @model_validator(mode="before")
    @classmethod
    def _depth_is_nearest(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping) and raw.get("depth") and "resize" not in raw:
            return {**raw, "resize": "nearest"}
        return raw

    @model_validator(mode="after")
    def _depth_is_exact(self) -> CameraSpec:
        if self.depth and self.resize != "nearest":
            raise wrong(
                f"depth: {self.depth} does not go with resize: {self.resize}, which invents depths",
                "write resize: nearest, or leave resize out",
            )
        return self


class VisionSpec(Block):
    """Cameras of image–text data, ``vision_0`` and so on.

    Attributes:
        slots: pictures of a record
        size: height and width in pixels
        fit: as of a camera
    """

    slots: int = Field(default=1, ge=1, le=MOST_PICTURES)
    size: Size
    fit: Literal["stretch", "pad", "crop"] = "pad"

    def cameras(self) -> dict[str, dict[str, Any]]:
        """The cameras by name, as a spec writes them."""
        own = {"size": list(self.size), "fit": self.fit, "placeholder": True}
        return {f"vision_{slot}": dict(own) for slot in range(self.slots)}


class DatasetSpec(Block):
    """One dataset of the mixture.

    Attributes:
        name: unique; seeds derive from it
        path: folder or file of the dataset
        kind: format at path, such as hdf5, or one that an installed package brings; image_text has
            to be said; null: the one whose files lie there
        media: of image_text: folder that paths of pictures start at
        vision: of image_text: cameras of its own for its pictures
        tfds: name:version below data_dir
        data_dir: where tfds names are looked up
        split: loader split → TFDS split expression; null leaves the dataset out
        episodes: of LeRobot data: numbers of the episodes that splits are cut from
        weight: relative share; 0: no samples for now
        images: camera → feature
        files: as published, or rewritten to 256×256 JPEG as Octo and OpenVLA did; auto: by
            features.json
        action: numeric field; absent is masked
        state: numeric field; absent is masked
        language: text, code points, or integers with names; absent is ''
        features: name in the batch → feature: whatever else samples hold, numbers or text
        stride: 5 takes every fifth frame
        fps: frames a second, for delta_timestamps; LeRobot datasets say it themselves
        sample: fields over the mixture's `sample`
        keep: which episodes and steps give samples
        transform: a function that rewrites each episode first
        steps: which steps of an episode there are, then
        timestamps: of LeRobot data: times must agree with fps, or frames are taken by the numbers
            of rows, or each row has the frame nearest to its time, as in GR00T N1
        sample_weight: weight of each sample, given with the batch or drawn by
        num_samples: samples of a pass, where you know them: a stream is not counted
    """

    name: Name
    path: Location | None = None
    kind: Name | None = None
    media: Location | None = None
    vision: VisionSpec | None = None
    tfds: Location | None = None
    data_dir: Location | None = None
    split: Mapping[str, str | None] = Field(default_factory=lambda: {"train": "train"})
    episodes: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    weight: Weight = 1.0
    images: Mapping[Name, Camera] = Field(default_factory=dict)
    files: Literal["auto", "public", "rewritten"] = "auto"
    action: Expression | None = None
    state: Expression | None = None
    language: Language | None = None
    features: Mapping[Name, FeaturePath] = Field(default_factory=dict)
    stride: int = Field(default=1, ge=1, le=1_000_000)
    fps: float | None = Field(default=None, gt=0, le=1e6)
    sample: OwnSample = Field(default_factory=SampleSpec)
    normalize: NormalizeOverride = Field(default_factory=NormalizeOverride)
    keep: KeepSpec | None = None
    transform: TransformSpec | None = None
    steps: StepsSpec = Field(default_factory=StepsSpec)
    timestamps: Timestamps = "check"
    sample_weight: SampleWeightSpec | None = None
    num_samples: Samples | None = None

    @field_validator("split", mode="before")
    @classmethod
    def _plain_split_is_train(cls, raw: Any) -> Any:
        return {"train": raw} if isinstance(raw, str) else raw

    @field_validator("images")
    @classmethod
    def _may_lack_pictures(cls, images: Any, info: ValidationInfo) -> Any:
        if info.data.get("kind") != IMAGE_TEXT:
            return images
        for choice in images.values():
            if len(choice.paths) > 1 or choice.present not in ("", f"has_{choice.paths[0]}"):
                raise wrong(
                    f"{'any_of' if choice.paths[1:] else 'present'} is not allowed with kind: "
                    f"{IMAGE_TEXT}, whose records may lack a picture",
                    "name one picture for each camera, such as primary: image_0; it is absent "
                    "where a record lacks it",
                )
        return {
            name: replace(choice, present=f"has_{choice.paths[0]}")
            for name, choice in images.items()
        }

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> DatasetSpec:
        own: dict[str, Any] = {"vision": self.vision, "media": self.media}
        why, else_ = f"is for kind: {IMAGE_TEXT} alone", f"write kind: {IMAGE_TEXT}"
        if self.kind == IMAGE_TEXT:
            own = {"action": self.action, "state": self.state, "keep": self.keep,
                   "transform": self.transform, "episodes": self.episodes}  # fmt: skip
            own["steps"] = None if self.steps.takes_all else self.steps
            why = f"is not allowed with kind: {IMAGE_TEXT}, whose records are no episodes"
            else_ = f"kind, if dataset {self.name!r} holds episodes"
        if given := [name for name, value in own.items() if value is not None]:
            raise wrong(f"the field {given[0]!r} {why}", f"leave {given[0]} out, or {else_}")
        return self

    @model_validator(mode="after")
    def _has_one_place(self) -> DatasetSpec:
        if (self.path is None) == (self.tfds is None):
            raise wrong(
                "path and tfds are both given" if self.path else "neither path nor tfds is given",
                "give either path (the dataset's folder), or tfds (name:version) with data_dir",
            )
        if self.tfds is not None and self.data_dir is None:
            raise wrong(f"tfds {self.tfds!r} needs data_dir", "set data_dir here or in defaults")
        if self.keep is not None and self.keep.language and self.language is None:
            raise wrong(
                f"dataset {self.name!r} has keep.language, but no field language",
                f"add language: FEATURE to datasets[{self.name}], or leave keep.language out",
            )
        if self.sample_weight is not None and not (self.transform is None and self.steps.takes_all):
            raise wrong(
                f"dataset {self.name!r} has sample_weight, and transform or steps, which number "
                "the steps anew",
                "leave out sample_weight, or transform and steps (stride is allowed)",
            )
        for field in ("action", "state"):
            terms = getattr(self, field).terms if getattr(self, field) is not None else ()
            for op in (op for term in terms for op in term.ops):
                if op.name == "relabel" and not self.steps.drop_last:
                    raise wrong(
                        f"{field} of dataset {self.name!r} has relabel, which needs a next step, "
                        "and the last step has none",
                        "add steps: {drop_last: 1}",
                    )
        return self


def _check_known(kind: str, name: str, known: Collection[str], field: str) -> None:
    if name not in known:
        raise wrong(f"{field}: there is no {kind} {name!r}", nearest(name, known))


class ErrorsSpec(Block):
    """Faults that a run tolerates before it stops.

    Attributes:
        max_corrupt_ratio: records of a dataset that may be bad (one always may)
        dead_dataset: a dataset that can give nothing more: stop, or go on without it
        non_finite: a sample whose action or state holds NaN or an infinite value: hand it out and
            count it, repeat another one in its place, or stop
    """

    max_corrupt_ratio: float = Field(default=0.01, ge=0, le=1)
    dead_dataset: Literal["error", "drop"] = "error"
    non_finite: Literal["keep", "drop", "error"] = "keep"


class ValidationSpec(Block):
    """Samples that validation sees.

    Attributes:
        samples: samples of a call; the same ones each time
        per_dataset: one loader of so many samples for each dataset
    """

    samples: Samples = 960
    per_dataset: bool = False


class PipelineSpec(Block):
    """A mixture of datasets and what a batch of it holds. Immutable.

    Read one with ``from_yaml`` or ``from_mapping``; both raise ``SpecError`` with the field's
    path, the value found, what is allowed and what to do.

    Attributes:
        schema_version: version of this file's language
        seed: of every draw and order
        reader: stream: whole files through tf.data; indexed: single frames by an index; auto: what
            suits the data. Pinned here when order must agree over hosts
        weights: shares from weight, from sample counts, or from both; or a schedule
        normalize: numbers to a common scale, by each dataset's own statistics
        augment: camera → operations on the device, in this order
        pad_to: fixed widths; default the widest dataset
        metadata: none; dataset_only: each sample's dataset_index; full: its provenance, too
    """

    schema_version: Literal[1] = 1
    seed: int = Field(default=0, ge=0, lt=2**63)
    reader: Literal["auto", "stream", "indexed"] = "auto"
    datasets: tuple[DatasetSpec, ...] = Field(min_length=1)
    weights: Weights = "explicit"
    sample: SampleSpec = Field(default_factory=SampleSpec)
    cameras: Mapping[Name, CameraSpec] = Field(min_length=1)
    normalize: NormalizeSpec | None = None
    augment: Mapping[Name, Augmentations] = Field(default_factory=dict)
    pad_to: Mapping[Literal["action", "state"], Width] = Field(default_factory=dict)
    batch: BatchSpec = Field(default_factory=BatchSpec)
    metadata: Literal["none", "dataset_only", "full"] = "full"
    mixing: MixingSpec = Field(default_factory=MixingSpec)
    errors: ErrorsSpec = Field(default_factory=ErrorsSpec)
    validation: ValidationSpec = Field(default_factory=ValidationSpec)

    @field_validator("weights", mode="before")
    @classmethod
    def _numbers_stand_in_entries(cls, raw: Any) -> Any:
        of_names = isinstance(raw, Mapping) and not {"from", "to", "over", "kind"} & {*raw}
        if of_names or isinstance(raw, (list, tuple)):
            remedy = "write weight: N in the entry of each dataset; weights: is explicit or natural"
            raise wrong(f"{shown(raw)} is not allowed", remedy)
        return raw

    @model_validator(mode="before")
    @classmethod
    def _image_text_is_shown(cls, raw: Any) -> Any:
        """Give image–text data its texts, and the cameras of ``vision``."""
        listed = raw.get("datasets") if isinstance(raw, Mapping) else None
        datasets: list[Any] = []
        cameras: dict[str, Any] = {}
        for one in listed if isinstance(listed, (list, tuple)) else ():
            if isinstance(one, Mapping) and one.get("kind") == IMAGE_TEXT:
                one = {"features": {name: name for name in TEXTS}, **one}
                if one.get("vision"):
                    own = VisionSpec.model_validate(one["vision"]).cameras()
                    shown = {name: f"image_{k}" for k, name in enumerate(own)}
                    one["images"] = {**shown, **(one.get("images") or {})}
                    for name, camera in own.items():
                        if cameras.setdefault(name, camera) != camera:
                            raise wrong(
                                f"vision of dataset {one.get('name')!r} is not that of the others",
                                "give the same size and fit in vision of every dataset",
                            )
            datasets.append(one)
        if not cameras:
            return {**raw, "datasets": datasets} if datasets else raw
        return {**raw, "datasets": datasets, "cameras": {**cameras, **(raw.get("cameras") or {})}}

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> PipelineSpec:
        names = [dataset.name for dataset in self.datasets]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise wrong(
                    f"datasets[{place}].name: another dataset is named {name!r}",
                    "give each dataset its own name",
                )
        for dataset in self.datasets:
            for camera in dataset.images:
                if camera not in self.cameras:
                    close = nearest(camera, self.cameras)
                    raise wrong(
                        f"datasets[{dataset.name}].images: there is no camera {camera!r}",
                        f"{close}{'' if close.endswith('?') else ';'} or add {camera} to cameras, "
                        "with its size",
                    )
                if self.cameras[camera].depth and dataset.images[camera].flip:
                    raise wrong(
                        f"datasets[{dataset.name}].images.{camera}: flip_channels swaps colours, "
                        f"and the camera {camera!r} has depth: true",
                        "leave flip_channels out",
                    )
        for name, how in self.cameras.items():
            if not how.placeholder and not any(name in one.images for one in self.datasets):
                raise wrong(
                    f"cameras.{name}: no dataset has images for this camera",
                    f"add {name}: FEATURE to a dataset's images, remove {name} from cameras, or "
                    f"write placeholder: true in cameras.{name} for black frames",
                )
        if self.mixing.unit == "batch":
            moves = isinstance(self.weights, CurriculumSpec)
            passes = self.weights == "natural" and self.mixing.epoch == "auto"
            if moves or passes or self.reader == "stream":
                other = "weights: natural, whose epoch is one pass over all samples"
                other = "a schedule of weights" if moves else other
                raise wrong(
                    "mixing.unit: batch does not go with "
                    + (other if moves or passes else "reader: stream"),
                    "set mixing.epoch to a number of samples"
                    if passes and not moves
                    else "leave out one of the two",
                )
        if self.reader == "stream" and (self.mixing.chain or self.mixing.locality):
            raise wrong(
                "mixing.chain and mixing.locality do not go with reader: stream, which reads whole "
                "files",
                "set reader: auto or indexed, or leave mixing.chain and mixing.locality out",
            )
        self._check_shapes_agree()
        self._check_augment()
        self._check_groups(names)
        self._check_weights(names)
        self._check_draws()
        return self

    def _check_weights(self, names: list[str]) -> None:
        moves = self.weights
        for one in self.datasets if moves == "natural" else ():
            if one.weight not in (0, 1):
                raise wrong(
                    f"datasets[{one.name}].weight: {one.weight:g} changes nothing while the spec "
                    "has weights: natural, where shares follow the numbers of samples",
                    "set the spec's weights to natural_scaled (weight × samples) or explicit "
                    "(weight alone), or leave weight out",
                )
        if isinstance(moves, CurriculumSpec):
            for name in (*moves.from_, *moves.to):
                _check_known("dataset", name, names, "weights")
            if self.mixing.epoch == "pass":
                raise wrong(
                    "a schedule of weights does not go with mixing.epoch: pass, where every "
                    "dataset gives one pass whatever its weight",
                    "leave mixing.epoch out, or set a number of samples",
                )

    def _check_draws(self) -> None:
        for one in self.datasets:
            if one.sample_weight is None or one.sample_weight.use != "draw":
                continue
            other = "mixing.chain" if self.mixing.chain else ""
            if self.reader == "stream":
                other = "reader: stream"
            if self.sample_of(one.name).per_episode != "all":
                other = "sample.per_episode"
            if other or one.num_samples:
                raise wrong(
                    f"datasets[{one.name}].sample_weight.use: draw does not go with "
                    f"{other or 'num_samples'}",
                    f"leave out {other or 'num_samples'}, or set use: batch",
                )

    def _check_groups(self, names: list[str]) -> None:
        for group, members in self.normalize.group.items() if self.normalize else ():
            for member in members:
                _check_known("dataset", member, names, f"normalize.group.{group}")

    def _check_augment(self) -> None:
        for camera in self.augment:
            _check_known("camera", camera, self.cameras, "augment")
            if self.cameras[camera].depth:
                raise wrong(
                    f"augment names depth camera {camera!r}, whose values stay as they are stored",
                    "augment colour cameras alone",
                )
        if self.augment and self.metadata != "full":
            raise wrong(
                "augment needs metadata: full, which seeds it, and the spec has metadata: "
                f"{self.metadata}",
                "write metadata: full at the top level of the spec",
            )

    def _check_shapes_agree(self) -> None:
        def shape(dataset: DatasetSpec) -> dict[str, int]:
            sample = self.sample_of(dataset.name)
            return {
                "frames by frame_offsets": sample.window,
                "frames by goal": sample.frames - sample.window,
                "states by state_offsets": sample.state_rows,
                "actions by action_horizon": sample.action_rows,
                "steps with their own actions by action_per": sample.action_steps,
            }

        first = shape(self.datasets[0])
        for dataset in self.datasets[1:]:
            for key, count in shape(dataset).items():
                if count != first[key]:
                    told = f"{count or 'no'} {key if count != 1 else key.replace('s ', ' ', 1)}"
                    raise wrong(
                        f"datasets: a sample of {dataset.name!r} has {told}, and one of "
                        f"{self.datasets[0].name!r} has {first[key] or 'none'}; all need the same",
                        f"set {key.partition(' by ')[2]} alike for every dataset: in sample, or in "
                        "the sample of each",
                    )

    def dataset(self, name: str) -> DatasetSpec:
        """The dataset called ``name``.

        Raises:
            UsageError: there is no such name.
        """
        known = {dataset.name: dataset for dataset in self.datasets}
        if name not in known:
            raise UsageError(f"there is no dataset {name!r}", remedy=nearest(name, known))
        return known[name]

    def sample_of(self, name: str) -> SampleSpec:
        """Sample of this dataset: its own ``sample`` over the mixture's."""
        return merged(self.sample, self.dataset(name).sample)

    def normalize_of(self, name: str, field: str) -> FieldNormalizeSpec | None:
        """Normalisation of a dataset's "action" or "state", by its own columns, if it has any."""
        how: FieldNormalizeSpec | None = getattr(self.normalize, field, None)
        own = getattr(self.dataset(name).normalize, field)
        if how is None or own is None:
            return how
        return how.model_copy(update={"dims": own.dims, "columns": own.columns or how.columns})

    def __repr__(self) -> str:
        names = [dataset.name for dataset in self.datasets]
        more = ", …" if len(names) > 6 else ""
        cameras = [f"{name} {'×'.join(map(str, one.size))}" for name, one in self.cameras.items()]
        return (
            f"PipelineSpec: {len(names)} datasets ({', '.join(names[:6])}{more}), "
            f"cameras {', '.join(cameras)}, batches of {self.batch.size}"
        )

    def to_yaml(self) -> str:
        """The spec as text of a spec file, without what is a default; paths are absolute."""
        from autoloader.spec.reading import written_yaml

        return written_yaml(self.model_dump(mode="json", by_alias=True, exclude_defaults=True))

    def with_batch_size(self, size: int) -> PipelineSpec:
        """This spec with another ``batch.size``.

        Raises:
            SpecError: the size is no positive number.
        """
        plain = self.model_dump(mode="json", by_alias=True)
        plain["batch"]["size"] = size
        return PipelineSpec.from_mapping(plain)

    @classmethod
    def of(cls, source: SpecSource) -> PipelineSpec:
        """A spec, however it is given: as one, as the path of a file, or as plain values.

        Raises:
            SpecError: as ``from_yaml`` and ``from_mapping``.
        """
        if isinstance(source, PipelineSpec):
            return source
        if isinstance(source, Mapping):
            return cls.from_mapping(source)
        if not isinstance(source, (str, PathLike)):
            raise SpecError(
                f"{shown(source)} is not a spec",
                remedy="pass the path of a spec file, a PipelineSpec, or a dict with the same keys",
            )
        return cls.from_yaml(source)

    @classmethod
    def from_yaml(cls, path: str | Path) -> PipelineSpec:
        """Read a spec file; relative paths in it start at its folder.

        Raises:
            SpecError: the file is missing, no YAML, or says what cannot be.
        """
        document = read_document(Path(path))
        try:
            return cls.from_mapping(document, folder=Path(path).parent)
        except SpecError as error:
            raise in_file(error, Path(path)) from None

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any], *, folder: str | Path = ".") -> PipelineSpec:
        """A spec from plain values; relative paths start at ``folder``.

        Raises:
            SpecError: it says what cannot be.
        """
        return cls(**completed(raw, set(DatasetSpec.model_fields) - {"name"}, Path(folder)))

    if not TYPE_CHECKING:  # there the fields are the arguments

        def __init__(self, /, **fields: Any) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:
                what, remedy, path = complaint(error, fields)
                raise SpecError(what, remedy=remedy, path=path or None) from None


SpecSource = PipelineSpec | str | Path | Mapping[str, Any]
"""What gives a spec wherever one is asked for; see ``PipelineSpec.of``."""
