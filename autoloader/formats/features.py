"""Feature trees of ``features.json``, flattened into the paths that users name.

Not here: which features a sample needs (``autoloader.spec``) and how their values are parsed
(``autoloader.pipeline.graph``, ``autoloader.formats.records``).

A TFDS feature tree is written as JSON in one of two ways. Today's is the JSON form of a protobuf
message: a node has ``pythonClassName`` and exactly one content field (``featuresDict``,
``sequence``, ``tensor``, ``image``, ``text`` ...), integers are strings, names are camelCase (or
snake_case, which protobuf's reader takes too). The older one has ``type`` and ``content``. Both
are brought to one shape first: a content name and a mapping.

In a ``tf.train.Example`` the names of the levels are joined by "/", and every per-step feature
holds the values of all steps in a row. A sequence in a step is laid out in two lists, one of all
values and one of how many each step has: its encoding is "ragged". Whatever TFDS lays out in yet
another way (sequences of pictures or of sequences, tensors with two unknown dimensions, video,
audio) gets the kind "other": it is listed, and may not be sampled.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Literal

from autoloader.errors import SourceError
from autoloader.host.frozen import frozen

STEPS = "steps"
"""Name of the top-level feature that holds the steps of an episode (RLDS)."""

RAGGED = "ragged"
RAGGED_VALUES, RAGGED_LENGTHS = "ragged_flat_values", "ragged_row_lengths_0"
"""Last part of the two keys of a ragged feature."""

JOINED = "joined"
"""``Feature.encoding`` of several texts a step that lie in one string, with NULs in between."""

VIDEO = "video"
"""``Feature.encoding`` of a LeRobot camera whose frames lie in MP4 files."""
PARQUET = "parquet"
"""``Feature.encoding`` of a LeRobot camera whose pictures lie in the Parquet files."""
ARRAY = "array"
"""``Feature.encoding`` of a camera whose pictures are the rows of an array (HDF5)."""
SLAB = "slab"
"""``Feature.encoding`` of such a camera whose pictures are unpacked several together."""
TASKS = "tasks"
"""``Feature.encoding`` of a text that rows of LeRobot give as the number of a task."""
TASK = "task"
"""Path of the feature that holds the text of each frame's task."""

FeatureKind = Literal["image", "text", "tensor", "other"]


@frozen
class Feature:
    """One leaf of the feature tree.

    Attributes:
        path: as users name it: per-step features without ``steps/``
            ("observation/image_0", "action/world_vector"), others as they are
            ("episode_metadata/file_path").
        key: key of the feature in the ``tf.train.Example`` ("steps/observation/image_0").
        kind: "image" (one encoded picture a step, also depth and float images: see ``dtype``),
            "text" (one string a step), "tensor" (numbers, or several strings), "other".
        dtype: NumPy's name of the decoded type ("uint8", "float32", "bool"), or "string".
        shape: of one step, without the time axis; None where unknown; () for scalars and text.
        encoding: images: "jpeg" or "png", None where the metadata does not say (sniff the bytes);
            tensors: "bytes" or "zlib", "ragged" where each step has its own number of values,
            "joined" where these are texts in one string, None for plain values. A tensor that a
            depth camera shows is an "image" with its own encoding, or "floats" or "integers": a
            frame is a stretch of the record's list of numbers.
        per_step: true of features below ``steps``.
        columns: names of its columns; (): the dataset has none.
    """

    path: str
    key: str
    kind: FeatureKind
    dtype: str
    shape: tuple[int | None, ...]
    encoding: str | None
    per_step: bool
    columns: tuple[str, ...] = field(default=(), compare=False)

    @property
    def listed(self) -> Literal["float", "int64"] | None:
        """Of an image whose frames are stretches of a list of numbers: which list."""
        if self.kind != "image":
            return None
        return {"floats": "float", "integers": "int64"}.get(self.encoding or "")  # type: ignore[return-value]

    @property
    def step_numbers(self) -> int:
        """Numbers of one step; an unknown dimension counts as 1."""
        return math.prod(size or 1 for size in self.shape)


def list_frames(features: Iterable[Feature]) -> dict[str, int]:
    """Key → numbers of a frame, of the images that are stretches of a list of numbers."""
    return {one.key: one.step_numbers for one in features if one.listed}


def parse_features(document: Mapping[str, Any], *, source: str) -> dict[str, Feature]:
    """The features of a parsed ``features.json``, by path, in the document's order.

    Where a per-step and an episode-level feature would have the same path, the per-step one has
    it, and the other is left out.

    Args:
        document: parsed JSON of the file.
        source: path of the document, for messages.

    Raises:
        SourceError: the document is no feature tree.
    """
    features: dict[str, Feature] = {}
    try:
        for feature in _tree(document):
            known = features.get(feature.path)
            if known is None or (feature.per_step and not known.per_step):
                features[feature.path] = feature
    except (_NotAFeatureTreeError, RecursionError) as error:
        raise SourceError(
            f"{source} is not a TFDS feature tree: {error}",
            remedy="download or copy the file again, or write the dataset again with tfds",
        ) from error
    return features


class _NotAFeatureTreeError(ValueError):
    """Internal: the JSON does not have the shape of a feature tree."""


def _tree(document: object) -> Iterator[Feature]:
    """Features of the tree in ``features.json``."""
    if _content(document)[0] != "features_dict":
        raise _NotAFeatureTreeError("the top level is not a FeaturesDict")
    yield from _leaves(document, names=(), per_step=False, outer=())


def _leaves(
    node: object, *, names: tuple[str, ...], per_step: bool, outer: tuple[int | None, ...]
) -> Iterator[Feature]:
    """All leaves below ``node``; ``outer`` are the sequence dimensions around it (not steps)."""
    name, content = _content(node, names)
    if name == "features_dict":
        children = _field(content, "features", {})
        if not isinstance(children, Mapping):
            raise _NotAFeatureTreeError(f"{'/'.join(names) or 'the top level'} lists no features")
        for child, below in children.items():
            yield from _leaves(below, names=(*names, child), per_step=per_step, outer=outer)
    elif name == "sequence":
        below = _field(content, "feature", None)
        if names == (STEPS,):
            yield from _leaves(below, names=names, per_step=True, outer=())
        else:
            length = _dimension(_field(content, "length", -1))
            yield from _leaves(below, names=names, per_step=per_step, outer=(*outer, length))
    else:
        yield _leaf(name, content, names=names, per_step=per_step, outer=outer)


def _leaf(
    name: str,
    content: Mapping[str, Any],
    *,
    names: tuple[str, ...],
    per_step: bool,
    outer: tuple[int | None, ...],
) -> Feature:
    """The feature of a leaf of the tree."""
    kind: FeatureKind = "other"
    dtype = _dtype(_field(content, "dtype", ""))
    shape = _shape(_field(content, "shape", None))
    encoding: str | None = None
    if name == "image":
        kind = "image"
        dtype = dtype or "uint8"
        shape = shape or (None, None, 3)
        encoding = _encoding(_field(content, "encoding_format", None))
    elif name == "text":
        kind, dtype, shape = "text", "string", ()
    elif name == "class_label":
        kind, dtype, shape = "tensor", "int64", ()
    elif name == "bounding_box":
        kind, dtype, shape = "tensor", dtype or "float32", shape or (4,)
    elif name == "tensor" and dtype:
        kind = "text" if dtype == "string" and not shape else "tensor"
        encoding = _encoding(_field(content, "encoding", None))
        if shape.count(None) > 1:
            kind = "other"  # TFDS adds a second key for the realised shape
    if outer:
        # One sequence level outside of a step is one more dimension, in a step it is ragged.
        plain = (kind == "tensor" and encoding is None) or kind == "text"
        kind = "tensor" if plain and len(outer) == 1 and None not in shape else "other"
        encoding = RAGGED if kind == "tensor" and per_step else encoding
        shape = (*outer, *shape)
    key = "/".join(names)
    path = "/".join(names[1:]) if per_step and len(names) > 1 else key
    return Feature(path, key, kind, dtype, shape, encoding, per_step)


# -- one shape for all ways of writing a node ---------------------------------------------------

_CONTENT_OF_CLASS = {
    "FeaturesDict": "features_dict",
    "Dataset": "sequence",
    "Sequence": "sequence",
    "Tensor": "tensor",
    "Scalar": "tensor",
    "Image": "image",
    "LabeledImage": "image",
    "Text": "text",
    "ClassLabel": "class_label",
    "BBoxFeature": "bounding_box",
}


def _content(node: object, names: tuple[str, ...] = ()) -> tuple[str, Mapping[str, Any]]:
    """Content name and content of a node; an unknown kind of node gives its class name."""
    place = "/".join(names) or "the top level"
    if not isinstance(node, Mapping):
        found = f"found {type(node).__name__}"
        raise _NotAFeatureTreeError(f"{place}: expected a feature (a JSON object), {found}")
    if "type" in node and "content" in node:
        return _older_content(node)
    for name, content in node.items():
        if isinstance(content, Mapping):  # the one field that is a message
            return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name), content
    class_name = _field(node, "python_class_name", None)
    if not isinstance(class_name, str):
        raise _NotAFeatureTreeError(f"{place} has neither a class name nor content")
    # An empty message may be left out of the JSON, such as the content of a Text.
    name = _CONTENT_OF_CLASS.get(class_name.rsplit(".", 1)[-1], "")
    return (name, {}) if name == "text" else (class_name, {})


def _older_content(node: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """(class name, content) of a node as older releases of TFDS wrote it."""
    class_name, content = str(node["type"]).rsplit(".", 1)[-1], node["content"]
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except json.JSONDecodeError as error:
            raise _NotAFeatureTreeError(f"the content of a {class_name} is not JSON") from error
    if not isinstance(content, Mapping):
        content = {}
    name = _CONTENT_OF_CLASS.get(class_name, class_name)
    if name == "features_dict" and "features" not in content:
        content = {"features": content}
    if name == "text" and content:
        name = class_name + " with an encoder"
    return name, content


def _field(node: Mapping[str, Any], name: str, default: object) -> Any:
    """``node[name]`` under its snake_case or camelCase spelling."""
    if name in node:
        return node[name]
    return node.get(re.sub(r"_(\w)", lambda match: match[1].upper(), name), default)


def _shape(value: object) -> tuple[int | None, ...]:
    """A shape from a list, or from an object with "dimensions"."""
    if isinstance(value, Mapping):
        value = _field(value, "dimensions", ())
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise _NotAFeatureTreeError(f"{value!r} is not a shape")
    return tuple(_dimension(dimension) for dimension in value)


def _dimension(value: object) -> int | None:
    """Size of an axis; ``None``: not known."""
    if value is None:
        return None
    try:
        size = int(str(value))
    except ValueError as error:
        raise _NotAFeatureTreeError(f"{value!r} is not a dimension") from error
    return None if size < 0 else size


def _dtype(value: object) -> str:
    """NumPy's name of a type, whatever TFDS wrote; "string" for texts."""
    match = re.search(r"[a-z][a-z_]*\d*(?='?>?$)", str(value or ""))
    name = match[0] if match else ""
    if name in ("string", "object", "str", "bytes"):
        return "string"
    return {"bool_": "bool", "float": "float32", "double": "float64"}.get(name, name)


def _encoding(value: object) -> str | None:
    name = str(value or "").lower()
    return None if name in ("", "none") else name
