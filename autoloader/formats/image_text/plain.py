"""Image–text records as ``verify`` compares with: read whole by json, tarfile, pyarrow, Pillow.

Shares nothing with the index except the rules for turns.

Not here: records as a run reads them (``records``), comparing (``cli.verify``).
"""

from __future__ import annotations

import io
import json
import tarfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from autoloader.errors import SourceError
from autoloader.formats.dataset import ShardSlice
from autoloader.formats.image_text.records import PICTURES, Record, UnreadableRecordError
from autoloader.formats.plain import Step
from autoloader.spec.model import MOST_PICTURES

if TYPE_CHECKING:
    from autoloader.formats.image_text import ImageTextDirectory


class ImageTextReader:
    """See ``PlainReader``.

    Args:
        directory: dataset that is read.
    """

    fps: float | None = None

    def __init__(self, directory: ImageTextDirectory) -> None:
        self._directory = directory

    def episode(self, piece: ShardSlice, record: int) -> list[Step]:
        """See ``PlainReader``."""
        from autoloader.formats.image_text import image

        try:
            raw, pictures = _loaded(piece.path, self._directory.packed.get(piece.path, ""))[record]
            found = Record.parse(raw) if isinstance(raw, bytes) else raw
            if not pictures:
                root = Path(self._directory.media)
                pictures = [(root / one).read_bytes() for one in found.pictures]
            shown = [_opened(one) for one in pictures]
        except (UnreadableRecordError, OSError, LookupError) as error:
            raise SourceError(
                f"{piece.path}, record {record} cannot be read: {error}",
                remedy="restore the file from where the dataset came",
                dataset=self._directory.dataset,
            ) from error
        step: dict[str, Any] = {
            name: getattr(found, name).encode() for name in ("prompt", "answer", "conversation")
        }
        for number in range(MOST_PICTURES):
            there = number < len(shown)
            step[image(number)] = shown[number] if there else np.zeros((1, 1, 3), np.uint8)
            step[f"has_{image(number)}"] = there
        return [step]


def _opened(data: bytes) -> NDArray[np.uint8]:
    """[H, W, 3], white where it is transparent."""
    with Image.open(io.BytesIO(data)) as file:
        if "A" in file.getbands() or "transparency" in file.info:
            whole = file.convert("RGBA")
            under = Image.new("RGBA", whole.size, "white")
            return np.asarray(Image.alpha_composite(under, whole).convert("RGB"))
        return np.asarray(file.convert("RGB"))


@lru_cache(maxsize=2)
def _loaded(path: str, column: str) -> list[tuple[Any, list[bytes]]]:
    """(text of a record, its pictures where they lie in the file) of every record of a file."""
    if path.endswith(".parquet"):
        from pyarrow import parquet

        rows = parquet.read_table(path).to_pylist()
        packed = [(row.pop(column) or {}) if column else {} for row in rows]
        return [
            (json.dumps(row, default=str).encode(), [one["bytes"]] if one.get("bytes") else [])
            for row, one in zip(rows, packed, strict=True)
        ]
    if not path.endswith(".tar"):
        text = Path(path).read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            return [(json.dumps(one).encode(), []) for one in json.loads(text)]
        return [(line.encode(), []) for line in text.split("\n") if line.strip()]
    samples: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member)
            folder, _, name = member.name.rpartition("/")
            stem, _, suffix = name.partition(".")
            if file is not None:
                samples.setdefault(f"{folder}/{stem}", {})[suffix.lower()] = file.read()
    return [(_told(one), _shown(one)) for one in samples.values()]


def _told(members: dict[str, bytes]) -> Any:
    told = next((one for key, one in members.items() if key.endswith("json")), None)
    if told is not None:
        return told
    return Record.parse(
        next(one for key, one in members.items() if key.endswith("txt")), caption=True
    )


def _shown(members: dict[str, bytes]) -> list[bytes]:
    return [members[key] for key in sorted(members) if key.rpartition(".")[2] in PICTURES]
