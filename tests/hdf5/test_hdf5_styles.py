"""Specs by ``init --style``: the windows of robomimic's, ACT's and diffusion_policy's datasets."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hdf5_files import write_robomimic

from autoloader import AutoLoader, PipelineSpec
from autoloader.process.draft import draft

LENGTHS = (9, 23, 18)
Window = tuple[int, tuple[int, ...], tuple[int, ...], tuple[bool, ...]]
"""An episode, rows of its observations, rows of its actions, and which of these are real."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("demos")
    write_robomimic(found / "d.hdf5", {f"demo_{k}": steps for k, steps in enumerate(LENGTHS)})
    return found


def windows(folder: Path, style: str, passes: int = 1, **own: Any) -> Counter[Window]:
    """Every window of some passes of a style's loader."""
    written = PipelineSpec.from_mapping(_plain(draft(folder, print, style)["spec"]))
    document = written.model_dump(mode="json")
    document["datasets"][0] |= {"split": {"train": "train"}, **own}
    document |= {"metadata": "full", "batch": {"size": 4, "drop_last": False}, "normalize": None}
    document["mixing"] = {"epoch": "pass"}
    for camera in document["cameras"].values():
        camera["size"] = [8, 8]
    found = Counter[Window]()
    with AutoLoader(
        PipelineSpec.from_mapping(document), output="numpy", ram_floor="64MiB"
    ) as loader:
        for _ in range(passes):
            for batch in loader:
                for row, (_, _, _, record, _) in enumerate(batch["provenance"].tolist()):
                    states, actions = batch["state"][row], batch["action"][row]
                    real = batch["action_mask"][row].all(axis=-1)
                    told = [round(float(one[0])) - 100 * record for one in actions]
                    found[
                        record,
                        tuple(round(float(one[0])) - 100 * record for one in states),
                        tuple(told if style != "act" else np.where(real, told, -1).tolist()),
                        tuple(real.tolist()),
                    ] += 1
    return found


def _plain(text: str) -> dict[str, Any]:
    from autoloader.spec.reading import parse_yaml

    return dict(parse_yaml(text))


def padded(first: int, count: int, steps: int) -> tuple[int, ...]:
    """Rows of a sequence, those outside the episode by its first or last."""
    return tuple(min(max(0, first + k), steps - 1) for k in range(count))


def real(first: int, count: int, steps: int) -> tuple[bool, ...]:
    return tuple(0 <= first + k < steps for k in range(count))


@pytest.mark.parametrize("pads", [True, False])
def test_robomimic_sequences_are_those_of_its_dataset(folder: Path, pads: bool, one_child: None):
    stack, length = 2, 16
    wanted = Counter[Window]()
    for episode, steps in enumerate(LENGTHS):
        lost = 0 if pads else stack - 1
        for k in range(max(0, steps - lost - (0 if pads else length - 1))):
            first, count = k + lost - stack + 1, stack - 1 + length
            seen = padded(first, stack, steps)
            wanted[episode, seen, padded(first, count, steps), real(first, count, steps)] += 1
    edges = {} if pads else {"sample": {"edges": {"start": "drop", "end": "drop"}}}
    assert windows(folder, "robomimic", **edges) == wanted


def test_act_draws_one_start_of_each_episode_with_all_actions_behind_it(
    folder: Path, one_child: None
):
    most, found = max(LENGTHS), windows(folder, "act", passes=40)
    starts = dict.fromkeys(range(len(LENGTHS)), frozenset[int]())
    for episode, (t,), actions, inside in found:
        steps = LENGTHS[episode]
        rows = [t + k if t + k < steps else -1 for k in range(most)]
        assert list(actions) == rows
        assert list(inside) == [row >= 0 for row in rows]
        starts[episode] |= {t}
    assert Counter(episode for episode, *_ in found.elements()) == dict.fromkeys(starts, 40)
    assert all(len(seen) > 5 for seen in starts.values())


def test_diffusion_policy_horizons_are_those_of_its_sampler_and_seven_more_an_episode(
    folder: Path, one_child: None
):
    horizon, before, after = 16, 1, 7
    wanted = Counter[Window]()
    for episode, steps in enumerate(LENGTHS):
        for first in range(-before, steps - horizon + after + 1):
            rows = padded(first, horizon, steps)
            wanted[episode, padded(first, 2, steps), rows, real(first, horizon, steps)] += 1
    found = windows(folder, "diffusion_policy")
    assert not wanted - found
    more = Counter(episode for episode, *_ in (found - wanted).elements())
    assert more == dict.fromkeys(range(len(LENGTHS)), 7)
