"""One dataset of one split, its fields bound to real features.

Not here: binding them (``bind``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autoloader.catalog import Feature, ShardSlice, VersionDirectory, files
from autoloader.remote.places import has_client
from autoloader.samples.scaling import Scaling
from autoloader.spec import SampleSpec
from autoloader.transforms.fields import FieldName, NumericField, find_feature
from autoloader.transforms.keep import Keep
from autoloader.transforms.language import Words
from autoloader.transforms.transform import Transform
from autoloader.units import MIB

REMOTE_RECORD_BYTES = 8 * MIB
"""What a record of remote data counts as where its metadata does not say how large it is."""


@dataclass(frozen=True, slots=True)
class ResolvedDataset:
    """One dataset of one split, its fields bound to real features.

    Attributes:
        name, index: its name, and its place in ``dataset_names``.
        weight: as the spec says; relative.
        directory: what lies on disk.
        slices: records of the split, by shard; a provenance's ``shard`` counts these.
        key: start of all its keyed draws.
        sample: what a sample holds.
        stride: every how many frames.
        cameras: canonical camera → the features one is drawn from; missing cameras are absent.
        action, state: bound numeric fields, or ``None``.
        language: the features one is drawn from; empty where there is none.
        words: how their texts become a sample's.
        scaling: "action" and "state" → how they are normalised; absent ones are not.
        keep: rules that leave some t out, or ``None``.
        transform: what rewrites each episode first, or ``None``.
        held: name in the batch → what else samples hold.
        present: camera → the flag that says whether it is there.
        turn: (k, n): of each episode's samples every n-th is taken, from the k-th on
            (``order.parts``).
        reversed: cameras whose first and last channels change places.
        files_are: which copy of the dataset its files were taken for, and why; "" where nothing
            hangs on it.
        by_row: whether frames are taken by the numbers of rows, whatever times say.
        num_samples: of a pass, where the spec says it; else ``None``. An index counts by itself.
    """

    name: str
    index: int
    weight: float
    directory: VersionDirectory
    slices: tuple[ShardSlice, ...]
    key: int
    sample: SampleSpec
    stride: int
    cameras: Mapping[str, tuple[Feature, ...]]
    action: NumericField | None
    state: NumericField | None
    language: tuple[Feature, ...]
    scaling: Mapping[str, Scaling] = field(default_factory=dict)
    keep: Keep | None = field(default=None, compare=False)
    transform: Transform | None = field(default=None, compare=False)
    held: Mapping[str, Feature] = field(default_factory=dict)
    present: Mapping[str, Feature] = field(default_factory=dict)
    turn: tuple[int, int] = (0, 1)
    reversed: frozenset[str] = frozenset()
    files_are: str = ""
    by_row: bool = False
    num_samples: int | None = None
    words: Words = field(default_factory=Words)

    @property
    def remote(self) -> bool:
        """Whether its files lie where only a client reaches them."""
        return files.is_remote(self.directory.path)

    @property
    def indexable(self) -> bool:
        """Whether its files can be read by index: they are local, or a client gives ranges."""
        return not self.remote or has_client(self.directory.path)

    @property
    def streamable(self) -> bool:
        """Whether its files can be read as a stream; else by index alone."""
        return self.directory.streamable

    @property
    def records(self) -> int:
        """Episodes of the split."""
        return sum(piece.stop - piece.start for piece in self.slices)

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features that its fields name: the files', or those that its transform gives."""
        return self.directory.features if self.transform is None else self.transform.features

    def bound(self, name: FieldName) -> NumericField | None:
        """``action`` or ``state``."""
        return self.action if name == "action" else self.state

    def numeric_features(self) -> dict[str, Feature]:
        """Every feature that ``action`` and ``state`` read, by the path used in their terms."""
        found = {}
        for bound in (self.action, self.state):
            for term in bound.terms if bound else ():
                if term.path is not None:
                    found[term.path] = find_feature(
                        self.features, term.path, field="", dataset=self.name
                    )
        return found

    @property
    def record_bytes(self) -> int:
        """Mean bytes of a record, from file sizes: the same wherever the files lie.

        Of remote data that no client gives ranges of, what the metadata says.

        Raises:
            SourceError: a remote file cannot be asked for.
        """
        files_of = {piece.path for piece in self.slices if piece.stop > piece.start}
        if self.remote and not self.indexable:
            told = self.directory.record_bytes
            of = [told[piece.split] for piece in self.slices if piece.split in told]
            return max([*of, 0]) or REMOTE_RECORD_BYTES
        if self.remote:
            from autoloader.remote.answers import sizes_of  # local data goes without

            try:
                sizes = sizes_of(sorted(files_of))
            except OSError as error:
                path = str(error.filename or self.directory.path)
                raise files.unreadable(error, path, dataset=self.name) from error
        else:
            sizes = [Path(path).stat().st_size for path in files_of if Path(path).exists()]
        return sum(sizes) // max(1, self.records)
