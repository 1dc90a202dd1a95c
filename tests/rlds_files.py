"""Writes small RLDS datasets byte by byte, so that tests can write what TFDS never would.

Frames are of one colour that names episode and step, so that a decoded frame says where it is from.
"""

import itertools
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg

from autoloader.formats.records import masked_crc32c

Values = Mapping[str, Sequence[Any]]
"""One record: feature path → its values, those of all steps in a row."""


@dataclass(frozen=True)
class Declared:
    """One feature of ``features.json``."""

    kind: str
    dtype: str = "float32"
    shape: tuple[int | None, ...] = ()
    encoding: str | None = None

    def document(self) -> dict[str, Any]:
        shape = {"dimensions": [str(-1 if n is None else n) for n in self.shape]}
        if self.kind == "text":
            return {
                "pythonClassName": "tensorflow_datasets.core.features.text_feature.Text",
                "text": {},
            }
        if self.kind == "image":
            image: dict[str, Any] = {"shape": shape, "dtype": self.dtype}
            if self.encoding:
                image["encodingFormat"] = self.encoding
            return {
                "pythonClassName": "tensorflow_datasets.core.features.image_feature.Image",
                "image": image,
            }
        return {
            "pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor",
            "tensor": {"shape": shape, "dtype": self.dtype, "encoding": self.encoding or "none"},
        }


def numbers(*shape: int | None, dtype: str = "float32", encoding: str | None = None) -> Declared:
    return Declared("tensor", dtype, shape, encoding)


def image(
    height: int = 12, width: int = 16, *, dtype: str = "uint8", channels: int = 3
) -> Declared:
    return Declared("image", dtype, (height, width, channels))


TEXT = Declared("text", "string")
PLAIN: dict[str, Declared] = {
    "observation/image": image(),
    "observation/state": numbers(3),
    "action": numbers(2),
    "language_instruction": TEXT,
}
"""The features of ``episode``."""


def colour(number: int, step: int) -> tuple[int, int, int]:
    """The colour of a frame: red names the episode, green the step."""
    return (8 * number + 4) % 256, (4 * step + 2) % 256, 128


def jpeg(number: int, step: int, *, height: int = 12, width: int = 16) -> bytes:
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = colour(number, step)
    return bytes(simplejpeg.encode_jpeg(picture, quality=98, colorsubsampling="444"))


def png(number: int, step: int, *, height: int = 12, width: int = 16) -> bytes:
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = colour(number, step)
    return bytes(cv2.imencode(".png", picture[..., ::-1])[1])


def episode(
    number: int, steps: int, *, encode: Callable[..., bytes] = jpeg, **other: Sequence[Any]
) -> dict[str, Sequence[Any]]:
    """Episode ``number`` of the ``PLAIN`` features; ``other`` replaces or adds features.

    State is (number, step, −step), action (number + step/100, step).
    """
    values: dict[str, Sequence[Any]] = {
        "observation/image": [encode(number, step) for step in range(steps)],
        "observation/state": [v for step in range(steps) for v in (number, step, -step)],
        "action": [v for step in range(steps) for v in (number + step / 100, step)],
        "language_instruction": [f"episode {number}".encode()] * steps,
    }
    values["observation/state"] = [float(v) for v in values["observation/state"]]
    values["action"] = [float(v) for v in values["action"]]
    return {**values, **other}


@dataclass
class Written:
    """A dataset on disk.

    Attributes:
        name: dataset name.
        path: its version directory.
        files: shard files of the first split.
        offsets: shard → byte offset of each record's header.
        lengths: shard → payload bytes of each record.
    """

    name: str
    path: Path
    files: list[Path]
    offsets: list[list[int]] = field(default_factory=list)
    lengths: list[list[int]] = field(default_factory=list)

    def overwrite(self, shard: int, position: int, data: bytes) -> None:
        """Change bytes of a shard in place."""
        with self.files[shard].open("r+b") as file:
            file.seek(position)
            file.write(data)

    def break_payload(self, shard: int, record: int) -> None:
        """Flip a byte in the middle of a record, so that its checksum is wrong."""
        at = self.offsets[shard][record] + 12 + self.lengths[shard][record] // 2
        old = self.files[shard].read_bytes()[at]
        self.overwrite(shard, at, bytes([old ^ 0xFF]))

    def break_length(self, shard: int, record: int) -> None:
        """Write nonsense over a record's length."""
        self.overwrite(shard, self.offsets[shard][record], b"\xff" * 8)

    def claim_length(self, shard: int, record: int, length: int) -> None:
        """Write another length over a record's, with its checksum."""
        size = struct.pack("<Q", length)
        header = size + struct.pack("<I", masked_crc32c(size))
        self.overwrite(shard, self.offsets[shard][record], header)

    def truncate(self, shard: int, record: int) -> None:
        """Cut a shard in the middle of a record."""
        end = self.offsets[shard][record] + 12 + self.lengths[shard][record] // 2
        with self.files[shard].open("r+b") as file:
            file.truncate(end)


def write_dataset(
    folder: Path,
    shards: Sequence[Sequence[Values | bytes]],
    *,
    name: str = "robot",
    features: Mapping[str, Declared] = PLAIN,
    splits: Mapping[str, Sequence[Sequence[Values | bytes]]] | None = None,
) -> Written:
    """A version directory whose ``train`` split has ``shards``; bytes are payloads as they are."""
    path = folder / name / "1.0.0"
    path.mkdir(parents=True)
    written = Written(name, path, [])
    rows = []
    for split, parts in {"train": shards, **(splits or {})}.items():
        rows.append(
            {
                "name": split,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "shardLengths": [str(len(part)) for part in parts],
                "numBytes": "1",
            }
        )
        for number, part in enumerate(parts):
            file = path / f"{name}-{split}.tfrecord-{number:05d}-of-{len(parts):05d}"
            payloads = [one if isinstance(one, bytes) else example(one, features) for one in part]
            offsets = write_records(file, payloads)
            if split == "train":
                written.files.append(file)
                written.offsets.append(offsets)
                written.lengths.append([len(payload) for payload in payloads])
    info = {"name": name, "version": "1.0.0", "fileFormat": "tfrecord", "splits": rows}
    (path / "dataset_info.json").write_text(json.dumps(info))
    (path / "features.json").write_text(json.dumps(_tree(features)))
    return written


def write_records(file: Path, payloads: Sequence[bytes]) -> list[int]:
    """A TFRecord file; the byte offset of each record's header."""
    data, offsets = bytearray(), []
    for payload in payloads:
        offsets.append(len(data))
        size = struct.pack("<Q", len(payload))
        data += size + struct.pack("<I", masked_crc32c(size))
        data += payload + struct.pack("<I", masked_crc32c(payload))
    file.write_bytes(data)
    return offsets


def example(values: Values, features: Mapping[str, Declared] = PLAIN) -> bytes:
    """A serialized ``tf.train.Example``; a path that ``features`` lacks is taken as per step."""
    entries = b""
    for path, items in values.items():
        key = path if path.startswith("episode_metadata/") else f"steps/{path}"
        entries += tagged(
            0x0A, tagged(0x0A, key.encode()) + tagged(0x12, _list(items, features.get(path)))
        )
    return tagged(0x0A, entries)


def _list(items: Sequence[Any], declared: Declared | None) -> bytes:
    if declared is not None and declared.kind == "tensor" and not items:
        return tagged(0x12 if "float" in declared.dtype else 0x1A, b"")
    if not len(items) or isinstance(items[0], bytes):
        return tagged(0x0A, b"".join(tagged(0x0A, item) for item in items))
    if isinstance(items[0], float):
        return tagged(0x12, tagged(0x0A, np.asarray(items, "<f4").tobytes()))
    return tagged(0x1A, tagged(0x0A, b"".join(_varint(int(item) & (2**64 - 1)) for item in items)))


def tagged(tag: int, payload: bytes) -> bytes:
    """A field of a protobuf message, behind its tag: bytes, or a message."""
    return bytes([tag]) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tree(features: Mapping[str, Declared]) -> dict[str, Any]:
    steps: dict[str, Any] = {}
    episode_level: dict[str, Any] = {}
    for path, declared in features.items():
        if path.startswith("episode_metadata/"):
            episode_level[path.split("/", 1)[1]] = declared.document()
            continue
        holder = steps
        *parents, leaf = path.split("/")
        for part in parents:
            holder = holder.setdefault(part, {})
        holder[leaf] = declared.document()
    tree = {
        "steps": {
            "pythonClassName": "tensorflow_datasets.core.features.dataset_feature.Dataset",
            "sequence": {"feature": _dict(steps), "length": "-1"},
        }
    }
    if episode_level:
        tree["episode_metadata"] = _dict(episode_level)
    return _dict(tree)


def _dict(children: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
        "featuresDict": {
            "features": {
                name: child if "pythonClassName" in child else _dict(child)
                for name, child in children.items()
            }
        },
    }


def write_steps(
    folder: Path,
    shards: Sequence[Sequence[int]],
    *,
    first: int = 0,
    encode: Callable[..., bytes] = jpeg,
    **own: Any,
) -> Written:
    """A dataset of episodes of so many steps by shard, numbered from ``first`` on."""
    number = itertools.count(first)
    records = [[episode(next(number), n, encode=encode) for n in part] for part in shards]
    return write_dataset(folder, records, **own)


def write_pair(folder: Path, **shards: Sequence[Sequence[int]]) -> tuple[Written, ...]:
    """A dataset for each name, of episodes of so many steps by shard, told apart by number."""
    firsts = itertools.accumulate((sum(map(len, one)) for one in shards.values()), initial=0)
    return tuple(
        write_steps(folder, parts, first=first, encode=png, name=name)
        for (name, parts), first in zip(shards.items(), firsts, strict=False)
    )


def written_steps(shards: Sequence[Sequence[int]], **own: Any) -> Any:
    """A fixture: ``write_steps``'s dataset, once for a module."""
    return once(lambda folder: write_steps(folder, shards, **own))


def once(make: Callable[[Path], Any]) -> Any:
    """A fixture: what ``make`` writes into an empty folder, once for a module."""

    @pytest.fixture(scope="module")
    def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
        return make(tmp_path_factory.mktemp("data"))

    return made
