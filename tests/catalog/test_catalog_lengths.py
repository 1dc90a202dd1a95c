"""About how many frames an episode has: the mean of a few headers, damaged records passed over."""

import os
from pathlib import Path

import platformdirs
import pytest
from rlds_files import tagged

from autoloader.errors import SourceError
from autoloader.formats.dataset import ShardSlice
from autoloader.formats.features import Feature, FeatureKind
from autoloader.formats.records import masked_crc32c
from autoloader.index.counting import mean_frames


def feature(
    path: str,
    dtype: str = "float32",
    shape: tuple[int | None, ...] = (),
    kind: FeatureKind = "tensor",
    encoding: str | None = None,
) -> Feature:
    return Feature(path, f"steps/{path}", kind, dtype, shape, encoding, per_step=True)


IMAGE = feature("image", "uint8", (8, 8, 3), "image", "jpeg")
ACTION = feature("action", shape=(7,))
IS_FIRST = feature("is_first", "bool")
FEATURES = {item.path: item for item in (IMAGE, ACTION, IS_FIRST)}


def strings(*values: bytes) -> bytes:
    return tagged(0x0A, b"".join(tagged(0x0A, value) for value in values))


def floats(count: int) -> bytes:
    return tagged(0x12, tagged(0x0A, bytes(4 * count)))


def integers(count: int) -> bytes:
    return tagged(0x1A, tagged(0x0A, b"\x01" * count))


def record(**features: bytes) -> bytes:
    entries = [
        tagged(0x0A, tagged(0x0A, f"steps/{key}".encode()) + tagged(0x12, value))
        for key, value in features.items()
    ]
    return tagged(0x0A, b"".join(entries))


def episode(steps: int) -> bytes:
    return record(
        image=strings(*[b"x" * 5000] * steps), action=floats(7 * steps), is_first=integers(steps)
    )


def write(path: Path, *payloads: bytes) -> Path:
    data = bytearray()
    for payload in payloads:
        size = len(payload).to_bytes(8, "little")
        data += size + masked_crc32c(size).to_bytes(4, "little")
        data += payload + masked_crc32c(payload).to_bytes(4, "little")
    path.write_bytes(data)
    return path


def mean(path: Path, features: dict[str, Feature] = FEATURES) -> int:
    return mean_frames([ShardSlice(str(path), 0, 0, 1, "train")], features)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _name: tmp_path / "cache")


def test_payloads_of_images_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "x", *[episode(50)] * 4)
    read = 0
    pread = os.pread

    def counting(fd: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = pread(fd, size, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counting)
    assert mean(path) == 50
    assert read < path.stat().st_size / 10


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff\xff",
        episode(3)[:-1],
        record(),
        b"",
        record(action=floats(13)),
        record(is_first=strings(b"x")),
        record(is_first=tagged(0x1A, tagged(0x0A, b"\x80"))),
    ],
)
def test_a_malformed_record_is_passed_over(tmp_path: Path, payload: bytes):
    assert mean(write(tmp_path / "x", episode(2), payload, episode(4))) == 3
    assert mean(write(tmp_path / "y", payload)) == 1


def test_of_a_truncated_file_the_records_before_the_cut_tell(tmp_path: Path):
    path = write(tmp_path / "x", episode(2), episode(4), episode(400))
    path.write_bytes(path.read_bytes()[:-5])
    assert mean(path) == 3


def test_a_dataset_without_steps_is_a_source_error(tmp_path: Path):
    path = write(tmp_path / "x", episode(2))
    with pytest.raises(SourceError, match="no per-step features"):
        mean_frames([ShardSlice(str(path), 0, 0, 1, "train")], {}, dataset="mine")


def test_a_file_that_is_gone_is_a_source_error_naming_it(tmp_path: Path):
    with pytest.raises(SourceError, match=r"mine: .*gone"):
        mean_frames(
            [ShardSlice(str(tmp_path / "gone"), 0, 0, 1, "train")], FEATURES, dataset="mine"
        )
