"""Where the pictures of episodes lie inside their Parquet file.

Not here: finding them (``catalog.lerobot.pictures``), unpacking them (``samples.encoded``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from autoloader.formats.lerobot.episodes import Episode
from autoloader.formats.lerobot.parquet import UnreadableParquetError
from autoloader.formats.lerobot.pictures import PictureTable, read_pictures
from autoloader.formats.lerobot.rows import DamagedEpisodeError
from autoloader.index.format import Section
from autoloader.index.lerobot.frames import Steps

SECTIONS = (
    Section.FRAME_OFFSETS,
    Section.FRAME_LENGTHS,
    Section.FRAME_CODECS,
    Section.UNPACKED_BYTES,
    Section.PICTURE_STARTS,
    Section.PICTURE_BYTES,
)


class PictureFrames:
    """The pictures of one camera in a Parquet file; read when the first episode asks.

    Args:
        shard: the file.
        camera: the feature.
        rows: of the file.
    """

    def __init__(self, shard: str, camera: str, rows: int) -> None:
        self._shard = shard
        self._camera = camera
        self._rows = rows
        self._table: PictureTable | str | None = None

    def of(self, one: Episode, rows: slice) -> _PictureEpisode:
        """See ``FramesOfFile.of``."""
        if self._table is None:
            try:
                self._table = read_pictures(self._shard, self._camera, self._rows)
            except UnreadableParquetError as error:
                self._table = str(error)
        if isinstance(self._table, str):
            raise DamagedEpisodeError(f"{self._camera}: {self._table}")
        lost = np.flatnonzero(self._table.offset[rows] < 0)
        if len(lost):
            raise DamagedEpisodeError(
                f"{self._camera}: row {lost[0]} of episode {one.index} has no picture in its "
                "Parquet file"
            )
        return _PictureEpisode(self._table, rows.start)


@dataclass(frozen=True, slots=True)
class _PictureEpisode:
    """See ``EpisodeFrames``; ``first`` is the episode's first row."""

    table: PictureTable
    first: int

    def sections(self, number: int, steps: Steps) -> tuple[dict[Section, Any], list[bytes]]:
        """See ``EpisodeFrames.sections``."""
        del number
        table, rows = self.table, self.first + steps
        found = {
            Section.FRAME_OFFSETS: table.offset[rows],
            Section.FRAME_LENGTHS: table.length[rows],
            Section.FRAME_CODECS: np.zeros(1, np.int64),
            Section.UNPACKED_BYTES: table.unpacked[rows],
            Section.PICTURE_STARTS: table.start[rows],
            Section.PICTURE_BYTES: table.size[rows],
        }
        return found, [table.codec.encode()]
