"""Statistics files of other tools: written as they document them, and read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rlds_files import Written, episode, once, png, write_dataset
from streams import dataset_of, mixture_of, spec_file, spec_of

from autoloader.cli.app import main
from autoloader.errors import SpecError
from autoloader.index.statistics import read_statistics, statistics_of
from autoloader.index.statistics_files import FORMATS
from autoloader.process.planning import plan_loader
from autoloader.samples.resolve import normalised
from autoloader.samples.statistics import NormalizationStatistics

NORMALIZE = {"action": {"method": "q01_q99", "dims": "[:-1]"}, "state": {"method": "mean_std"}}


def written_at(folder: Path, name: str, first: int) -> Written:
    rng = np.random.default_rng(first)
    records = [
        episode(
            number, steps, encode=png,
            **{"action": rng.normal(size=2 * steps).tolist(),
               "observation/state": rng.normal(size=3 * steps).tolist()},
        )
        for number, steps in ((first, 30), (first + 1, 41))
    ]  # fmt: skip
    return write_dataset(folder, [records], name=name)


two = once(lambda folder: (written_at(folder, "robot", 0), written_at(folder, "second", 5)))


def run(spec: Any, folder: Path, *arguments: str) -> int:
    mix = spec_file(folder, spec)
    return main(["stats", "--spec", str(mix), *arguments])


def near(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def octo_numbers(entry: dict[str, Any]) -> dict[str, Any]:
    """As Octo's ``normalize_action_and_proprio`` looks them up."""
    return {**entry, "q01": entry["p01"], "q99": entry["p99"]}


@pytest.mark.parametrize("layout", ["octo", "openvla"])
def test_a_file_of_all_datasets_holds_what_octo_and_openvla_look_up(
    two: tuple[Written, Written], tmp_path: Path, layout: str
):
    spec = spec_of(*two, normalize=NORMALIZE)
    out = tmp_path / "dataset_statistics.json"
    assert run(spec, tmp_path, "--format", layout, "--out", str(out)) == 0
    document, found = json.loads(out.read_text()), statistics_of(spec)
    assert found is not None
    assert list(document) == ["robot", "second"]
    for name, entry in document.items():
        keys = {"mean", "std", "max", "min"}
        keys |= {"p01", "p99"} if layout == "octo" else {"q01", "q99"}
        assert set(entry) == {"action", "proprio", "num_transitions", "num_trajectories"}
        assert set(entry["action"]) == {*keys, "mask"}
        assert set(entry["proprio"]) == keys
        assert entry["action"]["mask"] == [True, False]
        assert (entry["num_transitions"], entry["num_trajectories"]) == (71, 2)
        for field, own in (("action", found[name].action), ("proprio", found[name].state)):
            assert own is not None
            numbers = octo_numbers(entry[field]) if layout == "octo" else entry[field]
            near(numbers["min"], own.minimum)
            near(numbers["max"], own.maximum)
            for key in ("mean", "std", "q01", "q99"):
                near(numbers[key], getattr(own, key))


def test_octos_file_of_one_dataset_is_what_its_loader_takes_and_names_none(
    two: tuple[Written, Written], tmp_path: Path
):
    out = tmp_path / "dataset_statistics.json"
    assert (
        run(spec_of(two[0], normalize=NORMALIZE), tmp_path, "--format", "octo", "--out", str(out))
        == 0
    )
    entry = json.loads(out.read_text())
    assert set(entry) == {"action", "proprio", "num_transitions", "num_trajectories"}
    arrays = {key: np.array(column) for key, column in entry["action"].items()}
    assert {key: one.shape for key, one in arrays.items()} == dict.fromkeys(arrays, (2,))
    assert np.all(arrays["p01"] < arrays["p99"])
    named = spec_of(two[0], normalize={**NORMALIZE, "statistics": str(out)})
    found, own = read_statistics(out, named), statistics_of(spec_of(two[0]))
    near(found["robot"].action.q99, own["robot"].action.q99)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("here", "there"),
    [("bridge_orig", "bridge_dataset"), ("bridge_dataset", "bridge_orig"), ("fmb", "fmb_dataset")],
)
def test_a_file_that_has_a_dataset_under_another_of_its_names_is_found(
    here: str, there: str, two: tuple[Written, Written], tmp_path: Path
):
    own = statistics_of(spec_of(two[0]))
    document = {there: own["robot"].plain()}
    spec = spec_of(dataset_of(two[0], name=here))
    assert list(read_statistics(given(tmp_path, document), spec)) == [here]
    other = {**own["robot"].plain(), "num_transitions": 1}
    both = given(tmp_path, {**document, here: other})
    assert read_statistics(both, spec)[here].transitions == 1  # its own name comes first


def test_openvla_has_zeros_where_a_dataset_has_no_proprio(
    two: tuple[Written, Written], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    dataset = dataset_of(two[0])
    del dataset["state"]
    assert run(spec_of(dataset), tmp_path, "--format", "openvla", "--json") == 0
    entry = json.loads(capsys.readouterr().out)["robot"]
    assert set(entry["proprio"]) == {"mean", "std", "max", "min", "q01", "q99"}
    assert all(column == [0.0, 0.0] for column in entry["proprio"].values())


def test_openpi_has_a_file_for_each_robot_without_extremes(
    two: tuple[Written, Written], tmp_path: Path
):
    spec = spec_of(*two, normalize={**NORMALIZE, "group": {"franka": ["robot", "second"]}})
    assert run(spec, tmp_path, "--format", "openpi", "--out", str(tmp_path / "assets")) == 0
    assert [str(one.relative_to(tmp_path / "assets")) for one in tmp_path.rglob("*.json")] == [
        "franka/norm_stats.json"
    ]
    stats = json.loads((tmp_path / "assets/franka/norm_stats.json").read_text())["norm_stats"]
    found = statistics_of(spec)
    assert found is not None
    assert set(stats) == {"state", "actions"}
    for theirs, own in (("actions", found["robot"].action), ("state", found["robot"].state)):
        assert own is not None
        assert set(stats[theirs]) == {"mean", "std", "q01", "q99"}
        for key in stats[theirs]:
            near(stats[theirs][key], getattr(own, key))


def test_lerobot_has_features_with_counts_and_five_quantiles(
    two: tuple[Written, Written], tmp_path: Path
):
    spec = spec_of(*two)
    assert run(spec, tmp_path, "--format", "lerobot", "--out", str(tmp_path / "stats")) == 0
    assert statistics_of(spec) is not None
    for name in ("robot", "second"):
        document = json.loads((tmp_path / "stats" / name / "meta/stats.json").read_text())
        assert set(document) == {"action", "observation.state"}
        assert document["action"]["count"] == [71]
        columns = open_columns(two[name == "second"])
        for q in (1, 10, 50, 90, 99):
            near(document["action"][f"q{q:02}"], np.quantile(columns, q / 100, axis=0))
        near(document["action"]["min"], columns.min(axis=0))


def open_columns(written: Written) -> np.ndarray:
    """Every action of a dataset, [n, 2] float64, as the index has them."""
    from autoloader.index import open_dataset_index

    index = open_dataset_index(mixture_of(written).datasets[0])
    rows = [index.column(e, "action") for e in range(index.episodes)]
    return np.concatenate(rows).astype(np.float64)


@pytest.mark.parametrize("layout", FORMATS)
def test_what_is_written_is_read_back_as_the_same_numbers(
    two: tuple[Written, Written], tmp_path: Path, layout: str
):
    own = spec_of(*two, normalize=NORMALIZE)
    by_folder = layout in ("openpi", "lerobot")
    out = tmp_path / ("folder" if by_folder else "statistics.json")
    assert run(own, tmp_path, "--format", layout, "--out", str(out)) == 0
    found, again = statistics_of(own), read_statistics(out, own)
    assert found is not None
    assert again.keys() == {"robot", "second"}
    for name, entry in again.items():
        for field in ("action", "state"):
            ours, theirs = getattr(found[name], field), getattr(entry, field)
            for key in ("mean", "std", "q01", "q99"):
                near(getattr(theirs, key), getattr(ours, key))
            if layout != "openpi":
                near(theirs.minimum, ours.minimum)
    # The same batches: the spec's own statistics against the file's.
    given = spec_of(*two, normalize={**NORMALIZE, "statistics": str(out)})
    scaled = [normalised(mixture_of(*two, normalize=NORMALIZE), one) for one in (found, again)]
    for ours, theirs in zip(*(one.datasets for one in scaled), strict=True):
        for field in ("action", "state"):
            near(theirs.scaling[field].centre, ours.scaling[field].centre)
            near(theirs.scaling[field].factor, ours.scaling[field].factor)
    assert statistics_of(given) == again


PI = {"mean": [1.0, 2.0, 0.0, 0.0], "std": [1.0, 2.0, 0.0, 0.0], "q01": None, "q99": None}


def given(tmp_path: Path, document: Any) -> str:
    file = tmp_path / "given.json"
    file.write_text(json.dumps(document))
    return str(file)


def test_openpis_padded_columns_are_cut_and_its_file_holds_for_every_dataset(
    two: tuple[Written, Written], tmp_path: Path
):
    file = given(tmp_path, {"norm_stats": {"actions": PI, "state": PI}})
    how = {"action": {"method": "mean_std"}, "state": {"method": "mean_std"}, "statistics": file}
    spec = spec_of(*two, normalize=how)
    found = statistics_of(spec)
    assert found is not None
    mixture = normalised(mixture_of(*two, normalize=how), found)
    assert mixture.statistics is not None
    for dataset in mixture.datasets:
        assert dataset.scaling["action"].centre.tolist() == [1.0, 2.0]
        assert dataset.scaling["state"].factor.tolist() == [1.0, 0.5, 0.0]
        again = NormalizationStatistics.from_plain(mixture.statistics[dataset.name].plain())
        assert again == mixture.statistics[dataset.name]


NUMBERS = {key: [1.0, 2.0] for key in ("mean", "std", "min", "max")}


@pytest.mark.parametrize(
    ("document", "centre"),
    [
        ({"action": NUMBERS, "num_transitions": 5}, [1.0, 2.0]),
        ({"action": {**NUMBERS, "count": [7]}, "observation.state": NUMBERS}, [1.0, 2.0]),
        ({"norm_stats": {"robot": {"action": NUMBERS}}}, [1.0, 2.0]),
        ({"franka": {"action": NUMBERS}}, [1.0, 2.0]),
    ],
)
def test_cache_files_configs_and_names_of_groups_are_read(
    two: tuple[Written, Written], tmp_path: Path, document: Any, centre: list[float]
):
    file = given(tmp_path, document)
    how = {"action": {"method": "mean_std"}, "statistics": file, "group": {"franka": ["robot"]}}
    found = statistics_of(spec_of(two[0], normalize=how))
    assert list(found["robot"].action.mean) == centre


@pytest.mark.parametrize(
    ("document", "method", "words"),
    [
        ({"norm_stats": {"actions": {**PI, "mean": [1.0]}}}, "mean_std", "different lengths"),
        ({"norm_stats": {"actions": PI}}, "q01_q99", "of dataset 'robot' have no quantiles"),
        ({"norm_stats": {"actions": PI}}, "min_max", "of dataset 'robot' have no min and max"),
        ({"robot": {"action": NUMBERS}}, "q01_q99", "method: q01_q99.*no quantiles"),
        ({"robot": {"action": {**NUMBERS, "mask": [True]}}}, "mean_std", "different lengths"),
        ({"robot": {"action": {**NUMBERS, "q01": [1.0]}}}, "mean_std", "different lengths"),
        ({"other": {"action": NUMBERS}}, "mean_std", "'robot' has no statistics of action"),
    ],
)  # fmt: skip
def test_what_a_file_lacks_is_told_with_a_remedy(
    two: tuple[Written, Written], tmp_path: Path, document: Any, method: str, words: str
):
    how = {"action": {"method": method}, "statistics": given(tmp_path, document)}
    with pytest.raises(SpecError, match=words) as caught:
        plan_loader(spec_of(two[0], normalize=how), ram_floor=0, probe_only=True)
    assert caught.value.remedy
    assert caught.value.path.startswith("normalize.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--format", "octoo"), "--format octoo: no such layout"),
        (("--format", "openpi", "--out", "x.json"), "openpi needs one for each of robot, second"),
    ],
)
def test_a_layout_that_cannot_be_written_is_refused(
    two: tuple[Written, Written], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...], words: str
):  # fmt: skip
    assert run(spec_of(*two), tmp_path, *arguments) == 2
    assert words in capsys.readouterr().err
