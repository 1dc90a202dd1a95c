"""Statistics against plain NumPy, and what every reader makes of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_lines import Cli
from rlds_files import PLAIN, TEXT, Written, episode, write_dataset
from streams import dataset_of, opened, spec_file, spec_of

from autoloader import AutoLoader, PipelineSpec
from autoloader.cli.app import main
from autoloader.errors import SpecError
from autoloader.index import statistics
from autoloader.index.statistics import statistics_of
from autoloader.process.planning import plan_loader
from autoloader.samples.statistics import FieldStatistics, scaling_of
from autoloader.spec import FieldNormalizeSpec

pytestmark = pytest.mark.usefixtures("one_child")

Q = {"q01": 0.01, "q99": 0.99}
OF_SAMPLES = {"action": {"method": "q01_q99"}, "statistics_of": "samples"}
NAMES = ("mean", "std", "min", "max", "p01", "p99")
NORMALIZE = {
    "action": {"method": "q01_q99", "dims": "[:-1]", "clip": True},
    "state": {"method": "mean_std"},
}
LENGTHS = ((5, 9, 1), (7, 12))


def uneven(number: int, steps: int) -> dict[str, Any]:
    """An episode whose state has a constant column."""
    rng = np.random.default_rng([number, steps])
    state = rng.normal(size=(steps, 3)).astype(np.float32)
    state[:, 1] = 4.5
    action = rng.normal(scale=3, size=(steps, 2)).astype(np.float32)
    return episode(
        number,
        steps,
        **{
            "observation/state": [float(v) for v in state.ravel()],
            "action": [float(v) for v in action.ravel()],
        },
    )


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return write_dataset(
        tmp_path,
        [[uneven(10 * s + n, steps) for n, steps in enumerate(part)]
         for s, part in enumerate(LENGTHS)],
    )  # fmt: skip


def values_of(field: str) -> list[np.ndarray]:
    """The field of every episode, [T, width], as it was written."""
    width = 2 if field == "action" else 3
    key = "action" if field == "action" else "observation/state"
    return [
        np.asarray(uneven(10 * s + n, steps)[key], np.float32).reshape(-1, width)
        for s, part in enumerate(LENGTHS)
        for n, steps in enumerate(part)
    ]


def plain_rows(
    values: list[np.ndarray], offsets: list[int], *, summed: bool, edges: str
) -> np.ndarray:
    """Every row a pass gives, one by one: the definition."""
    rows = []
    for column in values:
        for t in range(len(column)):
            inside = [column[t + o] for o in offsets if 0 <= t + o < len(column)]
            if edges == "drop" and len(inside) < len(offsets):
                continue
            rows += [np.sum(inside, axis=0, dtype=np.float32)] if summed else inside
    return np.stack(rows).astype(np.float64)


@pytest.mark.parametrize("edges", ["repeat", "drop"])
@pytest.mark.parametrize(
    ("start", "horizon", "reduce"), [(0, 1, "none"), (-1, 4, "none"), (0, 3, "sum")]
)
def test_statistics_of_samples_are_those_of_a_plain_pass(
    written: Written, start: int, horizon: int, reduce: str, edges: str
):
    sample = {"action_start": start, "action_horizon": horizon, "action_reduce": reduce,
              "edges": {"start": edges, "end": edges}}  # fmt: skip
    found = statistics_of(spec_of(written, sample=sample, normalize=OF_SAMPLES))
    assert found is not None
    rows = plain_rows(
        values_of("action"), [start + k for k in range(horizon)], summed=reduce == "sum",
        edges=edges,
    )  # fmt: skip
    action = found["robot"].action
    np.testing.assert_allclose(action.mean, rows.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(action.std, rows.std(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(action.minimum, rows.min(axis=0))
    np.testing.assert_array_equal(action.maximum, rows.max(axis=0))
    for name, q in Q.items():
        np.testing.assert_array_equal(getattr(action, name), np.quantile(rows, q, axis=0))
    assert found["robot"].trajectories == 5


@pytest.mark.parametrize("per", ["sample", "step"])
def test_columns_beside_those_by_row_have_the_statistics_of_steps_whatever_the_others_are_of(
    written: Written, per: str
):
    columns = [{"dims": [0], "method": "min_max", "by_row": True}]
    sample = {"frame_offsets": [-1, 0], "action_horizon": 4, "action_relative_to_state": [0],
              "action_per": per}  # fmt: skip
    normalize = {"action": {"method": "min_max", "columns": columns}, "statistics_of": "samples"}
    found = statistics_of(spec_of(written, sample=sample, normalize=normalize))
    assert found is not None
    action, state = values_of("action"), values_of("state")
    steps = np.concatenate(action).astype(np.float64)
    np.testing.assert_allclose(found["robot"].action.mean, steps.mean(axis=0), rtol=1e-6)
    for row, one in enumerate(found["robot"].action_rows):
        pairs = zip(action, state, strict=True)
        each = [a[row : len(a) - 3 + row, 0] - s[:-3, 0] for a, s in pairs if len(a) > 3]
        differences = np.concatenate(each)
        np.testing.assert_allclose(one.mean[0], differences.mean(dtype=np.float64), rtol=1e-6)


def test_statistics_of_samples_are_of_what_rules_keep(written: Written, tmp_path: Path):
    file, key = tmp_path / "keep.json", "{episode_metadata/name}"

    def found(ranges: dict[str, Any]) -> Any:
        file.write_text(json.dumps(ranges))
        own = write_dataset(
            tmp_path / f"{len(ranges)}",
            [[uneven(n, 6) | {"episode_metadata/name": [f"{n}".encode()]} for n in range(3)]],
            features={**PLAIN, "episode_metadata/name": TEXT},
        )
        keep = {
            "match": {"language_instruction": "[01]"},
            "ranges": {"file": str(file), "key": key},
        }
        answer = statistics_of(
            spec_of(dataset_of(own, keep=keep), sample={"action_horizon": 2}, normalize=OF_SAMPLES)
        )
        return answer["robot"]

    kept = {"0": [[1, 3]], "1": [[4, 99]], "2": [[0, 6]]}
    action = {n: np.asarray(uneven(n, 6)["action"], np.float64).reshape(6, 2) for n in (0, 1)}
    rows = np.concatenate([action[0][[1, 2, 2, 3]], action[1][[4, 5, 5]]])
    first = found(kept)
    np.testing.assert_allclose(first.action.mean, rows.mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(first.action.q99, np.quantile(rows, 0.99, axis=0))
    assert first.transitions == 4
    assert found({"0": [[1, 3]]}).transitions == 2


def delivered(spec: PipelineSpec, **how: Any) -> dict[tuple[int, ...], dict[str, np.ndarray]]:
    """One pass, by place."""
    with AutoLoader(
        spec, ram_floor=0, output="numpy", isolation=how.pop("isolation", "thread"), **how
    ) as loader:
        return {
            tuple(place[:1]) + tuple(place[2:]): {
                name: batch[name][k].copy()
                for name in ("action", "action_mask", "state", "state_mask")
            }
            for batch in loader
            for k, place in enumerate(batch["provenance"].tolist())
        }


def by_hand(raw: np.ndarray, found: Any, how: dict[str, Any]) -> np.ndarray:
    """What normalisation should make of a value, in float64."""
    values = raw.astype(np.float64).copy()
    for column in range(len(found.mean)):
        if how.get("dims") == "[:-1]" and column == len(found.mean) - 1:
            continue
        x = values[..., column]
        if found.minimum[column] == found.maximum[column]:
            values[..., column] = 0.0
        elif how["method"] == "mean_std":
            values[..., column] = (x - found.mean[column]) / found.std[column]
        else:
            low, high = found.q01[column], found.q99[column]
            values[..., column] = np.clip(2 * (x - low) / (high - low) - 1, -1, 1)
    return values


@pytest.fixture(params=["repeat", "zero"])
def sample(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"action_start": -1, "action_horizon": 3, "state_offsets": [-2, 0],
            "edges": {"start": request.param, "end": request.param}}  # fmt: skip


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_every_reader_normalises_alike_and_leaves_padding_zero(
    written: Written, sample: dict[str, Any], reader: str
):
    top: dict[str, Any] = {
        "sample": sample,
        "pad_to": {"action": 4, "state": 5},
        "mixing": {"epoch": "pass"},
        "batch": {"size": 4, "drop_last": False},
        "reader": reader,
    }
    spec = spec_of(written, normalize=NORMALIZE, **top)
    raw = delivered(spec_of(written, **{**top, "reader": "indexed", "mixing": {"epoch": "pass"}}))
    scaled = delivered(spec)
    found = statistics_of(spec)
    assert found is not None
    assert scaled.keys() == raw.keys()
    assert len(raw) == sum(map(sum, LENGTHS))
    for place, got in scaled.items():
        for field, how in NORMALIZE.items():
            own = getattr(found["robot"], field)
            width = len(own.mean)
            before, after = raw[place][field], got[field]
            np.testing.assert_array_equal(got[f"{field}_mask"], raw[place][f"{field}_mask"])
            wanted = by_hand(before[..., :width], own, how)
            if sample["edges"]["start"] == "zero":
                wanted[~got[f"{field}_mask"][..., :width]] = 0.0
            np.testing.assert_allclose(after[..., :width], wanted, rtol=1e-5, atol=1e-5)
            assert not after[..., width:].any()
        np.testing.assert_array_equal(got["action"][..., 1], raw[place]["action"][..., 1])


def test_the_child_normalises_as_the_thread_does_and_the_loader_says_by_what(written: Written):
    spec = spec_of(written, normalize=NORMALIZE, mixing={"epoch": "pass"}, reader="indexed")
    with AutoLoader(spec, ram_floor=0, output="numpy") as loader:
        batch = next(iter(loader))
        action = batch["action"].copy()
        entry = loader.normalization["robot"]
    assert entry["action"]["mask"].tolist() == [True, False]
    assert entry["proprio"]["mask"].tolist() == [True] * 3
    q01, q99 = (entry["action"][key] for key in ("q01", "q99"))
    assert q01.dtype == q99.dtype == np.float64
    assert np.all(q01 < q99)  # arrays, as both projects reckon with them
    assert (entry["num_transitions"], entry["num_trajectories"]) == (34, 5)
    with opened(spec) as loader:
        np.testing.assert_array_equal(next(iter(loader))["action"], action)
    with AutoLoader(spec_of(written), ram_floor=0, isolation="thread") as loader:
        assert loader.normalization is None


def test_statistics_are_computed_once_and_again_when_something_changes(
    written: Written, monkeypatch: pytest.MonkeyPatch
):
    computed = []
    real = statistics.dataset_rows

    def counting(index: Any, of: Any, **how: Any) -> Any:
        computed.append(index.dataset.name)
        return real(index, of, **how)

    monkeypatch.setattr("autoloader.index.statistics.dataset_rows", counting)
    spec = spec_of(written)
    first = statistics_of(spec)
    assert statistics_of(spec) == first
    assert statistics_of(spec_of(written, sample={"per_episode": 1})) == first
    assert statistics_of(spec_of(written, sample={"action_horizon": 2})) == first
    assert len(computed) == 1
    statistics_of(spec_of(written, sample={"action_horizon": 2}, normalize=OF_SAMPLES))
    statistics_of(spec_of({**spec.datasets[0].model_dump(), "stride": 2}))
    assert len(computed) == 3
    written.files[0].touch()
    assert statistics_of(spec, cached_only=True) is None
    assert statistics_of(spec) == first
    assert len(computed) == 4


def test_entries_over_the_same_files_have_the_same_statistics(written: Written):
    twice = [dataset_of(written, name=name, sample={"action_start": at}) for name, at in
             (("near", 0), ("far", 3))]  # fmt: skip
    found = statistics_of(spec_of(*twice, normalize=NORMALIZE))
    assert found["near"] == found["far"]
    alone = statistics_of(spec_of(written, normalize=NORMALIZE))
    assert alone == {written.name: found["near"]}


def test_validation_is_normalised_by_what_was_trained_on(written: Written):
    dataset = {"split": {"train": "train[:3]", "val": "train[3:]"}}
    spec = spec_of({**spec_of(written).datasets[0].model_dump(), **dataset})
    assert statistics_of(spec, "val") == statistics_of(spec, "train")
    assert statistics_of(spec, "val") != statistics_of(spec_of(written))


def test_a_written_file_is_used_as_it_is(written: Written, tmp_path: Path, cli: Cli):
    import yaml

    plain = spec_of(written, normalize=NORMALIZE).model_dump(mode="json", exclude_none=True)
    mix, out = tmp_path / "mix.yaml", tmp_path / "statistics.json"
    mix.write_text(yaml.safe_dump(plain))
    assert cli("stats", "--spec", mix, "--out", out).out.strip() == str(out)
    document = json.loads(out.read_text())
    assert document["robot"]["action"]["mask"] == [True, False]
    document["robot"]["action"]["mean"] = [5.0, 5.0]
    document["robot"]["action"]["std"] = [0.5, 0.5]
    document["robot"]["action"]["mask"] = [False, True]
    out.write_text(json.dumps(document))
    spec = spec_of(
        written, normalize={"action": {"method": "mean_std"}, "statistics": str(out)},
        mixing={"epoch": "pass"}, batch={"size": 4, "drop_last": False},
    )  # fmt: skip
    top = {"mixing": {"epoch": "pass"}, "batch": {"size": 4, "drop_last": False}}
    raw, scaled = delivered(spec_of(written, **top)), delivered(spec)
    for place, got in scaled.items():
        before = raw[place]["action"]
        np.testing.assert_array_equal(got["action"][..., 0], before[..., 0])
        np.testing.assert_allclose(
            got["action"][..., 1], (before[..., 1] - 5) / 0.5, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("nonsense", "not JSON"),
        ("[]", "not hold a JSON object"),
        ("{}", "dataset 'robot' has no statistics of action"),
        ('{"robot": {"action": {"mean": [0]}}}', "action.std is required"),
        (json.dumps({"robot": {"action": {key: [1.0] for key in NAMES}}}),
         "have 1 column, its action has 2"),
        (json.dumps({"robot": {"action": {"mean": [float("nan")], "std": [1]}}}), "a finite num"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_refused(
    written: Written, tmp_path: Path, document: str, words: str
):
    file = tmp_path / "given.json"
    file.write_text(document)
    spec = spec_of(written, normalize={"action": {"method": "mean_std"}, "statistics": str(file)})
    with pytest.raises(SpecError, match=words) as caught:
        AutoLoader(spec, ram_floor=0, isolation="thread")
    assert caught.value.path == "normalize.statistics"
    assert "autoloader stats" in caught.value.remedy


RARE = 250
"""Steps of an episode of which one differs: both quantiles of such a column are its usual value."""
A_PASS: dict[str, Any] = {"mixing": {"epoch": "pass"}, "batch": {"size": 50}}


@pytest.fixture(scope="module")
def nearly(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """States that are ordinary, constant, and constant but once; the action's last is constant."""
    steps = np.arange(RARE)
    state = np.stack([np.sin(steps), np.full(RARE, 0.3), np.where(steps == 7, 0.9, 0.3)], axis=1)
    action = np.stack([np.cos(steps), np.ones(RARE)], axis=1)
    told = {"observation/state": state, "action": action}
    one = episode(0, RARE, **{key: value.ravel().tolist() for key, value in told.items()})
    return write_dataset(tmp_path_factory.mktemp("nearly"), [[one]])


@pytest.fixture(scope="module")
def untouched(nearly: Written) -> dict[tuple[int, ...], dict[str, np.ndarray]]:
    """A pass without normalisation."""
    return delivered(spec_of(nearly, **A_PASS, reader="indexed"))


def upstream(x: np.ndarray, found: Any, how: dict[str, Any], mask: list[bool]) -> np.ndarray:
    """x [n, width] as a project writes its formula down, in float32."""
    one = {key: np.asarray(column) for key, column in found.plain().items() if key != "mask"}
    added = 1e-6 if how["arithmetic"] == "openpi" else 1e-8
    f32 = np.float32
    if how["method"] == "mean_std":
        done = (x - one["mean"].astype(f32)) / (one["std"] + added).astype(f32)
    else:
        low, high = one["q01"], one["q99"]
        if how["arithmetic"] == "lerobot":
            added = np.where(high == low, added, 0)
        done = 2 * (x - low.astype(f32)) / (high - low + added).astype(f32) - 1
    done = done.clip(-1, 1) if how.get("clip") else done
    done = np.where(mask, done, x)
    if how["arithmetic"] == "openvla" and how["method"] != "mean_std":
        done[:, one["min"] == one["max"]] = 0
    return done


@pytest.mark.parametrize("arithmetic", ["autoloader", "octo", "lerobot", "gr00t", "gr00t_n16"])
@pytest.mark.parametrize("method", ["q01_q99", "min_max", "mean_std"])
def test_columns_of_a_tiny_range_stay_finite(method: str, arithmetic: str):
    names = ("mean", "std", "min", "max", "q01", "q99")
    values = np.array([[[0.0, -1.0], [1e-39, 1.0]]], np.float32)
    columns = zip((5e-40, 5e-40, 0, 1e-39, 0, 1e-39), (0, 1, -1, 1, -1, 1), strict=True)
    found = FieldStatistics.model_validate(dict(zip(names, columns, strict=True)))
    how = FieldNormalizeSpec.model_validate({"method": method, "arithmetic": arithmetic})
    scaling_of(how, found, 2, field="action", dataset="d").apply(values, np.zeros((1, 2), bool))
    assert np.isfinite(values).all()
    np.testing.assert_allclose(values[..., 1], [[-1, 1]], atol=1e-6)
    if arithmetic == "autoloader":
        assert not values[..., 0].any()


@pytest.mark.parametrize("method", ["min_max", "mean_std"])
def test_a_column_far_from_zero_keeps_its_range(method: str) -> None:
    values = np.array([[[0.999], [1.0]]], np.float32)
    low, high = values.astype(np.float64).ravel().tolist()
    one = {"min": [low], "max": [high], "mean": [(low + high) / 2], "std": [(high - low) / 2]}
    how = FieldNormalizeSpec.model_validate({"method": method})
    found = FieldStatistics.model_validate(one)
    scaling_of(how, found, 1, field="action", dataset="d").apply(values, np.zeros((1, 2), bool))
    np.testing.assert_allclose(values, [[[-1], [1]]], atol=1e-6)


def test_no_method_makes_a_number_of_nan() -> None:
    values = np.array([[[0.2, 0.7, np.nan, np.nan]]], np.float32)
    one = {"min": [0.0] * 4, "max": [1.0] * 4, "mean": [0.5] * 4, "std": [1.0] * 4}
    columns = [{"dims": [0, 1, 2], "method": "binary"}]
    how = FieldNormalizeSpec.model_validate({"method": "min_max", "clip": True, "columns": columns})
    found = FieldStatistics.model_validate(one)
    scaling = scaling_of(how, found, 4, field="action", dataset="d")
    scaling.apply(values, np.zeros((1, 1), bool))
    np.testing.assert_array_equal(values, [[[0, 1, np.nan, np.nan]]])


@pytest.mark.parametrize(
    ("project", "method", "reader"),
    [
        *((project, "q01_q99", "indexed") for project in ("octo", "openvla", "openpi", "lerobot")),
        ("octo", "mean_std", "indexed"),
        ("openpi", "mean_std", "indexed"),
        ("openvla", "q01_q99", "stream"),
    ],
)
def test_constant_and_nearly_constant_columns_are_what_each_project_makes_of_them(
    nearly: Written,
    untouched: dict[tuple[int, ...], dict[str, np.ndarray]],
    project: str,
    method: str,
    reader: str,
    tmp_path: Path,
):
    how = {"method": method, "clip": method != "mean_std", "arithmetic": project}
    normalize = {"action": {**how, "dims": "[:-1]"}, "state": how}
    spec = spec_of(nearly, **A_PASS, reader=reader, normalize=normalize)
    (found,) = statistics_of(spec).values()  # type: ignore[union-attr]
    scaled = delivered(spec)
    assert scaled.keys() == untouched.keys()
    for field, mask in (("action", [True, False]), ("state", [True] * 3)):
        x, got = (
            np.concatenate([rows[place][field] for place in untouched])
            for rows in (untouched, scaled)
        )
        wanted = upstream(x, getattr(found, field), how, mask)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    if method != "mean_std":
        usual = {"octo": [-1, -1], "openvla": [0, -1]}.get(project, [-1, -1])
        states = np.concatenate([one["state"] for one in scaled.values()])
        np.testing.assert_array_equal(np.median(states[:, 1:], axis=0), usual)
        gripper = {one["action"][0, 1] for one in scaled.values()}
        assert gripper == {0.0 if project == "openvla" else 1.0}
    path = spec_file(tmp_path, spec)
    assert main(["verify", "--spec", str(path), "-n", "300", "--ram-floor", "64MiB"]) == 0


def test_a_dataset_has_its_own_columns_to_normalise_over_those_of_the_mixture(
    written: Written, tmp_path: Path
):
    other = write_dataset(tmp_path / "other", [[uneven(3, 9)]], name="other")
    own = dataset_of(other, normalize={"action": {"dims": [1]}, "state": {"dims": "[:]"}})
    spec = spec_of(written, own, normalize={"action": {"method": "mean_std", "dims": "[:-1]"}})
    plain = PipelineSpec.from_mapping(spec.model_dump(mode="json", by_alias=True))
    assert plain == spec
    with opened(spec) as loader:
        masks = {name: one["action"]["mask"].tolist() for name, one in loader.normalization.items()}
        active = {one.name: one.scaling["action"].active.tolist()
                  for one in loader.plan.mixture.datasets}  # fmt: skip
    assert masks == active == {"robot": [True, False], "other": [False, True]}
    refused = dataset_of(other, normalize={"action": {"dims": [5]}})
    with pytest.raises(SpecError, match=r"\(5,\) does not fit the 2 columns of dataset 'other'"):
        AutoLoader(
            spec_of(refused, normalize={"action": {"method": "mean_std"}}),
            ram_floor=0,
            isolation="thread",
        )


def test_recorded_statistics_are_of_every_step_of_all_splits_and_so_are_sizes(
    written: Written, tmp_path: Path
):
    two = write_dataset(tmp_path / "two", [[uneven(1, 10)]], name="two")

    def shares(of: str) -> tuple[int, float]:
        one = dataset_of(written, split={"train": "train[:2]", "val": "train[2:]"})
        normalize = {"action": {"method": "mean_std"}, "statistics_of": of}
        spec = spec_of(one, two, weights="natural_scaled", normalize=normalize)
        found = statistics_of(spec)
        assert found["two"].transitions == 10
        return found["robot"].transitions, plan_loader(spec, ram_floor=0).order.shares[0]

    assert shares("steps") == (14, 14 / 24)
    assert shares("recorded") == (34, 34 / 44)
    spec = spec_of(
        dataset_of(written, keep={"moving": {"path": "action[:1]", "above": 1.0}}),
        normalize={"action": {"method": "mean_std"}, "statistics_of": "recorded"},
    )
    (found,) = statistics_of(spec).values()  # type: ignore[union-attr]
    assert (found.transitions, found.trajectories) == (34, 5)
