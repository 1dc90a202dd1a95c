"""Binds the cameras of a dataset: their features, their flags, the order of their channels.

Not here: what a frame becomes (``decode``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from autoloader.catalog import Feature
from autoloader.errors import SpecError
from autoloader.samples.features import form_of
from autoloader.spec import DatasetSpec
from autoloader.transforms.copies import reversed_cameras
from autoloader.transforms.fields import check_camera, find_feature


class BoundCameras(NamedTuple):
    """The cameras of a dataset; attributes as of ``ResolvedDataset``."""

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
    turned, files_are = reversed_cameras(declared, stored, where=where)
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
    form = form_of(feature, field=field)
    if form.kind == "text" or form.shape:
        raise SpecError(
            f"{field}: {feature.path!r} is {form}, and no flag",
            remedy="name a bool or a number, of the steps or of the episode; 0 is absent",
            path=field,
        )
