"""The registry of dataset formats: which there are, which one a folder has, what lies below one.

``BUILT_IN`` has the formats of this package. Others are installed: a package names its subclass of
``DatasetFormat`` as an entry point of the group ``autoloader.formats``, under the name that a spec
writes as ``kind``. They are looked for only where no format of this package fits.

Not here: what a format says about itself (``dataset.DatasetFormat``).
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autoloader.errors import SourceError, SpecError, nearest
from autoloader.formats import files
from autoloader.formats.dataset import DatasetFormat, has_file
from autoloader.formats.places import RECORDS, VERSION, hub_revision, version_order
from autoloader.telemetry.progress import doing

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "autoloader.formats"
"""Group of the entry points by which packages bring formats."""
BUILT_IN = {
    "lerobot": ("meta/info.json", "autoloader.formats.lerobot:LeRobotDirectory"),
    "tfds": ("dataset_info.json", "autoloader.formats.tfds:TfdsDirectory"),
    "hdf5": ("*.h*5*", "autoloader.formats.hdf5:Hdf5Directory"),
    "image_text": ("", "autoloader.formats.image_text:ImageTextDirectory"),  # named by kind alone
}
"""Kind → (``DatasetFormat.marker``, class). Runs import the formats that they read alone."""
DEEPEST = 5
"""Folders below the one that is named, or below a snapshot of the Hub, that are looked into."""


def _installed() -> dict[str, EntryPoint]:
    """Kind → entry point of the formats that other packages bring."""
    from importlib import metadata  # with the parser of e-mail, which most runs do not need

    return {one.name: one for one in metadata.entry_points(group=GROUP) if one.name not in BUILT_IN}


def _loaded(entry: EntryPoint) -> type[DatasetFormat]:
    """The class of a format that another package declares; ``SpecError`` where it is none."""
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a foreign module may raise anything)
        why = f"{type(error).__name__}: {error}"
    else:
        if isinstance(found, type) and issubclass(found, DatasetFormat):
            return found
        why = "it is no subclass of autoloader.formats.DatasetFormat"
    raise SourceError(
        f"the dataset format {entry.name!r} cannot be loaded from {entry.value}: {why}",
        remedy="fix or uninstall the package that brings this format",
    )


def kinds() -> list[str]:
    """Names of all formats: of this package, and of others that are installed."""
    return sorted([*BUILT_IN, *_installed()])


def nobody(line: str) -> None:
    """Whom a line is told that is for no one."""


def markers(note: Callable[[str], object] = nobody) -> Iterator[tuple[str, str]]:
    """(kind, marker) of all formats, of this package first; ``note`` is told which do not load."""
    yield from ((kind, marker) for kind, (marker, _) in BUILT_IN.items())
    for kind, entry in _installed().items():
        try:
            yield kind, _loaded(entry).marker
        except SourceError as error:
            note(f"{error.what} → {error.remedy}")


def format_of(kind: str, *, field: str) -> type[DatasetFormat]:
    """The format of this name.

    Args:
        kind: name of the format, as a spec has it.
        field: path of the spec field that holds it, for messages.

    Raises:
        SpecError: no format has this name.
        SourceError: a package brings it, and it cannot be imported.
    """
    if kind in BUILT_IN:
        found: type[DatasetFormat] = pkgutil.resolve_name(BUILT_IN[kind][1])
        return found
    installed = _installed()
    if kind in installed:
        return _loaded(installed[kind])
    raise SpecError(
        f"{field}: there is no dataset format {kind!r}",
        remedy=f"{nearest(kind, kinds())}; or install the package that brings it",
        path=field,
    )


def format_at(path: str | Path) -> type[DatasetFormat]:
    """The format of a dataset by its marker: of this package first, then of others.

    A folder without any marker, and a remote one, is taken for TFDS, which says what is wrong.
    """
    if not files.is_remote(path):
        folder = files.normal(path)
        for kind, marker in markers():
            if has_file(folder, marker):
                return format_of(kind, field="kind")
    return format_of("tfds", field="kind")


def open_source(path: str | Path, *, dataset: str, kind: str | None = None) -> DatasetFormat:
    """Reads the metadata of a dataset.

    Args:
        path: path of the directory.
        dataset: the name that the spec gives this dataset, for messages.
        kind: name of the format; ``None``: the one whose marker lies there.

    Raises:
        SourceError: the dataset does not exist, is of no known format, or is broken.
        SpecError: there is no such format.
        MissingExtraError: a package that reads it is not installed.
    """
    found = format_for(path, dataset=dataset, kind=kind)
    return found.open(found.check(path, dataset=dataset), dataset=dataset)


def format_for(path: str | Path, *, dataset: str, kind: str | None) -> type[DatasetFormat]:
    """The format of a dataset; arguments and errors as of ``open_source``."""
    return format_at(path) if kind is None else format_of(kind, field=f"datasets[{dataset}].kind")


def is_file(path: str | Path) -> bool:
    """True if a local file is a dataset by itself."""
    return os.path.isfile(path) and any(has_file(str(path), one) for _, one in markers())


def is_records(path: str | Path) -> bool:
    """True if a local path is a file that may hold records of texts."""
    return str(path).endswith(RECORDS) and os.path.isfile(path)


# -- below a folder -----------------------------------------------------------------------------


def dataset_versions(root: str | Path, note: Callable[[str], object] = nobody) -> list[list[Path]]:
    """Versions of every dataset below ``root``, the newest first; of remote data only the newest.

    Args:
        root: folder or URL that is searched.
        note: is told which folders may not be read, and which are left out.

    Raises:
        SourceError: ``root`` is remote and cannot be read.
    """
    if is_file(root):
        return [[Path(root)]]
    below = _versions_below(Path(root), DEEPEST, [marker for _, marker in markers(note)], note)
    if files.is_remote(root):
        return _by_dataset(sorted(below))
    real = os.path.realpath(root)
    found: dict[str, Path] = {}

    def order(place: Path) -> tuple[bool, Path]:
        """Places that no link leads to come first."""
        return os.path.realpath(place) != os.path.normpath(real / place.relative_to(root)), place

    for place in sorted(below, key=order):
        kept = found.setdefault(os.path.realpath(place), place)
        if kept is not place:
            note(f"{place}: left out: a link to {kept}")
    return _by_dataset(sorted(found.values()))


def _versions_below(
    folder: Path, depth: int, known: Sequence[str], note: Callable[[str], object]
) -> Iterator[Path]:
    """Folders that hold a dataset's version; says which may not be looked into.

    Raises:
        SourceError: a remote folder at the top cannot be read.
    """
    place, away = files.normal(folder), files.is_remote(folder)
    doing(place)
    try:
        below = files.directory_names(place) if away else os.listdir(folder)  # noqa: PTH208
        names = files.file_names(place) if away else below
    except NotADirectoryError:  # whoever opens it says so
        return
    except OSError as error:
        if not away or depth < DEEPEST:
            note(f"{place}: left out: {error.strerror or error}")
            return
        told = files.unreadable(error, place, dataset="")
        raise SourceError(f"{place}: {error.strerror or error}", remedy=told.remedy) from error
    repository = None if away else hub_revision(folder)
    if _is_dataset(place, names, known):
        yield folder
    elif repository is not None:
        name, taken = repository
        note(f"{name}: takes revision {taken.name}")
        yield from _versions_below(taken, DEEPEST, known, note)
    elif depth:
        children = [folder / name for name in below if not name.startswith(".")]
        if away:  # each folder is a request, so old versions are not read
            children = [versions[0] for versions in _by_dataset(children)]
        for child in children:
            if away or os.path.isdir(child):
                yield from _versions_below(child, depth - 1, known, note)


def _is_dataset(place: str, names: Collection[str], known: Iterable[str]) -> bool:
    """True if a folder with these names in it has the marker of a format."""
    away = files.is_remote(place)
    for marker in known:
        first, _, rest = marker.partition("/")
        if fnmatch.filter(names, first) and (has_file(place, marker) if not away else not rest):
            return True
    return False


def _by_dataset(paths: list[Path]) -> list[list[Path]]:
    """The versions of each dataset, the newest first."""
    found: dict[Path, list[Path]] = {}
    for path in paths:
        key = path.parent if VERSION.fullmatch(path.name) else path
        found.setdefault(key, []).append(path)
    return [
        sorted(versions, key=lambda path: version_order(path.name), reverse=True)
        for versions in found.values()
    ]


# -- the same data twice ------------------------------------------------------------------------

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
    """Names and sizes of all shard files, and a hash of the edges of the first and last there."""
    paths = _shard_paths(directory)
    sizes = _sizes(directory.path, paths)
    there = [path for path, (_, size) in zip(paths, sizes, strict=True) if size >= 0]
    if not there:
        return os.path.realpath(directory.path)
    digest = hashlib.blake2b()
    for path in {there[0], there[-1]}:
        with files.opened(path) as file:
            size = os.fstat(file).st_size
            digest.update(os.pread(file, _EDGE_BYTES, 0))
            digest.update(os.pread(file, _EDGE_BYTES, max(0, size - _EDGE_BYTES)))
    return sizes, digest.digest()


def _sizes(root: str, paths: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """(path from the root, bytes or −1 where the file is missing) of files."""
    return tuple(
        (os.path.relpath(path, root), Path(path).stat().st_size if os.path.exists(path) else -1)
        for path in paths
    )
