"""Binds the cameras and the language of a dataset to features of its episodes.

Octo and OpenVLA rewrote the public files before training. Every picture with a side of 64 or more
became a JPEG of 256×256. Channels that the public files hold in the wrong order were put right. So
a repair of channels is for public files alone; on the others it would turn right colours wrong.

Depth frames are stored in four forms: 16-bit PNG; TFDS's float pictures (a PNG of four channels,
the bytes of a float32 each); tensors of [H, W] or [H, W, 1] in a record's list of numbers; such
tensors packed as bytes (zlib or plain). A tensor that a depth camera shows counts
as a picture from the start. So all code that moves encoded frames, a user's function among them,
treats the four alike.

A text as it is *stored* is UTF-8: of texts and code points the text itself, of an integer its
decimal digits, of several strings all of them with NULs in between. So an index holds one text a
step, whatever a spec makes of it.

Not here: the words of the spec (``spec.fields``), turning channels (``decode.decoders``), decoding
(``decode``), reading features (``samples``, ``index``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, NamedTuple

from autoloader.errors import SpecError
from autoloader.formats import DatasetFormat, Feature, files
from autoloader.host.frozen import frozen
from autoloader.samples.draws import Keys
from autoloader.samples.transforms import fields
from autoloader.samples.transforms.keep import Keep
from autoloader.spec import AnyOf, CameraSpec, DatasetSpec
from autoloader.spec.sample import matcher

SIDE = 256
"""Of every picture in a rewritten copy that was not smaller than ``LEAST``."""
LEAST = 64


_WHOLE = ("int16", "uint16", "int32", "uint32", "int64")
_FLOATING = ("float16", "float32")
_LISTED_FLOATS = ("float16", "bfloat16", "float32", "float64")
"""A record holds them as float32, whatever their type."""
_PACKINGS = ("floats", "integers", "bytes", "zlib")
_ALLOWED = (
    "name a 16-bit PNG image (uint16), a float32 image, or a tensor of [H, W] or [H, W, 1] numbers"
)


class BoundCameras(NamedTuple):
    """The cameras of a dataset; attributes as of ``samples.resolve.ResolvedDataset``."""

    cameras: Mapping[str, tuple[Feature, ...]]
    present: Mapping[str, Feature]
    reversed: frozenset[str]
    files_are: str


def bind_cameras(
    declared: DatasetSpec,
    mixture: Mapping[str, CameraSpec],
    features: Mapping[str, Feature],
    stored: Mapping[str, Feature],
    *,
    where: str,
) -> BoundCameras:
    """The cameras that a dataset declares.

    Args:
        declared: the dataset as the spec declares it.
        mixture: the cameras of the mixture.
        features: features of the dataset's episodes, by path.
        stored: features of the dataset's files, by path.
        where: path of the dataset in the spec.

    Raises:
        SpecError: a feature is missing, is no colour picture (of a depth camera: no depth), or
            no flag; the order of the
            channels hangs on what ``features.json`` does not say.
    """
    turned, files_are = _reversed_cameras(declared, stored, where=where)
    cameras, present = {}, {}
    for camera, choice in declared.images.items():
        field = f"{where}.images.{camera}"
        cameras[camera] = tuple(
            fields.find_feature(features, path, field=field) for path in choice.paths
        )
        if mixture[camera].depth:
            _check_depth(cameras[camera], mixture[camera], field=field)
        else:
            for feature in cameras[camera]:
                fields.check_camera(feature, field=field, features=features)
        if choice.present:
            flag = fields.find_feature(features, choice.present, field=f"{field}.present")
            _check_flag(flag, field=f"{field}.present")
            present[camera] = flag
    return BoundCameras(cameras, present, turned, files_are)


def _check_flag(feature: Feature, *, field: str) -> None:
    """Refuse a feature that is no bool or number of a step or an episode."""
    if feature.kind != "tensor" or feature.dtype not in fields.NUMBERS or feature.shape:
        remedy = "give a bool or a number of the steps or of the episode; 0 means absent"
        raise fields.unfit(feature, field, "is not a flag", remedy)
    fields.check_encoding(feature, field=field)


def _reversed_cameras(
    declared: DatasetSpec, features: Mapping[str, Feature], *, where: str
) -> tuple[frozenset[str], str]:
    """(the cameras whose channels change places, what the files were taken for, and why).

    The second is "" where nothing hangs on it.

    Args:
        declared: the dataset as the spec declares it.
        features: features of the dataset's files, by path.
        where: path of the dataset in the spec.

    Raises:
        SpecError: it is to be looked up, and ``features.json`` does not say.
    """
    asked = [camera for camera, choice in declared.images.items() if choice.flip == "public"]
    always = [camera for camera, choice in declared.images.items() if choice.flip == "always"]
    if not asked:
        return frozenset(always), ""
    told = declared.files != "auto"
    kind, why = (declared.files, "as the spec says") if told else _looked_up(features, where)
    turned = frozenset([*always, *asked] if kind == "public" else always)
    return turned, f"{kind} files ({why})"


def _looked_up(features: Mapping[str, Feature], where: str) -> tuple[str, str]:
    """("public" or "rewritten", why): which files a dataset has, by the sizes of its pictures."""
    colours = [one for one in features.values() if one.kind == "image" and one.dtype == "uint8"]
    for feature in colours:
        height, width, *_ = (*feature.shape, None, None)
        if height is None or width is None:
            raise SpecError(
                f"{where}.files: auto tells files as published from rewritten ones by the size of "
                f"{feature.path!r}, and features.json does not give it",
                remedy="write files: public (as published), or files: rewritten (256×256 JPEG, as "
                "Octo and OpenVLA trained on), whose colours {flip_channels: public} leaves alone",
            )
        as_rewritten = (height, width) == (SIDE, SIDE) or max(height, width) < LEAST
        if not as_rewritten or feature.encoding == "png":
            form = f" {feature.encoding}" if feature.encoding else ""
            return "public", f"{feature.path} is {height}×{width}{form}"
    return "rewritten", f"every picture that is not small is {SIDE}×{SIDE}"


def framed(
    directory: DatasetFormat, declared: DatasetSpec, cameras: Mapping[str, CameraSpec]
) -> DatasetFormat:
    """A dataset's directory, with the tensors that its depth cameras show as pictures.

    Args:
        directory: the dataset on disk.
        declared: the dataset as the spec declares it.
        cameras: canonical cameras of the mixture.
    """
    found = dict(directory.features)
    for camera, choice in declared.images.items():
        for path in choice.paths if cameras[camera].depth else ():
            feature = found.get(path)
            if feature is not None and is_depth_tensor(feature):
                listed = "floats" if "float" in feature.dtype else "integers"
                encoding = feature.encoding or listed
                found[path] = replace(feature, kind="image", encoding=encoding)
    return replace(directory, features=found)


def is_depth_tensor(feature: Feature) -> bool:
    """True if a tensor has the form of a depth frame for every step."""
    shape = feature.shape
    if feature.kind != "tensor" or not feature.per_step or None in shape:
        return False
    if len(shape) != 2 and (len(shape) != 3 or shape[-1] != 1):
        return False
    numbers = _LISTED_FLOATS if feature.encoding is None else _FLOATING
    return feature.dtype in (*_WHOLE, *numbers) and feature.encoding in (None, "bytes", "zlib")


def is_depth_picture(feature: Feature) -> bool:
    """True if a picture as TFDS stores it holds depth."""
    encodings: Sequence[Any] = (None, "png")
    pictured = feature.kind == "image" and feature.per_step and feature.encoding in encodings
    return pictured and feature.dtype in ("uint16", "float32") and feature.shape[-1:] == (1,)


def _check_depth(choices: Sequence[Feature], camera: CameraSpec, *, field: str) -> None:
    """Refuse cameras whose features hold no depth."""
    for feature in choices:
        in_numbers = feature.kind == "image" and feature.encoding in _PACKINGS
        if not in_numbers and not is_depth_picture(feature):
            raise fields.unfit(feature, field, "is not a depth frame", _ALLOWED)
        if camera.depth == "uint16" and "float" in feature.dtype:
            remedy = "write depth: float32 for the camera, which holds both exactly"
            raise fields.unfit(feature, field, "does not fit the camera's depth: uint16", remedy)
    if len({(one.encoding, one.dtype, one.shape) for one in choices}) > 1:
        raise SpecError(
            f"{field}: any_of mixes depth frames that are stored in different ways: "
            + ", ".join(f"{one.path} ({fields.described(one)})" for one in choices),
            remedy="list only features of one type and shape in any_of",
        )


@frozen
class Words:
    """Rules by which a dataset's stored texts become those of its samples.

    Attributes:
        names: path of an integer feature → its decimal digits → the text that it stands for.
        several: choice among several strings ("first", "draw"); "" where there is one.
    """

    names: Mapping[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    several: Literal["", "first", "draw"] = ""

    def told(self, path: str, stored: Sequence[bytes], drawn: Keys | None) -> list[bytes]:
        """The texts of samples, UTF-8.

        Args:
            path: path of the language feature.
            stored: the texts [n] as they are stored, or one for all samples.
            drawn: [n] a random number for each sample; needed where one of several is drawn.

        Returns:
            As many texts as there are stored ones; n where they are drawn.
        """
        if path in self.names:
            return [self.names[path].get(one, b"") for one in stored]
        if not self.several:
            return list(stored)
        said = [[one for one in text.split(fields.BETWEEN) if one.strip()] for text in stored]
        if self.several == "first" or drawn is None:
            return [texts[0] if texts else b"" for texts in said]
        said = said * len(drawn) if len(said) == 1 else said
        return [
            texts[number % len(texts)] if texts else b""
            for texts, number in zip(said, drawn.tolist(), strict=True)
        ]

    def speaks(self, path: str) -> Callable[[str], bool]:
        """Test of a stored text of this feature: does it stand for one that is not blank?"""
        if path in self.names:
            spoken = {key.decode() for key, text in self.names[path].items() if text.strip()}
            return spoken.__contains__
        return matcher(r"[^\s\x00]" if self.several else r"\S")


class BoundLanguage(NamedTuple):
    """The language of a dataset; attributes as of ``samples.resolve.ResolvedDataset``."""

    language: tuple[Feature, ...]
    words: Words
    keep: Keep | None


def bind_language(
    declared: DatasetSpec, features: Mapping[str, Feature], directory: DatasetFormat, *, where: str
) -> BoundLanguage:
    """The language that a dataset declares, and the rules that look at texts.

    Args:
        declared: the dataset as the spec declares it.
        features: features of the dataset's episodes, by path.
        directory: directory of the dataset, which has the names of class labels.
        where: path of the dataset in the spec.

    Raises:
        SpecError: a feature is missing or holds no language, or another kind than its fellows;
            integers without names; several strings of which the spec does not say which.
    """
    chosen, words = _features_of(declared, features, directory, f"{where}.language")
    keep = None
    if declared.keep is not None and declared.keep.looks_at_texts:
        keep = Keep(declared.keep, features, chosen, words.speaks, where=where)
    return BoundLanguage(chosen, words, keep)


def _features_of(
    declared: DatasetSpec, found: Mapping[str, Feature], directory: DatasetFormat, place: str
) -> tuple[tuple[Feature, ...], Words]:
    """Features of the language, and the words for their class labels."""
    choice = declared.language
    if choice is None:
        return (), Words()
    features = tuple(fields.find_feature(found, path, field=place) for path in choice.paths)
    names = {}
    for feature in features:
        if fields.is_code(feature):
            names[feature.path] = _names_of(choice, feature, directory, place)
            continue
        if choice.names:
            remedy = "leave names out, or name the feature that holds the number of the task"
            raise fields.unfit(feature, f"{place}.names", "is not an integer", remedy)
        if not fields.is_several(feature):
            fields.check_language(feature, field=place)
            if choice.several:
                raise fields.unfit(feature, f"{place}.several", "is one text", "leave several out")
        elif not choice.several:
            remedy = f"write language: {{path: {feature.path}, several: draw}} (or first)"
            raise fields.unfit(feature, place, "is several texts, and a sample has one", remedy)
    fields.check_same_kind(features, field=place)
    return features, Words(names, choice.several)


def _names_of(
    choice: AnyOf, feature: Feature, directory: DatasetFormat, place: str
) -> dict[bytes, bytes]:
    """Number → text of a feature's class labels."""
    if choice.names:
        return {str(number).encode(): text.encode() for number, text in choice.names}
    file = f"{feature.key.replace('/', '-')}.labels.txt"  # as TFDS names it
    try:
        lines = files.read_text(files.join(directory.path, file)).splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    if not lines:
        why = f"has numbers, and {directory.path} has no {file} with their meanings"
        remedy = f"write language: {{path: {feature.path}, names: {{0: pick up the block}}}}"
        raise fields.unfit(feature, place, why, remedy)
    return {str(number).encode(): line.encode() for number, line in enumerate(lines)}
