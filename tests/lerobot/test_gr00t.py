"""GR00T's dialect of LeRobot: ``modality.json``, its releases' rules, layouts and statistics.

Expected values are worked out here from the Parquet files, by the formulas of GR00T's own code.
"""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_lines import Cli
from gr00t_files import MODALITY, TEXTS, TOP, Gr00tFiles, table
from lerobot_files import shown
from numpy.typing import NDArray
from streams import opened, spec_file

from autoloader import AutoLoader, PipelineSpec
from autoloader.cli.app import main
from autoloader.cli.witness import normalised_rows
from autoloader.errors import AutoloaderError, UnsupportedError
from autoloader.index.statistics import field_statistics
from autoloader.layouts import Gr00tLayout
from autoloader.samples.resolve import resolve
from autoloader.samples.statistics import scaling_of
from autoloader.spec import FieldNormalizeSpec
from autoloader.spec.reading import parse_yaml

REAL = Path(__file__).parents[2].parent / "shared/data/g1_lerobot_v21"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Gr00tFiles().write(tmp_path_factory.mktemp("gr00t") / "arm")


def drafted(data: Path, release: str, cli: Cli) -> dict[str, Any]:
    """What init writes, with an epoch of one pass in batches of any size."""
    spec: dict[str, Any] = parse_yaml(
        cli("init", data, "--style", "gr00t", "--version", release).out
    )
    return {**spec, "mixing": {"epoch": "pass"}, "batch": {"size": 7, "drop_last": False}}


def samples_of(spec: Any) -> dict[tuple[int, int], Mapping[str, Any]]:
    """(shard, t) → sample."""
    found = {}
    with opened(spec) as loader:
        for batch in loader:
            for row, place in enumerate(batch["provenance"].tolist()):
                found[place[2], place[4]] = {
                    "language": batch["language"][row],
                    "images": {key: one[row].copy() for key, one in batch["images"].items()},
                    **{
                        key: batch[key][row].copy()
                        for key in ("action", "action_mask", "state", "state_mask")
                    },
                }
    return found


def tables_of(root: Path) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
    """(columns of each episode, those of all episodes)."""
    tables = [table(root, episode) for episode in range(3)]
    return tables, {key: np.concatenate([one[key] for one in tables]) for key in tables[0]}


def scaled_by(x: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.float64]:
    """x from -1 to 1 between the bounds; 0 where these are equal."""
    same = np.isclose(high, low)
    return np.where(same, 0.0, 2 * (x - low) / np.where(same, 1, high - low) - 1)


def rot6d(quaternion: NDArray[Any]) -> NDArray[np.float64]:
    """The first two rows of the matrix of a quaternion, w first, as pytorch3d has it."""
    w, x, y, z = quaternion.astype(np.float64)
    s = 2 / float(quaternion.astype(np.float64) @ quaternion)
    return np.asarray([
        1 - s * (y * y + z * z), s * (x * y - z * w), s * (x * z + y * w),
        s * (x * y + z * w), 1 - s * (x * x + z * z), s * (y * z - x * w),
    ])  # fmt: skip


def test_modality_json_becomes_fields_cameras_and_the_text(root: Path, cli: Cli):
    out = cli("init", root, "--style", "gr00t", "--version", "n1.6").out
    (dataset,) = parse_yaml(out)["datasets"]
    assert dataset["images"] == {"ego_view": "observation.images.top"}
    assert dataset["state"] == [
        "observation.state[0:3]", "observation.state[3:7]", "observation.state[7:8]"
    ]  # fmt: skip
    assert dataset["action"] == ["action[0:3]", "action[3:6]", "action[6:7]", "action.base[0:2]"]
    assert dataset["language"] == TEXTS
    assert dataset["sample"] == {"action_relative_to_state": [0, 1, 2]}
    for told in ("left alone: annotation.human.trace", "relative to the state, by their names"):
        assert told in out.replace("\n    #  ", "")


@pytest.mark.parametrize("first_time", [0, 1])
def test_n15_takes_the_frame_nearest_to_a_rows_time_and_later_releases_that_of_its_number(
    tmp_path: Path, cli: Cli, first_time: int
):
    files = Gr00tFiles(lengths=(9, 5), first_time=first_time)
    root = files.write(tmp_path / "arm")
    near = samples_of(drafted(root, "n1.5", cli))
    by_row = drafted(root, "n1.6", cli)
    by_row["sample"] |= {"action_horizon": 1}
    by_row["normalize"].pop("action")
    by_number = samples_of(by_row)
    for episode, length in enumerate(files.lengths):
        for t in range(length):
            seen = shown(near[episode, t]["images"]["ego_view"][0])
            assert seen == (0, episode, min(t + first_time, length - 1))
            assert shown(by_number[episode, t]["images"]["ego_view"][0]) == (0, episode, t)


def test_n15s_rows_are_normalised_and_padded_as_its_transforms_do(root: Path, cli: Cli):
    spec = drafted(root, "n1.5", cli)
    found = samples_of(spec)
    tables, every = tables_of(root)
    assert len(found) == sum(len(one["action"]) for one in tables)

    def scaled(x: NDArray[Any], of: NDArray[Any]) -> NDArray[np.float64]:
        return scaled_by(x, of.min(0).astype(np.float64), of.max(0).astype(np.float64))

    for (episode, t), sample in found.items():
        one = tables[episode]
        steps, last = np.arange(t, t + 16), len(one["action"]) - 1
        rows, base = (one[key][steps.clip(max=last)] for key in ("action", "action.base"))
        turn = np.where((steps > last)[:, None], 0.0, rows[:, 3:6])
        wanted = np.concatenate(
            [
                scaled(rows[:, :3], every["action"][:, :3]),
                scaled(turn, every["action"][:, 3:6]),
                (rows[:, 6:7] > 0.5).astype(np.float64),
                scaled(base, every["action.base"]),
            ],
            axis=1,
        )
        np.testing.assert_allclose(sample["action"], wanted, atol=1e-6)
        state = one["observation.state"][t]
        wanted = np.concatenate(
            [
                rot6d(state[3:7]),
                scaled(state[:3], every["observation.state"][:, :3]),
                scaled(state[7:], every["observation.state"][:, 7:]),
            ]
        )
        np.testing.assert_allclose(sample["state"][0], wanted, atol=1e-6)
        assert sample["language"] == Gr00tFiles.tasks[1 - episode % 2]


def relative_rows(tables: list[dict[str, Any]], horizon: int) -> NDArray[np.float64]:
    """[n, horizon, 3] differences of the arm's actions to its state at t, of whole horizons."""
    return np.stack([
        one["action"][t : t + horizon, :3] - one["observation.state"][t, :3]
        for one in tables
        for t in range(len(one["action"]) - horizon + 1)
    ]).astype(np.float64)  # fmt: skip


@pytest.mark.parametrize("release", ["n1.6", "n1.7"])
def test_later_releases_take_whole_horizons_and_scale_each_row_of_relative_actions(
    root: Path, cli: Cli, release: str
):
    found = samples_of(drafted(root, release, cli))
    tables, every = tables_of(root)
    assert set(found) == {(e, t) for e, length in ((0, 22), (1, 18)) for t in range(length - 15)}
    relative = relative_rows(tables, 16)
    low, high = relative.min(0), relative.max(0)

    def scaled(x: NDArray[Any], of: NDArray[Any]) -> NDArray[np.float64]:
        ends = (0.0, 1.0) if release == "n1.6" else (0.01, 0.99)
        below, above = (np.quantile(of.astype(np.float64), end, axis=0) for end in ends)
        return scaled_by(x, below, above).clip(-1, 1)

    for (episode, t), sample in found.items():
        one = tables[episode]
        rows, state = one["action"][t : t + 16], one["observation.state"][t]
        arm = 2 * (rows[:, :3] - state[:3] - low) / (high - low) - 1
        rest = np.concatenate([rows[:, 3:7], one["action.base"][t : t + 16]], axis=1)
        of = np.concatenate([every["action"][:, 3:7], every["action.base"]], axis=1)
        wanted = np.concatenate([arm, scaled(rest, of)], axis=1)
        np.testing.assert_allclose(sample["action"], wanted, atol=1e-6)
        wanted = scaled(state, every["observation.state"])
        np.testing.assert_allclose(sample["state"][0], wanted, atol=1e-6)


def batches(layout: Gr00tLayout, output: Any = "numpy") -> list[tuple[Any, Any]]:
    """(batch, what the layout makes of it) of a pass."""
    with AutoLoader(layout.spec, ram_floor="64MiB", output=output, isolation="thread") as loader:
        return [(batch, layout(batch, loader.dataset_names)) for batch in loader]


def test_n15s_steps_are_what_its_transforms_take(root: Path, cli: Cli):
    seen = 0
    for batch, steps in batches(Gr00tLayout(drafted(root, "n1.5", cli), release="n1.5")):
        for place, step in zip(batch["provenance"].tolist(), steps, strict=True):
            one, t, seen = table(root, place[2]), place[4], seen + 1
            assert set(step) == {
                "video.ego_view", "state.hand_quat", "state.left_arm", "state.gripper",
                "action.left_arm", "action.turn", "action.gripper", "action.base", TEXTS,
            }  # fmt: skip
            assert (step["video.ego_view"].shape, step["video.ego_view"].dtype) == (
                (1, 64, 96, 3), np.uint8
            )  # fmt: skip
            np.testing.assert_array_equal(
                step["state.hand_quat"], one["observation.state"][t : t + 1, 3:7]
            )
            rows = np.arange(t, t + 16).clip(max=len(one["action"]) - 1)
            np.testing.assert_array_equal(step["action.left_arm"], one["action"][rows, :3])
            outside = np.arange(t, t + 16) >= len(one["action"])
            assert (step["action.turn"][outside] == 0).all()
            assert step["action.base"].dtype == step["state.gripper"].dtype == np.float64
            assert step[TEXTS] == [Gr00tFiles.tasks[1 - place[2] % 2]]
    assert seen == 49


def test_later_releases_steps_are_what_their_processor_takes(root: Path, cli: Cli):
    layout = Gr00tLayout(drafted(root, "n1.6", cli), embodiment="gr1")
    for batch, steps in batches(layout, "torch"):
        for place, ((message,),) in zip(batch["provenance"].tolist(), zip(steps), strict=True):
            one, t, step = table(root, place[2]), place[4], message["content"]
            assert message["type"] == "episode_step"
            assert (step.embodiment, step.text) == ("gr1", Gr00tFiles.tasks[1 - place[2] % 2])
            (frame,) = step.images["ego_view"]
            assert shown(frame) == (0, place[2], t)
            assert step.actions["turn"].dtype == np.float32
            np.testing.assert_array_equal(step.actions["turn"], one["action"][t : t + 16, 3:6])
            np.testing.assert_array_equal(
                step.states["left_arm"], one["observation.state"][t : t + 1, :3]
            )


@pytest.mark.parametrize(
    ("release", "state", "action", "number"),
    [
        ("n1.5", (1, 64), (16, 32), 31),
        ("n1.6", (1, 29), (16, 29), 10),
        ("n1.7", (1, 132), (40, 132), 10),
    ],
)
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_padded_inputs_have_the_models_shapes_and_masks_of_columns(
    root: Path,
    cli: Cli,
    release: Any,
    state: tuple[int, int],
    action: tuple[int, int],
    number: int,
    output: str,
):
    layout = Gr00tLayout(drafted(root, release, cli), release=release, inputs="padded")
    for batch, found in batches(layout, output):
        size, real = len(batch["language"]), np.asarray(batch["action"])
        assert tuple(found["state"].shape) == (size, *state)
        assert tuple(found["action"].shape) == tuple(found["action_mask"].shape) == (size, *action)
        kind = "float64" if release == "n1.5" else "float32"
        assert all(kind in str(found[key].dtype) for key in ("state", "action"))
        assert ("state_mask" in found) == (release == "n1.5")
        mask = np.zeros(action, bool)
        mask[:16, :9] = True  # of columns: rows behind the end count as real
        assert (np.asarray(found["action_mask"], bool) == mask).all()
        np.testing.assert_array_equal(np.asarray(found["action"])[:, :16, :9], real)
        assert np.asarray(found["embodiment_id"]).tolist() == [number] * size


def test_statistics_files_are_those_that_gr00t_computes(root: Path, tmp_path: Path, cli: Cli):
    spec = spec_file(tmp_path, drafted(root, "n1.6", cli))
    out = tmp_path / "statistics"
    assert main(["stats", str(spec), "--format", "gr00t", "-o", str(out)]) == 0
    tables, every = tables_of(root)

    def held(found: Mapping[str, Any], rows: NDArray[Any]) -> None:
        x = rows.astype(np.float64)
        wanted = {"min": x.min(0), "max": x.max(0), "mean": x.mean(0), "std": x.std(0)}
        wanted |= {"q01": np.quantile(x, 0.01, axis=0), "q99": np.quantile(x, 0.99, axis=0)}
        assert set(found) == set(wanted)
        for kind, values in wanted.items():
            np.testing.assert_allclose(found[kind], values, atol=1e-6)

    stats = json.loads((out / "arm/meta/stats.json").read_text())
    assert set(stats) == {"action", "observation.state", "action.base"}
    for name, one in stats.items():
        held(one, every[name])
    relative = json.loads((out / "arm/meta/relative_stats.json").read_text())
    assert set(relative) == {"left_arm"}
    held(relative["left_arm"], relative_rows(tables, 16))
    (tag,) = (whole := json.loads((out / "dataset_statistics.json").read_text()))
    assert (tag, set(whole[tag])) == ("new_embodiment", {"state", "action", "relative_action"})
    assert set(whole[tag]["action"]) == set(MODALITY["action"])
    held(whole[tag]["state"]["hand_quat"], every["observation.state"][:, 3:7])
    held(whole[tag]["action"]["left_arm"], every["action"][:, :3])
    assert whole[tag]["relative_action"] == relative


def test_datasets_of_one_embodiment_share_bounds_and_their_statistics_are_merged_by_weight(
    tmp_path: Path, cli: Cli
):
    roots = {"long": (22, 18), "short": (17,)}
    for name, lengths in roots.items():
        Gr00tFiles(lengths=lengths).write(tmp_path / "data" / name)
    plain = drafted(tmp_path / "data", "n1.6", cli)
    plain["datasets"][0]["weight"] = 3.0
    plain["normalize"]["group"] = {"gr1": list(roots)}
    tables = {
        name: [table(tmp_path / "data" / name, episode) for episode in range(len(lengths))]
        for name, lengths in roots.items()
    }
    relative = relative_rows([one for several in tables.values() for one in several], 16)
    low, high = relative.min(0), relative.max(0)
    spec, out = tmp_path / "mix.json", tmp_path / "statistics"
    spec.write_text(json.dumps(plain))
    assert main(["stats", str(spec), "--format", "gr00t", "-o", str(out)]) == 0
    (tag,) = (whole := json.loads((out / "dataset_statistics.json").read_text()))
    assert tag == "gr1"
    found = whole[tag]["relative_action"]["left_arm"]
    np.testing.assert_allclose(found["min"], low, atol=1e-6)
    np.testing.assert_allclose(found["max"], high, atol=1e-6)
    means, squares = np.zeros(3), np.zeros(3)
    for name, weight in (("long", 0.75), ("short", 0.25)):
        rows = np.concatenate([one["action"] for one in tables[name]])[:, :3].astype(np.float64)
        means, squares = means + weight * rows.mean(0), squares + weight * (rows**2).mean(0)
    found = whole[tag]["action"]["left_arm"]
    np.testing.assert_allclose(found["mean"], means, atol=1e-6)
    np.testing.assert_allclose(found["std"], np.sqrt(squares - means**2), atol=1e-6)
    plain["datasets"][0]["weight"] = 0.0  # of the short one alone, by the bounds of both
    (one,) = tables["short"]
    seen = samples_of({**plain, "mixing": {"epoch": 2}})
    for (_, t), sample in seen.items():
        arm = one["action"][t : t + 16, :3] - one["observation.state"][t, :3]
        wanted = 2 * (arm - low) / (high - low) - 1
        np.testing.assert_allclose(sample["action"][:, :3], wanted, atol=1e-6)
    assert len(seen) == 2


def with_pose(root: Path, name: str, **pose: Any) -> None:
    """Give the modality an end effector's pose that action and state have alike."""
    columns = {"start": 3, "end": 6}
    modality = json.loads(json.dumps(MODALITY))
    modality["state"][name], modality["action"][name] = columns, {**columns, **pose}
    del modality["action"]["turn"]
    (root / "meta/modality.json").write_text(json.dumps(modality))


@pytest.mark.parametrize("name", ["left_eef", "end_effector_position", "arm_pose"])
def test_a_relative_pose_of_an_end_effector_is_refused_by_name(tmp_path: Path, cli: Cli, name: str):
    root = Gr00tFiles().write(tmp_path / "arm")
    with_pose(root, name)
    for release in ("n1.6", "n1.7"):
        said = cli("init", root, "--style", "gr00t", "--version", release, code=2).err
        for part in ("dataset arm", f"action.{name} of meta/modality.json", '"absolute": true'):
            assert part in said
    assert drafted(root, "n1.5", cli)["datasets"][0]["action"][-1] == "action[3:6]"
    for absolute in (True, False):  # it stays as it is stored, a pose or differences of poses
        with_pose(root, name, absolute=absolute)
        (dataset,) = drafted(root, "n1.6", cli)["datasets"]
        assert dataset["sample"] == {"action_relative_to_state": [0, 1, 2]}


def test_a_spec_that_makes_a_pose_relative_is_refused_by_name(root: Path, tmp_path: Path, cli: Cli):
    plain = drafted(root, "n1.6", cli)
    (dataset,) = plain["datasets"]
    dataset["action"] = [
        "action[0:3]",
        {"path": "action[3:6]", "ops": [{"rotation6d": "euler_angles_rpy"}]},
    ]
    dataset["sample"] = {"action_relative_to_state": [0, 4]}
    with pytest.raises(UnsupportedError, match=r"column 4 of .* has rotation6d") as error:
        resolve(PipelineSpec.from_mapping(plain))
    assert error.value.path == "datasets[arm].sample.action_relative_to_state"

    posed = Gr00tFiles().write(tmp_path / "arm")
    with_pose(posed, "left_eef", absolute=True)
    plain = drafted(posed, "n1.6", cli)
    resolve(PipelineSpec.from_mapping(plain))
    plain["datasets"][0]["sample"] = {"action_relative_to_state": [0, 1, 2, 7]}
    with pytest.raises(UnsupportedError, match=r"column 7 of .*action\.left_eef of meta"):
        resolve(PipelineSpec.from_mapping(plain))


def test_another_horizon_needs_other_statistics(root: Path, tmp_path: Path, cli: Cli):
    plain = drafted(root, "n1.6", cli)
    spec, file = tmp_path / "mix.json", tmp_path / "statistics.json"
    spec.write_text(json.dumps(plain))
    assert main(["stats", str(spec), "-o", str(file)]) == 0
    plain["normalize"]["statistics"] = str(file)
    assert samples_of(plain)
    plain["sample"]["action_horizon"] = 8
    with pytest.raises(
        AutoloaderError, match="each of the 8 steps of action; those of dataset 'arm' are for 16"
    ):
        samples_of(plain)


def test_weights_are_shards_of_1024_samples_since_n16(tmp_path: Path, cli: Cli):
    Gr00tFiles(lengths=(1055, 20)).write(tmp_path / "data/long")  # 1040 and 5 whole horizons
    Gr00tFiles(lengths=(16, 15)).write(tmp_path / "data/short")
    found = drafted(tmp_path / "data", "n1.6", cli)
    assert {one["name"]: one["weight"] for one in found["datasets"]} == {"long": 2.0, "short": 1.0}
    assert found["weights"] == "explicit"
    found = drafted(tmp_path / "data", "n1.5", cli)
    assert found["weights"] == "natural_scaled"
    assert {one["weight"] for one in found["datasets"]} == {1.0}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"state": {"arm": {"start": 2, "end": 2}}}, "start 2 and end 2 take no column"),
        ({"state": {"arm": {"start": 0}}}, "is required and missing"),
        ({"video": {"ego": {"original_key": "observation.images.none"}}}, "video.ego"),
        (
            {"video": {"observation": {}}},
            "'observation.images.observation', which is not a feature",
        ),
        ({"action": {"arm": {"start": 0, "end": 9}}}, "goes beyond"),
        (None, "has no meta/modality.json"),
    ],
)
def test_a_modality_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, cli: Cli, change: Any, told: str
):
    root = Gr00tFiles(lengths=(5,)).write(tmp_path / "arm")
    path = root / "meta/modality.json"
    path.unlink() if change is None else path.write_text(json.dumps({**MODALITY, **change}))
    said = cli("init", root, "--style", "gr00t", code=None)
    assert said.code
    assert told in said.err


def test_the_default_of_a_cameras_feature_is_the_releases(tmp_path: Path, cli: Cli):
    root = Gr00tFiles(lengths=(16,)).write(tmp_path / "arm")
    path = root / "meta/modality.json"
    path.write_text(json.dumps({**MODALITY, "video": {"top": {}}}))
    (dataset,) = drafted(root, "n1.7", cli)["datasets"]
    assert dataset["images"] == {"top": "observation.images.top"}
    told = cli("init", root, "--style", "gr00t", "--version", "n1.5", code=4).err
    assert "video.top of meta/modality.json is 'top'" in told


def test_spec_and_statistics_hold_against_the_witness(root: Path, tmp_path: Path, cli: Cli):
    for release in ("n1.5", "n1.6", "n1.7"):
        spec = tmp_path / f"{release}.json"
        spec.write_text(json.dumps(drafted(root, release, cli)))
        assert cli.json("verify", spec)["differences"] == []


@pytest.mark.parametrize(
    ("arithmetic", "method", "clip", "wanted"),
    [  # of a column from 0 to 4, and of one that is always 0.25
        ("gr00t", "min_max", False, [[-1, -0.5, 0, 0.5, 1], [0] * 5]),
        ("gr00t", "q01_q99", True, [[-1, -0.510204, 0, 0.510204, 1], [0.25] * 5]),
        ("gr00t", "q01_q99", 2.2, [[-1.020408, -0.510204, 0, 0.510204, 1.020408], [0.25] * 5]),
        ("gr00t", "mean_std", False, [[-1.414214, -0.707107, 0, 0.707107, 1.414214], [0.25] * 5]),
        ("gr00t_n16", "min_max", True, [[-1, -0.5, 0, 0.5, 1], [0] * 5]),
        ("gr00t_n16", "q01_q99", True, [[-1, -0.510204, 0, 0.510204, 1], [0] * 5]),
        ("gr00t_n16", "mean_std", 1.0, [[-1, -0.707107, 0, 0.707107, 1], [0.25] * 5]),
        ("lerobot", "min_max", False, [[-1, -0.5, 0, 0.5, 1], [-1] * 5]),
    ],
)
def test_each_formula_scales_equal_bounds_and_clips_as_its_project_does(
    arithmetic: Any, method: Any, clip: Any, wanted: list[list[float]]
):
    x = np.stack([np.arange(5), np.full(5, 0.25)], axis=1).astype(np.float32)
    how = FieldNormalizeSpec(method=method, clip=clip, arithmetic=arithmetic)
    found = field_statistics(x, np.ones(5, np.int64))
    rows = x[:, None].copy()
    scaling_of(how, found, 2, field="action", dataset="arm").apply(rows, np.zeros((5, 1), bool))
    np.testing.assert_allclose(rows[:, 0].T, wanted, atol=1e-6)
    told = {**found.plain(), "mask": [True, True]}
    witnessed = normalised_rows(x.astype(np.float64), np.zeros(5, bool), how, told)
    np.testing.assert_allclose(witnessed.T, wanted, atol=1e-6)


def test_the_page_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (Path(__file__).parents[2] / "docs/howto/gr00t.md").read_text()
    Gr00tFiles(lengths=(22, 18)).write(tmp_path / "data/arm")
    monkeypatch.chdir(tmp_path)
    commands, _ = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "autoloader"
        places = [one.replace("/data/gr00t", str(tmp_path / "data")) for one in words[1:]]
        assert main([*places, *(["-n", "6"] if "verify" in places else [])]) == 0, line
    assert (tmp_path / "statistics/dataset_statistics.json").is_file()
    block, _ = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    kept = [line for line in block.splitlines() if not line.startswith("from gr00t")]
    ours = "\n".join(kept).replace("EmbodimentTag.NEW_EMBODIMENT", "'new_embodiment'")
    said = ours.replace(", step=VLAStepData", "").replace('"8GB"', '"64MiB"')
    scope: dict[str, Any] = {}
    exec(said + "\n        break", scope)
    assert len(scope["steps"]) == 32


@pytest.mark.parametrize(
    ("policy", "frames", "actions", "method"),
    [
        ("act", [0], [*range(100)], "mean_std"),
        ("diffusion", [-1, 0], [*range(-1, 63)], "min_max"),
        ("smolvla", [0], [*range(50)], "mean_std"),
        ("pi0", [0], [*range(50)], "mean_std"),
        ("pi05", [0], [*range(50)], "q01_q99"),
    ],
)
def test_a_policy_of_lerobot_has_its_windows_and_its_normalisation(
    root: Path, cli: Cli, policy: str, frames: list[int], actions: list[int], method: str
):
    spec = PipelineSpec.from_mapping(
        parse_yaml(cli("init", root, "--style", "lerobot", "--policy", policy).out)
    )
    assert list(spec.sample.frame_offsets) == list(spec.sample.state_offsets) == frames
    assert list(spec.sample.action_offsets) == actions
    for field in ("action", "state"):
        how = spec.normalize_of("arm", field)
        assert (how.method, how.arithmetic, how.clip) == (method, "lerobot", False)
    (dataset,) = spec.datasets
    assert {name: one.paths for name, one in dataset.images.items()} == {"top": (TOP,)}
    assert spec.cameras["top"].size == (64, 96)


def test_an_option_of_another_style_is_refused(root: Path, cli: Cli):
    assert "add --style gr00t" in cli("init", root, "--version", "n1.6", code=2).err
    told = cli("init", root, "--style", "gr00t", "--version", "n2", code=2).err
    assert "gr00t-n1.5, gr00t-n1.6, gr00t-n1.7" in told
