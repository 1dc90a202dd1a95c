"""The batch: its layout in one slot, and the dict of tensors over a slot that the trainer gets.

The layout says names, shapes and types of every array, and their places in the slot.
A slot is one block of memory that holds a whole batch; every array starts on a 64-byte boundary.
The same layout serves the ring, the decode pool and the trainer's side. ``ledger`` is internal: the
sample that each row stands for (a provenance, and the samples of its episode). A row whose own
frame could not be decoded repeats another row and keeps its ledger.

Further features of samples are any numbers or texts of a dataset, by the names in the spec. A
feature of the steps comes as rows at the state offsets, with their edges; one of the episode comes
once. Its form (type, shape, one of the two) is the same in every dataset of the mixture that has
it; the others give zeros, and a mask that says so. Texts travel behind the language: a sample has
one text, and ``text_length`` holds the length of the language and of each feature's text, in the
order of the layout.

Tensors are made through NumPy (``torch.from_numpy`` keeps the array, and with it the slot, alive;
``torch.frombuffer`` would not). A slot is lent until the last tensor over it is gone.

Not here: the memory itself (``decode.ring``), which bytes a value is of (``samples.schema``),
reading it by index (``index.planned``), moving to a device (``integrations.lightning``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SpecError
from autoloader.formats import Feature
from autoloader.host.frozen import frozen
from autoloader.samples.transforms.fields import NUMBERS, check_encoding, is_text, unfit
from autoloader.spec import PipelineSpec

MOST_NUMBERS = 2**16
"""Of one step (or episode): an index holds them all."""

FeatureKind = Literal["float32", "int64", "bool", "text"]


@frozen
class FeatureForm:
    """Form of a feature in a batch: shape, type, number of values.

    Attributes:
        kind: NumPy type of its values in a batch.
        shape: shape of one step or episode; () of texts.
        per_step: whether it comes as rows at the state offsets, or once.
    """

    kind: FeatureKind
    shape: tuple[int, ...]
    per_step: bool

    def rows(self, state_rows: int) -> int:
        """Number of values that a sample has."""
        return state_rows if self.per_step else 1

    def __str__(self) -> str:
        shape = f" {list(self.shape)}" if self.shape else ""
        return f"{self.kind}{shape} for each {'step' if self.per_step else 'episode'}"


def form_of(feature: Feature, *, field: str) -> FeatureForm:
    """The form that a feature has in a batch.

    Raises:
        SpecError: the feature is a picture, of varying shape, too large, or neither numbers nor
            text.
    """
    if is_text(feature):
        return FeatureForm("text", (), feature.per_step)
    if feature.kind == "image":
        remedy = "name it in images, as a camera; features takes numbers and texts"
        raise unfit(feature, field, "is a picture", remedy)
    shape = tuple(size for size in feature.shape if size is not None)
    if len(shape) < len(feature.shape) or feature.kind == "other":
        remedy = "name a feature of fixed shape, or cut and pad it in a transform"
        raise unfit(feature, field, "has a varying length, and a batch has one shape", remedy)
    if feature.kind != "tensor" or feature.dtype not in NUMBERS:
        remedy = "name a numeric feature, or a text"
        raise unfit(feature, field, "is neither numbers nor one text", remedy)
    check_encoding(feature, field=field)
    if math.prod(shape) > MOST_NUMBERS:
        remedy = "name a smaller feature, or shrink it in a transform"
        raise unfit(feature, field, f"has more than {MOST_NUMBERS} numbers", remedy)
    kind: FeatureKind = "float32" if "float" in feature.dtype else "int64"
    return FeatureForm("bool" if feature.dtype == "bool" else kind, shape, feature.per_step)


def forms_of(datasets: Sequence[tuple[str, Mapping[str, Feature]]]) -> dict[str, FeatureForm]:
    """The form of every feature of a mixture, from (name, features) of its datasets.

    Raises:
        SpecError: datasets disagree on one.
    """
    found: dict[str, tuple[str, FeatureForm]] = {}
    for dataset, features in datasets:
        for name, feature in features.items():
            field = f"datasets[{dataset}].features.{name}"
            form = form_of(feature, field=field)
            other, wanted = found.setdefault(name, (dataset, form))
            if form != wanted:
                raise SpecError(
                    f"{field}: {feature.path!r} is {form}, and in dataset {other!r} it is {wanted}",
                    remedy="give the feature another name in one dataset, leave it out there, or "
                    "make both alike in a transform",
                )
    return {name: form for name, (_, form) in found.items()}


def text_places(forms: Mapping[str, FeatureForm], state_rows: int) -> dict[str, slice]:
    """Text feature → its entries of ``text_length``; entry 0 is the language's."""
    places, at = {}, 1
    for name, form in forms.items():
        if form.kind == "text":
            places[name] = slice(at, at + form.rows(state_rows))
            at = places[name].stop
    return places


def split_texts(
    forms: Mapping[str, FeatureForm],
    state_rows: int,
    texts: Sequence[bytes],
    lengths: NDArray[np.int32],
) -> tuple[list[bytes], dict[str, list[Any]]]:
    """Split each sample's one text: languages, and each feature's texts as str.

    Args:
        forms: forms of the mixture's further features.
        state_rows: rows of a feature of the steps, of which each sample has a list.
        texts: [B] joined texts of the batch's rows.
        lengths: [B, 1 + texts of a sample] ``text_length``.
    """
    ends = np.cumsum(lengths, axis=1).tolist()
    parts = [
        [text[a:b] for a, b in zip([0, *end[:-1]], end, strict=True)]
        for text, end in zip(texts, ends, strict=True)
    ]
    found: dict[str, list[Any]] = {}
    for name, place in text_places(forms, state_rows).items():
        words = [[one.decode("utf-8", "replace") for one in part[place]] for part in parts]
        found[name] = words if forms[name].per_step else [word for (word,) in words]
    return [part[0] for part in parts], found


ALIGNMENT = 64
PROVENANCE = ("dataset", "pass", "shard", "episode", "t")
CALLED = "called/"
"""Before the names of arrays that ``batch.call`` fills."""
LANGUAGE_BYTES_PER_SAMPLE = 1024
"""Room for text in a slot; longer text travels beside the slot."""
FEATURE_TEXT_BYTES = 256
"""The same for each text of ``features``."""


@frozen
class ArrayLayout:
    """One array of a batch: its dtype, shape and byte offset in the slot."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.dtype(self.dtype).itemsize * math.prod(self.shape))


@frozen
class BatchLayout:
    """Shapes of a mixture's batches.

    Attributes:
        batch_size: samples of a batch (B).
        cameras: camera → (height, width).
        frames: frames of a sample (F).
        action_rows, action_width: H and A of ``action`` [B, H, A].
        action_steps: W, where it is [B, W, H, A]: a chunk for each step of the window; else 0.
        state_rows, state_width: Fs and S of ``state`` [B, Fs, S].
        features: further features that samples hold.
        called: name → (dtype, shape of a sample) of what ``batch.call`` gives.
        depth: camera → type of its frames, of depth cameras, whose frames have one channel.
        weighted: whether samples come with a weight.
        flagged: whether samples say that they have an action, beside image–text data.
    """

    batch_size: int
    cameras: Mapping[str, tuple[int, int]]
    frames: int
    action_rows: int
    action_width: int
    state_rows: int
    state_width: int
    features: Mapping[str, FeatureForm] = field(default_factory=dict)
    action_steps: int = 0
    called: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    depth: Mapping[str, str] = field(default_factory=dict)
    weighted: bool = False
    flagged: bool = False
    arrays: Mapping[str, ArrayLayout] = field(init=False)
    slot_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        b, f = self.batch_size, self.frames
        chunks = (self.action_steps,) if self.action_steps else ()
        action = (b, *chunks, self.action_rows, self.action_width)
        wanted: list[tuple[str, str, tuple[int, ...]]] = []
        for camera, (height, width) in self.cameras.items():
            dtype, channels = (self.depth[camera], 1) if camera in self.depth else ("uint8", 3)
            wanted.append((f"images/{camera}", dtype, (b, f, height, width, channels)))
        wanted += [(f"frame_mask/{camera}", "bool", (b, f)) for camera in self.cameras]
        wanted += [
            ("frame_offset", "int32", (b, f)),
            ("action", "float32", action),
            ("action_mask", "bool", action),
            ("state", "float32", (b, self.state_rows, self.state_width)),
            ("state_mask", "bool", (b, self.state_rows, self.state_width)),
            *self._features(),
            *(
                (f"{CALLED}{name}", kind, (b, *shape))
                for name, (kind, shape) in self.called.items()
            ),
            *([("sample_weight", "float32", (b,))] if self.weighted else []),
            *([("has_action", "bool", (b,))] if self.flagged else []),
            ("dataset_index", "int64", (b,)),
            ("provenance", "int64", (b, len(PROVENANCE))),
            ("ledger", "int64", (b, len(PROVENANCE) + 1)),
            ("language_end", "int32", (b,)),
            ("language_text", "uint8", (b * self._text_bytes,)),
        ]
        arrays: dict[str, ArrayLayout] = {}
        offset = 0
        for name, dtype, shape in wanted:
            arrays[name] = ArrayLayout(dtype, shape, offset)
            offset += -(-arrays[name].nbytes // ALIGNMENT) * ALIGNMENT
        object.__setattr__(self, "arrays", arrays)
        object.__setattr__(self, "slot_bytes", -(-offset // 4096) * 4096)

    @property
    def frame_bytes(self) -> dict[str, int]:
        """Camera → bytes of a decoded frame."""
        shown = self.batch_size * self.frames
        return {one: self.arrays[f"images/{one}"].nbytes // shown for one in self.cameras}

    @property
    def colour_bytes(self) -> frozenset[int]:
        """Sizes of decoded frames, of cameras that are not of depth."""
        return frozenset(size for one, size in self.frame_bytes.items() if one not in self.depth)

    @property
    def _texts(self) -> int:
        """Texts that a sample has beside its language."""
        places = text_places(self.features, self.state_rows)
        return max((place.stop for place in places.values()), default=1) - 1

    @property
    def _text_bytes(self) -> int:
        return LANGUAGE_BYTES_PER_SAMPLE + self._texts * FEATURE_TEXT_BYTES

    def _features(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        for name, form in self.features.items():
            rows = (self.batch_size, self.state_rows)[: 1 + form.per_step]
            if form.kind != "text":
                yield f"features/{name}", form.kind, (*rows, *form.shape)
            yield f"feature_mask/{name}", "bool", rows
        if self._texts:
            yield "text_length", "int32", (self.batch_size, 1 + self._texts)

    def views(self, memory: memoryview | np.ndarray) -> dict[str, np.ndarray]:
        """NumPy arrays over one slot's ``memory`` (``slot_bytes`` long), by name."""
        return {
            name: np.ndarray(array.shape, array.dtype, memory, array.offset)
            for name, array in self.arrays.items()
        }


def empty_columns(layout: BatchLayout, samples: int) -> dict[str, NDArray[Any]]:
    """Room for what a batch's rows hold beside pictures, text and copies of the ledger; zero."""
    left_out = ("images/", "language_", "provenance", "dataset_index")
    return {
        name: np.zeros((samples, *array.shape[1:]), array.dtype)
        for name, array in layout.arrays.items()
        if not name.startswith(left_out)
    }


Array = Any
"""A ``torch.Tensor`` or, with ``output="numpy"``, a NumPy array."""


class _AsTheSpecSays(TypedDict, total=False):
    """Keys that only some specs ask for: features, image–text data, sample_weight, metadata."""

    features: dict[str, Any]
    feature_mask: dict[str, Array]
    has_action: Array
    sample_weight: Array
    dataset_index: Array
    provenance: Array


class Batch(_AsTheSpecSays):
    """One batch as a plain dict; B samples of F frames and Fs states.

    Attributes:
        images: camera → ``[B, F, H, W, 3] uint8``; depth camera → ``[B, F, H, W, 1]`` uint16 or
            float32.
        frame_mask: camera → ``[B, F] bool``, false where padded or the camera is missing.
        frame_offset: ``[B, F] int32``, as realised.
        action: ``[B, horizon, A] float32``, zero-padded.
        action_mask: ``[B, horizon, A] bool``.
        state: ``[B, Fs, S] float32``, zero-padded.
        state_mask: ``[B, Fs, S] bool``.
        language: list of B texts, one for each sample.
        features: name → ``[B, Fs, …]`` or ``[B, …]``, texts as lists (where the spec names any).
        feature_mask: name → ``[B, Fs]`` or ``[B]`` bool (where the spec names features).
        has_action: ``[B] bool`` (in a mixture with image–text data).
        sample_weight: ``[B] float32`` (where a dataset gives its ``sample_weight``).
        dataset_index: ``[B] int64``, into ``loader.dataset_names`` (not with metadata none).
        provenance: ``[B, 5] int64``: dataset, pass, shard, episode, t (with metadata full).
    """

    images: dict[str, Array]
    frame_mask: dict[str, Array]
    frame_offset: Array
    action: Array
    action_mask: Array
    state: Array
    state_mask: Array
    language: list[str]


class AugmentableBatch(dict[str, Any]):
    """A batch that knows how it is to be augmented (``autoloader.augment``).

    Attributes:
        spec: the loader's; ``None`` where a library has rebuilt the dict by its type.
        split: name of the loader's split.
    """

    __slots__ = ("spec", "split")

    def __init__(
        self, batch: Mapping[str, Any], spec: PipelineSpec | None = None, split: str = ""
    ) -> None:
        super().__init__(batch)
        self.spec = spec
        self.split = split


def wrapper(output: Literal["torch", "numpy"]) -> Callable[[np.ndarray], Any]:
    """Function from an array to the batch's element: a torch tensor over it, or itself."""
    if output == "numpy":
        return np.asarray
    import torch

    return torch.from_numpy
