"""What counts in statistics: steps once, over the episodes that remain after filters."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlds_files import PLAIN, TEXT, Written, episode, once, write_dataset
from streams import dataset_of, spec_of

from autoloader.errors import SpecError
from autoloader.index.statistics import statistics_of
from autoloader.samples.statistics import FieldStatistics

STEPS = (6, 9, 1, 13, 4)
KEY = "{episode_metadata/name}"
FEATURES = {**PLAIN, "episode_metadata/name": TEXT}


def values_of(number: int) -> dict[str, np.ndarray]:
    """Action [T, 2] and state [T, 3] of an episode."""
    rng = np.random.default_rng(number)
    steps = STEPS[number % len(STEPS)]
    return {
        "action": rng.normal(scale=3, size=(steps, 2)).astype(np.float32),
        "state": rng.normal(size=(steps, 3)).astype(np.float32),
    }


def record(number: int) -> dict[str, Any]:
    values = values_of(number)
    return episode(
        number,
        len(values["action"]),
        **{
            "action": [float(v) for v in values["action"].ravel()],
            "observation/state": [float(v) for v in values["state"].ravel()],
            "episode_metadata/name": [f"{number}".encode()],
        },
    )


written = once(
    lambda folder: write_dataset(
        folder, [[record(0), record(1), record(2)], [record(3), record(4)]], features=FEATURES
    )
)


second = once(
    lambda folder: write_dataset(
        folder, [[record(number) for number in range(5, 9)]], name="second", features=FEATURES
    )
)


def assert_of(found: FieldStatistics | None, rows: np.ndarray) -> None:
    """Whether statistics are those of ``rows`` [n, width], by NumPy in float64."""
    assert found is not None
    rows = rows.astype(np.float64)
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.std, rows.std(axis=0), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(found.minimum, rows.min(axis=0))
    np.testing.assert_array_equal(found.maximum, rows.max(axis=0))
    np.testing.assert_array_equal(found.q01, np.quantile(rows, 0.01, axis=0))
    np.testing.assert_array_equal(found.q99, np.quantile(rows, 0.99, axis=0))


def statistics(*datasets: Written | Mapping[str, Any], **top: Any) -> Any:
    found = statistics_of(spec_of(*datasets, **top))
    assert found is not None
    return found


@given(
    kept=st.dictionaries(
        st.integers(0, 4),
        st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=3),
        max_size=5,
    ),
    named=st.sets(st.integers(0, 4), min_size=1),
    stride=st.integers(1, 4),
    horizon=st.integers(1, 6),
    start=st.integers(-2, 2),
    edges=st.sampled_from(["repeat", "zero", "drop"]),
)
def test_every_step_of_the_episodes_that_filters_leave_counts_once(
    written: Written,
    tmp_path_factory: pytest.TempPathFactory,
    kept: dict[int, list[tuple[int, int]]],
    named: set[int],
    stride: int,
    horizon: int,
    start: int,
    edges: str,
):
    ranges = {str(n): [[a, max(a, b)] for a, b in spans] for n, spans in kept.items()}
    file = tmp_path_factory.mktemp("keep") / "keep.json"
    file.write_text(json.dumps(ranges))
    pattern = "^[" + "".join(map(str, sorted(named))) + "]$"
    found = statistics(
        dataset_of(
            written,
            stride=stride,
            keep={"match": {"episode_metadata/name": pattern},
                  "ranges": {"file": str(file), "key": KEY}},
        ),
        sample={"action_start": start, "action_horizon": horizon,
                "edges": {"start": edges, "end": edges}},
    )["robot"]  # fmt: skip

    def remains(number: int) -> bool:
        steps = range(0, STEPS[number], stride)
        spans = ranges.get(str(number), [])
        return number in named and any(a <= step < b for step in steps for a, b in spans)

    remaining = [number for number in range(5) if remains(number)]
    assert found.trajectories == len(remaining)
    assert found.transitions == sum(len(range(0, STEPS[n], stride)) for n in remaining)
    for field in ("action", "state") if remaining else ():
        rows = np.concatenate([values_of(number)[field][::stride] for number in remaining])
        assert_of(getattr(found, field), rows)


def test_an_episode_that_windows_leave_nothing_of_still_counts(written: Written):
    sample = {"action_horizon": 10, "edges": {"start": "drop", "end": "drop"}}
    found = statistics(written, sample=sample)["robot"]
    assert_of(found.action, np.concatenate([values_of(number)["action"] for number in range(5)]))
    assert (found.transitions, found.trajectories) == (sum(STEPS), 5)


@pytest.mark.parametrize("own", [{"action_reduce": "sum"}, {"action_relative_to_state": [0]}])
def test_an_action_that_hangs_on_t_is_counted_by_samples(written: Written, own: dict[str, Any]):
    top = {"sample": {"action_horizon": 3, **own}}
    how = {"action": {"method": "q01_q99"}}
    steps = statistics(written, **top, normalize={**how, "statistics_of": "steps"})["robot"]
    samples = statistics(written, **top, normalize={**how, "statistics_of": "samples"})["robot"]
    assert steps.action == samples.action
    assert_of(steps.state, np.concatenate([values_of(number)["state"] for number in range(5)]))


def test_datasets_of_a_group_share_the_statistics_of_all_their_rows(
    written: Written, second: Written, monkeypatch: pytest.MonkeyPatch
):
    normalize = {"action": {"method": "q01_q99"}, "group": {"arms": ["robot", "second"]}}
    alone = dataset_of(second, name="alone")
    found = statistics(written, second, alone, normalize=normalize)
    every = range(9)
    for name in ("robot", "second"):
        assert_of(found[name].action, np.concatenate([values_of(n)["action"] for n in every]))
        assert_of(found[name].state, np.concatenate([values_of(n)["state"] for n in every]))
        assert found[name].trajectories == 9
    assert found["alone"].trajectories == 4
    spec = spec_of(written, second, alone, normalize=normalize)
    assert statistics_of(spec, cached_only=True) == found


def test_a_group_of_different_widths_is_refused(written: Written, second: Written):
    normalize = {"action": {"method": "q01_q99"}, "group": {"arms": ["robot", "second"]}}
    wide = dataset_of(second, action=["action", {"zeros": 1}])
    with pytest.raises(
        SpecError, match="action of 'robot' has 2 columns, the action of 'second' has 3"
    ):
        statistics(written, wide, normalize=normalize)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"arms": ["robot", "sekond"]}, "normalize.group.arms: there is no dataset 'sekond'"),
        ({"a": ["robot"], "b": ["robot"]}, "'robot' is named in 'a' and in 'b'"),
        ({"a": ["robot", "robot"]}, "'robot' is named in 'a' and in 'a'"),
        ({"a": []}, "normalize.group.a"),
    ],
)
def test_a_group_that_cannot_be_is_refused(
    written: Written, second: Written, group: dict[str, Any], words: str
):
    normalize = {"action": {"method": "q01_q99"}, "group": group}
    with pytest.raises(SpecError, match=words):
        spec_of(written, second, normalize=normalize)


def test_a_feature_of_numbers_is_counted_as_the_field_expression_gives_it(tmp_path: Path):
    written = write_dataset(tmp_path, [[record(1)]], features=FEATURES)
    action = {"path": "action[:1]", "ops": [{"clip": [0, 1]}, "invert"]}
    found = statistics(dataset_of(written, action=[action]))["robot"]
    raw = values_of(1)["action"][:, :1]
    assert_of(found.action, np.float32(1) - np.clip(raw, np.float32(0), np.float32(1)))
