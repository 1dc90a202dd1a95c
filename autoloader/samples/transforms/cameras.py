"""Binds the cameras of a dataset: their features, their flags, the order of their channels, depth.

Octo and OpenVLA rewrote the public files before training: every picture with a side of 64 or more
became a JPEG of 256×256, and channels that the public files hold in the wrong order were put
right. So a repair of channels is for public files alone; on the others it would turn right colours
wrong.

Depth frames are stored in four forms: 16-bit PNG, TFDS's float pictures (a PNG of four channels,
the bytes of a float32 each), tensors of [H, W] or [H, W, 1] as they lie in a record's list of
numbers, and such tensors packed as bytes (zlib or plain). A tensor that a depth camera shows is
taken for a picture from the start, so that all that moves encoded frames about, a user's function
among them, treats the four alike.

Not here: turning the channels (``decode.decoders``), what a frame becomes (``decode``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from autoloader.errors import SpecError, UnsupportedError
from autoloader.formats import DatasetFormat, Feature
from autoloader.samples.transforms.fields import NUMBERS, check_camera, described, find_feature
from autoloader.spec import CameraSpec, DatasetSpec

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
        features: of its episodes, by path.
        stored: of its files, by path.
        where: its path in the spec.

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
            find_feature(features, path, field=field, dataset=declared.name)
            for path in choice.paths
        )
        check_frames(cameras[camera], mixture[camera], field=field)
        if choice.present:
            flag = find_feature(
                features, choice.present, field=f"{field}.present", dataset=declared.name
            )
            _check_flag(flag, field=f"{field}.present")
            present[camera] = flag
    return BoundCameras(cameras, present, turned, files_are)


def _check_flag(feature: Feature, *, field: str) -> None:
    if feature.kind != "tensor" or feature.dtype not in NUMBERS or feature.shape:
        raise SpecError(
            f"{field}: {feature.path!r} is {described(feature)}, and no flag",
            remedy="name a bool or a number, of the steps or of the episode; 0 is absent",
            path=field,
        )
    if feature.encoding is not None:
        raise UnsupportedError(
            f"{field}: {feature.path!r} is stored as {feature.encoding}, not supported yet",
            remedy="name a feature stored as a plain number",
            path=field,
        )


def _reversed_cameras(
    declared: DatasetSpec, features: Mapping[str, Feature], *, where: str
) -> tuple[frozenset[str], str]:
    """(the cameras whose channels change places, what the files were taken for, and why).

    The second is "" where nothing hangs on it.

    Args:
        declared: the dataset as the spec declares it.
        features: of its files, by path.
        where: its path in the spec.

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
    colours = [one for one in features.values() if one.kind == "image" and one.dtype == "uint8"]
    for feature in colours:
        height, width, *_ = (*feature.shape, None, None)
        if height is None or width is None:
            raise SpecError(
                f"{where}.files: auto, and features.json gives no size of {feature.path!r}, by "
                "which public files are told from rewritten ones",
                remedy="say which they are, since channels hang on it: files: public, or files: "
                "rewritten (256×256 JPEG, as Octo and OpenVLA trained on)",
                path=f"{where}.files",
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
        directory: what lies on disk.
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


def check_frames(choices: Sequence[Feature], camera: CameraSpec, *, field: str) -> None:
    """Refuse what a camera cannot show.

    Args:
        choices: the features that a dataset's camera is drawn from, as ``framed`` gives them.
        camera: name of a canonical camera.
        field: the camera's path in the dataset.

    Raises:
        SpecError: no colour picture; of a depth camera: no depth frame, values that its type
            cannot hold, or choices that are stored in different ways.
    """
    if camera.depth:
        _check_depth(choices, camera, field=field)
    for feature in () if camera.depth else choices:
        check_camera(feature, field=field)


def _check_depth(choices: Sequence[Feature], camera: CameraSpec, *, field: str) -> None:
    for feature in choices:
        in_numbers = feature.kind == "image" and feature.encoding in _PACKINGS
        if not in_numbers and not is_depth_picture(feature):
            raise SpecError(
                f"{field}: {feature.path!r} is {described(feature)}, and no depth frame",
                remedy=_ALLOWED,
                path=field,
            )
        if camera.depth == "uint16" and "float" in feature.dtype:
            raise SpecError(
                f"{field}: {feature.path!r} is {described(feature)}, which the camera's depth: "
                "uint16 cannot hold",
                remedy="write depth: float32 for the camera, which holds both exactly",
                path=field,
            )
    if len({(one.encoding, one.dtype, one.shape) for one in choices}) > 1:
        raise SpecError(
            f"{field}: any_of mixes depth frames that are stored in different ways: "
            + ", ".join(f"{one.path} ({described(one)})" for one in choices),
            remedy="draw from features of one type and shape",
            path=field,
        )
