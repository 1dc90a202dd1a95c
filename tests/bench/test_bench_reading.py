"""What the peers read: records, examples and mixture files, without the library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.mixture import Term, read_mixture
from bench.records import parse_example, read_records, write_records

EXAMPLE = bytes.fromhex(
    # features { "f": float_list [1.5, -2], "i": int64_list [3, -1], "b": bytes_list ["x", "yz"] }
    "0a3f"
    "0a11" "0a0166" "120c" "120a" "0a08" "0000c03f" "000000c0"
    "0a16" "0a0169" "1211" "1a0f" "0a0d" "03" "ffffffffffffffffff01" "0506"
    "0a12" "0a0162" "120d" "0a0b" "0a0178" "0a02797a" "0a020000"
)  # fmt: skip


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "some.tfrecord"
    assert write_records(path, [b"one", b"", b"three" * 1000]) == 3
    assert list(read_records(path)) == [b"one", b"", b"three" * 1000]


def test_a_records_sums_are_those_of_the_public_format(tmp_path: Path) -> None:
    path = tmp_path / "some.tfrecord"
    write_records(path, [b"123456789"])
    written = path.read_bytes()
    # CRC32C of "123456789" is e3069283; masked: rotated right by 15, plus a282ead8.
    crc = 0xE3069283
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert written[:8] == (9).to_bytes(8, "little")
    assert written[-4:] == masked.to_bytes(4, "little")


def test_an_example_gives_bytes_floats_and_integers() -> None:
    found = parse_example(EXAMPLE)
    assert list(found) == ["f", "i", "b"]
    np.testing.assert_array_equal(found["f"], np.array([1.5, -2.0], np.float32))
    np.testing.assert_array_equal(found["i"], [3, -1, 5, 6])
    assert found["b"] == [b"x", b"yz", b"\0\0"]


def test_only_wanted_features_are_given() -> None:
    assert list(parse_example(EXAMPLE, ["b"])) == ["b"]


def _mixture(folder: Path, split: str, lengths: list[int]) -> Path:
    version = folder / "some" / "1.0.0"
    version.mkdir(parents=True)
    info = {"splits": [{"name": "train", "shardLengths": [str(n) for n in lengths]}]}
    (version / "dataset_info.json").write_text(json.dumps(info))
    for number in range(len(lengths)):
        (version / f"some-train.tfrecord-{number:05d}-of-{len(lengths):05d}").write_bytes(b"")
    path = folder / "mix.yaml"
    path.write_text(
        f"""
        seed: 3
        datasets:
          - name: some
            path: some/1.0.0
            split: {{train: "{split}", val: "train"}}
            weight: 2
            images: {{primary: observation/image}}
            action: [action/a, {{path: "action/b[-1:]", ops: [{{clip: [0, 1]}}, invert]}}]
            language: {{any_of: [one, episode_metadata/two]}}
        sample: {{frame_offsets: [0, 5]}}
        cameras: {{primary: {{size: [32, 48]}}}}
        batch: {{size: 4}}
        """
    )
    return path


def test_a_mixture_file_names_files_features_and_sizes(tmp_path: Path) -> None:
    found = read_mixture(_mixture(tmp_path, "train", [3, 3]))
    (dataset,) = found.datasets
    assert (found.seed, found.batch, found.size, found.frame_offsets) == (3, 4, (32, 48), (0, 5))
    assert (dataset.image, dataset.weight) == ("steps/observation/image", 2.0)
    assert dataset.language == ("steps/one", "episode_metadata/two")
    assert dataset.action == (
        Term("steps/action/a", None, None),
        Term("steps/action/b", -1, None, (("clip", 0, 1), ("invert",))),
    )


@pytest.mark.parametrize(
    ("split", "counts"),
    [
        ("train", [4, 4, 4]),
        ("train[:50%]", [4, 2]),
        ("train[:-1]", [4, 4, 3]),
        ("train[:5]", [4, 1]),
    ],
)
def test_a_split_takes_records_from_the_first_shards(
    tmp_path: Path, split: str, counts: list[int]
) -> None:
    (dataset,) = read_mixture(_mixture(tmp_path, split, [4, 4, 4])).datasets
    assert [count for _, count in dataset.files] == counts
