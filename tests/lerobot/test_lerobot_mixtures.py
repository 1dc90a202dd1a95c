"""RLDS and LeRobot datasets in one mixture: shares, passes, kills, retunes, resumes, ranks."""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_checks import TOP
from lerobot_files import LeRobotFiles, shown
from rlds_files import PLAIN, colour, episode, image, jpeg, write_dataset

from autoloader import AutoLoader, PipelineSpec
from autoloader.samples.resolve import resolve

LEROBOT = {
    "arm": LeRobotFiles(lengths=(12, 7, 20), gop=20),
    "hand": LeRobotFiles(lengths=(9, 11), version="v2.1", codec="libsvtav1", gop=2),
    "base": LeRobotFiles(lengths=(6, 5, 4, 8), cameras={}, pictures=[TOP]),
}
RLDS = {"oak": [[9, 4], [12]], "elm": [[7], [3, 8]], "fir": [[15, 5]]}
SIZE = (64, 96)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> PipelineSpec:
    folder = tmp_path_factory.mktemp("mixture")
    datasets: list[dict[str, Any]] = []
    for name, files in LEROBOT.items():
        path = str(files.write(folder / name))
        columns = {"action": "action[:2]", "state": "observation.state"}
        datasets.append({"name": name, "path": path, "images": {"top": TOP}, **columns})
    encode = partial(jpeg, height=SIZE[0], width=SIZE[1])
    features = {**PLAIN, "observation/image": image(*SIZE)}
    for name, shards in RLDS.items():
        numbers = iter(range(20))
        parts = [
            [episode(next(numbers), steps, encode=encode) for steps in shard] for shard in shards
        ]
        written = write_dataset(folder, parts, name=name, features=features)
        columns = {"action": "action", "state": "observation/state[:2]"}
        camera = {"top": "observation/image"}
        datasets.append({"name": name, "path": str(written.path), "images": camera, **columns})
    return PipelineSpec.model_validate(
        {
            "schema_version": 1,
            "datasets": datasets,
            "sample": {"frame_offsets": [0, 1]},
            "cameras": {"top": {"size": SIZE}},
            "batch": {"size": 4},
            "mixing": {"epoch": "pass"},
        }
    )


def test_the_bytes_of_an_episode_are_those_of_its_videos_too(spec: PipelineSpec):
    for one in resolve(spec).datasets[: len(LEROBOT)]:
        root = Path(one.directory.path)
        files = [*root.glob("data/**/*.parquet"), *root.glob("videos/**/*.mp4")]
        assert one.record_bytes == sum(file.stat().st_size for file in files) // one.records


def total() -> int:
    lerobot = sum(sum(files.lengths) for files in LEROBOT.values())
    return lerobot + sum(sum(map(sum, shards)) for shards in RLDS.values())


def note(batch: Any, seen: Counter[tuple[int, ...]]) -> None:
    """Count a batch's samples, each of which must show the frames of its provenance."""
    for row, place in enumerate(batch["provenance"].tolist()):
        seen[tuple(place)] += 1
        dataset, _, shard, record, t = place
        frames = batch["images"]["top"][row]
        if dataset < len(LEROBOT):
            files = list(LEROBOT.values())[dataset]
            number = shard if files.version == "v2.1" else shard * files.rows_a_file + record
            steps = [t, min(t + 1, files.lengths[number] - 1)]
            if files.codec != "libsvtav1":
                assert [shown(frame) for frame in frames] == [(0, number, k) for k in steps]
            assert batch["action"][row, 0].tolist() == [number, t]
        else:
            shards = RLDS[list(RLDS)[dataset - len(LEROBOT)]]
            number = sum(map(len, shards[:shard])) + record
            assert np.abs(frames[0].astype(int) - colour(number, t)).max() <= 8


def passes(seen: Iterable[tuple[int, ...]]) -> Counter[int]:
    """Samples of each pass."""
    return Counter(place[1] for place in seen)


def test_an_epoch_is_a_pass_of_every_dataset_under_kills_and_retunes(spec: PipelineSpec):
    drawn, seen = random.Random(1), Counter[tuple[int, ...]]()
    with AutoLoader(
        spec, ram_floor="200MB", output="numpy", knobs={"decode_processes": 1}
    ) as loader:
        done = 0
        for _ in range(4):
            for batch in loader:
                note(batch, seen)
                done += 1
                if done in (7, 90):
                    os.kill(loader.statistics().worker_pids[0], signal.SIGKILL)
                if done % 25 == 0:
                    loader.retune(
                        decode_threads=drawn.randint(1, 3), read_ahead=drawn.randint(1, 4)
                    )
        assert loader.statistics().restarts == 2
    assert set(seen.values()) == {1}
    whole = {number: count for number, count in passes(seen).items() if number < 3}
    assert whole == dict.fromkeys(range(3), total())
