"""TFRecord framing: where records lie, and what damage does to a scan."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.formats.records import (
    FileChangedError,
    RecordReader,
    masked_crc32c,
    read_records,
    walk_records,
)

PAYLOADS = [b"first", b"", b"third" * 100]


def frame(payload: bytes) -> bytes:
    length = len(payload).to_bytes(8, "little")
    return b"".join(
        [
            length,
            masked_crc32c(length).to_bytes(4, "little"),
            payload,
            masked_crc32c(payload).to_bytes(4, "little"),
        ]
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"".join(map(frame, PAYLOADS)))
    return path


def test_the_checksum_is_the_one_that_tensorflow_writes():
    # An empty record, as TFRecordWriter writes it.
    assert frame(b"").hex() == "0000000000000000" + "29039807" + "d8ea82a2"


def test_a_whole_file_gives_every_payload_and_no_damage(file: Path):
    found = list(read_records(file))
    assert [(one.number, one.payload, one.reason) for one in found] == [
        (number, payload, "") for number, payload in enumerate(PAYLOADS)
    ]
    data = file.read_bytes()
    assert all(data[one.offset :].startswith(one.payload or b"") for one in found)


@given(st.integers(0, 100), st.binary(max_size=80))
def test_any_bytes_give_records_within_the_file(length: int, rest: bytes):
    header = length.to_bytes(8, "little")
    data = header + masked_crc32c(header).to_bytes(4, "little") + rest
    fd = os.memfd_create("x")
    try:
        os.write(fd, data)
        for start, length, lost in walk_records(fd, len(data)):
            assert lost is not None or start + 12 + length + 4 <= len(data)
    finally:
        os.close(fd)


def test_reading_behind_the_end_is_told_and_not_short(file: Path):
    with (
        file.open("rb") as stream,
        pytest.raises(FileChangedError, match="cut off"),
        RecordReader(stream.fileno()).record(12, 10**6),
    ):
        pass
