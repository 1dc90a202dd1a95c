"""Binds one dataset: opens what lies there, and holds every part of a sample against it.

Not here: the parts (``transforms``: one binder for each).
"""

from __future__ import annotations

from autoloader.errors import SpecError
from autoloader.samples.draws import dataset_key
from autoloader.samples.resolve.dataset import ResolvedDataset
from autoloader.samples.resolve.sources import DatasetSource
from autoloader.transforms.binding import bind_episodes
from autoloader.transforms.cameras import bind_cameras
from autoloader.transforms.fields import find_feature
from autoloader.transforms.frame_rate import sample_in_frames
from autoloader.transforms.language import bind_language
from autoloader.transforms.numbers import bind_numbers


def bind_dataset(source: DatasetSource, index: int) -> ResolvedDataset:
    """A dataset of a split, bound.

    Reads no data, but one episode of a dataset that has a transform, to try it.

    Args:
        source: the dataset.
        index: its place in ``dataset_names``.

    Raises:
        SourceError: its directory is missing or broken.
        SpecError: a split, feature or rule that cannot be.
    """
    declared = source.declared
    where = source.where
    if not declared.images and declared.action is None and declared.state is None:
        raise SpecError(
            f"{where}: takes neither images nor action nor state",
            remedy="name at least one field of the dataset",
            path=where,
        )
    name = declared.name
    key = dataset_key(source.spec.seed, name)
    directory, slices = source.open()
    by_row = declared.timestamps == "ignore"
    if by_row and not directory.numbered:
        raise SpecError(
            f"{where}.timestamps: ignore, and {directory.path} is no LeRobot dataset",
            remedy="leave it out: nothing else has times of rows",
            path=f"{where}.timestamps",
        )
    sample = sample_in_frames(source.spec.sample_of(name), declared, directory)
    episodes = bind_episodes(declared, directory, slices, where=where)
    features = episodes.features
    mixture = source.spec.cameras
    cameras = bind_cameras(declared, mixture, features, directory.features, where=where)
    numbers = bind_numbers(episodes.fields, sample, features, where=where, dataset=name)
    language = bind_language(declared, features, directory, where=where)
    held = {
        own: find_feature(features, path, field=f"{where}.features.{own}", dataset=name)
        for own, path in declared.features.items()
    }
    named = (*language.features, *held.values(), *(language.keep.features if language.keep else ()))
    pictures = [one.key for choices in cameras.cameras.values() for one in choices]
    directory.check_first(slices, pictures, named)
    return ResolvedDataset(
        name=name,
        index=index,
        weight=declared.weight,
        directory=directory,
        slices=slices,
        key=key,
        sample=sample,
        stride=declared.stride,
        cameras=cameras.cameras,
        action=numbers.get("action"),
        state=numbers.get("state"),
        language=language.features,
        words=language.words,
        keep=language.keep,
        transform=episodes.transform,
        held=held,
        present=cameras.present,
        reversed=cameras.reversed,
        files_are=cameras.files_are,
        by_row=by_row,
        num_samples=declared.num_samples,
    )
