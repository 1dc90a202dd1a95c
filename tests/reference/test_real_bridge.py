"""The real Bridge episodes in Octo's and OpenVLA's style: against plain TFDS, and known figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episode_rules import binarise
from plain_tfds import plain_episodes
from test_both_readers import read_from_index, read_from_stream

from autoloader import recipes
from autoloader.decode.frames import FrameDecoder
from autoloader.samples.resolve import ResolvedMixture, resolve
from autoloader.spec import CameraSpec, PipelineSpec

FIRST = {
    "octo": [-3.1341612e-4, -5.6567043e-4, -4.8905611e-4, -9.3895197e-4, 2.8542429e-3,
             2.4682283e-4, 1],
    "openvla": [2.8318167e-4, -3.1920597e-3, -5.6111068e-3, 8.7075680e-4, 1.2204558e-2,
                -0.11392722, 1],
}  # fmt: skip
"""The first action row of the first episode."""
LAST = [-7.7621639e-4, 2.4116337e-3, -1.3135575e-2, -1.2531437e-2, -4.9359947e-3, -1.5572786e-2, 1]
"""Its last action row, in both styles."""
PROPRIO = {
    "octo": [0.23381479, 0.11244296, 0.17504855, 0.10004316, -0.21381886, 0.21333793, 1.0008161],
    "openvla": [0.23350137, 0.11187729, 0.17455949, 0.09910421, -0.21096462, 0.21358475, 0,
                1.0008161],
}  # fmt: skip
MEAN = {
    "octo": [1.5951247e-3, -1.0568712e-3, -4.5697537e-3, -8.9102561e-3, 3.2958896e-3,
             -5.4091345e-3, 0.78222222],
    "openvla": [1.7925886e-3, -1.1834188e-3, -4.9994639e-3, -1.0078891e-2, 3.2177182e-3,
                -6.0841002e-3, 0.755],
}  # fmt: skip
STD = {
    "octo": [5.0610503e-3, 4.5292822e-3, 6.5596883e-3, 3.7600390e-2, 2.7210153e-2, 3.8653067e-2,
             0.41273553],
    "openvla": [5.3340238e-3, 4.7880319e-3, 6.8348640e-3, 3.9723877e-2, 2.8852795e-2,
                4.0945955e-2, 0.43008720],
}  # fmt: skip


def mixture_of(bridge: Path, style: str, size: int = 64) -> ResolvedMixture:
    found = recipes.recipe("bridge_dataset", style).dataset
    dataset = {"name": "bridge", "path": str(bridge), **found, "split": "train"}
    dataset["images"] = {"primary": found["images"]["primary"]}
    camera = {"size": [size, size], "resize": "tf_lanczos3"}
    raw = {"datasets": [dataset], "cameras": {"primary": camera}}
    return resolve(PipelineSpec.from_mapping(raw))


@pytest.fixture(scope="module")
def episodes(bridge: Path) -> list[list[dict[str, Any]]]:
    return list(plain_episodes(bridge, "train"))


def by_hand(steps: list[dict[str, Any]], style: str) -> tuple[np.ndarray, np.ndarray, int]:
    """(actions, states, the first step that is left) of an episode that TFDS has read."""
    first = 0 if style == "octo" else 1
    state = np.stack([step["observation"]["state"] for step in steps[first:]])
    gripper = binarise(np.stack([step["action"] for step in steps[first:]])[:, -1])
    action = np.column_stack([state[1:, :6] - state[:-1, :6], gripper[:-1]])
    if style == "openvla":
        state = np.column_stack([state[:, :6], np.zeros(len(state)), state[:, -1:]])
    return action, state[:-1].astype(np.float32), first


@pytest.mark.parametrize("style", ["octo", "openvla"])
@pytest.mark.parametrize("read", [read_from_index, read_from_stream])
def test_every_sample_is_what_plain_tfds_gives(
    read: Any, style: str, bridge: Path, episodes: list[list[dict[str, Any]]]
):
    mixture = mixture_of(bridge, style)
    decoder = FrameDecoder(mixture.spec.cameras["primary"])
    places = {}
    number = 0
    for shard, piece in enumerate(mixture.datasets[0].slices):
        for record in range(piece.start, piece.stop):
            places[shard, record] = number
            number += 1
    made = [by_hand(steps, style) for steps in episodes]
    count = 0
    for (pass_, shard, record, t), block, k in read(mixture):
        if pass_:
            continue
        count += 1
        steps = episodes[places[shard, record]]
        action, state, first = made[places[shard, record]]
        np.testing.assert_array_equal(block.columns["action"][k, 0], action[t])
        np.testing.assert_array_equal(block.columns["state"][k, 0], state[t])
        step = steps[t + first]
        assert block.texts[k] == step["language_instruction"]
        frame = np.empty((64, 64, 3), np.uint8)
        decoder.decode_into(block.frames["primary"][block.frame_row[k, 0]], frame)
        np.testing.assert_array_equal(frame, step["observation"]["image_0"])
    assert count == sum(len(action) for action, _, _ in made)
    assert count in (225, 200)


@pytest.mark.parametrize("style", ["octo", "openvla"])
def test_the_first_episode_and_all_figures_are_the_known_ones(style: str, bridge: Path):
    rows: dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]] = {}
    for (pass_, shard, record, t), block, k in read_from_index(mixture_of(bridge, style)):
        if not pass_:
            columns = block.columns["action"][k, 0], block.columns["state"][k, 0]
            rows[shard, record, t] = columns
    first, *_ = sorted(rows)
    episode = [rows[key] for key in sorted(rows) if key[:2] == first[:2]]
    np.testing.assert_allclose(episode[0][0], FIRST[style], rtol=1e-6)
    np.testing.assert_allclose(episode[-1][0], LAST, rtol=1e-6)
    np.testing.assert_allclose(episode[0][1], PROPRIO[style], rtol=1e-6)
    every = np.stack([action for action, _ in rows.values()]).astype(np.float64)
    np.testing.assert_allclose(every.mean(axis=0), MEAN[style], rtol=1e-6)
    np.testing.assert_allclose(every.std(axis=0), STD[style], rtol=1e-6)


def test_frames_that_are_enlarged_by_lanczos_are_within_a_grey_level_of_tensorflow(
    bridge: Path, episodes: list[list[dict[str, Any]]]
):
    from autoloader.pipeline.graph.tensorflow import tf

    decoder = FrameDecoder(CameraSpec(size=(256, 256), resize="tf_lanczos3"))
    off = []
    for (_, _, record, t), block, k in read_from_index(mixture_of(bridge, "octo", 256)):
        if t == 3 and record < 5:
            frame = np.empty((256, 256, 3), np.uint8)
            decoder.decode_into(block.frames["primary"][block.frame_row[k, 0]], frame)
            picture = np.empty((64, 64, 3), np.uint8)
            FrameDecoder(CameraSpec(size=(64, 64))).decode_into(
                block.frames["primary"][block.frame_row[k, 0]], picture
            )
            resized = tf.image.resize(picture, (256, 256), method="lanczos3", antialias=True)
            wanted = np.clip(np.round(resized.numpy()), 0, 255)
            off.append(np.abs(frame.astype(np.float64) - wanted).mean())
    assert off
    assert max(off) <= 1
