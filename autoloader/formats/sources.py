"""Opens a dataset whatever its format: TFDS/RLDS or LeRobot, told apart by what lies there.

Not here: what a format says about itself (``metadata``, ``lerobot.metadata``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from autoloader.formats import files
from autoloader.formats.dataset import DatasetFormat
from autoloader.formats.tfds import check_version, open_version

_LEROBOT_INFO = "meta/info.json"
"""``lerobot.metadata.INFO_FILE``, without an import of that package."""


def open_source(path: str | Path, *, dataset: str) -> DatasetFormat:
    """Reads the metadata of a TFDS version directory or a LeRobot dataset.

    Args:
        path: path of the directory.
        dataset: the name that the spec gives this dataset, for messages.

    Raises:
        SourceError: it does not exist, is neither, or is broken.
        MissingExtraError: it needs a package of the extra ``lerobot``.
    """
    if is_lerobot(path):
        from autoloader.formats.lerobot import open_lerobot  # runs of TFDS alone go without

        return open_lerobot(path, dataset=dataset)
    return open_version(path, dataset=dataset)


def check_source(path: str | Path, *, dataset: str) -> str:
    """``path``, normal; where it is local, after a look that costs next to nothing.

    Raises:
        SourceError: it is local, and is no dataset.
    """
    if is_lerobot(path):
        return files.normal(path)
    return check_version(path, dataset=dataset)


def is_lerobot(path: str | Path) -> bool:
    """True of a local LeRobot dataset that may be looked into."""
    try:
        return not files.is_remote(path) and Path(files.normal(path), _LEROBOT_INFO).is_file()
    except OSError:
        return False  # whoever opens it says why


_EDGE_BYTES = 2**16


def same_files(directories: Sequence[DatasetFormat]) -> list[tuple[int, int]]:
    """Pairs (earlier, later) of local datasets that read the same files, linked or copied.

    Files are taken for the same where they agree in names, sizes, and the edges of the first and
    the last; so are two revisions of one repository of the Hub.
    """
    alike: dict[object, list[int]] = {}
    for number, one in enumerate(directories):
        if not files.is_remote(one.path):
            paths = _shard_paths(one)
            cheap = len(paths), _sizes(one.path, paths[:1])
            alike.setdefault(_repository(one) or cheap, []).append(number)
    pairs = []
    for numbers in alike.values():
        known: dict[object, int] = {}
        for number in numbers if len(numbers) > 1 else ():
            one = directories[number]
            first = known.setdefault(_repository(one) or _edges(one), number)
            if first != number:
                pairs.append((first, number))
    return pairs


def _repository(directory: DatasetFormat) -> Path | None:
    """The Hub's repository that a dataset is a revision of, or ``None``."""
    place = Path(directory.path)
    return place.parents[1] if place.parent.name == "snapshots" else None


def _shard_paths(directory: DatasetFormat) -> list[str]:
    return sorted({shard.path for shards in directory.splits.values() for shard in shards})


def _edges(directory: DatasetFormat) -> object:
    """Names and sizes of all shard files, and a hash of the edges of the first and the last."""
    paths = _shard_paths(directory)
    digest = hashlib.blake2b()
    for path in {*paths[:1], *paths[-1:]}:
        with files.opened(path) as file:
            size = os.fstat(file).st_size
            digest.update(os.pread(file, _EDGE_BYTES, 0))
            digest.update(os.pread(file, _EDGE_BYTES, max(0, size - _EDGE_BYTES)))
    return _sizes(directory.path, paths), digest.digest()


def _sizes(root: str, paths: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """(path from the root, bytes or −1 where the file is missing) of files."""
    return tuple(
        (os.path.relpath(path, root), Path(path).stat().st_size if os.path.exists(path) else -1)  # noqa: PTH110
        for path in paths
    )
