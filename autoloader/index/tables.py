"""Puts the tables of one shard file together, record by record, whatever its format.

Not here: where a record's values come from (``index.build``, ``index.lerobot``), how tables become
a file (``index.format``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.index.format import (
    DTYPES,
    FIRST_NOTE,
    NUMBERS,
    Section,
    ShardTables,
    SourceIdentity,
)
from autoloader.samples.schema import RecordSchema, StoredFeature

Values = dict[tuple[Section, int], NDArray[Any]]
"""Of one record: what is to be appended to each section."""

ONCE = (Section.FRAME_FILES, Section.FRAME_CODECS)
"""Sections of frames with one number for each record, damaged ones included."""
_OF_TEXTS = (Section.TEXT_IDS, *ONCE)


def sections_of(feature: StoredFeature) -> tuple[Section, ...]:
    """The sections of a feature whose frames are byte ranges of the shard file."""
    if feature.role == "frames":
        return Section.FRAME_OFFSETS, Section.FRAME_LENGTHS
    return (NUMBERS.get(feature.role, Section.TEXT_IDS),)


class TableBuilder:
    """Builds the tables of a shard file.

    Args:
        schema: what is indexed.
        sections: which sections a feature has.

    Attributes:
        schema: as above.
        damage: record → why it is left out.
    """

    def __init__(
        self,
        schema: RecordSchema,
        sections: Callable[[StoredFeature], tuple[Section, ...]] = sections_of,
    ) -> None:
        self.schema = schema
        self.damage: dict[int, str] = {}
        self._offsets: list[int] = []
        self._lengths: list[int] = []
        self._steps: list[int] = []
        self._texts: dict[bytes, int] = {}
        self._parts: dict[tuple[Section, int], list[NDArray[Any]]] = {}
        for number, feature in enumerate(schema.features):
            self._parts.update({(kind, number): [] for kind in sections(feature)})

    def add(
        self,
        offset: int,
        length: int,
        steps: int,
        values: Values,
        texts: Mapping[int, list[bytes]],
    ) -> None:
        """The next record.

        Args:
            offset: where it lies in the file.
            length: how much of it that is.
            steps: it has.
            values: of its features; those that are texts as places in ``texts``.
            texts: feature number → its texts.
        """
        self._offsets.append(offset)
        self._lengths.append(length)
        self._steps.append(steps)
        for (kind, number), part in values.items():
            mine = self._shared(texts[number])[part] if kind in _OF_TEXTS else part
            self._parts[kind, number].append(mine)

    def leave_out(self, offset: int, length: int, reason: str) -> None:
        """The next record has no rows; features that the episode has once keep their one place."""
        self.damage[len(self._steps)] = reason
        self._offsets.append(offset)
        self._lengths.append(length)
        self._steps.append(-1)
        for (kind, number), parts in self._parts.items():
            feature = self.schema.features[number]
            if kind in ONCE or not feature.per_step:
                one = (1, feature.width) if kind in NUMBERS.values() else (1,)
                parts.append(np.full(one, -1, DTYPES[kind]))

    def note(self, text: str) -> None:
        """What a person should know of the shard file."""
        self.damage[min([*self.damage, FIRST_NOTE + 1]) - 1] = text

    def tables(self, source: SourceIdentity) -> ShardTables:
        """The tables of the records added so far."""
        sections = {}
        for (kind, number), parts in self._parts.items():
            width = (self.schema.features[number].width,) if kind in NUMBERS.values() else ()
            nothing = np.empty((0, *width), DTYPES[kind])
            sections[kind, number] = np.concatenate([nothing, *parts]).astype(
                DTYPES[kind], copy=False
            )
        return ShardTables(
            source=source,
            record_offsets=np.array(self._offsets, np.int64),
            record_lengths=np.array(self._lengths, np.int64),
            steps=np.array(self._steps, np.int32),
            damage=self.damage,
            sections=sections,
            texts=list(self._texts),
        )

    def _shared(self, texts: list[bytes]) -> NDArray[np.int32]:
        """Ids of a record's texts in the shard's table."""
        known = self._texts
        return np.array([known.setdefault(text, len(known)) for text in texts], np.int32)
