"""Every value of every sample of a stream, held against plain TFDS reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from plain_tfds import plain_episodes, plain_frame, text_at, value_at
from streams import Running, episodes_of_pass

from autoloader.decode.frames import FrameDecoder
from autoloader.samples.block import SampleBlock
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture, resolve
from autoloader.spec import PipelineSpec

pytestmark = pytest.mark.slow
GREY_LEVELS = 2.0

NAMES = ("demo_kitchen_sink", "demo_mobile_drawers", "demo_sim_blocks", "demo_teacup_24",
         "demo_bimanual_fold", "demo_table_push")  # fmt: skip


@pytest.fixture(scope="module")
def demo(demo_mix: Path) -> ResolvedMixture:
    """The demo mixture with windows that leave the episodes on both sides."""
    plain = PipelineSpec.from_yaml(demo_mix).model_dump(mode="json")
    plain["sample"] = {
        "frame_offsets": [-1, 0, 5],
        "state_offsets": [-2, 0],
        "action_start": -1,
        "action_horizon": 4,
        "edges": {"start": "zero", "end": "repeat"},
    }
    plain["cameras"]["primary"]["size"] = [64, 96]
    return resolve(PipelineSpec.from_mapping(plain))


@pytest.mark.parametrize("index", range(len(NAMES)), ids=NAMES)
def test_every_sample_of_the_demo_mixture_holds_what_plain_tfds_reads(
    index: int, demo: ResolvedMixture
) -> None:
    dataset, layout = demo.datasets[index], demo.layout
    decoder = FrameDecoder(demo.spec.cameras["primary"])
    out = np.empty((64, 96, 3), np.uint8)
    off: list[float] = []
    expression = demo.spec.dataset(dataset.name).split["train"]
    episodes = plain_episodes(dataset.directory.path, expression or "")
    streamed = sorted(
        episodes_of_pass(demo, index, cycle_length=2, parse_parallel_calls=2),
        key=lambda item: item.place.numbers(),
    )
    for wanted, samples in zip(episodes, streamed, strict=True):
        assert isinstance(samples, SampleBlock)
        action = np.stack([_numbers(dataset, "action", step) for step in wanted])
        state = np.stack([_numbers(dataset, "state", step) for step in wanted])
        last = len(wanted) - 1
        assert sorted(samples.t.tolist()) == list(range(len(wanted)))
        for k, t in enumerate(samples.t.tolist()):
            for h in range(4):
                row = t - 1 + h
                expected = action[min(row, last)] if row >= 0 else 0 * action[0]
                assert (
                    samples.columns["action"][k, h, : action.shape[1]].tolist() == expected.tolist()
                )
                assert not samples.columns["action"][k, h, action.shape[1] :].any()
                inside = [0 <= row <= last] * action.shape[1]
                padding = [False] * (layout.action_width - action.shape[1])
                assert samples.columns["action_mask"][k, h].tolist() == inside + padding
            for s, offset in enumerate((-2, 0)):
                expected = state[t + offset] if t + offset >= 0 else 0 * state[0]
                assert (
                    samples.columns["state"][k, s, : state.shape[1]].tolist() == expected.tolist()
                )
            words = text_at(wanted[t], dataset.language[0].path) if dataset.language else ""
            assert samples.texts_of(k, 1)[0].decode() == words
        (feature,) = dataset.cameras["primary"]
        frame_of = {}
        for k, t in enumerate(samples.t.tolist()):
            frame_of[t] = samples.frames["primary"][samples.frame_row[k, 1]]
        for t in range(0, len(wanted), 3):
            decoder.decode_into(frame_of[t], out)
            expected = plain_frame(value_at(wanted[t], feature.path), (64, 96))
            off.append(float(np.abs(out - expected).mean()))
    assert max(off) <= GREY_LEVELS


def _numbers(dataset: ResolvedDataset, field: str, step: dict[str, object]) -> np.ndarray:
    """The field of one step, spelled out from the spec's terms."""
    bound = getattr(dataset, field)
    columns: list[np.ndarray] = []
    for term in bound.terms if bound else ():
        part = np.atleast_1d(np.asarray(value_at(step, term.path), np.float32)).reshape(-1)
        part = part[term.slice()]
        for op in term.ops:
            assert op.name == "clip"
            part = part.clip(*op.values)
        columns.append(part)
    return np.concatenate(columns) if columns else np.zeros(0, np.float32)


CAMERAS = tuple(f"image_{number}" for number in range(4))


def test_every_sample_of_the_real_bridge_episodes_comes_out_of_a_pipeline_as_tfds_reads_it(
    bridge: Path,
) -> None:
    spec = PipelineSpec.from_mapping(
        {
            "datasets": [
                {
                    "name": "bridge",
                    "path": str(bridge),
                    "images": {camera: f"observation/{camera}" for camera in CAMERAS},
                    "action": "action",
                    "state": "observation/state",
                    "language": "language_instruction",
                }
            ],
            "sample": {"frame_offsets": [0, 5]},
            "cameras": {camera: {"size": [96, 80]} for camera in CAMERAS},
            "batch": {"size": 25},
            "weights": "natural",
        }
    )
    mixture = resolve(spec)
    plain = list(plain_episodes(bridge, "train"))
    assert len(plain) == 25
    total = sum(map(len, plain))
    with Running(mixture, {"decode_threads": 2}) as running:
        got = running.batches(total // 25)
    assert total % 25 == 0
    assert len(set(got.samples)) == total
    pictures: dict[tuple[int, int, str], np.ndarray] = {}

    def picture(record: int, step: int, camera: str) -> np.ndarray:
        if (record, step, camera) not in pictures:
            raw = plain[record][step]["observation"][camera]
            pictures[record, step, camera] = plain_frame(raw, (96, 80))
        return pictures[record, step, camera]

    off: dict[str, list[float]] = {camera: [] for camera in CAMERAS}
    images = {camera: got.joined(f"images/{camera}") for camera in CAMERAS}
    action, state = got.joined("action"), got.joined("state")
    offsets, masks = got.joined("frame_offset"), got.joined("frame_mask/image_0")
    for row, (_, pass_, shard, record, t) in enumerate(got.samples):
        assert (pass_, shard) == (0, 0)
        steps = plain[record]
        later = min(t + 5, len(steps) - 1)
        assert action[row, 0].tolist() == steps[t]["action"].tolist()
        assert state[row, 0].tolist() == steps[t]["observation"]["state"].tolist()
        assert got.texts[row] == steps[t]["language_instruction"]
        assert offsets[row].tolist() == [0, later - t]
        assert masks[row].tolist() == [True, t + 5 < len(steps)]
        for camera in CAMERAS:
            for frame, step in enumerate((t, later)):
                wanted = picture(record, step, camera)
                off[camera].append(float(np.abs(images[camera][row, frame] - wanted).mean()))
    assert {camera: len(values) for camera, values in off.items()} == dict.fromkeys(
        CAMERAS, 2 * total
    )
    assert max(max(values) for values in off.values()) <= GREY_LEVELS
