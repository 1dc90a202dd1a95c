"""What the frames of an episode are in the tables, whichever kind of camera they come from.

Not here: the kinds (``videos``, ``pictures``).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.lerobot.episodes import Episode
from autoloader.index.format import Section

Steps = NDArray[np.int64]


class EpisodeFrames(Protocol):
    """The frames of one camera in one episode."""

    def sections(self, number: int, steps: Steps) -> tuple[dict[Section, Any], list[bytes]]:
        """What the tables hold of frames, and the texts that ``FRAME_FILES`` and the like number.

        Args:
            number: of the feature in the schema.
            steps: [n] of the episode.
        """
        ...


class FramesOfFile(Protocol):
    """The frames of one camera in the episodes of one Parquet file."""

    def of(self, one: Episode, rows: slice) -> EpisodeFrames:
        """Those of an episode, whose rows these are.

        Raises:
            DamagedEpisodeError: they are not there.
        """
        ...
