"""The demo mixture: what it declares, what it draws, and what TFDS reads back from its files."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import cv2
import numpy as np
import psutil
import pytest

from autoloader.cli.demo import DATASETS, DemoDataset, demo_directory, ensure_demo, spec_text
from autoloader.cli.demo_writer import (
    draw_demo_episode,
    draw_episode,
    encode_frame,
    kept_ranges,
    nested,
)
from autoloader.cli.plain_readers import value_at
from autoloader.errors import SourceError, UsageError
from autoloader.spec import PipelineSpec

BY_NAME = {dataset.name: dataset for dataset in DATASETS}
TINY = {"datasets": 6, "scale": 0.02, "seed": 3}


# --- what is declared ------------------------------------------------------------------------


def test_the_mixture_is_as_varied_as_the_ones_people_train_on() -> None:
    assert len(DATASETS) == 29 == len(BY_NAME)
    assert sum(one.look.encoding == "png" for one in DATASETS) == 3
    dims = {sum(max(1, width) for width in one.action.values()) for one in DATASETS}
    assert (min(dims), max(dims)) == (4, 14)
    assert min(one.lengths[0] for one in DATASETS) == 5
    assert max(one.lengths[1] for one in DATASETS) == 120
    assert min(one.size for one in DATASETS) == (128, 128)
    assert max(one.size for one in DATASETS) == (480, 640)
    assert 0 < sum(one.second is None for one in DATASETS) < 29  # a wrist camera that is missing
    assert any(one.third for one in DATASETS)
    assert any(one.depth for one in DATASETS)
    assert any(one.idles for one in DATASETS)
    assert any(one.hz == 50 for one in DATASETS)
    assert any(len(one.action) > 1 and one.language_kind == "codes" for one in DATASETS)
    assert any(len(one.action) > 1 for one in DATASETS)
    assert any(not one.state for one in DATASETS)
    assert any(not one.language for one in DATASETS)
    assert any(not one.states_encoding for one in DATASETS)
    assert any(one.language_kind == "codes" for one in DATASETS)
    assert len({one.weight for one in DATASETS}) > 10
    assert len({one.primary for one in DATASETS}) > 10
    frames = sum(
        (one.train_episodes(1.0) + one.val_episodes(1.0)) * sum(one.lengths) / 2 for one in DATASETS
    )
    assert 30_000 < frames < 34_000


@pytest.mark.parametrize("scale", [0.001, 1.0, 7.0])
def test_one_dataset_has_24_episodes_at_every_scale_and_none_has_fewer_than_two(
    scale: float,
) -> None:
    assert BY_NAME["demo_teacup_24"].train_episodes(scale) == 24
    assert min(one.train_episodes(scale) for one in DATASETS) >= 2
    assert all(one.val_episodes(scale) >= 1 for one in DATASETS if one.has_val)


@pytest.mark.parametrize("count", [1, 6, 29])
def test_the_spec_file_is_legal_and_names_every_dataset(count: int, tmp_path: Path) -> None:
    (tmp_path / "mix.yaml").write_text(spec_text(DATASETS[:count], 1.0, 5), encoding="utf-8")
    spec = PipelineSpec.from_yaml(tmp_path / "mix.yaml")
    assert [one.name for one in spec.datasets] == [one.name for one in DATASETS[:count]]
    assert spec.seed == 5
    assert spec.batch.size == 48
    assert spec.sample.frame_offsets == (0, 5)
    assert dict(spec.cameras["primary"])["size"] == (256, 256)
    for one, declared in zip(spec.datasets, DATASETS, strict=False):
        assert one.weight == declared.weight
        assert one.images["primary"].paths == (declared.primary,)
        assert one.action is not None
        assert one.action.paths() == declared.action_paths
        assert (one.state.paths() if one.state else ()) == tuple(declared.state)
        assert (one.language.paths if one.language else ()) == declared.language
        assert Path(str(one.path)).parts[-2] == one.name


# --- what is drawn ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["demo_bimanual_fold", "demo_sim_kitchen", "demo_spoon_stir"])
def test_every_frame_is_far_from_its_neighbours_after_resizing(name: str) -> None:
    one = BY_NAME[name]
    pictures = draw_episode(*one.size, one.lengths[1], one.look, np.random.default_rng(1))
    small = [cv2.resize(picture, (256, 256)).astype(np.int16) for picture in pictures]
    assert len(small) == one.lengths[1]
    apart = [float(np.abs(a - b).mean()) for a, b in itertools.pairwise(small)]
    assert min(apart) > 4.0  # grey levels; a value check allows 2


def test_frames_come_back_from_their_files_in_the_right_colours() -> None:
    for name in ("demo_kitchen_sink", "demo_sim_blocks"):
        one = BY_NAME[name]
        (picture,) = draw_episode(*one.size, 1, one.look, np.random.default_rng(0))
        data = np.frombuffer(encode_frame(picture, one.look), np.uint8)
        back = cv2.cvtColor(cv2.imdecode(data, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        assert back.shape == (*one.size, 3)
        assert np.abs(back.astype(int) - picture).mean() < 4.0


def test_an_episode_follows_from_name_split_number_and_seed_alone() -> None:
    one = BY_NAME["demo_spoon_stir"]

    def first(split: str, number: int, seed: int) -> tuple[bytes, bytes]:
        step = draw_demo_episode(one, split, number, seed)["steps"][0]
        return step["observation"]["image"], step["action"].tobytes()

    assert first("train", 0, 0) == first("train", 0, 0)
    others = [first("train", 1, 0), first("val", 0, 0), first("train", 0, 1)]
    assert len({first("train", 0, 0), *others}) == 4


def test_language_as_code_points_ends_in_nuls() -> None:
    one = BY_NAME["demo_table_push"]
    codes = draw_demo_episode(one, "train", 0, 0)["steps"][0]["observation"]["instruction"]
    assert codes.dtype == np.int32
    assert codes[-1] == 0
    assert " the " in "".join(map(chr, codes)).rstrip("\0")


@pytest.mark.parametrize("number", range(4))
def test_the_robot_moves_in_the_kept_ranges_and_stands_still_between_them(number: int) -> None:
    one = replace(BY_NAME["demo_wild_homes"], size=(64, 64), second=None, third=None)
    steps = draw_demo_episode(one, "train", number, 5)["steps"]
    ranges = kept_ranges(one, "train", number, 5, len(steps))
    kept = {t for start, end in ranges for t in range(start, end)}
    assert len(ranges) == 2
    assert len(steps) - 21 <= len(kept) < len(steps) - 4
    for t, step in enumerate(steps):
        assert bool(step["action"].any()) == (t in kept)
        if t and not {t, t - 1} & kept:
            for path in one.state:
                np.testing.assert_array_equal(value_at(step, path), value_at(steps[t - 1], path))


def test_steps_of_the_dataset_at_50_hz_are_20_ms_apart() -> None:
    one = replace(BY_NAME["demo_bimanual_fold"], size=(64, 64), second=None)
    steps = draw_demo_episode(one, "train", 0, 0)["steps"]
    times = [step["observation"]["timestamp"] for step in steps]
    np.testing.assert_allclose(np.diff(times), 0.02)


def test_depth_is_16_bits_deep_and_of_the_pictures_size() -> None:
    one = BY_NAME["demo_cable_route"]
    first, second = draw_demo_episode(one, "train", 0, 0)["steps"][:2]
    files = [np.frombuffer(step["observation"]["top_depth"], np.uint8) for step in (first, second)]
    depths = [cv2.imdecode(data, cv2.IMREAD_UNCHANGED) for data in files]
    assert [(depth.dtype, depth.shape) for depth in depths] == [(np.uint16, one.size)] * 2
    assert depths[0].max() > 255
    assert (depths[0] != depths[1]).any()


def test_nested_splits_paths_at_slashes() -> None:
    assert nested({"a/b": 1, "a/c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}


# --- places and refusals ---------------------------------------------------------------------


def test_the_cache_directory_depends_on_what_is_asked_for() -> None:
    places = {
        demo_directory(),
        demo_directory(datasets=6),
        demo_directory(scale=0.5),
        demo_directory(seed=1),
    }
    assert len(places) == 4
    assert demo_directory() == demo_directory(datasets=29, scale=1, seed=0)


def test_a_process_that_fails_is_named_with_its_reason_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "tensorflow_datasets.py").write_text("raise OSError('disk on fire')")
    monkeypatch.syspath_prepend(tmp_path / "stub")
    with pytest.raises(SourceError, match="disk on fire"):
        ensure_demo(tmp_path / "demo", datasets=2, scale=0.001)
    assert [path.name for path in tmp_path.iterdir()] == ["stub"]


def test_importing_the_builder_brings_no_framework_and_no_codec() -> None:
    code = (
        "import sys, autoloader.cli.demo; "
        "print([m for m in ('tensorflow', 'tensorflow_datasets', 'cv2') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


# --- what TFDS reads back --------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, int]]]:
    """A small mixture's ``mix.yaml``, and the progress that its building reported."""
    reports: list[tuple[int, int]] = []
    place = tmp_path_factory.mktemp("mixture") / "demo"
    spec = ensure_demo(place, progress=lambda done, total: reports.append((done, total)), **TINY)
    return spec, reports


def read_back(folder: Path, one: DemoDataset, split: str) -> Iterator[list[dict[str, Any]]]:
    """Episodes of a split by TFDS itself, in the order written; images as their files' bytes."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(folder / one.name / "1.0.0"))
    skip = nested({path: tfds.decode.SkipDecoding() for path, _ in one.cameras})
    episodes = builder.as_dataset(
        split=split,
        decoders={"steps": skip},
        read_config=tfds.ReadConfig(interleave_cycle_length=1),
    )
    assert isinstance(episodes, tf.data.Dataset)
    for episode in episodes:
        yield list(episode["steps"].as_numpy_iterator())


@pytest.mark.slow
def test_tfds_reads_back_exactly_what_was_drawn(
    demo: tuple[Path, list[tuple[int, int]]],
) -> None:
    spec, _ = demo
    seen: list[bytes] = []
    for one in DATASETS[:6]:
        for split, count in (
            ("train", one.train_episodes(TINY["scale"])),
            ("val", one.val_episodes(TINY["scale"])),
        ):
            if not count:
                continue
            found = list(read_back(spec.parent, one, split))
            assert len(found) == count
            for number, steps in enumerate(found):
                drawn = draw_demo_episode(one, split, number, TINY["seed"])["steps"]
                assert len(steps) == len(drawn)
                assert one.lengths[0] <= len(steps) <= one.lengths[1]
                for step, expected in zip(steps, drawn, strict=True):
                    for path, _ in one.cameras:
                        assert value_at(step, path) == value_at(expected, path)
                        seen.append(value_at(step, path))
                    for path in (*one.action_paths, *one.state):
                        np.testing.assert_array_equal(
                            value_at(step, path), value_at(expected, path)
                        )
                    for path in one.language:
                        value, wanted = value_at(step, path), value_at(expected, path)
                        if one.language_kind == "text":
                            wanted = wanted.encode()
                        np.testing.assert_array_equal(value, wanted)
                assert [bool(step["is_first"]) for step in steps].index(True) == 0
                assert [bool(step["is_last"]) for step in steps].index(True) == len(steps) - 1
    assert len(set(seen)) == len(seen) > 900  # no two images of the mixture are the same


@pytest.mark.slow
def test_the_files_are_version_directories_with_several_shards(
    demo: tuple[Path, list[tuple[int, int]]],
) -> None:
    import tensorflow_datasets as tfds

    spec, _ = demo
    for one in DATASETS[:6]:
        builder = tfds.builder_from_directory(str(spec.parent / one.name / "1.0.0"))
        train = builder.info.splits["train"]
        assert train.num_shards >= 2
        assert all(Path(str(path)).is_file() for path in train.filepaths)
        assert sum(train.shard_lengths) == one.train_episodes(TINY["scale"])
        assert ("val" in builder.info.splits) == one.has_val
        steps = builder.info.features["steps"].feature
        assert steps["observation"][one.primary.partition("/")[2]].shape == (*one.size, 3)
    teacup = tfds.builder_from_directory(str(spec.parent / "demo_teacup_24" / "1.0.0"))
    assert teacup.info.splits["train"].num_examples == 24
    assert min(teacup.info.splits["train"].shard_lengths) > 1


@pytest.mark.slow
def test_progress_counts_every_episode_and_the_summary_every_image(
    demo: tuple[Path, list[tuple[int, int]]],
) -> None:
    spec, reports = demo
    total = sum(
        one.train_episodes(TINY["scale"]) + one.val_episodes(TINY["scale"]) for one in DATASETS[:6]
    )
    assert reports == [(done, total) for done in range(1, total + 1)]
    summary = json.loads((spec.parent / "demo.json").read_text())
    assert summary["episodes"] == total
    assert summary["images"] > summary["frames"] > 0
    assert summary["image_bytes"] > 1000 * summary["images"]
    assert [row["name"] for row in summary["datasets"]] == [one.name for one in DATASETS[:6]]
    assert not (spec.parent.parent / ".demo.lock").exists()
    assert not (spec.parent.parent / ".demo.partial").exists()


@pytest.mark.slow
def test_a_mixture_that_is_there_is_taken_and_another_one_is_never_overwritten(
    demo: tuple[Path, list[tuple[int, int]]],
) -> None:
    spec, _ = demo
    before = (spec.parent / "demo.json").stat()

    def never(done: int, total: int) -> None:
        raise AssertionError("built again")

    assert ensure_demo(spec.parent, progress=never, **TINY) == spec
    with pytest.raises(UsageError, match="another demo mixture"):
        ensure_demo(spec.parent, progress=never, **{**TINY, "seed": 4})
    after = (spec.parent / "demo.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.slow
def test_callers_at_once_get_one_mixture_built_by_one_of_them(tmp_path: Path) -> None:
    builders: set[int] = set()
    answers: list[Path] = []

    def call(number: int) -> None:
        def progress(done: int, total: int) -> None:
            builders.add(number)

        answers.append(ensure_demo(tmp_path / "demo", datasets=1, scale=0.02, progress=progress))

    callers = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(builders) == 1
    assert answers == [tmp_path / "demo" / "mix.yaml"] * 3


@pytest.mark.parametrize("signal", [SIGTERM, SIGKILL])
def test_the_writers_end_with_their_caller_whatever_ends_it(tmp_path: Path, signal: int) -> None:
    command = [sys.executable, "-m", "autoloader", "demo", str(tmp_path / "demo")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as caller:
        of_caller = psutil.Process(caller.pid)
        while len(writers := of_caller.children()) < min(2, os.cpu_count() or 1):
            assert caller.poll() is None
        caller.send_signal(signal)
    _, alive = psutil.wait_procs(writers, timeout=30)
    for one in alive:
        one.kill()
    assert not alive
