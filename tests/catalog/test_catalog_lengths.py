"""Frames per episode: right counts, damage named per record, and a cache that cannot lie."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import platformdirs
import pytest

from autoloader.catalog import lengths as module
from autoloader.catalog.features import Feature, FeatureKind
from autoloader.catalog.lengths import EpisodeLengths, episode_lengths
from autoloader.catalog.metadata import ShardSlice, open_version
from autoloader.catalog.tfrecord import masked_crc32c
from autoloader.errors import SourceError

BRIDGE = Path(__file__).parents[2].parent / "shared/data/bridge_dataset/1.0.0"


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


def field(tag: int, payload: bytes) -> bytes:
    size, head = len(payload), bytes([tag])
    while size >= 0x80:
        head, size = head + bytes([size & 0x7F | 0x80]), size >> 7
    return head + bytes([size]) + payload


def strings(*values: bytes) -> bytes:
    return field(0x0A, b"".join(field(0x0A, value) for value in values))


def floats(count: int) -> bytes:
    return field(0x12, field(0x0A, bytes(4 * count)))


def integers(count: int) -> bytes:
    return field(0x1A, field(0x0A, b"\x01" * count))


def record(**features: bytes) -> bytes:
    entries = [
        field(0x0A, field(0x0A, f"steps/{key}".encode()) + field(0x12, value))
        for key, value in features.items()
    ]
    return field(0x0A, b"".join(entries))


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


def whole(path: Path, records: int) -> ShardSlice:
    return ShardSlice(str(path), 0, 0, records, "train")


def count(path: Path, records: int, features: dict[str, Feature] = FEATURES) -> EpisodeLengths:
    return episode_lengths([whole(path, records)], features, cache=False)


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _name: directory)
    return directory / "lengths"


def test_every_slice_gets_the_lengths_of_its_records(tmp_path: Path) -> None:
    one = write(tmp_path / "one", episode(3), episode(120), episode(5))
    two = write(tmp_path / "two", episode(1), episode(0))
    slices = [
        ShardSlice(str(two), 1, 0, 2, "train"),
        ShardSlice(str(one), 0, 1, 3, "train"),
        ShardSlice(str(one), 0, 0, 1, "val"),
    ]
    found = episode_lengths(slices, FEATURES, cache=False)
    assert [part.tolist() for part in found.lengths] == [[1, 0], [120, 5], [3]]
    assert all(part.dtype == np.int32 for part in found.lengths)
    assert (found.episodes, found.frames, found.damage) == (5, 129, ())
    assert not found.estimated


def test_payloads_of_images_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x", *[episode(50)] * 4)
    read = 0
    pread = os.pread

    def counting(fd: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = pread(fd, size, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counting)
    assert count(path, 4).frames == 200
    assert read < path.stat().st_size / 10


@pytest.mark.parametrize(
    ("features", "payload"),
    [
        ([IS_FIRST], record(is_first=integers(6))),
        ([feature("reward")], record(reward=floats(6))),
        ([ACTION], record(action=floats(42))),
        ([feature("grid", "int64", (2, 2))], record(grid=integers(24))),
        ([IMAGE], record(image=strings(*[b"jpeg"] * 6))),
        ([feature("text", "string", (), "text")], record(text=strings(*[b""] * 6))),
        ([feature("zip", "uint8", (4,), encoding="zlib")], record(zip=strings(*[b"z"] * 6))),
        ([feature("words", "string", (2,))], record(words=strings(*[b"w"] * 12))),
        # a feature that the record lacks is passed over
        ([IS_FIRST, ACTION], record(action=floats(42))),
        ([IS_FIRST, IMAGE], record(image=strings(*[b"jpeg"] * 6))),
        # unpacked, and value before key: the strict walker takes over
        ([IS_FIRST], record(is_first=field(0x1A, b"\x08\x01" * 6))),
        (
            [IS_FIRST],
            field(0x0A, field(0x0A, field(0x12, integers(6)) + field(0x0A, b"steps/is_first"))),
        ),
        # integers of more than a byte
        ([IS_FIRST], record(is_first=field(0x1A, field(0x0A, b"\xff\x01" * 6)))),
    ],
)
def test_any_per_step_feature_can_tell_the_length(
    tmp_path: Path, features: list[Feature], payload: bytes
) -> None:
    path = write(tmp_path / "x", payload)
    found = count(path, 1, {item.path: item for item in features})
    assert (found.lengths[0].tolist(), found.damage) == ([6], ())


def test_of_two_entries_with_one_key_the_last_counts(tmp_path: Path) -> None:
    twice = record(is_first=integers(3)) + record(is_first=integers(5))
    entries = record(is_first=integers(3))[2:] + record(is_first=integers(5))[2:]
    path = write(tmp_path / "x", twice, field(0x0A, entries))
    assert count(path, 2, {"is_first": IS_FIRST}).lengths[0].tolist() == [5, 5]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xff\xff", "unexpected field"),
        (episode(3)[:-1], "cut off"),
        (record(), "none of the per-step features"),
        (b"", "none of the per-step features"),
        (record(is_first=integers(3), action=floats(28)), "differ in their number of steps"),
        (record(action=floats(13)), "no multiple of the 7"),
        (record(is_first=strings(b"x")), "stored as bytes"),
        (record(is_first=field(0x1A, field(0x0A, b"\x80"))), "ends within a number"),
    ],
)
def test_a_malformed_record_is_minus_one_with_its_reason_and_the_others_count(
    tmp_path: Path, payload: bytes, reason: str
) -> None:
    path = write(tmp_path / "x", episode(2), payload, episode(4))
    found = count(path, 3)
    assert found.lengths[0].tolist() == [2, -1, 4]
    assert (found.episodes, found.frames) == (2, 6)
    (damage,) = found.damage
    assert (damage.path, damage.record) == (str(path), 1)
    assert reason in damage.reason


def test_damage_is_named_only_for_the_records_of_the_slice(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b"\xff", episode(1), b"\xff")
    found = episode_lengths([ShardSlice(str(path), 0, 1, 3, "train")], FEATURES, cache=False)
    assert found.lengths[0].tolist() == [1, -1]
    assert [item.record for item in found.damage] == [2]


def test_a_truncated_file_keeps_the_records_before_the_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "x", episode(2), episode(3), episode(4))
    path.write_bytes(path.read_bytes()[:-5])
    found = count(path, 3)
    assert found.lengths[0].tolist() == [2, 3, -1]
    assert "truncated" in found.damage[0].reason


def test_a_file_with_fewer_records_than_the_metadata_says_is_noticed(tmp_path: Path) -> None:
    found = count(write(tmp_path / "x", episode(2)), 2)
    assert found.lengths[0].tolist() == [2, -1]
    assert "fewer records" in found.damage[0].reason


def test_a_dataset_without_steps_is_a_source_error(tmp_path: Path) -> None:
    path = write(tmp_path / "x", episode(2))
    with pytest.raises(SourceError, match="no per-step features"):
        episode_lengths([whole(path, 1)], {}, dataset="mine")


@pytest.mark.parametrize("probe_only", [True, False])
def test_a_file_that_is_gone_is_a_source_error_naming_it(tmp_path: Path, probe_only: bool) -> None:
    with pytest.raises(SourceError, match=r"mine: .*gone"):
        episode_lengths(
            [whole(tmp_path / "gone", 1)], FEATURES, probe_only=probe_only, dataset="mine"
        )


# -- probe --------------------------------------------------------------------------------------


def test_a_probe_reads_a_few_records_and_says_that_it_estimates(tmp_path: Path) -> None:
    path = write(tmp_path / "x", *[episode(4)] * module.PROBE_RECORDS, *[episode(9)] * 9)
    found = episode_lengths([whole(path, 17)], FEATURES, cache=True, probe_only=True)
    assert found.estimated
    assert found.lengths[0].tolist() == [4] * 17


def test_a_probe_is_exact_where_the_cache_knows(tmp_path: Path) -> None:
    path = write(tmp_path / "x", *[episode(steps) for steps in range(17)])
    episode_lengths([whole(path, 17)], FEATURES)
    found = episode_lengths([whole(path, 17)], FEATURES, probe_only=True)
    assert not found.estimated
    assert found.lengths[0].tolist() == list(range(17))


# -- cache --------------------------------------------------------------------------------------


def test_the_second_call_reads_the_cache_and_not_the_file(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x", episode(2), episode(3))
    first = episode_lengths([whole(path, 2)], FEATURES)
    assert len(list(cache_dir.iterdir())) == 1
    monkeypatch.setattr(module, "_count_file", None)
    second = episode_lengths([whole(path, 2)], FEATURES)
    assert first.lengths[0].tolist() == second.lengths[0].tolist() == [2, 3]


def test_a_changed_file_is_counted_again(tmp_path: Path) -> None:
    path = write(tmp_path / "x", episode(2))
    episode_lengths([whole(path, 1)], FEATURES)
    write(path, episode(7))
    assert episode_lengths([whole(path, 1)], FEATURES).lengths[0].tolist() == [7]


def test_without_cache_nothing_is_written(tmp_path: Path, cache_dir: Path) -> None:
    count(write(tmp_path / "x", episode(2)), 1)
    assert not cache_dir.exists()


def test_damage_is_never_cached(tmp_path: Path, cache_dir: Path) -> None:
    path = write(tmp_path / "x", b"\xff")
    for _ in range(2):
        assert len(episode_lengths([whole(path, 1)], FEATURES).damage) == 1
    assert not cache_dir.exists()


def test_a_corrupted_cache_file_is_rebuilt(tmp_path: Path, cache_dir: Path) -> None:
    path = write(tmp_path / "x", episode(2), episode(3))
    episode_lengths([whole(path, 2)], FEATURES)
    (file,) = cache_dir.iterdir()
    good = file.read_bytes()
    flipped = bytearray(good)
    flipped[-12] ^= 4  # in the lengths, which the checksum covers
    for bad in (b"", b"no numpy file", good[:-3], bytes(flipped)):
        file.write_bytes(bad)
        assert episode_lengths([whole(path, 2)], FEATURES).lengths[0].tolist() == [2, 3]
        assert file.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, cache_dir: Path) -> None:
    cache_dir.parent.write_text("a file where the directory should be")
    path = write(tmp_path / "x", episode(2))
    assert episode_lengths([whole(path, 1)], FEATURES).lengths[0].tolist() == [2]


@pytest.mark.skipif(not BRIDGE.exists(), reason="the real Bridge episodes are not here")
def test_the_real_bridge_episodes_have_ten_frames_each() -> None:
    version = open_version(BRIDGE, dataset="bridge")
    found = episode_lengths(version.resolve("all"), version.features, cache=False)
    assert [set(part.tolist()) for part in found.lengths] == [{10}, {10}]
    assert (found.episodes, found.frames, found.damage) == (50, 500, ())
