"""Weights of single samples: files, what comes in a batch, and what is drawn in a pass."""

import os
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hdf5_files import write_robomimic
from hypothesis import given
from hypothesis import strategies as st
from lerobot_files import LeRobotFiles
from pyarrow import parquet
from rlds_files import write_steps

from autoloader import AutoLoader, PipelineSpec, SourceError, SpecError
from autoloader.samples.resolve import resolve, resolve_plain
from autoloader.samples.weights import drawn_by, rabc

pytestmark = pytest.mark.usefixtures("one_child")

STEPS = (9, 4, 12)
HOW: dict[str, Any] = {"output": "numpy", "ram_floor": "64MiB"}


def spec_of(folder: Path, weights: dict[str, Any] | None, **more: Any) -> PipelineSpec:
    dataset = {
        "name": "oak", "path": str(folder / "oak/1.0.0"), "action": "action[:2]",
        "images": {"top": "observation/image"}, "sample_weight": weights,
    }  # fmt: skip
    spec = {"datasets": [dataset], "cameras": {"top": {"size": [8, 8]}}, "batch": {"size": 4}}
    return PipelineSpec.from_mapping(spec | more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An RLDS dataset of 3 episodes in 2 files, and weights of two of them."""
    folder = tmp_path_factory.mktemp("weights")
    written = write_steps(folder, [STEPS[:2], STEPS[2:]], name="oak")
    assert written.path == folder / "oak/1.0.0"
    rows = [(e, t) for e in (0, 2) for t in range(STEPS[e])]
    episode, step = np.array(rows).T
    np.savez(folder / "w.npz", episode=episode, step=step, w=(step + 1.0) * (episode + 1))
    zero = np.where(step % 2 == 0, 0.0, step / 4)
    table = {"episode_index": episode, "frame_index": step, "w": zero, "text": ["a"] * len(step)}
    parquet.write_table(pa.table(table), folder / "w.parquet")
    return folder


def weight_at(record: tuple[int, int], t: int) -> float:
    """The weight in ``w.npz`` of a step; records of the second file follow the first's."""
    episode = record[0] * 2 + record[1]
    return 1.0 if episode == 1 else (t + 1.0) * (episode + 1)


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_a_batch_has_the_weight_of_each_sample(folder: Path, reader: str):
    weights = {"file": str(folder / "w.npz"), "key": "w"}
    with AutoLoader(spec_of(folder, weights, reader=reader), **HOW) as loader:
        seen = 0
        for batch in loader:
            wanted = [weight_at((s, e), t) for _, _, s, e, t in batch["provenance"].tolist()]
            assert batch["sample_weight"].tolist() == wanted
            seen += len(wanted)
    assert seen == 24


def test_a_pass_draws_by_largest_remainders_on_each_number_of_ranks(folder: Path):
    weights = {"file": str(folder / "w.parquet"), "key": "w", "use": "draw"}
    spec = spec_of(folder, weights, mixing={"epoch": "pass"}, batch={"size": 2, "drop_last": False})
    by_step = {(e, t): (0.0 if t % 2 == 0 else t / 4) for e in (0, 2) for t in range(STEPS[e])}
    by_step |= {(1, t): 1.0 for t in range(STEPS[1])}
    share = largest_remainders([by_step[key] for key in sorted(by_step)])
    wanted = {key: n for key, n in zip(sorted(by_step), share, strict=True) if n}
    for ranks in (1, 2, 3):
        seen: Counter[tuple[int, int]] = Counter()
        for rank in range(ranks):
            with AutoLoader(spec, rank=rank, world_size=ranks, **HOW) as loader:
                for batch in loader:
                    assert "sample_weight" not in batch
                    for _, _, shard, record, t in batch["provenance"].tolist():
                        seen[shard * 2 + record, t] += 1
        assert seen == wanted


def largest_remainders(weights: list[float]) -> list[int]:
    """The counts of a pass, by fractions."""
    exact = [Fraction(float(np.float32(one))) for one in weights]
    wanted = sum(one > 0 for one in exact)
    shares = [one * wanted / sum(exact) for one in exact]
    counts = [int(one) for one in shares]
    by_rest = sorted(range(len(exact)), key=lambda k: (counts[k] - shares[k], k))
    for k in by_rest[: wanted - sum(counts)]:
        counts[k] += 1
    return counts


@given(st.lists(st.integers(0, 64), min_size=1, max_size=40).filter(any))
def test_counts_are_those_of_fractions(numerators: list[int]):
    weights = np.array(numerators, np.float32) / 16
    found = np.bincount(drawn_by(weights), minlength=len(weights))
    exact = np.array(largest_remainders(weights.tolist()))
    assert found.sum() == exact.sum() == np.count_nonzero(weights)
    assert not found[weights == 0].any()
    assert (np.abs(found - exact) <= 1).all()
    assert (np.abs(found - weights * found.sum() / weights.sum()) < 1 + 1e-9).all()


@pytest.mark.parametrize("more", [{}, {"locality": {"block": "64KiB", "window": 2}}])
def test_a_resume_of_drawn_samples_goes_on(folder: Path, more: dict[str, Any]):
    weights = {"file": str(folder / "w.parquet"), "key": "w", "use": "draw"}
    spec = spec_of(folder, weights, mixing={"epoch": 64, **more})
    with AutoLoader(spec, knobs={"cache_bytes": 2**20}, **HOW) as loader:
        whole = [batch["provenance"].tolist() for batch in loader]
    with AutoLoader(spec, **HOW) as loader:
        parts = [b["provenance"].tolist() for _, b in zip(range(5), loader, strict=False)]
        state = loader.state_dict()
    with AutoLoader(spec, **HOW) as loader:
        loader.load_state_dict(state)
        parts += [batch["provenance"].tolist() for batch in loader]
    assert parts == whole
    assert all(t % 2 for rows in whole for _, _, s, e, t in rows if s * 2 + e != 1)


def test_a_state_of_other_weights_is_refused(folder: Path, tmp_path: Path):
    weights = {"file": str(folder / "w.npz"), "key": "w", "use": "draw"}
    with AutoLoader(spec_of(folder, weights), **HOW) as loader:
        state = loader.state_dict()
    np.savez(tmp_path / "v.npz", episode=[0], step=[0], w=[5.0])
    weights["file"] = str(tmp_path / "v.npz")
    with (
        AutoLoader(spec_of(folder, weights), **HOW) as loader,
        pytest.raises(Exception, match="sample_weight"),
    ):
        loader.load_state_dict(state)


def test_a_resume_tells_of_other_weights_that_batches_have(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    spec = spec_of(folder, {"file": str(tmp_path / "w.npz"), "key": "w"})
    states: list[dict[str, Any]] = []
    for weight in (2.0, 2.0, 3.0):
        np.savez(tmp_path / "w.npz", episode=[0], step=[0], w=[weight])
        with AutoLoader(spec, **HOW) as loader:
            caplog.clear()
            states.append(loader.state_dict())
            loader.load_state_dict(states[0])
        assert ("had another datasets[oak] (keep" in caplog.text) == (weight != 2.0)


@pytest.mark.parametrize("first", [0, 3])
def test_lerobot_knows_its_frames_by_index(tmp_path: Path, first: int):
    path = LeRobotFiles(lengths=(12, 7)).write(tmp_path / "lero")
    weights, rows = np.ones(19), np.arange(19)[first:]
    weights[first:] = rows / 8
    table = {"index": rows, "w": weights[first:]}
    if first:
        table["episode_index"] = (rows >= 12).astype(np.int64)
    parquet.write_table(pa.table(table), tmp_path / "w.parquet")
    dataset = {
        "name": "lero", "path": str(path), "action": "action[:2]",
        "images": {"top": "observation.images.top"},
        "sample_weight": {"file": str(tmp_path / "w.parquet"), "key": "w"},
    }  # fmt: skip
    spec = {"datasets": [dataset], "cameras": {"top": {"size": [8, 8]}}, "batch": {"size": 4}}
    with AutoLoader(PipelineSpec.from_mapping(spec), **HOW) as loader:
        for batch in loader:
            at = [12 * e + t for _, _, _, e, t in batch["provenance"].tolist()]
            assert batch["sample_weight"].tolist() == weights[at].astype(np.float32).tolist()


@pytest.mark.parametrize("kind", ["lerobot", "rlds"])
def test_an_index_whose_first_step_nobody_knows_is_refused(folder: Path, tmp_path: Path, kind: str):
    np.savez(tmp_path / "w.npz", episode=[0] * 4, index=range(101, 105), w=[1.0, 2.0, 3.0, 4.0])
    path, camera = str(folder / "oak/1.0.0"), "observation/image"
    if kind == "lerobot":
        path = str(LeRobotFiles(lengths=(4,)).write(tmp_path / "lero"))
        camera = "observation.images.top"
    dataset = {
        "name": "oak", "path": path, "action": "action[:2]", "images": {"top": camera},
        "sample_weight": {"file": str(tmp_path / "w.npz"), "key": "w"},
    }  # fmt: skip
    spec = spec_of(folder, None, datasets=[dataset])
    with pytest.raises(SpecError, match="does not say which step each"):
        AutoLoader(spec, **HOW)


def test_hdf5_counts_episodes_over_all_files(tmp_path: Path):
    for name in "ab":
        write_robomimic(tmp_path / f"d/{name}.hdf5", {"demo_0": 5, "demo_1": 4})
    rows = [(e, t) for e, n in enumerate((5, 4, 5, 4)) for t in range(n)]
    episode, step = np.array(rows).T
    np.savez(tmp_path / "w.npz", episode=episode, step=step, w=episode + step / 8)
    dataset = {
        "name": "demos", "path": str(tmp_path / "d"), "action": "actions[:2]",
        "images": {"top": "obs/agentview_image"},
        "sample_weight": {"file": str(tmp_path / "w.npz"), "key": "w"},
    }  # fmt: skip
    spec = {"datasets": [dataset], "cameras": {"top": {"size": [8, 8]}}, "batch": {"size": 3}}
    with AutoLoader(PipelineSpec.from_mapping(spec), **HOW) as loader:
        for batch in loader:
            wanted = [2 * s + e + t / 8 for _, _, s, e, t in batch["provenance"].tolist()]
            assert batch["sample_weight"].tolist() == wanted


def test_progress_weighs_as_in_lerobot():
    progress = np.array([0.0, 0.3, 0.305, 0.2, np.nan, 0.5, 0.5, 0.509])
    episode = np.array([0, 0, 0, 0, 0, 3, 3, 3])
    step = np.array([0, 1, 2, 3, 4, 0, 1, 2])
    found = rabc(progress, episode, step, 1)
    deltas = np.array([0.3, 0.005, -0.105, 0.0, 0.009, 0.0])
    mean, spread = deltas.mean(), deltas.std()
    soft = np.clip((deltas - (mean - 2 * spread)) / (4 * spread + 1e-6), 0, 1)
    wanted = [1, soft[1], 0, 1, 1, soft[3], soft[4], soft[5]]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("file", ["w.npz", "w.parquet"])
def test_weights_by_progress_are_the_same_each_time_they_are_read(
    folder: Path, tmp_path: Path, file: str
):
    columns = {"episode": [0] * 9, "step": range(9), "progress_dense": np.linspace(0, 1, 9) ** 2}
    np.savez(tmp_path / "w.npz", **{name: np.asarray(one) for name, one in columns.items()})
    parquet.write_table(pa.table(columns), tmp_path / "w.parquet")
    spec = spec_of(folder, {"file": str(tmp_path / file), "key": "progress_dense"})
    read = [resolve(spec).datasets[0].weights for _ in range(2)]
    assert read[0].values.tolist() == read[1].values.tolist()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, -0.5, 1], r"row 1 \(episode 0, step 1\): w is -0.5"),
        ([1, 1, float("nan")], r"row 2 \(episode 0, step 2\): w is nan"),
        ([1, float("inf"), 1], r"row 1 \(episode 0, step 1\): w is inf"),
        ([1, 1, 1e39], r"row 2 \(episode 0, step 2\): w is 1e\+39"),
    ],
)
def test_a_wrong_weight_is_named_with_its_row(
    folder: Path, tmp_path: Path, values: list[float], said: str
):
    np.savez(tmp_path / "w.npz", episode=[0, 0, 0], step=[0, 1, 2], w=values)
    with pytest.raises(SourceError, match=said):
        AutoLoader(spec_of(folder, {"file": str(tmp_path / "w.npz"), "key": "w"}), **HOW)


def test_files_that_cannot_serve_are_refused(folder: Path, tmp_path: Path):
    np.savez(tmp_path / "bare.npz", w=[1.0], index=[0])
    np.savez(tmp_path / "twice.npz", episode=[0, 0], step=[1, 1], w=[1.0, 2.0])
    np.savez(tmp_path / "zero.npz", episode=[0], step=[1], w=[0.0])
    np.savez(tmp_path / "odd.npz", episode=[0, 1], step=[1, 2], w=[0.0])
    (tmp_path / "text.parquet").write_text("no Parquet")

    def refused(file: Path, error: type[Exception], said: str, **how: Any) -> None:
        with pytest.raises(error, match=said):
            AutoLoader(spec_of(folder, {"file": str(file), "key": "w", **how}), **HOW)

    os.mkfifo(tmp_path / "pipe.npz")
    os.mkfifo(tmp_path / "pipe.parquet")
    refused(tmp_path / "none.npz", SpecError, "No such file")
    refused(tmp_path / "pipe.npz", SpecError, "named pipe")
    refused(tmp_path / "pipe.parquet", SpecError, "named pipe")
    refused(tmp_path / "text.parquet", SpecError, "cannot be read")
    refused(tmp_path / "odd.npz", SpecError, "differ in length")
    refused(tmp_path / "bare.npz", SpecError, "does not say which step each")
    refused(tmp_path / "twice.npz", SourceError, "row 1 .*has a weight already")
    refused(folder / "w.npz", SpecError, "no column 'v'", key="v")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"reader": "stream"}, "reader: stream"),
        ({"mixing": {"chain": True, "block_length": 4}}, "mixing.chain"),
        ({"sample": {"per_episode": 2}}, "sample.per_episode"),
    ],
)
def test_draws_refuse_by_name_what_draws_otherwise(folder: Path, more: dict[str, Any], said: str):
    with pytest.raises(SpecError, match=said):
        spec_of(folder, {"file": str(folder / "w.npz"), "key": "w", "use": "draw"}, **more)


def test_weights_that_are_written_anew_hold_for_the_next_loader_alone(folder: Path, tmp_path: Path):
    def write(kept: int) -> None:
        step = np.arange(STEPS[2])
        weights = np.where(step == kept, 1.0, 0.0)
        np.savez(tmp_path / f"{kept}.npz", episode=np.full(len(step), 2), step=step, w=weights)
        (tmp_path / f"{kept}.npz").replace(tmp_path / "w.npz")

    def steps(loader: AutoLoader) -> set[int]:
        rows = [row for batch in loader for row in batch["provenance"].tolist()]
        return {t for _, _, shard, _, t in rows if shard == 1}

    weights = {"file": str(tmp_path / "w.npz"), "key": "w", "use": "draw"}
    write(3)
    spec = spec_of(folder, weights, batch={"size": 2, "drop_last": False})
    here = {**HOW, "isolation": "thread"}
    with AutoLoader(spec, **here) as first:
        assert steps(first) == {3}
        before = resolve(spec).plain()
        write(4)
        with AutoLoader(spec, **here) as second:
            assert steps(second) == {4}
    with pytest.raises(SpecError, match=r"datasets\[oak\]: sample_weight.file was changed"):
        resolve_plain(before)


def test_weights_of_zero_everywhere_are_refused(folder: Path, tmp_path: Path):
    rows = [(e, t) for e, n in enumerate(STEPS) for t in range(n)]
    episode, step = np.array(rows).T
    np.savez(tmp_path / "w.npz", episode=episode, step=step, w=np.zeros(len(step)))
    weights = {"file": str(tmp_path / "w.npz"), "key": "w", "use": "draw"}
    with pytest.raises(SourceError, match="sample_weight is 0 for each of its 25 samples"):
        AutoLoader(spec_of(folder, weights), **HOW)
