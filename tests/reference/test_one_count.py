"""Damage of every kind is counted once: alike by plan, index, trainer and child, with both readers.

Every epoch is a pass of what is really there, after a restart too.
"""

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_lines import Cli
from rlds_files import Written, episode, example, jpeg, write_dataset, write_steps
from streams import dataset_of, every_sample, mixture_of, spec_file, spec_of

from autoloader import AutoLoader, PipelineSpec
from autoloader.process.planning import plan_loader

STEPS, RECORDS, SHARDS = 3, 4, 2
KNOBS = {"ring_slots": 4, "queue_samples": 8}
FLOOR = "64MiB"


def with_(**features: Any) -> dict[str, Any]:
    return episode(9, STEPS, **features)


def without(path: str) -> dict[str, Any]:
    return {key: value for key, value in with_().items() if key != path}


RECORD_DAMAGE: dict[str, Any] = {
    "no example": b"\xff\xfe no example",
    "missing key": without("observation/state"),
    "missing pictures": without("observation/image"),
    "wrong kind": with_(action=[1] * 2 * STEPS),
    "no whole step": with_(action=[1.0] * (2 * STEPS - 1)),
    "columns that differ": with_(action=[1.0] * 2 * (STEPS - 1)),
    "pictures too few": with_(**{"observation/image": [jpeg(9, 0)] * (STEPS - 1)}),
    "texts too few": with_(language_instruction=[b"one"]),
    "texts too many": with_(language_instruction=[b"one"] * (STEPS + 1)),
    "nothing": example({}),
}
FILE_DAMAGE: dict[str, Callable[[Written], None]] = {
    "payload": lambda written: written.break_payload(1, 1),
    "length": lambda written: written.break_length(1, 1),
    "truncated": lambda written: written.truncate(1, 1),
}
LOST = {"length": 3, "truncated": 3}
"""Records that a kind of damage costs, where it is not one."""


pytestmark = pytest.mark.usefixtures("one_child")


def epochs(loader: AutoLoader, count: int) -> list[collections.Counter[tuple[int, ...]]]:
    """The samples of ``count`` epochs."""
    return [
        collections.Counter(tuple(row) for batch in loader for row in batch["provenance"].tolist())
        for _ in range(count)
    ]


def damaged(folder: Path, damage: str) -> Written:
    """A dataset with one damage, in record 1 of its second shard."""
    shards: list[list[Any]] = [
        [episode(RECORDS * shard + record, STEPS) for record in range(RECORDS)]
        for shard in range(SHARDS)
    ]
    if damage in RECORD_DAMAGE:
        shards[1][1] = RECORD_DAMAGE[damage]
    written = write_dataset(folder, shards, name=damage.replace(" ", "_"))
    FILE_DAMAGE.get(damage, lambda _: None)(written)
    return written


def test_every_epoch_is_a_pass_of_what_is_really_there(tmp_path: Path, cli: Cli):
    """Of a dataset with each damage, and one that is whole."""
    kinds = [*RECORD_DAMAGE, *FILE_DAMAGE]
    datasets = [damaged(tmp_path, kind) for kind in kinds]
    datasets.append(write_steps(tmp_path, [[STEPS] * 2], name="whole"))
    lost = {one.name: LOST.get(kind, 1) for one, kind in zip(datasets, kinds, strict=False)}
    there = {name: (SHARDS * RECORDS - records) * STEPS for name, records in lost.items()}
    there["whole"] = 2 * STEPS
    top = {
        "weights": "natural",
        "mixing": {"epoch": "pass"},
        "batch": {"size": 5, "drop_last": False},
        "errors": {"max_corrupt_ratio": 0.5},
    }
    spec = spec_of(*datasets, **top)
    file = spec_file(tmp_path, spec)
    mixture = mixture_of(*datasets, **top)
    passes = [
        collections.Counter(
            sample for number in range(len(datasets)) for sample in every_sample(mixture, number, k)
        )
        for k in range(4)
    ]
    for reader in ("stream", "indexed"):
        state = None
        for start in range(2):
            counted = spec.model_copy(update={"reader": reader})
            with AutoLoader(counted, ram_floor=FLOOR, knobs=KNOBS, output="numpy") as loader:
                if state is not None:
                    loader.load_state_dict(state)
                assert {name: one.samples for name, one in loader.plan.counts.items()} == there
                assert epochs(loader, 2) == passes[2 * start : 2 * start + 2]
                assert passes[0].total() == sum(there.values())
                quarantined = collections.Counter(one.dataset for one in loader.quarantined())
                assert quarantined == lost
                state = loader.state_dict()
    planned = plan_loader(PipelineSpec.from_yaml(file), ram_floor=FLOOR, probe_only=True)
    assert {name: one.samples for name, one in planned.counts.items()} == there
    assert not any(one.estimated for one in planned.counts.values())
    document = cli.json("index", "--spec", file)["datasets"]
    assert {name: one["frames"] for name, one in document.items()} == there
    assert {name: len(document[name]["damaged"]) for name in lost} == lost


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory where nothing is kept yet."""
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_stream_of_local_data_with_num_samples_counts_nothing_and_by_index_it_does(
    tmp_path: Path, empty_cache: Path
):
    written = write_dataset(tmp_path, [[episode(0, 4), episode(1, 4)]])
    spec = spec_of(dataset_of(written, num_samples=9))
    by_stream = plan_loader(spec, ram_floor=FLOOR, knobs={"reader": "stream"}).counts["robot"]
    assert (by_stream.samples, by_stream.estimated) == (9, False)
    assert not empty_cache.exists()
    by_index = plan_loader(spec, ram_floor=FLOOR, knobs={"reader": "indexed"}).counts["robot"]
    assert (by_index.samples, by_index.frames) == (8, 8)


@pytest.mark.parametrize("own", [{}, {"transform": {"call": "lab_hooks:only_even"}}])
@pytest.mark.usefixtures("empty_cache")
def test_what_was_counted_once_is_exact_in_every_plan_after(own: dict[str, Any], tmp_path: Path):
    written = write_dataset(tmp_path, [[episode(0, 4)], [episode(1, 4), episode(2, 9)]])
    spec = spec_of(dataset_of(written, **own))
    assert plan_loader(spec, ram_floor=FLOOR, probe_only=True).counts["robot"].estimated
    counted = plan_loader(spec, ram_floor=FLOOR).counts
    assert not counted["robot"].estimated
    assert plan_loader(spec, ram_floor=FLOOR, probe_only=True).counts == counted
