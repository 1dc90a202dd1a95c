"""Binds the cameras of a dataset: their features, their flags, the order of their channels.

Octo and OpenVLA rewrote the public files before training: every picture with a side of 64 or more
became a JPEG of 256×256, and channels that the public files hold in the wrong order were put
right. So a repair of channels is for public files alone; on the others it would turn right colours
wrong.

Not here: turning the channels (``decode.reversed``), what a frame becomes (``decode``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from autoloader.catalog import Feature
from autoloader.errors import SpecError, UnsupportedError
from autoloader.spec import DatasetSpec
from autoloader.transforms.fields import NUMBERS, check_camera, described, find_feature

SIDE = 256
"""Of every picture in a rewritten copy that was not smaller than ``LEAST``."""
LEAST = 64


class BoundCameras(NamedTuple):
    """The cameras of a dataset; attributes as of ``samples.resolve.ResolvedDataset``."""

    cameras: Mapping[str, tuple[Feature, ...]]
    present: Mapping[str, Feature]
    reversed: frozenset[str]
    files_are: str


def bind_cameras(
    declared: DatasetSpec,
    features: Mapping[str, Feature],
    stored: Mapping[str, Feature],
    *,
    where: str,
) -> BoundCameras:
    """The cameras that a dataset declares.

    Args:
        declared: the dataset.
        features: of its episodes, by path.
        stored: of its files, by path.
        where: its path in the spec.

    Raises:
        SpecError: a feature is missing, is no colour picture, or no flag; the order of the
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
        for feature in cameras[camera]:
            check_camera(feature, field=field)
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
        declared: the dataset.
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
