"""Reads a dataset by GR00T's or StarVLA's own classes; runs with the tree on ``PYTHONPATH``.

    python gr00t_script.py n1.5|n1.6|n1.7|starvla DATASET OUT.npz MODE HORIZON

OUT.npz gets samples of some steps, with raw and with normalised numbers, and OUT.json the
statistics. Videos are decoded by PyAV under the names of decord and torchcodec, which often cannot
read AV1. The tree itself chooses the frames. There are no rotations, so pytorch3d is an empty name.
"""

from __future__ import annotations

import functools
import importlib.machinery
import json
import sys
import types
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

KEPT_EVERY = 9


@functools.lru_cache(maxsize=1)
def decoded(path: str) -> tuple[np.ndarray, np.ndarray]:
    """All frames of a video, and the time of each."""
    with av.open(path) as container:
        found = [(one.to_ndarray(format="rgb24"), one.time) for one in container.decode(video=0)]
    frames, times = zip(*found, strict=True)
    return np.stack(frames), np.asarray(times)


class Video:
    """A decoder with the few methods of decord and of torchcodec that the trees call."""

    def __init__(self, path: Any, **_: Any) -> None:
        self._frames, self._times = decoded(str(path))
        self.metadata = types.SimpleNamespace(num_frames=len(self._frames))

    def __len__(self) -> int:
        return len(self._frames)

    def get_frame_timestamp(self, numbers: Any) -> np.ndarray:
        starts = self._times[list(numbers)]
        return np.stack([starts, starts], axis=1)

    def get_batch(self, numbers: Any) -> Any:
        return types.SimpleNamespace(asnumpy=lambda: self._frames[list(numbers)])

    def get_frames_at(self, indices: Any) -> Any:
        return types.SimpleNamespace(data=torch.from_numpy(self._frames[list(indices)]))


def stand_in() -> None:
    """Put this file's decoder where the trees import theirs."""
    for name, members in (
        ("decord", {"VideoReader": Video, "cpu": None}),
        ("torchcodec", {}),
        ("torchcodec.decoders", {"VideoDecoder": Video}),
        ("pytorch3d", {}),
        ("pytorch3d.transforms", {}),
    ):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(sys.modules[name]).update(members)
    vars(sys.modules["torchcodec"])["decoders"] = sys.modules["torchcodec.decoders"]
    vars(sys.modules["pytorch3d"])["transforms"] = sys.modules["pytorch3d.transforms"]


def steps_of(root: Path) -> list[tuple[int, int]]:
    """(episode, t) of every ninth step, and of each episode's last steps."""
    rows = [json.loads(line) for line in (root / "meta/episodes.jsonl").open()]
    return [
        (row["episode_index"], t)
        for row in rows
        for t in range(row["length"])
        if t % KEPT_EVERY == 0 or t >= row["length"] - 20
    ]


def modality_of(root: Path) -> dict[str, list[str]]:
    """The keys of ``modality.json``, with their modality before them."""
    told = json.loads((root / "meta/modality.json").read_text())
    keys = {kind: [f"{kind}.{key}" for key in told[kind]] for kind in ("video", "state", "action")}
    return {**keys, "language": [f"annotation.{key}" for key in told["annotation"]]}


def module_of(kind: str) -> tuple[Any, Any, Any]:
    """The modules of datasets, of transforms, and of transforms of numbers."""
    if kind == "starvla":
        from starVLA.dataloader.gr00t_lerobot import datasets as module
        from starVLA.dataloader.gr00t_lerobot.transform import base
        from starVLA.dataloader.gr00t_lerobot.transform import state_action as numbers
    else:
        from gr00t.data import dataset as module
        from gr00t.data.transform import base
        from gr00t.data.transform import state_action as numbers
        from gr00t.utils import video

        vars(video).setdefault("decord", sys.modules["decord"])  # a fork left it out
    return module, base, numbers


def single(kind: str, root: Path, mode: str, horizon: int) -> tuple[Any, dict[str, list[str]]]:
    """N1.5's dataset, or StarVLA's, with its transforms of numbers; and the keys."""
    module, base, numbers = module_of(kind)
    keys = modality_of(root)
    deltas = {"action": list(range(horizon))}
    configs = {
        name: module.ModalityConfig(delta_indices=deltas.get(name, [0]), modality_keys=several)
        for name, several in keys.items()
    }
    chain = []
    for name in ("state", "action"):
        modes = dict.fromkeys(keys[name], mode)
        chain.append(numbers.StateActionToTensor(apply_to=keys[name]))
        chain.append(numbers.StateActionTransform(apply_to=keys[name], normalization_modes=modes))
    transform = base.ComposedModalityTransform(transforms=chain)
    more = {"data_cfg": {"include_state": True}} if kind == "starvla" else {}
    data = module.LeRobotSingleDataset(
        root, configs, "new_embodiment", video_backend="decord", transforms=transform, **more
    )
    return data, keys


def by_step(kind: str, root: Path, mode: str, horizon: int) -> tuple[list[Any], Any]:
    """Samples and statistics of N1.5's dataset, or StarVLA's."""
    data, keys = single(kind, root, mode, horizon)
    found = []
    for episode, t in steps_of(root):
        raw = data.get_step_data(episode, t)
        sample = {
            "place": (episode, t),
            "frame": np.array(raw[keys["video"][0]][0]),
            "text": raw[keys["language"][0]][0],
            **{f"raw_{name}": np.concatenate([raw[key] for key in keys[name]], axis=1)
               for name in ("state", "action")},
        }  # fmt: skip
        made = data.transforms(raw)
        for name in ("state", "action"):
            sample[name] = np.concatenate([np.asarray(made[key]) for key in keys[name]], axis=1)
        if kind == "starvla":
            packed = data._pack_sample(made)
            sample |= {f"packed_{key}": packed[key] for key in ("state", "action", "lang")}
            sample["packed_image"] = np.asarray(packed["image"][0])
        found.append(sample)
    if kind != "starvla":
        return found, json.loads(data.metadata.model_dump_json())["statistics"]
    mixture = module_of(kind)[0].LeRobotMixtureDataset([(data, 1.0)], mode="train")
    mixture.save_dataset_statistics(root / "starvla.json")
    return found, json.loads((root / "starvla.json").read_text())


def configured(root: Path, tag: Any, horizon: int) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The modalities of a tag of N1.6 and N1.7, with their statistics' files; and the keys."""
    from gr00t.configs.data.embodiment_configs import (
        MODALITY_CONFIGS,
        ActionConfig,
        ActionFormat,
        ActionRepresentation,
        ActionType,
        ModalityConfig,
    )
    from gr00t.data import stats

    keys = {name: [key.partition(".")[2] for key in several] if name != "language" else several
            for name, several in modality_of(root).items()}  # fmt: skip
    relative = {True: ActionRepresentation.RELATIVE, False: ActionRepresentation.ABSOLUTE}
    configs = {
        "video": ModalityConfig(delta_indices=[0], modality_keys=keys["video"]),
        "state": ModalityConfig(delta_indices=[0], modality_keys=keys["state"]),
        "action": ModalityConfig(
            delta_indices=list(range(horizon)),
            modality_keys=keys["action"],
            action_configs=[
                ActionConfig(
                    rep=relative["arm" in key], type=ActionType.NON_EEF,
                    format=ActionFormat.DEFAULT, state_key=key,
                )
                for key in keys["action"]
            ],
        ),
        "language": ModalityConfig(delta_indices=[0], modality_keys=keys["language"]),
    }  # fmt: skip
    MODALITY_CONFIGS[tag.value] = configs
    stats.generate_stats(root)
    stats.generate_rel_stats(root, tag)
    return configs, keys


def by_episode(kind: str, root: Path, horizon: int) -> tuple[list[Any], Any]:
    """Samples and statistics of the loader and the processor of numbers of N1.6 and N1.7."""
    from gr00t.data.dataset.lerobot_episode_loader import LeRobotEpisodeLoader
    from gr00t.data.dataset.sharded_single_step_dataset import extract_step_data
    from gr00t.data.embodiment_tags import EmbodimentTag
    from gr00t.data.state_action.state_action_processor import StateActionProcessor

    tag = EmbodimentTag.NEW_EMBODIMENT
    configs, keys = configured(root, tag, horizon)
    loader = LeRobotEpisodeLoader(root, configs)
    statistics = {tag.value: loader.get_dataset_statistics()}
    processor = StateActionProcessor(
        {tag.value: configs}, statistics, use_percentiles=kind == "n1.7", use_relative_action=True
    )
    found, last = [], (-1, None)
    for episode, t in steps_of(root):
        if t > loader.get_episode_length(episode) - horizon:
            continue
        last = last if last[0] == episode else (episode, loader[episode])
        step = extract_step_data(last[1], t, configs, tag)
        made = processor.apply(step.states, step.actions, tag.value)
        rows = {"raw_state": step.states, "raw_action": step.actions}
        rows |= dict(zip(("state", "action"), made, strict=True))
        found.append(
            {"place": (episode, t), "frame": step.images[keys["video"][0]][0], "text": step.text,
             **{name: np.concatenate(list(one.values()), axis=1) for name, one in rows.items()}}
        )  # fmt: skip
    return found, statistics[tag.value]


def main(kind: str, dataset: str, out: str, mode: str, horizon: str) -> None:
    stand_in()
    root = Path(dataset)
    found, statistics = (
        by_episode(kind, root, int(horizon))
        if kind in ("n1.6", "n1.7")
        else by_step(kind, root, mode, int(horizon))
    )
    np.savez(out, **{name: np.stack([one[name] for one in found]) for name in found[0]})
    plain = json.dumps(statistics, default=lambda one: np.asarray(one).tolist())
    Path(out).with_suffix(".json").write_text(plain)


if __name__ == "__main__":
    main(*sys.argv[1:])
