"""Datasets by their id on the Hugging Face Hub, such as ``lerobot/pusht``: copies here, or fetched.

A local folder of that name wins, then a whole copy in the Hub's cache or in LeRobot's. Else the Hub
is asked, once. A dataset whose format has ``hub_folders`` is fetched into the Hub's cache, which
other programs use too. Any other dataset is read at its address.

Not here: reading ``hf://`` (``storage.clients.hugging_face``), revisions in a cache (``places``).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from autoloader.errors import AutoloaderError, SourceError
from autoloader.formats import files
from autoloader.formats.places import hub_revision
from autoloader.formats.sources import dataset_versions, format_of, markers, open_source
from autoloader.host.extras import needs
from autoloader.host.units import expanded, format_bytes
from autoloader.storage.places import FLOOR_VARIABLE, disk_floor_of_environment

_HUB = "hf://datasets/"
_ID = re.compile(r"(?P<name>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[^/@]+))?")
_ASK_S = 10.0
"""Seconds to wait for the Hub's first answer; it is asked once."""
_WHY = {
    "OfflineModeIsEnabled": ("HF_HUB_OFFLINE forbids asking the Hub", "unset HF_HUB_OFFLINE"),
    "GatedRepoError": (
        "the Hub wants its terms accepted",
        "accept them on the dataset's page, and run `hf auth login`",
    ),
    "RepositoryNotFoundError": (
        "the Hub has no such dataset, or a private one",
        "check the spelling, or run `hf auth login`",
    ),
    "RevisionNotFoundError": ("the Hub has no such revision", "check the part behind @"),
}
"""Kind of an error of ``huggingface_hub`` → what it means, and what to do."""


def names_data(text: str | os.PathLike[str]) -> bool:
    """True of a folder, an address or an id of datasets; False of what may be a spec file."""
    plain = os.fspath(text)
    if plain.endswith((".yaml", ".yml", ".json")):
        return False
    place = expanded(plain)
    there = os.path.exists(place)
    return files.is_remote(plain) or os.path.isdir(place) or bool(_ID.fullmatch(plain)) > there


def located(text: str | os.PathLike[str], say: Callable[[str], object]) -> str:
    """Folder or address of the datasets that a path, an address or an id names.

    Args:
        text: path, URL, or "ORG/NAME[@REVISION]", which may stand behind "hf://datasets/".
        say: is told which copy is taken, and what is fetched.

    Raises:
        SourceError: neither this disk nor the Hub has a dataset of this id.
        MissingExtraError: the Hub has to be asked, and ``huggingface_hub`` is not installed.
    """
    plain, place = os.fspath(text).rstrip("/"), files.normal(os.fspath(text))
    found = _ID.fullmatch(place.removeprefix(_HUB) if files.is_remote(plain) else plain)
    if found is None:
        return place
    copies = list(_copies(found["name"], found["revision"]))
    if not files.is_remote(plain) and os.path.exists(place):
        if copies:
            say(f"reading the folder {plain} (write {_HUB}{plain} for the Hub's)")
        return place
    whole = next(filter(_is_whole, copies), None)
    if whole is None:
        return _fetched(found["name"], found["revision"], copies, say)
    say(f"{found[0]}: taken from {whole}")
    return str(whole)


def _caches() -> tuple[Path, Path]:
    """Caches of the Hub and of LeRobot."""
    user = expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = expanded(os.environ.get("HF_HOME") or user / "huggingface")
    lerobot = expanded(os.environ.get("HF_LEROBOT_HOME") or home / "lerobot")
    return expanded(os.environ.get("HF_HUB_CACHE") or home / "hub"), lerobot


def _copies(name: str, revision: str | None) -> Iterator[Path]:
    """Folders of a dataset in the caches, whole or not."""
    cache, lerobot = _caches()
    for place in (cache, lerobot / "hub"):
        found = hub_revision(place / f"datasets--{name.replace('/', '--')}", revision)
        if found is not None:
            yield found[1]
    if revision is None and os.path.isdir(lerobot / name):
        yield lerobot / name


def _is_whole(folder: Path) -> bool:
    """True of a copy with all its files; LeRobot often fetches ``meta`` alone."""
    try:
        found = [open_source(one[0], dataset=folder.name) for one in dataset_versions(folder)]
    except SourceError:
        return False
    shards = (shard for one in found for split in one.splits.values() for shard in split)
    there = all(os.path.exists(shard.path) for shard in shards)
    return bool(found) and there and not any(one.missing_videos() for one in found)


def _fetched(
    name: str, revision: str | None, copies: list[Path], say: Callable[[str], object]
) -> str:
    """Folder of a dataset that was fetched now; address of one that is read there."""
    label, cache = f"{name}@{revision}" if revision else name, _caches()[0]
    with needs(f"{label} is no folder here, and asking the Hub", extra="remote"):
        from huggingface_hub import HfApi, snapshot_download
    with _worded(label, copies):
        found = HfApi().dataset_info(name, revision=revision, timeout=_ASK_S, files_metadata=True)
    sizes = {one.rfilename: one.size or 0 for one in found.siblings or ()}
    kind, marker = next((one for one in markers() if one[1] in sizes), ("tfds", ""))
    if not (folders := format_of(kind, field="kind").hub_folders):
        return f"{_HUB}{name}@{found.sha}"
    parts = (marker, *folders)
    with _worded(label, copies):
        there = {one.name: one for one in copies}.get(str(found.sha), cache)
        wanted = {path: size for path, size in sizes.items() if path.startswith(parts)}
        lacking = sum(size for path, size in wanted.items() if not (there / path).exists())
        cache.mkdir(parents=True, exist_ok=True)
        room = max(0, shutil.disk_usage(cache).free - disk_floor_of_environment())
        if lacking > room:
            raise SourceError(
                f"{label}: {format_bytes(lacking)} must be fetched, and {cache} has room for "
                f"{format_bytes(room)}",
                remedy="set the environment variable HF_HOME to a folder on a larger disk, or "
                f"lower the disk space that must stay free ({FLOOR_VARIABLE})",
            )
        say(f"{label}: fetching {format_bytes(lacking)} into {cache}")
        return snapshot_download(
            name, repo_type="dataset", revision=found.sha, cache_dir=cache,
            allow_patterns=[f"{part}*" for part in parts],
        )  # fmt: skip


@contextmanager
def _worded(label: str, copies: list[Path]) -> Iterator[None]:
    """Word what goes wrong while the Hub is asked as a ``SourceError``."""
    try:
        yield
    except AutoloaderError:
        raise
    except Exception as error:  # noqa: BLE001  (of several packages; names tell what they mean)
        kinds = [kind.__name__ for kind in type(error).__mro__]
        why = f"the Hub cannot be reached ({kinds[0]})"
        if isinstance(error, OSError) and error.errno:
            why = f"it cannot be fetched: {error.strerror}"
        told = (_WHY[kind] for kind in kinds if kind in _WHY)
        why, remedy = next(told, (why, "check the network"))
        part = f", or the folder of the copy that lacks files: {copies[0]}" if copies else ""
        raise SourceError(
            f"{label}: no folder of this name here, no complete copy in the Hub's cache, and {why}",
            remedy=f"{remedy}; or give a folder with the dataset{part}",
        ) from None
