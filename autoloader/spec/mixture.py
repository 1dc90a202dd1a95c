"""Blocks of the spec for the mixture as a whole: batches, weights, order, normalisation, augment.

    batch:
      size: 48
      call: my_lab.text:tokens          # fn(batch, **kwargs) -> {name: values}, NumPy in and out
      kwargs: {length: 32}
      gives: {input_ids: {dtype: int32, shape: [32]}, prompt: {dtype: text}}
    normalize:
      action: {method: q01_q99, dims: "[:-1]", clip: true}
      statistics_of: steps                 # every step once; samples: as often as windows show it
      group: {franka: [droid, taco_play]}  # these share one set of statistics
    augment:                               # on the device, in the order listed
      primary:
        random_resized_crop: {scale: [0.8, 1.0], ratio: [0.9, 1.1]}
        brightness: 0.1            # a shift in [-0.1, 0.1] of the full range
        contrast: [0.9, 1.1]       # a factor; 0.1 means the same
        saturation: 0.1
        hue: 0.05                  # a turn of the colour circle in [-0.05, 0.05]

Not here: calling functions (``pipeline.batch_call``), computing statistics
(``autoloader.index.statistics``), applying them (``samples.statistics``), augmenting
(``process.augmentation``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import (
    BeforeValidator,
    ByteSize,
    Discriminator,
    Field,
    JsonValue,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    Tag,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from autoloader.errors import nearest, shown
from autoloader.host.frozen import frozen
from autoloader.spec.block import Block, is_number, wrong
from autoloader.spec.fields import parse_columns
from autoloader.spec.sample import Samples

_Rows = Annotated[int, Field(ge=1, le=1_000_000)]
OWN_KEYS = frozenset(
    ("images", "frame_mask", "frame_offset", "action", "action_mask", "state", "state_mask",
     "language", "features", "feature_mask", "has_action", "sample_weight",
     "dataset_index", "provenance")
)  # fmt: skip
"""What a batch holds by itself; a function adds to it."""


_CALL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def _importable(call: Any) -> Any:
    """The name of a function as it is; refuses what another process could not import."""
    named = isinstance(call, str) and not call.startswith("__main__:") and _CALL.fullmatch(call)
    if not named and (isinstance(call, str) or callable(call)):
        raise wrong(
            f"{shown(call)} is not a module:function that the loader's child process can import",
            "put the function in a module that can be imported, and write my_module:my_function",
        )
    return call


FunctionName = Annotated[str, BeforeValidator(_importable)]


class GivesSpec(Block):
    """Shape and type of one array that a function gives for each sample of a batch.

    Attributes:
        dtype: type of its numbers, or text: a list of B texts
        shape: of a sample: [B, *shape]
    """

    dtype: Literal["bool", "uint8", "int32", "int64", "float32", "text"]
    shape: tuple[_Rows, ...] = ()

    @model_validator(mode="after")
    def _text_has_no_shape(self) -> GivesSpec:
        if self.dtype == "text" and self.shape:
            raise wrong("dtype: text takes no shape", "leave shape out: a sample has one text")
        return self


class BatchSpec(Block):
    """Batches, per rank.

    Attributes:
        size: samples per batch and rank
        drop_last: carry an epoch's remainder into the next one
        call: module:function over each finished batch: fn(batch, **kwargs) -> dict
        kwargs: keyword arguments of the function
        gives: name in the batch → what the function gives
    """

    size: int = Field(default=48, ge=1, le=65_536)
    drop_last: bool = True
    call: FunctionName | None = None
    kwargs: Mapping[str, JsonValue] = Field(default_factory=dict)
    gives: Mapping[str, GivesSpec] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _call_and_gives_belong_together(self) -> BatchSpec:
        if (self.call is None) != (not self.gives):
            raise wrong(
                "call needs gives beside it" if self.call else "gives needs call beside it",
                "add batch.gives, what the function returns, such as gives: {input_ids: {dtype: "
                "int32, shape: [32]}}"
                if self.call
                else "add batch.call, the function, such as call: my_module:my_function",
            )
        for name in self.gives:
            why = "a key that batches have already" if name in OWN_KEYS else "which is no name"
            if name in OWN_KEYS or not name.isidentifier():
                what = f"gives names {name!r}, {why}"
                raise wrong(what, "choose another name in batch.gives, of letters, digits and _")
        return self


MOST_WEIGHT = 1e100
"""Sums of weights, and of weights times sample counts, stay finite."""
Weight = Annotated[float, Field(ge=0, le=MOST_WEIGHT, allow_inf_nan=False)]


class CurriculumSpec(Block):
    """Shares that move evenly from one mixture to another.

    Attributes:
        from_: dataset → weight at the first sample; one left out has its own `weight`
        to: dataset → weight at the end and ever after; one left out has its own `weight`
        over: samples, over all ranks, in which the shares move
        kind: shares from weight, or from weight × sample count
    """

    from_: Mapping[str, Weight] = Field(default_factory=dict, alias="from")
    to: Mapping[str, Weight] = Field(min_length=1)
    over: Samples
    kind: Literal["explicit", "natural_scaled"] = "explicit"

    @model_serializer(mode="wrap")
    def _by_its_word(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = handler(self)
        return {"from" if key == "from_" else key: value for key, value in plain.items()}


def _form(raw: Any) -> str:
    return "[schedule]" if isinstance(raw, (Mapping, CurriculumSpec)) else "[name]"


Weights = Annotated[
    Annotated[Literal["explicit", "natural", "natural_scaled"], Tag("[name]")]
    | Annotated[CurriculumSpec, Tag("[schedule]")],
    Discriminator(_form),
]


LEAST_BLOCK_BYTES = 2**16
MOST_BLOCK_BYTES = 2**30


class LocalitySpec(Block):
    """Blocks that are read as a whole, and how many of them samples are shuffled among.

    Attributes:
        block: bytes of a block of a dataset, which is read at once
        window: blocks of a dataset, over all lanes, among which samples are shuffled
        lanes: parts of every dataset that batches take turns in; a multiple of the ranks: no node
            reads another one's blocks
    """

    block: Annotated[ByteSize, Field(ge=LEAST_BLOCK_BYTES, le=MOST_BLOCK_BYTES)] = ByteSize(
        8 * 2**20
    )
    window: int = Field(default=64, ge=1, le=65_536)
    lanes: int = Field(default=1, ge=1, le=256)


class MixingSpec(Block):
    """Order of all datasets' samples in one sequence.

    Attributes:
        unit: sample: robots and image–text data mix in a batch; batch: each batch is of one kind,
            the same on all ranks (indexed reader)
        strategy: python: datasets take turns by weight; choose: the same, and waits for a dataset
            that is not ready; sample: each is drawn at random, by weight
        block_length: samples in a row from one dataset
        on_stall: a dataset that is not ready: wait for it, or owe it its share
        epoch: pass: until every dataset has done one pass; N samples; forever; auto: pass with
            natural weights, else all valid samples
        chain: samples of a block share frames, decoded once (indexed reader)
        locality: {block, window, lanes}: read blocks, not frames (indexed reader)
    """

    unit: Literal["sample", "batch"] = "sample"
    strategy: Literal["python", "sample", "choose"] = "python"
    block_length: int = Field(default=1, ge=1, le=4096)
    on_stall: Literal["auto", "wait", "owe"] = "auto"
    epoch: Literal["auto", "pass", "forever"] | Samples = "auto"
    chain: bool = False
    locality: LocalitySpec | None = None

    @property
    def waits(self) -> bool:
        """True if a dataset that is not ready is waited for, so that no order depends on timing."""
        return self.strategy == "choose" or self.on_stall == "wait"

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> MixingSpec:
        others = {
            "chain": self.chain, "locality": self.locality, "block_length": self.block_length > 1,
            "strategy: sample": self.strategy == "sample", "epoch: pass": self.epoch == "pass",
        }  # fmt: skip
        if self.unit == "batch" and (given := [name for name, on in others.items() if on]):
            raise wrong(
                f"unit: batch does not go with {given[0]}: both say which samples come together",
                f"leave out {given[0]}, or unit",
            )
        if self.strategy == "choose" and self.on_stall == "owe":
            raise wrong(
                "strategy: choose does not go with on_stall: owe: choose waits for a dataset that "
                "is not ready",
                "set mixing.strategy: python, or leave on_stall out",
            )
        if self.chain and self.block_length == 1:
            raise wrong(
                "chain: true does not go with block_length: 1: a block of one sample has no frames "
                "to share",
                "set mixing.block_length: 4 (or another above 1), or leave chain out",
            )
        if self.chain and self.locality is not None and self.locality.lanes > 1:
            raise wrong(
                "chain: true does not go with locality.lanes above 1, which would split each chain",
                "leave locality.lanes out, or chain",
            )
        return self


class TransformSpec(Block):
    """One episode in, one out, or ``None`` to drop it.

    Attributes:
        call: module:function; fn(episode, **kwargs) -> episode | None
        framework: what its arrays are: NumPy's, or TensorFlow's eager tensors
        kwargs: keyword arguments of the function
        version: raise it where the function changes and its module does not
    """

    call: FunctionName
    framework: Literal["numpy", "tensorflow"] = "numpy"
    kwargs: Mapping[str, JsonValue] = Field(default_factory=dict)
    version: int = Field(default=1, ge=0)


Dims = str | tuple[int, ...]
GroupName = Annotated[str, Field(min_length=1, max_length=100)]


def _dims(raw: Any) -> Dims | None:
    if raw is None:
        return None
    if isinstance(raw, str) and raw.strip().startswith("[") and raw.strip().endswith("]"):
        text = raw.strip()
        parse_columns(text[1:-1], text)
        return text
    listed = isinstance(raw, (list, tuple)) and len(raw) > 0
    if listed and all(isinstance(one, int) and not isinstance(one, bool) for one in raw):
        return tuple(raw)
    raise wrong(
        f"{shown(raw)} is not a choice of columns",
        'write "[:-1]", "[0:6]" or a list such as [0, 1, 2]',
    )


NormalizedDims = Annotated[
    Dims | None,
    BeforeValidator(_dims),
    PlainSerializer(lambda value: list(value) if isinstance(value, tuple) else value),
]


Method = Literal["q01_q99", "min_max", "mean_std"]


def _clip(raw: Any) -> Any:
    if isinstance(raw, bool) or (is_number(raw) and raw >= 0):
        return raw or False
    raise wrong(f"{shown(raw)} is not allowed", "it should be true or false, or a number above 0")


Clip = Annotated[bool | Annotated[float, Field(gt=0)], BeforeValidator(_clip)]
"""Whether values are bounded to [-1, 1], or the bound."""


class ColumnsNormalizeSpec(Block):
    """Columns of a field that are normalised in another way than the others.

    Attributes:
        dims: as in the field, of the columns that are meant
        method: as of the field; binary: 1 where x > 0.5, NaN where x is, else 0
        clip: bound to [-1, 1], or to [-number, number]
        by_row: of actions relative to the state: by statistics of each row of the horizon
    """

    dims: NormalizedDims
    method: Literal["q01_q99", "min_max", "mean_std", "binary"]
    clip: Clip = False
    by_row: bool = False

    def mask(self, width: int) -> tuple[bool, ...]:
        """Which of ``width`` columns are meant; raises IndexError as ``column_mask``."""
        return column_mask(self.dims, width)

    @property
    def bound(self) -> float:
        """Largest absolute value; infinity: none."""
        return _bound(self.clip)


class FieldNormalizeSpec(Block):
    """Normalisation of ``action`` or ``state``, each dataset by its own statistics.

    Attributes:
        method: q01_q99, min_max: that range to [-1, 1]; mean_std: (x − mean) / std
        dims: columns such as "[:-1]" or [0, 1]; the others pass through; default: all, or the mask
            of a given statistics file
        clip: bound to [-1, 1] (q01_q99, min_max), or to [-number, number]
        arithmetic: whose formula, where a column is constant or nearly so: autoloader gives 0
        columns: columns with a method of their own; the last that names one counts
    """

    method: Method
    dims: NormalizedDims = None
    clip: Clip = False
    arithmetic: Literal[
        "autoloader", "octo", "openvla", "openpi", "lerobot", "gr00t", "gr00t_n16"
    ] = "autoloader"
    columns: tuple[ColumnsNormalizeSpec, ...] = ()

    @model_validator(mode="after")
    def _has_bounds_to_clip_to(self) -> FieldNormalizeSpec:
        if self.clip is True and self.method == "mean_std":
            raise wrong("clip: true needs bounds, and method: mean_std has none", "leave clip out")
        return self

    @property
    def bound(self) -> float:
        """Largest absolute value; infinity: none."""
        return _bound(self.clip)

    @property
    def by_row(self) -> bool:
        """True if some columns have statistics for each row of the horizon."""
        return any(one.by_row for one in self.columns)

    def mask(self, width: int) -> tuple[bool, ...] | None:
        """Which of ``width`` columns are normalised; ``None`` where the spec does not say.

        Raises:
            IndexError: ``dims`` names a column that is not there, or takes none.
        """
        if self.dims is None:
            return None
        taken = [column_mask(self.dims, width), *(one.mask(width) for one in self.columns)]
        return tuple(any(column) for column in zip(*taken, strict=True))


def _bound(clip: Clip) -> float:
    return 1.0 if clip is True else float(clip) or math.inf


def column_mask(dims: Dims | None, width: int) -> tuple[bool, ...]:
    """Which of ``width`` columns ``dims`` names; all where it is ``None``.

    Raises:
        IndexError: a column is not there, or none is named.
    """
    if dims is None:
        return (True,) * width
    if isinstance(dims, str):
        taken = set(range(width)[slice(*parse_columns(dims[1:-1], dims))])
    else:
        taken = {range(width)[one] for one in dims}
    if not taken:
        raise IndexError(f"{dims} takes none of {width} columns")
    return tuple(column in taken for column in range(width))


class DimsSpec(Block):
    """A dataset's own columns of a field.

    Attributes:
        dims: as in the mixture's normalize, of this dataset
        columns: as there; none: the mixture's
    """

    dims: NormalizedDims
    columns: tuple[ColumnsNormalizeSpec, ...] = ()


class NormalizeOverride(Block):
    """A dataset's own ``normalize``: which columns of fields that are laid out in another way.

    Attributes:
        action: columns of action that are normalised
        state: columns of state that are normalised
    """

    action: DimsSpec | None = None
    state: DimsSpec | None = None


class NormalizeSpec(Block):
    """Normalisation of the batch's numbers, each dataset by its own statistics.

    Attributes:
        action: absent passes through
        state: absent passes through
        statistics: a statistics file (or a folder of them), used as it is; null computes exact ones
            and caches them
        statistics_of: steps: every step counts once; samples: a row counts as often as samples hold
            it; recorded: every step of all splits once, also those that keep.language, ranges and
            moving leave out
        group: group → datasets that share one set of statistics, of all their rows
    """

    action: FieldNormalizeSpec | None = None
    state: FieldNormalizeSpec | None = None
    statistics: str | None = None
    statistics_of: Literal["steps", "samples", "recorded"] = "steps"
    group: Mapping[GroupName, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(
        default_factory=dict
    )

    def members(self, dataset: str) -> tuple[str, ...]:
        """The datasets that this one shares its statistics with, itself among them."""
        return next((names for names in self.group.values() if dataset in names), (dataset,))

    def group_of(self, dataset: str) -> str | None:
        """The group that a dataset is in, or ``None``."""
        return next((name for name, members in self.group.items() if dataset in members), None)

    @field_validator("group")
    @classmethod
    def _name_each_dataset_once(
        cls, group: Mapping[str, tuple[str, ...]]
    ) -> Mapping[str, tuple[str, ...]]:
        every = [(member, name) for name, members in group.items() for member in members]
        for member, _ in every:
            named = [name for other, name in every if other == member]
            if len(named) > 1:
                raise wrong(
                    f"dataset {member!r} is named in {' and in '.join(map(repr, named))}",
                    "name each dataset once: it has one set of statistics",
                )
        return group

    @model_validator(mode="after")
    def _normalises_something(self) -> NormalizeSpec:
        if self.action is None and self.state is None:
            raise wrong("it names neither action nor state", "add action: {method: q01_q99}")
        return self


OpName = Literal["random_resized_crop", "brightness", "contrast", "saturation", "hue"]
_OPERATIONS: tuple[OpName, ...] = get_args(OpName)
_CROP = {"scale": (0.8, 1.0), "ratio": (0.9, 1.1)}
_SHIFTS = ("brightness", "hue")
_WITHIN = {
    "scale": (1e-6, 1.0), "ratio": (1e-6, math.inf), "brightness": (-1.0, 1.0), "hue": (-0.5, 0.5),
    "contrast": (0.0, math.inf), "saturation": (0.0, math.inf),
}  # fmt: skip


@frozen
class AugmentOp:
    """One operation.

    Attributes:
        name: name of the operation.
        low, high: bounds of what is drawn: the shift of ``brightness`` and ``hue``, the factor of
            ``contrast`` and ``saturation``, the area of ``random_resized_crop`` as a share.
        ratio: ``random_resized_crop``: bounds of width / height, relative to the frame's own.
    """

    name: OpName
    low: float
    high: float
    ratio: tuple[float, float] = (1.0, 1.0)

    def plain(self) -> Any:
        """The operation's value as a spec file writes it."""
        if self.name == "random_resized_crop":
            return {"scale": [self.low, self.high], "ratio": list(self.ratio)}
        return [self.low, self.high]


Operations = tuple[AugmentOp, ...]


def _bounds(raw: Any, name: str, around: float | None = None) -> tuple[float, float]:
    """The least and the most; a number is a strength ``around`` 0 (a shift) or 1 (a factor)."""
    pair = raw if around is None or not is_number(raw) else (around - raw, around + raw)
    least, most = _WITHIN[name.rpartition(".")[2]]
    if isinstance(pair, (list, tuple)) and len(pair) == 2 and all(map(is_number, pair)):
        low, high = float(pair[0]), float(pair[1])
        if least <= low <= high <= most:
            return low, high
    raise wrong(
        f"{name}: {shown(raw)} is not allowed",
        f"write {'' if around is None else 'a strength such as 0.1, or '}two numbers, the smaller "
        f"first, such as {'[0.9, 1.0]' if around != 0 else '[-0.1, 0.1]'}, within "
        f"[{least:g}, {most:g}]",
    )


def _crop(raw: Any) -> AugmentOp:
    name = "random_resized_crop"
    if not isinstance(raw, Mapping):
        raise wrong(
            f"{name}: {shown(raw)} is not allowed", "write {scale: [0.8, 1.0], ratio: [0.9, 1.1]}"
        )
    for key in raw:
        if key not in _CROP:
            raise wrong(f"{name}: unknown key {shown(key)}", nearest(str(key), _CROP))
    scale, ratio = (_bounds(raw.get(key, own), f"{name}.{key}") for key, own in _CROP.items())
    return AugmentOp("random_resized_crop", *scale, ratio)


def parse_operations(raw: Any) -> Operations:
    """The operations of one camera, in the order listed."""
    if isinstance(raw, tuple) and all(isinstance(one, AugmentOp) for one in raw):
        return raw
    if not isinstance(raw, Mapping) or not raw:
        raise wrong(
            f"{shown(raw)} names no operation", "write {random_resized_crop: {}, brightness: 0.1}"
        )
    operations = []
    for name, value in raw.items():
        if name not in _OPERATIONS:
            raise wrong(f"unknown operation {shown(name)}", nearest(str(name), _OPERATIONS))
        if name == _OPERATIONS[0]:
            operations.append(_crop(value))
        else:
            around = 0.0 if name in _SHIFTS else 1.0
            operations.append(AugmentOp(cast("OpName", name), *_bounds(value, name, around)))
    return tuple(operations)


Augmentations = Annotated[
    Operations,
    BeforeValidator(parse_operations),
    PlainSerializer(lambda value: {op.name: op.plain() for op in value}),
    WithJsonSchema(
        {
            "type": "object",
            "description": "operations in the order they are applied",
            "properties": {
                name: {"type": "object"}
                if name == "random_resized_crop"
                else {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]}
                for name in _OPERATIONS
            },
            "additionalProperties": False,
        }
    ),
]
"""The pydantic field type of one camera's augmentation."""
