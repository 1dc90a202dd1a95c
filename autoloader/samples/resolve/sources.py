"""Which datasets take part in a split, where they lie, and what is on disk there.

Not here: formats and their metadata (``catalog``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoloader.catalog import (
    ShardSlice,
    VersionDirectory,
    check_source,
    files,
    locate_version,
    open_source,
)
from autoloader.catalog.directories import INFO_FILE
from autoloader.catalog.metadata import FEATURES_FILE
from autoloader.errors import SpecError
from autoloader.spec import DatasetSpec, PipelineSpec
from autoloader.transforms.cameras import framed


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """A dataset that takes part in a split; nothing is open yet.

    Attributes:
        spec: the mixture.
        declared: the dataset.
        split: which split.
        expression: the records that the split takes of it.
    """

    spec: PipelineSpec
    declared: DatasetSpec
    split: str
    expression: str

    @property
    def where(self) -> str:
        """Its path in the spec."""
        return f"datasets[{self.declared.name}]"

    @property
    def remote(self) -> bool:
        """Whether its files lie where only a client reaches them."""
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

    def metadata_files(self) -> list[str]:
        """Files of a remote dataset that opening it reads, where the spec names its directory."""
        if not self.remote or self.declared.path is None:
            return []
        return [files.join(self.declared.path, name) for name in (INFO_FILE, FEATURES_FILE)]

    def open(self) -> tuple[VersionDirectory, tuple[ShardSlice, ...]]:
        """What lies there, and the records of the split, by shard.

        Raises:
            SourceError: its directory is missing or broken.
            SpecError: the expression names a split that is not there.
        """
        directory = open_source(self.path(), dataset=self.declared.name)
        directory = framed(directory, self.declared, self.spec.cameras)
        if self.declared.episodes is not None:
            directory = self._of_episodes(directory, self.declared.episodes)
        slices = directory.resolve(self.expression, field=f"{self.where}.split.{self.split}")
        return directory, slices

    def _of_episodes(self, directory: VersionDirectory, numbers: Sequence[int]) -> VersionDirectory:
        where = f"{self.where}.episodes"
        if not directory.numbered:
            raise SpecError(
                f"{where}: {directory.path} is no LeRobot dataset, whose episodes have numbers",
                remedy="leave it out, and cut the split: train[:90%]",
                path=where,
            )
        known = set(directory.episode_numbers)
        lost = sorted(set(numbers) - known)
        if lost or not numbers:
            told = f"there is no episode {lost[0]}" if lost else "it is empty"
            raise SpecError(
                f"{where}: {told}; {directory.path} has {len(known)} episodes, "
                f"{min(known, default=0)} to {max(known, default=0)}",
                remedy="name episodes that its list has",
                path=where,
            )
        return directory.with_episodes(numbers)


def find_sources(spec: PipelineSpec, split: str) -> tuple[DatasetSource, ...]:
    """The datasets of a split, in the order of the spec; costs next to nothing.

    Raises:
        SourceError: a local dataset's directory is missing, or is no dataset.
        SpecError: a dataset does not say what it gives to the split, or none takes part.
    """
    found = []
    for declared in spec.datasets:
        if split not in declared.split:
            raise SpecError(
                f"datasets[{declared.name}].split: has no {split!r}",
                remedy=f"add {split}: EXPRESSION, or {split}: null to leave the dataset out; "
                f"known: {', '.join(sorted(declared.split))}",
                path=f"datasets[{declared.name}].split",
            )
        expression = declared.split[split]
        if expression is not None:
            found.append(DatasetSource(spec, declared, split, expression))
    if not found:
        raise SpecError(
            f"no dataset takes part in split {split!r}",
            remedy=f"give at least one dataset a split expression for {split!r}",
            path="datasets",
        )
    for source in found:
        if not source.remote:
            check_source(source.path(), dataset=source.declared.name)
    return tuple(found)
