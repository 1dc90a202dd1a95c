"""Every peer gives the samples of the mixture: right frames, numbers and words, and all of them."""

import json
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import ran

from bench.child import environment
from bench.mixture import read_mixture
from bench.peers import interpreter, open_contender
from bench.peers.episodes import read_episodes
from bench.peers.pictures import decode_frames
from tests import rlds_files

BATCH, SIZE = 8, (24, 32)
LENGTHS = {"narrow": [[4, 7], [3]], "wide": [[5], [6, 9]]}
SAMPLES = sum(sum(map(sum, shards)) for shards in LENGTHS.values())
Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets of real TFDS files; frames of one need no resize, a language is code points."""
    folder = tmp_path_factory.mktemp("peers")
    number = 0
    for name, shards in LENGTHS.items():
        height, width = (24, 32) if name == "wide" else (12, 16)
        wide = name == "wide"
        written = []
        for lengths in shards:
            episodes = []
            for steps in lengths:
                number += 1
                other: dict[str, Sequence[Any]] = {
                    "observation/image": [
                        rlds_files.jpeg(number, step, height=height, width=width)
                        for step in range(steps)
                    ]
                }
                if wide:
                    other["action"] = [float(v) for v in range(3 * steps)]
                episodes.append(rlds_files.episode(number, steps, **other))
            written.append(episodes)
        features = {**rlds_files.PLAIN, "observation/image": rlds_files.image(height, width)}
        if wide:
            features["action"] = rlds_files.numbers(3, dtype="float64")
        rlds_files.write_dataset(folder, written, name=name, features=features)
    path = folder / "mix.yaml"
    path.write_text(
        f"""
        seed: 1
        datasets:
          - {{name: narrow, path: narrow/1.0.0, split: train, weight: 1,
             images: {{primary: observation/image}}, action: action, state: observation/state,
             language: language_instruction}}
          - {{name: wide, path: wide/1.0.0, split: train, weight: 2,
             images: {{primary: observation/image}}, state: "observation/state[:2]",
             action: ["action[:2]", {{path: "action[-1:]", ops: [{{clip: [0, 1]}}, invert]}}],
             language: language_instruction}}
        sample: {{frame_offsets: [0, 2]}}
        cameras: {{primary: {{size: [{SIZE[0]}, {SIZE[1]}]}}}}
        batch: {{size: {BATCH}}}
        """
    )
    return path


@pytest.fixture(scope="module")
def right(spec: Path) -> dict[tuple[int, int, int], dict[str, Any]]:
    """(dataset, place of the episode in storage, step) → the sample."""
    found = {}
    mixture = read_mixture(spec)
    for dataset, declared in enumerate(mixture.datasets):
        for episode, one in enumerate(read_episodes(declared)):
            last = len(one.frames) - 1
            for step in range(last + 1):
                frames = [one.frames[min(step + offset, last)] for offset in mixture.frame_offsets]
                found[dataset, episode, step] = {
                    "images": decode_frames(frames, np.empty((len(frames), *SIZE, 3), np.uint8)),
                    "frame_mask": [step + offset <= last for offset in mixture.frame_offsets],
                    "action": one.action[step],
                    "state": one.state[step],
                    "language": one.language[step],
                }
    return found


def _ran(
    python: Path, spec: Path, folder: Path, jobs: Sequence[tuple[str, str, dict[str, int], int]]
) -> Any:
    assert interpreter(jobs[0][1]) == sys.executable
    out = folder / "given"
    command = [python, str(Path(__file__).with_name("peer_runs.py")), str(spec), str(out)]
    ran(*command, json.dumps(jobs), env=environment(), timeout=230)
    return pickle.loads(out.read_bytes())


TENSORFLOW: dict[str, dict[str, int]] = {
    "plain_tfdata": {"autotune": 0, "threads": 2},
    "divided_tfdata": {},
    "sqrt_tfdata": {"min_ready": 2},
    "octo_style": {"shuffle_samples": 20},
}


@pytest.fixture(scope="module")
def given(
    spec: Path, tmp_path_factory: pytest.TempPathFactory, warm_python: Path
) -> dict[str, dict[str, Any]]:
    """What the peers that run in TensorFlow gave, one process for all."""
    jobs = [(kind, kind, own, 10 * SAMPLES) for kind, own in TENSORFLOW.items()]
    jobs.append(("one an episode", "plain_tfdata", {"per_episode": 1}, 30 * BATCH))
    folder = tmp_path_factory.mktemp("given")
    return _ran(warm_python, spec, folder, jobs)


def _check(given: dict[str, Any], right: dict[tuple[int, int, int], dict[str, Any]]) -> None:
    """Each sample is what it says it is; full batches, and no sample of the mixture is missing."""
    assert set(given["sizes"]) == {BATCH}
    keys = _keys(given)
    assert set(keys) == set(right)
    for at, key in enumerate(keys):
        own = right[key]
        # Resized in float by TensorFlow, in fixed point by OpenCV.
        off = np.abs(given["images"][at].astype(int) - own["images"])
        assert off.max() <= 2, (key, off.max())
        assert given["frame_mask"][at].tolist() == own["frame_mask"]
        for name in ("action", "state"):
            mask = given[f"{name}_mask"][at, 0]
            np.testing.assert_array_equal(given[name][at, 0][mask], own[name])
            assert not given[name][at, 0][~mask].any()
        words = given["language"][at]
        assert (words.decode() if isinstance(words, bytes) else str(words)) == own["language"]


def _keys(given: dict[str, Any]) -> list[tuple[int, int, int]]:
    """(dataset, place of the episode in storage, step) of each sample."""
    named = np.stack([given[name] for name in ("dataset_index", "episode_index", "step")], 1)
    places = {
        (dataset, episode): place
        for dataset in np.unique(named[:, 0])
        for place, episode in enumerate(np.unique(named[named[:, 0] == dataset, 1]))
    }
    return [(int(d), places[d, e], int(t)) for d, e, t in named]


@pytest.mark.parametrize("kind", TENSORFLOW)
def test_a_tf_data_peer_gives_the_samples_of_the_mixture(
    kind: str, given: dict[str, dict[str, Any]], right: Any
):
    _check(given[kind], right)


@pytest.mark.parametrize("kind", ["decode_alone", "copy_alone"])
def test_a_limit_with_frames_gives_batches_of_the_mixtures_shape(kind: str, spec: Path):
    limit = open_contender(kind, spec, {"threads": 2})
    for _, batch in zip(range(3), limit, strict=False):
        assert batch["images"].shape == (BATCH, 2, *SIZE, 3)
        assert batch["dataset_index"].shape == (BATCH,)
        assert batch["images"].any()
    limit.close()
