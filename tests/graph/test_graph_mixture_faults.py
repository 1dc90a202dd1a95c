"""Damage in an in-graph mixture: named, counted, stepped over; what is whole comes exactly once."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rlds_files as files
import simplejpeg

sys.path.insert(0, str(Path(__file__).parent))

from graph_runs import Run, assert_equal

from autoloader.errors import AutoloaderError, SourceError
from autoloader.spec import PipelineSpec


def two_datasets(folder: Path, **of_shaky: Any) -> tuple[PipelineSpec, files.Written]:
    """A sound dataset, and one that the test damages (2 shards of 6 episodes)."""
    sound = files.write_dataset(folder, [[files.episode(e, 3 + e) for e in range(5)]], name="sound")
    shards = [[files.episode(10 * s + e, 2 + e) for e in range(6)] for s in range(2)]
    shaky = files.write_dataset(folder, shards, name="shaky")
    common = {
        "images": {"primary": "observation/image"},
        "action": "action",
        "state": "observation/state",
        "language": "language_instruction",
    }
    spec = PipelineSpec.from_mapping(
        {
            "seed": 3,
            "datasets": [
                {"name": "sound", "path": str(sound.path), **common},
                {"name": "shaky", "path": str(shaky.path), **common},
            ],
            "cameras": {"primary": {"size": [12, 16]}},
            "sample": {"frame_offsets": [0, 1]},
            "batch": {"size": 5},
            "errors": {"max_corrupt_ratio": 0.3},
            **of_shaky,
        }
    )
    return spec, shaky


def damage_payload(shaky: files.Written, shard: int, record: int) -> None:
    data = bytearray(shaky.files[shard].read_bytes())
    data[shaky.offsets[shard][record] + 12 + shaky.lengths[shard][record] // 2] ^= 0xFF
    shaky.files[shard].write_bytes(bytes(data))


def bad_of(run: Run) -> list[tuple[str, int, int]]:
    return sorted((bad.dataset, bad.shard, bad.record) for bad in run.pipeline.quarantined())


@pytest.mark.parametrize("cycle_length", [1, 2])
def test_records_behind_a_broken_one_come_once_a_pass_and_it_is_named(
    tmp_path: Path, cycle_length: int
) -> None:
    spec, shaky = two_datasets(tmp_path)
    for shard, record in ((0, 2), (1, 0), (1, 1)):
        damage_payload(shaky, shard, record)
    with Run(spec, "python") as python, Run(spec, "choose", cycle_length=cycle_length) as choose:
        python.until_passes(3)
        choose.until_passes(3)
        assert (
            bad_of(choose) == bad_of(python) == [("shaky", 0, 2), ("shaky", 1, 0), ("shaky", 1, 1)]
        )
        assert all("checksum" in bad.reason for bad in choose.pipeline.quarantined())
    assert max(Counter(choose.order).values()) == 1
    for pass_ in range(3):
        assert_equal(choose.of_pass(pass_), python.of_pass(pass_))


def test_a_truncated_shard_loses_its_tail_and_no_more(tmp_path: Path) -> None:
    spec, shaky = two_datasets(tmp_path)
    shaky.files[0].write_bytes(shaky.files[0].read_bytes()[: shaky.offsets[0][4] + 20])
    with Run(spec, "python") as python, Run(spec, "sample") as drawn:
        python.until_passes(2)
        drawn.until_passes(2)
        assert bad_of(drawn) == [("shaky", 0, 4), ("shaky", 0, 5)]
    for pass_ in range(2):
        assert_equal(drawn.of_pass(pass_), python.of_pass(pass_))


def test_a_record_that_is_no_example_is_named(tmp_path: Path) -> None:
    spec, shaky = two_datasets(tmp_path)
    payloads = [files.example(files.episode(e, 2 + e)) for e in range(6)]
    payloads[3] = b"\xff" * 40
    files.write_records(shaky.files[1], payloads)
    with Run(spec, "choose") as run:
        run.until_passes(2)
        assert bad_of(run) == [("shaky", 1, 3)]
    assert len(run.of_pass(1)) == len(run.of_pass(0))


def test_a_mixture_resumed_within_a_damaged_pass_loses_nothing(tmp_path: Path) -> None:
    spec, shaky = two_datasets(tmp_path)
    damage_payload(shaky, 0, 1)
    with Run(spec, "choose") as first:
        first.take(30)
    with Run(spec, "choose", start=first.resumed_at()) as second:
        second.until_passes(2)
    with Run(spec, "python") as python:
        python.until_passes(1)
    came = Counter(key for key in first.order + second.order if key[1] == 0)
    assert came == Counter(dict.fromkeys(python.of_pass(0), 1))


def test_too_many_broken_records_end_the_run_with_the_dataset_named(tmp_path: Path) -> None:
    spec, shaky = two_datasets(tmp_path)
    for record in range(5):
        damage_payload(shaky, 0, record)
    with Run(spec, "choose") as run, pytest.raises(SourceError, match="shaky"):
        run.until_passes(2)


def test_files_that_were_emptied_end_the_run(tmp_path: Path) -> None:
    spec, shaky = two_datasets(tmp_path, errors={"max_corrupt_ratio": 1.0})
    run = Run(spec, "choose")
    for file in shaky.files:
        file.write_bytes(b"")
    with run, pytest.raises(SourceError):
        run.until_passes(3)


def broken_jpeg() -> bytes:
    """Begins and ends as a JPEG does, and is none."""
    whole = bytes(simplejpeg.encode_jpeg(np.zeros((12, 16, 3), np.uint8)))
    return whole[:4] + b"\0" * (len(whole) - 6) + whole[-2:]


@pytest.mark.parametrize("decode", ["pool", "graph"])
@pytest.mark.parametrize("frame", [b"", b"no picture", files.jpeg(1, 1)[:200], broken_jpeg()])
def test_an_undecodable_frame_costs_its_row_only(tmp_path: Path, decode: str, frame: bytes) -> None:
    spec, shaky = two_datasets(tmp_path)
    payloads = [files.episode(e, 2 + e) for e in range(6)]
    pictures = list(payloads[4]["observation/image"])
    payloads[4] = {**payloads[4], "observation/image": [*pictures[:2], frame, *pictures[3:]]}
    files.write_records(shaky.files[1], [files.example(one) for one in payloads])
    with Run(spec, "python") as python, Run(spec, "choose", decode=decode) as choose:
        python.until_passes(1)
        choose.until_passes(1)
        assert bad_of(choose) == [("shaky", 1, 4)]
    first = [key for key in choose.repeats if key[1] == 0]
    assert sorted(first) == sorted(key for key in python.repeats if key[1] == 0)
    assert_equal(choose.of_pass(0), python.of_pass(0), grey_levels=2)


def test_a_file_that_is_gone_ends_the_run_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import autoloader.runtime.arrivals as arrivals

    monkeypatch.setattr(arrivals, "STALL_S", 0.1)
    monkeypatch.setattr(arrivals, "_COMPILING_S", 3.0)
    spec, shaky = two_datasets(tmp_path)
    run = Run(spec, "choose")
    shaky.files[0].rename(tmp_path / "elsewhere")
    with run:
        try:
            with pytest.raises(AutoloaderError, match="tfrecord"):
                run.until_passes(2)
        finally:
            (tmp_path / "elsewhere").rename(shaky.files[0])
