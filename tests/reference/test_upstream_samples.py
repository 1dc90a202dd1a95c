"""Samples as the real Octo, OpenVLA and openpi code made them of the same files, number by number.

Each project's spec is the one that ``init --style`` writes; a test changes of it what a user would
(windows, methods), and gives cameras a small size. The layouts give the keys to compare.
"""

import contextlib
import copy
import functools
import io
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_lines import Cli
from streams import opened

from autoloader import layouts
from autoloader.cli.app import main
from autoloader.index.statistics import read_statistics
from autoloader.process.planning import plan_loader
from autoloader.recipes import recipe
from autoloader.spec import PipelineSpec
from autoloader.spec.reading import parse_yaml

UPSTREAM = Path(__file__).parents[2].parent / "shared/upstream"
GOLDEN = sorted(one.stem.split("__") for one in UPSTREAM.glob("golden/o*__*.npz"))
RANGES = {"method": "q01_q99", "clip": True}
CHUNKS = {"q99_8": (1, 8), "q99_3_4": (3, 7)}
METHODS: Mapping[str, dict[str, Any]] = {
    "octo": {"normal": {"method": "mean_std", "clip": False}, "bounds": RANGES, "full": {}},
    "openvla": {
        "normal": {"method": "mean_std", "clip": False},
        "bounds": {"method": "min_max", "clip": True},
        **{variant: {} for variant in ("q99", "q99_8", "q99_3_4", "full")},
    },
}
"""Variant → what a user changes of the style's ``normalize.action``."""

pytestmark = pytest.mark.skipif(not GOLDEN, reason=f"no samples of the projects in {UPSTREAM}")


@functools.cache
def drafted(folder: str, style: str) -> dict[str, Any]:
    """The spec that ``init`` writes of a folder."""
    return parse_yaml(written(folder, style))


@functools.cache
def written(folder: str, style: str, mix: str = "") -> str:
    """The spec that ``init`` writes of a folder, as text."""
    out = io.StringIO()
    words = ["init", str(UPSTREAM / folder), "--style", style, *(["--mix", mix] if mix else [])]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main(words) == 0
    return out.getvalue()


@functools.cache
def golden_of(file: str) -> dict[str, Any]:
    """What a project's code made: path → array."""
    with np.load(UPSTREAM / file) as arrays:
        return dict(arrays)


def spec_of(name: str, style: str, folder: str = "data") -> dict[str, Any]:
    """One dataset's spec: every sample once, small pictures, the state where it has one."""
    spec = copy.deepcopy(drafted(f"{folder}/{name}", style))
    (dataset,) = spec["datasets"]
    known = recipe(name, style).dataset
    if "state" in known:
        dataset["state"] = known["state"]
    elif style != "openpi":  # theirs are zeros then
        spec["pad_to"] = {"state": 1 if style == "octo" else 8}
    if name == "kuka":  # theirs are filtered beforehand
        del dataset["keep"]["flags"]
        dataset["keep"] = dataset["keep"] or None
    spec.pop("augment", None)
    for key in ("goal", "per_episode"):
        spec["sample"].pop(key, None)
    for camera in spec["cameras"].values():
        camera["size"] = [8, 8]
    return spec | {"mixing": {"epoch": "pass"}, "batch": {"size": 16, "drop_last": False}}


def samples_of(spec: Any, layout: Any) -> dict[tuple[int, int], dict[str, Any]]:
    """(episode, t) → every key of the project's batch; episodes that give samples are counted."""
    found = {}
    with opened(spec) as loader:
        for batch in loader:
            rows = dict(flat(layout(batch, loader.dataset_names)))
            for i, place in enumerate(batch["provenance"].tolist()):
                found[place[3], place[4]] = {key: value[i] for key, value in rows.items()}
    order = {episode: k for k, episode in enumerate(sorted({episode for episode, _ in found}))}
    return {(order[episode], t): one for (episode, t), one in found.items()}


def flat(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{key}/")
        else:
            yield before + key, np.copy(value)


def compare(found: Sequence[Any], wanted: Any, place: Any) -> None:
    """Rows of numbers within 1e-5, of masks and texts equal."""
    if wanted.dtype.kind == "U":
        assert [one.decode() for one in found] == wanted.tolist(), place
    elif wanted.dtype.kind == "b":
        np.testing.assert_array_equal(found, wanted, err_msg=str(place))
    else:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5, err_msg=str(place))


@pytest.mark.parametrize(("style", "name"), [one for one in GOLDEN if one[0] != "openpi"])
def test_every_variant_of_octo_and_openvla_has_their_numbers_masks_and_texts(style: str, name: str):
    golden = golden_of(f"golden/{style}__{name}.npz")
    every: dict[str, dict[int, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for path in golden:
        variant, episode, key = path.split("/", 2) if path.count("/") > 1 else ("stats", "0", path)
        if variant != "stats":
            every[variant][int(episode)][key] = golden[path]
    assert set(every) == {"raw", *METHODS[style]}
    for variant, episodes in every.items():
        spec, options = spec_of(name, style), {}
        if variant in CHUNKS:
            window, horizon = CHUNKS[variant]
            offsets = list(range(1 - window, 1))
            spec["sample"] |= {"frame_offsets": offsets, "state_offsets": offsets}
            spec["sample"] |= {"action_start": 1 - window, "action_horizon": horizon}
            options["action_start"] = 1 - window
        if variant == "full":
            spec["datasets"][0]["images"] = recipe(name, style).dataset["images"]
            for camera in ("primary", "secondary", "wrist"):
                spec["cameras"].setdefault(camera, {"size": [8, 8], "placeholder": True})
        else:  # of which no key tells of a picture
            spec["datasets"][0].pop("images", None)
            for camera in spec["cameras"].values():
                camera["placeholder"] = True
        action = {**spec["normalize"]["action"], **METHODS[style].get(variant, {})}
        spec["normalize"]["action"] = action
        spec["normalize"]["state"] = {key: value for key, value in action.items() if key != "dims"}
        if variant == "raw":
            del spec["normalize"]
        elif "state" not in spec["datasets"][0]:
            del spec["normalize"]["state"]
        found = samples_of(spec, functools.partial(getattr(layouts, style), **options))
        if variant != "full":  # of which two episodes were kept
            assert len(found) == sum(len(one["action"]) for one in episodes.values())
        for episode, keys in episodes.items():
            for key, wanted in keys.items():
                rows = [found[episode, t][key] for t in range(len(wanted))]
                compare(rows, wanted, (variant, episode, key))


@pytest.mark.parametrize(("style", "name"), [one for one in GOLDEN if one[0] != "openpi"])
def test_statistics_are_those_that_octo_and_openvla_compute_of_all_recorded_steps(
    style: str, name: str, tmp_path: Path
):
    golden = golden_of(f"golden/{style}__{name}.npz")
    spec, out = spec_of(name, style), tmp_path / "dataset_statistics.json"
    (tmp_path / "mix.yaml").write_text(json.dumps(spec))  # JSON is YAML
    words = ["stats", "--spec", str(tmp_path / "mix.yaml"), "--format", style, "--out", str(out)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(words) == 0
    document = json.loads(out.read_text())
    entry = document if style == "octo" else document[name]
    for path in (one for one in golden if one.startswith("stats/")):
        field, *key = path.split("/")[1:]
        if field == "proprio" and "state" not in spec["datasets"][0]:
            continue
        found = np.asarray(entry[field][key[0]] if key else entry[field])
        np.testing.assert_allclose(found, golden[path], rtol=1e-5, atol=1e-7, err_msg=path)


@pytest.mark.parametrize("style", ["octo", "openvla"])
def test_a_weight_is_multiplied_by_all_transitions_as_there(style: str):
    """Of Bridge and toto, whose episodes are longer than the cap of 100 samples a pass."""
    spec = PipelineSpec.from_mapping(parse_yaml(written("long", style)))
    theirs = [
        json.loads(next((UPSTREAM / "long" / name / "1.0.0").glob("dataset_st*")).read_text())
        for name in ("bridge_dataset", "toto")
    ]
    transitions = [one["num_transitions"] for one in theirs]
    if style == "openvla":
        transitions[0] -= 4  # drops each episode's first step as well
    shares = plan_loader(spec, ram_floor="64MiB").order.shares
    np.testing.assert_allclose(shares, np.divide(transitions, sum(transitions)), rtol=1e-9)
    if style == "octo":
        assert round(shares[0], 4) == 0.0635


@pytest.mark.parametrize("name", ["bridge_orig", "bridge_dataset"])
def test_a_renamed_dataset_keeps_its_name_and_a_checkpoints_statistics_are_found_under_either(
    name: str, tmp_path: Path, cli: Cli
):
    shutil.copytree(UPSTREAM / "data/bridge_dataset", tmp_path / "data" / name)
    spec = parse_yaml(cli("init", tmp_path / "data", "--style", "openvla", "--mix", "bridge").out)
    assert [one["name"] for one in spec["datasets"]] == [name]
    mix, out = tmp_path / "mix.yaml", tmp_path / "dataset_statistics.json"
    mix.write_text(json.dumps(spec))
    words = ["stats", "--spec", str(mix), "--format", "openvla", "--out", str(out)]
    assert main(words) == 0
    document = json.loads(out.read_text())
    assert list(document) == [name]  # saved under its key
    out.write_text(json.dumps({"bridge_orig": document[name]}))  # a checkpoint's
    spec["normalize"]["statistics"] = str(out)
    assert list(read_statistics(out, PipelineSpec.from_mapping(spec))) == [name]


def droid(space: str, tmp_path: Path) -> dict[str, Any]:
    """openpi's spec of DROID: joint positions, relative to the state, or velocities as they are."""
    spec = spec_of("droid", "openpi")
    (dataset,) = spec["datasets"]
    assert dataset["split"] == {"train": "train", "val": None}
    if space == "vel":
        dataset["action"] = ["action_dict/joint_velocity", "action_dict/gripper_position"]
        del dataset["sample"]
    spec["normalize"]["statistics"] = str(tmp_path / f"norm_stats_{space}.json")
    shutil.copy(UPSTREAM / f"data/droid/norm_stats_{space}.json", tmp_path)
    return spec


@pytest.mark.parametrize("space", ["pos", "vel"])
@pytest.mark.parametrize("model", ["raw", "pi0", "pi05", "pi0_fast"])
def test_every_variant_of_openpi_has_its_numbers_masks_and_prompts(
    space: str, model: str, tmp_path: Path
):
    if not (UPSTREAM / "golden/openpi__droid.npz").exists():
        pytest.skip("no samples of openpi")
    golden = golden_of("golden/openpi__droid.npz")
    spec = droid(space, tmp_path)
    if model == "pi0":
        for field in ("action", "state"):
            spec["normalize"][field]["method"] = "mean_std"
    if model in ("raw", "pi0_fast"):
        del spec["pad_to"]
    if model == "raw":
        del spec["normalize"]
    spec["datasets"][0]["features"] = {
        "folder": "episode_metadata/recording_folderpath", "file": "episode_metadata/file_path",
    }  # fmt: skip
    found = {}
    how = "pi0_fast" if model == "raw" else model
    with opened(spec) as loader:
        for batch in loader:
            rows = dict(flat(layouts.openpi(batch, model=how)))  # type: ignore[arg-type]
            for i, place in enumerate(batch["provenance"].tolist()):
                texts = [batch["features"][key][i] for key in ("folder", "file")]
                key = f"{'--'.join(texts)}--{place[4]}"
                found[key] = {name: value[i] for name, value in rows.items()}
    variant = re.compile(rf"{model}_{space}/(.*--\d+)/0/(.*)")
    seen = set()
    for path in golden:
        if (match := variant.fullmatch(path)) is None or match[2] == "image":
            continue
        key, name = match.groups()
        seen.add(key)
        if name == "prompt":
            assert str(found[key]["prompt"]) in golden[f"prompts/{key}"].tolist()
        else:
            compare([found[key][name]], golden[path][None], path)
    assert seen == set(found)
    if model == "pi05" and space == "pos":
        ranges = {
            "file": str(UPSTREAM / "data/droid/filter.json"),
            "key": "{episode_metadata/recording_folderpath}--{episode_metadata/file_path}",
        }
        spec["datasets"][0]["keep"]["ranges"] = ranges
        assert len(samples_of(spec, lambda batch, _: {"t": batch["dataset_index"]})) == len(
            golden["filtered"]
        )
