"""What must stay free on the disk of the cache of shards: checked before anything is fetched.

Not here: keeping it free (``remote.room``).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from autoloader.errors import UsageError
from autoloader.remote.places import disk_floor_of_environment
from autoloader.samples.resolve.mixture import ResolvedMixture
from autoloader.units import format_bytes, parse_floor

logger = logging.getLogger(__name__)


def admit_disk_floor(disk_floor: str | int | None, mixture: ResolvedMixture) -> int | None:
    """What ``disk_floor`` says in bytes.

    Args:
        disk_floor: "50GB", or bytes; 0 keeps nothing free; ``None`` says nothing.
        mixture: what will be read.

    Raises:
        UsageError: it is no floor, or more than the disk of the cache has; or the environment's is
            no floor.
    """
    if disk_floor is None:
        floor_bytes = disk_floor_of_environment()
    else:
        floor_bytes = parse_floor(disk_floor, name="disk_floor")
    if floor_bytes == 0:
        logger.warning("disk_floor is 0: the cache of shards may fill its disk")
    if disk_floor is None:
        return None
    if not _is_cached(mixture):
        return floor_bytes
    from autoloader.remote.shards import FOLDER_VARIABLE, shards_folder

    folder = shards_folder()
    found = os.statvfs(folder)
    whole = found.f_blocks * found.f_frsize
    if floor_bytes >= whole:
        raise UsageError(
            f"disk_floor: {format_bytes(floor_bytes)} cannot stay free: the disk of the cache of "
            f"shards ({folder}) has {format_bytes(whole)} in all",
            remedy=f"lower disk_floor, or name a folder on a larger disk ({FOLDER_VARIABLE})",
        )
    return floor_bytes


@contextlib.contextmanager
def disk_floor_kept(floor_bytes: int | None, mixture: ResolvedMixture) -> Iterator[None]:
    """As long as this lasts so much stays free, whatever is fetched of a mixture.

    Args:
        floor_bytes: of ``admit_disk_floor``.
        mixture: what is read.
    """
    if not _is_cached(mixture):
        yield
        return
    from autoloader.remote.shards import kept_free

    with kept_free(floor_bytes):
        yield


def _is_cached(mixture: ResolvedMixture) -> bool:
    """Whether shards of it come through the cache; local data goes without."""
    return any(one.remote and one.indexable for one in mixture.datasets)
