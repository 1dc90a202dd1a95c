"""TFRecord framing: where records lie, and what damage does to a scan."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.catalog.tfrecord import (
    MalformedRecordError,
    masked_crc32c,
    read_record,
    scan_records,
)

BRIDGE = Path(__file__).parents[2].parent / "shared/data/bridge_dataset/1.0.0"
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


def test_the_checksum_is_the_one_that_tensorflow_writes() -> None:
    # An empty record, as TFRecordWriter writes it.
    assert frame(b"").hex() == "0000000000000000" + "29039807" + "d8ea82a2"


def test_a_whole_file_gives_every_payload_and_no_damage(file: Path) -> None:
    for verify in ("none", "lengths", "all"):
        scan = scan_records(file, verify=verify)
        assert scan.damage == ()
        assert scan.size == file.stat().st_size
        assert scan.offsets.dtype == scan.lengths.dtype == np.int64
        places = zip(scan.offsets.tolist(), scan.lengths.tolist(), strict=True)
        assert [read_record(file, *place) for place in places] == PAYLOADS


def test_an_empty_file_has_no_records_and_no_damage(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    scan = scan_records(tmp_path / "empty", verify="all")
    assert (len(scan.offsets), scan.damage) == (0, ())


def test_a_broken_payload_marks_one_record_and_the_scan_goes_on(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[12] ^= 1
    file.write_bytes(data)
    assert scan_records(file, verify="lengths").damage == ()
    scan = scan_records(file, verify="all")
    assert len(scan.offsets) == 3
    assert [(item.record, item.offset) for item in scan.damage] == [(0, 0)]


def test_a_broken_length_ends_the_scan_and_says_from_where(file: Path) -> None:
    data = bytearray(file.read_bytes())
    second = len(frame(PAYLOADS[0]))
    data[second] ^= 1
    file.write_bytes(data)
    scan = scan_records(file)
    assert len(scan.offsets) == 1
    (item,) = scan.damage
    assert (item.record, item.offset) == (None, second)
    assert "length" in item.reason
    assert "from record 1 on" in item.reason


def test_every_truncation_keeps_the_whole_records_before_it(file: Path) -> None:
    data = file.read_bytes()
    ends = np.cumsum([len(frame(payload)) for payload in PAYLOADS]).tolist()
    for size in range(len(data)):
        file.write_bytes(data[:size])
        scan = scan_records(file, verify="all")
        assert len(scan.offsets) == sum(end <= size for end in ends)
        if size in (0, *ends):
            assert scan.damage == ()
        else:
            assert "truncated" in scan.damage[0].reason


@given(st.binary(max_size=80))
def test_any_bytes_give_records_within_the_file(data: bytes) -> None:
    fd = os.memfd_create("x")
    try:
        os.write(fd, data)
        scan = scan_records(f"/proc/self/fd/{fd}", verify="none")
        assert all(scan.offsets + scan.lengths + 4 <= len(data))
    finally:
        os.close(fd)


def test_a_payload_of_several_chunks_is_verified_whole(tmp_path: Path) -> None:
    payload = bytes(range(256)) * 5000
    path = tmp_path / "big"
    path.write_bytes(frame(payload))
    assert scan_records(path, verify="all").damage == ()
    data = bytearray(path.read_bytes())
    data[-5] ^= 0x80
    path.write_bytes(data)
    assert [item.record for item in scan_records(path, verify="all").damage] == [0]


def test_reading_behind_the_end_is_malformed_and_not_short(file: Path) -> None:
    with pytest.raises(MalformedRecordError, match="ends within"):
        read_record(file, 12, 10**12)


def test_a_record_can_be_read_from_an_open_descriptor(file: Path) -> None:
    with file.open("rb") as stream:
        assert read_record(stream.fileno(), 12, 5) == b"first"


@pytest.mark.skipif(not BRIDGE.exists(), reason="the real Bridge episodes are not here")
def test_the_real_bridge_files_are_whole() -> None:
    for path in sorted(BRIDGE.glob("*.tfrecord-*")):
        scan = scan_records(path, verify="all")
        assert (len(scan.offsets), scan.damage) == (25, ())
