"""Features that samples hold, in both readers, against their values row by row."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rlds_files import PLAIN, TEXT, Written, episode, numbers, png, write_dataset
from streams import dataset_of, mixture_of, opened_by, spec_of

from autoloader import AutoLoader
from autoloader.errors import SpecError

pytestmark = pytest.mark.usefixtures("one_child")

READERS = pytest.mark.parametrize("reader", ["stream", "indexed"])
FEATURES = {
    **PLAIN, "reward": numbers(), "count": numbers(dtype="int64"), "is_last": numbers(dtype="bool"),
    "embedding": numbers(2, 3), "note": TEXT, "episode_metadata/success": numbers(dtype="bool"),
    "episode_metadata/weights": numbers(2), "episode_metadata/file_path": TEXT,
    "ragged": numbers(None), "packed": numbers(2, encoding="zlib"), "huge": numbers(300, 300),
    "words": numbers(dtype="string"),
}  # fmt: skip
ALL = {
    "reward": "reward",
    "count": "count",
    "is_last": "is_last",
    "embedding": "embedding",
    "note": "note",
    "success": "episode_metadata/success",
    "weights": "episode_metadata/weights",
    "file_path": "episode_metadata/file_path",
}
LENGTHS = ((5, 1, 8), (3, 6))
FIRST_COUNT = 2**40 + 1
"""No float32."""


def values_of(shard: int, record: int) -> dict[str, Any]:
    """What an episode holds: per step [T, ...], of the episode alone [...]."""
    steps = LENGTHS[shard][record]
    rng = np.random.default_rng([shard, record])
    number = 10 * shard + record
    return {
        "reward": rng.normal(size=steps).astype(np.float32),
        "count": FIRST_COUNT + number + np.arange(steps),
        "is_last": np.arange(steps) == steps - 1,
        "embedding": rng.normal(size=(steps, 2, 3)).astype(np.float32),
        "note": [f"n{number} step {step} ✓" * (step % 3) for step in range(steps)],
        "success": np.asarray(bool(number % 2)),
        "weights": rng.normal(size=2).astype(np.float32),
        "file_path": f"/lab/{number}/" + "x" * (2000 if record == 1 else 3),
    }


def record_of(shard: int, record: int, encode: Any = png) -> dict[str, Any]:
    values = values_of(shard, record)
    stored: dict[str, Any] = {}
    for name, path in ALL.items():
        value = values[name]
        if isinstance(value, str):
            stored[path] = [value.encode()]
        elif isinstance(value, list):
            stored[path] = [one.encode() for one in value]
        else:
            kind = float if value.dtype == np.float32 else int
            stored[path] = [kind(one) for one in value.ravel()]
    return episode(10 * shard + record, LENGTHS[shard][record], encode=encode, **stored)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_dataset(
        tmp_path_factory.mktemp("held"),
        [[record_of(s, r) for r in range(len(part))] for s, part in enumerate(LENGTHS)],
        features=FEATURES,
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A dataset without any of them but one, under another path."""
    records = [episode(k, 4, encode=png, done=[int(s == 3) for s in range(4)]) for k in range(3)]
    features = {**PLAIN, "done": numbers(dtype="bool")}
    return write_dataset(
        tmp_path_factory.mktemp("lacks"), [records], name="plain", features=features
    )


def wanted(
    values: Mapping[str, Any], name: str, t: int, sample: Mapping[str, Any], stride: int
) -> tuple[Any, Any]:
    """A feature and its mask at t, row by row."""
    value = values[name]
    if isinstance(value, str) or name in ("success", "weights"):
        return value, True
    value = value[::stride]
    rows, mask = [], []
    for offset in sample["state_offsets"]:
        at = t + offset
        inside = 0 <= at < len(value)
        mask.append(inside)
        nearest = value[min(max(at, 0), len(value) - 1)]
        if not inside and sample["edges"]["start" if at < 0 else "end"] == "zero":
            nearest = "" if isinstance(nearest, str) else np.zeros_like(nearest)
        rows.append(nearest)
    return rows if isinstance(rows[0], str) else np.stack(rows), mask


@pytest.mark.parametrize(
    ("reader", "sample", "stride"),
    [
        (reader, *how)
        for how in (
            ({"state_offsets": [-2, 0, 3], "edges": {"start": "repeat", "end": "zero"}}, 1),
            (
                {
                    "frame_offsets": [-1, 0, 2],
                    "state_offsets": [-1, 1],
                    "edges": {"start": "zero", "end": "repeat"},
                },
                2,
            ),
        )
        for reader in ("stream", "indexed", "processes")[: 4 - how[1]]
    ],
)
def test_features_are_those_of_the_files_and_those_of_others_are_masked(
    written: Written, plain: Written, reader: str, sample: dict[str, Any], stride: int
):
    datasets = (
        dataset_of(written, features=ALL, stride=stride),
        dataset_of(plain, features={"is_last": "done"}, stride=stride),
    )
    seen = 0
    with opened_by(reader, *datasets, sample=sample) as loader:
        for batch in loader:
            assert batch["features"].keys() == batch["feature_mask"].keys() == ALL.keys()
            for k, (dataset, _, shard, record, t) in enumerate(batch["provenance"].tolist()):
                values = values_of(shard, record) if dataset == 0 else {
                    "is_last": np.arange(4) == 3
                }  # fmt: skip
                for name in ALL:
                    got, mask = batch["features"][name][k], batch["feature_mask"][name][k]
                    if name not in values:
                        assert not mask.any()
                        assert not (any(got) if isinstance(got, (str, list)) else got.any())
                        continue
                    found, inside = wanted(values, name, t, sample, stride)
                    np.testing.assert_array_equal(got, found, err_msg=name)
                    np.testing.assert_array_equal(mask, inside)
                    seen += 1
            for k, (dataset, _, shard, record, t) in enumerate(batch["provenance"].tolist()):
                lengths = LENGTHS[shard][record] if dataset == 0 else 4
                for f, offset in enumerate(sample.get("frame_offsets", [0])):
                    at = t + offset
                    real = 0 <= at < -(-lengths // stride)
                    black = not real and sample["edges"]["start" if at < 0 else "end"] == "zero"
                    assert bool(batch["frame_mask"]["primary"][k][f]) == real
                    assert batch["images"]["primary"][k][f].any() != black
            language = [f"episode {r + 10 * s if d == 0 else r}"
                        for d, _, s, r, _ in batch["provenance"].tolist()]  # fmt: skip
            assert batch["language"] == language
    assert seen > 100


def test_the_child_hands_over_the_same_features_and_a_resume_goes_on_with_them(written: Written):
    spec = spec_of(dataset_of(written, features=ALL), reader="indexed", mixing={"epoch": "pass"})
    how: dict[str, Any] = {"ram_floor": 0, "output": "numpy", "controller": False}

    def plain(batch: dict[str, Any]) -> dict[str, Any]:
        return {
            name: one if isinstance(one, list) else one.tolist()
            for name, one in batch["features"].items()
        }

    with AutoLoader(spec, **how) as loader:
        batches = iter(loader)
        first = plain(next(batches))
        state = loader.state_dict()
        rest = [plain(batch) for batch in batches]
    with AutoLoader(spec, isolation="thread", **how) as loader:
        assert plain(next(iter(loader))) == first
    with AutoLoader(spec, isolation="thread", **how) as loader:
        loader.load_state_dict(state)
        assert [plain(batch) for batch in loader] == rest


def test_a_record_that_lacks_a_feature_is_quarantined_by_both_readers(tmp_path: Path):
    records = [record_of(0, r) for r in range(3)]
    del records[1]["episode_metadata/success"]
    written = write_dataset(tmp_path, [records], features=FEATURES)
    dataset = dataset_of(written, features={"success": "episode_metadata/success"})
    for reader in ("stream", "indexed"):
        with opened_by(reader, dataset, errors={"max_corrupt_ratio": 0.5}) as loader:
            places = {tuple(p[2:4]) for batch in loader for p in batch["provenance"].tolist()}
        assert places == {(0, 0), (0, 2)}


@pytest.mark.parametrize(
    ("features", "words", "remedy"),
    [
        ({"r": "rewards"}, "'rewards' is not a feature", "did you mean 'reward'"),
        ({"r": "ragged"}, r"'ragged' \(tensor float32, \?\) has a varying length", "fixed shape"),
        ({"r": "packed"}, r"'packed' .* is stored as zlib", "plain numbers"),
        ({"r": "huge"}, r"'huge' .* has more than 65536 numbers", "smaller"),
        ({"r": "observation/image"}, "a picture", "images"),
        ({"a/b": "reward"}, "features.a/b", ""),
        ({"r": 5}, "features.r", "text"),
        ({"r": ""}, "features.r", "at least 1 character"),
    ],
)
def test_a_feature_that_cannot_be_held_is_refused(
    written: Written, features: dict[str, Any], words: str, remedy: str
):
    with pytest.raises(SpecError, match=words) as caught:
        mixture_of(dataset_of(written, features=features))
    assert remedy in caught.value.remedy
    assert caught.value.path.startswith("datasets[robot].features.")


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("episode_metadata/success", "bool for each episode"),
        ("count", "int64 for each step"),
        ("embedding", r"float32 \[2, 3\] for each step"),
    ],
)
def test_datasets_that_disagree_on_a_feature_are_refused(
    written: Written, plain: Written, path: str, form: str
):
    datasets = (
        dataset_of(written, features={"done": path}),
        dataset_of(plain, features={"done": "done"}),
    )
    words = rf"'done' is bool for each step, and in dataset 'robot' it is {form}"
    with pytest.raises(SpecError, match=words) as caught:
        mixture_of(*datasets)
    assert caught.value.path == "datasets[plain].features.done"


@pytest.mark.parametrize("reader", ["stream", "indexed"])
@pytest.mark.parametrize("flag", ["episode_metadata/success", "is_last", "reward"])
def test_a_camera_that_a_flag_says_is_absent_is_black_and_masked(
    written: Written, plain: Written, reader: str, flag: str
):
    images = {
        "primary": {"path": "observation/image", "present": flag},
        "wrist": "observation/image",
    }
    sample = {"frame_offsets": [-1, 0, 2], "edges": {"start": "repeat", "end": "zero"}}
    cameras = {"primary": {"size": [12, 16]}, "wrist": {"size": [12, 16]}}
    datasets = (dataset_of(written, images=images), dataset_of(plain))
    found = set()
    with opened_by(reader, *datasets, sample=sample, cameras=cameras) as loader:
        for batch in loader:
            for k, (dataset, _, shard, record, t) in enumerate(batch["provenance"].tolist()):
                steps = 4 if dataset else LENGTHS[shard][record]
                flags = np.ones(steps) if dataset else np.broadcast_to(
                    values_of(shard, record)[flag.removeprefix("episode_metadata/")], steps
                )  # fmt: skip
                for f, offset in enumerate(sample["frame_offsets"]):
                    at = t + offset
                    there = bool(flags[min(max(at, 0), steps - 1)])
                    inside = 0 <= at < steps
                    mask = batch["frame_mask"]["primary"][k][f]
                    assert bool(mask) == (inside and there)
                    picture = batch["images"]["primary"][k][f]
                    assert picture.any() == (there and at < steps)
                    if dataset == 0:
                        found.add(bool(mask))
                        assert bool(batch["frame_mask"]["wrist"][k][f]) == inside
    assert found == ({True} if flag == "reward" else {True, False}) | {False}


@pytest.mark.parametrize(
    ("present", "words"),
    [
        ("episode_metadata/has_image", "'episode_metadata/has_image' is not a feature"),
        ("embedding", r"'embedding' \(tensor float32, 2×3\) is not a flag"),
        ("note", "'note' .* is not a flag"),
        (5, "present: 5 names no feature"),
    ],
)
def test_a_flag_that_is_none_is_refused(written: Written, present: Any, words: str):
    images = {"primary": {"path": "observation/image", "present": present}}
    with pytest.raises(SpecError, match=words) as caught:
        mixture_of(dataset_of(written, images=images))
    assert caught.value.path.startswith("datasets[robot].images.primary")
