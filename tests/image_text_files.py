"""Image–text data made small: pictures of every kind, and records in every kind of file."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet

from autoloader import PipelineSpec

SIZE = (12, 16)


def pixels(number: int) -> NDArray[np.uint8]:
    """A picture of one colour, which tells its number."""
    return np.full((*SIZE, 3), (number * 40 % 256, 255 - number * 30 % 256, number * 7), np.uint8)


def encoded(number: int, kind: str = "png") -> bytes:
    """The picture of a number: "png", "jpeg", "webp", "gif", "grey", "clear", "alpha", "palette".

    "clear" is of greys, whose one is transparent.
    """
    picture = Image.fromarray(pixels(number))
    out = io.BytesIO()
    if kind in ("grey", "clear"):
        shown = pixels(number)[..., 0]
        more = {"transparency": int(shown[0, 0])} if kind == "clear" else {}
        Image.fromarray(shown).save(out, "png", **more)
    elif kind == "alpha":
        picture.putalpha(Image.fromarray(np.full(SIZE, 51, np.uint8)))
        picture.save(out, "png")
    elif kind == "palette":
        picture.quantize(8).save(out, "png")
    elif kind == "webp":
        picture.save(out, "webp", lossless=True)
    else:
        picture.save(out, kind)
    return out.getvalue()


def record(number: int, pictures: list[str], turns: int = 1) -> dict[str, Any]:
    """A record of LLaVA's form."""
    marks = "<image>\n" * len(pictures)
    said: list[dict[str, str]] = []
    for turn in range(turns):
        said.append(
            {"from": "human", "value": f"{marks if not turn else ''}what {number}.{turn} é?"}
        )
        said.append({"from": "gpt", "value": f"answer {number}.{turn}"})
    found: dict[str, Any] = {"id": str(number), "conversations": said}
    if pictures:
        found["image"] = pictures[0] if len(pictures) == 1 else pictures
    return found


def records(folder: Path, counts: list[int]) -> list[dict[str, Any]]:
    """Records with so many pictures each, whose files lie below ``folder``."""
    found, number = [], 0
    folder.mkdir(parents=True, exist_ok=True)
    for k, count in enumerate(counts):
        names = []
        for _ in range(count):
            names.append(f"p{number}.png")
            (folder / names[-1]).write_bytes(encoded(number))
            number += 1
        found.append(record(k, names))
    return found


def write_lines(path: Path, found: list[dict[str, Any]]) -> Path:
    """A JSONL file, with a blank line in it."""
    lines = [json.dumps(one, ensure_ascii=False) for one in found]
    path.write_text("\n".join([*lines[:1], "", *lines[1:]]) + "\n", encoding="utf-8")
    return path


def write_list(path: Path, found: list[dict[str, Any]]) -> Path:
    """A JSON list."""
    path.write_text(json.dumps(found, ensure_ascii=False, indent=1), encoding="utf-8")
    return path


def write_tar(path: Path, counts: list[int], caption: int = -1) -> Path:
    """A tar shard; record ``caption`` has a caption in place of JSON."""
    number = 0
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:

        def put(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))

        for k, count in enumerate(counts):
            for picture in range(count):
                put(f"x/{k:04}.image_{picture}.png", encoded(number))
                number += 1
            if k == caption:
                put(f"x/{k:04}.txt", f"a caption {k} é".encode())
            else:
                said = {"texts": [{"user": f"what {k}?", "assistant": f"answer {k}"}]}
                put(f"x/{k:04}.json", json.dumps(said).encode())
    return path


def write_parquet(path: Path, counts: list[int], codec: str = "snappy") -> Path:
    """A Parquet file of the Hub's form; each count is 0 or 1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures, turns, number = [], [], 0
    for k, count in enumerate(counts):
        one = {"bytes": encoded(number), "path": "x.png"} if count else None
        number += count
        pictures.append(one)
        turns.append(record(k, ["x"] * count)["conversations"])
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(pictures, kind), "conversations": pa.array(turns)})
    parquet.write_table(table, path, compression=codec, row_group_size=5)
    return path


def spec_of(path: Path, *others: dict[str, Any], **more: Any) -> PipelineSpec:
    """A spec of image–text data, shown in a camera ``top`` of the pictures' own size."""
    names = {"weight", "images", "media", "vision", "sample_weight", "language", "features"}
    own = {key: more.pop(key) for key in names & more.keys()}
    if "vision" not in own:
        own.setdefault("images", {"top": "image_0"})
    dataset = {"name": "talk", "path": str(path), "kind": "image_text", "language": "prompt", **own}
    cameras = {"top": {"size": list(SIZE), "placeholder": True}}
    spec = {"datasets": [dataset, *others], "cameras": cameras, "batch": {"size": 4}}
    return PipelineSpec.from_mapping(spec | more)
