"""Damaged and hostile image–text data: named, and never a wrong picture."""

import io
import json
import os
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from image_text_files import encoded, pixels, record, spec_of, write_lines, write_parquet, write_tar
from pyarrow import parquet

from autoloader import AutoLoader, AutoloaderError, PipelineSpec, SourceError
from autoloader.process.draft import draft
from autoloader.spec.reading import parse_yaml

pytestmark = pytest.mark.usefixtures("one_child")

HOW: dict[str, Any] = {"output": "numpy", "ram_floor": "64MiB"}
ERRORS = {"max_corrupt_ratio": 0.5}


def png_of(width: int, height: int) -> bytes:
    """A PNG that says it has so many pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    check = struct.pack(">I", zlib.crc32(b"IHDR" + head))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + head + check


def jpeg_of_ink() -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("CMYK", (8, 8)).save(out, "jpeg")
    return out.getvalue()


def bad_records(folder: Path) -> dict[str, tuple[Any, str]]:
    """What is wrong → (a line, or a record, part of the reason)."""
    pictures = {
        "empty": b"", "text": b"no picture at all", "cut": encoded(1)[:20],
        "huge.png": png_of(60_000, 60_000), "none.png": png_of(0, 7),
        "bomb.gif": b"GIF89a" + struct.pack("<HH", 65_535, 65_535) + bytes(20),
        "bomb.webp": b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff" * 6 + bytes(20),
        "ink.jpg": jpeg_of_ink(), "loop.jpg": b"\xff\xd8" + b"\xff" * 4000,
    }  # fmt: skip
    for name, data in pictures.items():
        (folder / name).write_bytes(data)
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder.parent / "secret.png").write_bytes(encoded(5))
    shown = {name: (record(9, [name]), said) for name, said in {
        "empty": "header is cut off|not a JPEG", "text": "it is not a JPEG", "cut": "cut off",
        "huge.png": "pixels", "none.png": "pixels", "bomb.gif": "pixels", "bomb.webp": "pixels",
        "ink.jpg": "4 colours", "loop.jpg": "damaged|cut off",
        "pipe": "not a regular", "folder": "not a regular",
        "missing.png": "No such file", "../secret.png": "lies outside",
        str(folder.parent / "secret.png"): "lies outside", "x/../../secret.png": "lies outside",
        "a\0b": "the path of a picture", "n" * 5000: "too long",
    }.items()}  # fmt: skip
    return shown | {
        "no JSON": ('{"conversations": [', "it is not JSON"),
        "deep": ("[" * 100_000, "it is not JSON"),
        "a number": ("17", "not a JSON object"),
        "no text": ({"image": "good.png"}, "it has no text"),
        "a video": (record(9, []) | {"video": "x.mp4"}, "videos"),
        "a role": ({"conversations": [{"from": "cat", "value": "x"}]}, "unknown role: 'cat'"),
        "no value": ({"conversations": [{"from": "human"}]}, "no text"),
        "a turn": ({"conversations": ["x"]}, "not a JSON object"),
        "marks": (record(9, ["good.png"] * 2) | {"image": "good.png"}, "2 times, but it"),
        "unused": (record(9, ["good.png"]) | {"image": ["good.png"] * 3}, "but it names 3"),
        "no path": (record(9, ["good.png"]) | {"image": {"a": 1}}, "the path of a picture"),
    }


def test_each_bad_record_is_left_out_by_name(tmp_path: Path):
    media = tmp_path / "media"
    media.mkdir()
    (media / "good.png").write_bytes(encoded(3))
    bad = bad_records(media)
    assert len(bad) >= 28
    good = json.dumps(record(1, ["good.png"]))
    lines = [good]
    for line, _ in bad.values():
        lines += [line if isinstance(line, str) else json.dumps(line), good]
    lines.append("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"))
    (tmp_path / "t.jsonl").write_text("\n".join(lines), encoding="utf-8")
    spec = spec_of(tmp_path / "t.jsonl", media=str(media), errors=ERRORS)
    with AutoLoader(spec, **HOW) as loader:
        for batch in loader:
            assert all(place[3] % 2 == 0 for place in batch["provenance"].tolist())
            assert (batch["images"]["top"] == pixels(3)).all()
        found = {one.record: one.reason for one in loader.quarantined()}
    for number, (name, (_, said)) in enumerate(bad.items()):
        assert any(part in found[2 * number + 1] for part in said.split("|")), (name, found)
    assert len(found) == len(bad) + 1


def test_a_picture_that_fails_in_decoding_is_a_repeat(tmp_path: Path):
    (tmp_path / "a").write_bytes(encoded(2))
    whole = encoded(4, "jpeg")
    (tmp_path / "b").write_bytes(whole[: len(whole) // 2])
    found = [record(k, ["b" if k == 2 else "a"]) for k in range(4)]
    path = write_lines(tmp_path / "t.jsonl", found)
    with AutoLoader(spec_of(path), **HOW) as loader:
        (batch,) = loader
        (bad,) = loader.quarantined()
    assert (batch["images"]["top"] == pixels(2)).all()
    assert 2 not in batch["provenance"][:, 3].tolist()
    assert bad.record == 2
    assert "cannot be decoded" in bad.reason


def test_a_row_whose_picture_lies_elsewhere_is_left_out_by_name(tmp_path: Path):
    path = write_parquet(tmp_path / "t.parquet", [1, 1, 0, 1, 1])
    table = parquet.read_table(path)
    pictures = table["image"].to_pylist()
    pictures[1]["bytes"] = None
    table = table.set_column(0, "image", pa.array(pictures, table.schema.field("image").type))
    parquet.write_table(table, path)
    with AutoLoader(spec_of(path), **HOW) as loader:
        seen = {place[3] for batch in loader for place in batch["provenance"].tolist()}
        (bad,) = loader.quarantined()
    assert (bad.record, seen) == (1, {0, 2, 3, 4})
    assert "only its path is stored" in bad.reason


@pytest.mark.parametrize("nothing", [None, b""])
def test_a_row_of_text_alone_may_have_an_empty_picture(tmp_path: Path, nothing: bytes | None):
    path = write_parquet(tmp_path / "t.parquet", [0, 0, 1, 0, 1, 1])
    table = parquet.read_table(path)
    pictures = [one or {"bytes": nothing, "path": ""} for one in table["image"].to_pylist()]
    table = table.set_column(0, "image", pa.array(pictures, table.schema.field("image").type))
    parquet.write_table(table, path)
    with AutoLoader(spec_of(path, batch={"size": 3}), **HOW) as loader:
        seen = {
            place[3]: bool(mask.all())
            for batch in loader
            for place, mask in zip(
                batch["provenance"].tolist(), batch["frame_mask"]["top"], strict=True
            )
        }
        assert loader.quarantined() == ()
    assert seen == {0: False, 1: False, 2: True, 3: False, 4: True, 5: True}
    spec = PipelineSpec.from_mapping(parse_yaml(draft(path, print)["spec"]))
    assert spec.datasets[0].vision is not None


LOST = "a link, a sparse file, or two files of one name"


@pytest.mark.parametrize(
    "kind", [tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE], ids=["twice", "link", "symlink"]
)
def test_a_picture_of_a_tar_that_is_a_link_or_there_twice_is_not_lost_in_silence(
    tmp_path: Path, kind: bytes
):
    path, twice = tmp_path / "t.tar", kind == tarfile.REGTYPE
    held = {"a.png": encoded(1), "a.txt": b"one", "b.txt": b"two"}
    held |= {"b.PNG": encoded(2), "b.png": encoded(3)} if twice else {}
    with tarfile.open(path, "w") as tar:
        for name, data in held.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for name in () if twice else ("b.png", "latest"):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "a.png"
            tar.addfile(member)
    with AutoLoader(spec_of(path, batch={"size": 1}), **HOW) as loader:
        seen = {place[3] for batch in loader for place in batch["provenance"].tolist()}
        (bad,) = loader.quarantined()
    assert (bad.record, bad.reason, seen) == (1, f"b has {LOST}", {0})


def broken_list(path: Path) -> Path:
    text = json.dumps([record(k, []) for k in range(4)])
    path.write_text(text[: len(text) // 2])
    return path


def second_list(path: Path) -> Path:
    text = json.dumps([record(0, [])])
    path.write_text(f"{text}\n{text}\n")
    return path


def junk(path: Path) -> Path:
    path.write_bytes(b"junk" * 999)
    return path


def cut(path: Path) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    return path


def lying_tar(path: Path) -> Path:
    """A member that claims 2⁶⁰ bytes."""
    data = bytearray(write_tar(path, [1, 1]).read_bytes())
    at = data.index(b"image_1" if b"image_1" in data else b"0001.image_0")
    member = tarfile.TarInfo("x/9.png")
    member.size = 2**60
    data[at // 512 * 512 :] = member.tobuf(tarfile.GNU_FORMAT)
    path.write_bytes(data)
    return path


def listed_pictures(path: Path) -> Path:
    kind = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    parquet.write_table(pa.table({"images": pa.array([[]], kind), "text": ["x"]}), path)
    return path


def textless(path: Path) -> Path:
    parquet.write_table(pa.table({"number": [1]}), path)
    return path


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        ("a.json", broken_list, "broken from byte"),
        ("b.json", second_list, "more text after the end"),
        ("a.tar", junk, "not a tar"),
        ("b.tar", lambda path: cut(write_tar(path, [1] * 9)), "cut off|damaged"),
        ("c.tar", lying_tar, "cut off|damaged"),
        ("a.parquet", junk, "not a Parquet"),
        ("b.parquet", lambda path: cut(write_parquet(path, [1] * 9)), "not a Parquet"),
        ("c.parquet", listed_pictures, "lists of pictures"),
        ("d.parquet", textless, "none of the text columns"),
    ],
)
def test_files_that_are_broken_are_named(
    tmp_path: Path, name: str, make: Callable[[Path], Path], said: str
):
    path = make(tmp_path / name)
    with pytest.raises(SourceError, match=said) as error:
        AutoLoader(spec_of(path), **HOW)
    assert name in str(error.value)


def test_a_file_that_changed_is_never_read_wrongly(tmp_path: Path):
    (tmp_path / "a").write_bytes(encoded(2))
    path = write_lines(tmp_path / "t.jsonl", [record(k, ["a"]) for k in range(40)])
    spec = spec_of(path, mixing={"epoch": "forever"})

    def read_on(loader: AutoLoader) -> None:
        for batch in loader:
            assert (batch["images"]["top"] == pixels(2)).all()
            path.write_text("x" * 100_000)

    with AutoLoader(spec, **HOW) as loader, pytest.raises(SourceError, match="since it was index"):
        read_on(loader)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"action": "action"}, "the field 'action'"),
        ({"keep": {"match": {"prompt": "a"}}}, "the field 'keep'"),
        ({"steps": {"every": 2}}, "the field 'steps'"),
        ({"images": {"top": "image_99"}}, "image_99"),
        ({"kind": "hdf5", "vision": {"size": [4, 4]}, "action": "a"}, "the field 'vision'"),
        ({"kind": "tfds", "media": "/x", "action": "a"}, "media"),
        ({"path": "gs://bucket/t.jsonl", "images": {"top": "image_0"}}, "remote"),
        ({"path": "t.csv"}, "is no file of records"),
    ],
)
def test_what_records_do_not_have_is_refused_by_name(
    tmp_path: Path, own: dict[str, Any], said: str, written_rlds: Path
):
    path = write_lines(tmp_path / "t.jsonl", [record(0, [])])
    (tmp_path / "t.csv").write_text("x")
    dataset = {"name": "talk", "path": str(path), "kind": "image_text", **own}
    if own.get("kind") == "tfds":
        dataset["path"] = str(written_rlds)
    spec = {"datasets": [dataset], "cameras": {"top": {"size": [4, 4], "placeholder": True}}}
    with pytest.raises(AutoloaderError, match=said):
        AutoLoader(PipelineSpec.from_mapping(spec, folder=tmp_path), **HOW)


@pytest.fixture(scope="module")
def written_rlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rlds_files import write_steps

    return write_steps(tmp_path_factory.mktemp("rlds"), [[3]]).path
