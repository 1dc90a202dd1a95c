"""A resume may bring other weights and more datasets; what was given before does not come again."""

import collections
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from rlds_files import Written, episode, write_dataset
from streams import every_strategy
from trios import mixture, opened

from autoloader import PipelineSpec
from autoloader.errors import UsageError
from autoloader.process.checkpoint import sealed

Row = tuple[int, ...]


def run(
    spec: PipelineSpec, steps: int, state: dict[str, Any] | None = None
) -> tuple[list[Row], dict[str, Any]]:
    """So many batches behind a state, and where that ends; datasets by name."""
    with opened(spec) as loader:
        if state is not None:
            loader.load_state_dict(state)
        found: list[Row] = []
        for batch in itertools.islice(loader, steps):
            for dataset, *place in batch["provenance"].tolist():
                found.append((ord(loader.dataset_names[dataset]), *place))
        return found, json.loads(json.dumps(loader.state_dict()))


def of(rows: list[Row], name: str) -> list[Row]:
    return [row for row in rows if row[0] == ord(name)]


@every_strategy
def test_by_index_other_weights_and_more_datasets_hold_from_the_state_on(
    trio: list[Written], strategy: str
):
    a, b, c = trio
    mixing = {"epoch": "forever", "strategy": strategy}
    found, state = run(mixture([a, b], [1, 1], mixing=mixing), 3)
    more, state = run(mixture([a, c, b], [1, 1, 4], mixing=mixing), 10, state)  # c between them
    last, state = run(mixture([a, c, b], [1, 1, 4], mixing=mixing), 6, state)
    assert state["position"] == 57
    assert state["rebased"] == {"position": 9, "given": {"a": len(of(found, "a")), "c": 0,
                                                   "b": len(of(found, "b"))}}  # fmt: skip
    shares = collections.Counter(row[0] for row in more + last)
    if strategy != "sample":
        assert [shares[ord(name)] for name in "acb"] == [8, 8, 32]
    untouched, _ = run(mixture([a, b, c], [1, 1, 1], mixing=mixing), 60)
    every = found + more + last
    for name in "abc":
        assert of(every, name) == of(untouched, name)[: len(of(every, name))]
    # And once more, with other weights again.
    again, state = run(mixture([a, b, c], [5, 1, 1], mixing=mixing), 4, state)
    assert state["rebased"]["position"] == 57
    assert of(every + again, "a") == of(untouched, "a")[: len(of(every + again, "a"))]


def test_a_state_that_goes_on_with_other_shares_says_from_where_and_what_was_saved(
    trio: list[Written], caplog: pytest.LogCaptureFixture
):
    a, b, _ = trio
    _, state = run(mixture([a, b], [1, 1]), 3)
    run(mixture([a, b], [1, 1]), 1, state)
    assert "goes on" not in caplog.text
    capped = mixture([a, b], [1, 1], sample={"per_episode": 1})
    _, state = run(capped, 3)
    run(capped.model_copy(update={"weights": "natural_scaled"}), 1, state)
    assert "from sample 9 of the run on, the order is that of this spec" in caplog.text
    assert "datasets.a.share: 0.5 in the saved run, 0.55" in caplog.text


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_a_dataset_that_is_left_out_is_forgotten_and_the_others_go_on(
    trio: list[Written], reader: str
):
    a, b, c = trio
    found, state = run(mixture([a, b, c], [1, 1, 1], reader=reader), 5)
    more, state = run(mixture([c, a], [2, 1], reader=reader), 3, state)  # in another place
    last, state = run(mixture([a, b, c], [1, 1, 1], reader=reader), 2, state)
    untouched, _ = run(mixture([a, b, c], [1, 1, 1], reader=reader), 20)
    assert of(more, "b") == []
    assert len(of(more, "c")) == 6
    for name in "ac":
        assert (
            of(found + more + last, name)
            == of(untouched, name)[: len(of(found + more + last, name))]
        )
    assert of(last, "b") == of(untouched, "b")[: len(of(last, "b"))]
    assert set(state["taken"]) == set(state["rebased"]["given"]) == {"a", "b", "c"}


def test_a_state_of_other_datasets_alone_is_refused_with_the_difference(trio: list[Written]):
    _, state = run(mixture([trio[0]], [1]), 1)
    with pytest.raises(UsageError, match=r"datasets\.a is only in the saved run"):
        run(mixture([trio[1]], [1]), 1, state)


@pytest.mark.parametrize(
    ("top", "said"),
    [
        ({"mixing": {"epoch": "pass"}}, r"datasets\.c is only in this run"),
        ({"mixing": {"chain": True, "block_length": 3, "epoch": "forever"}}, r"datasets\.c"),
        ({"seed": 3}, "seed: 0 in the saved run, 3 in this run"),
    ],
)
def test_what_hangs_on_whole_passes_or_on_the_seed_is_refused_with_the_difference(
    trio: list[Written], top: dict[str, Any], said: str
):
    _, state = run(mixture(trio[:2], [1, 1], **{k: v for k, v in top.items() if k != "seed"}), 1)
    with pytest.raises(UsageError, match=said) as caught:
        run(mixture(trio, [1, 1, 1], **top), 1, state)
    assert "mixing.chain" in caught.value.remedy


def test_a_resume_says_which_values_are_others_from_here_on(
    trio: list[Written], caplog: pytest.LogCaptureFixture
):
    a, b, c = trio
    _, state = run(mixture([a, b], [1, 1]), 2)
    run(mixture([a, b], [1, 1]), 1, state)
    run(mixture([a, c, b], [1, 1, 4]), 1, state)
    assert "other values" not in caplog.text
    other = mixture([a, b], [1, 1], normalize={"action": {"method": "min_max"}})
    run(other, 1, state)
    assert "the run that saved the state: it had another normalize" in caplog.text
    for key, value in (("fps", 5), ("keep", {"match": {"language_instruction": "^e"}})):
        caplog.clear()
        document = mixture([a, b], [1, 1]).model_dump(mode="json")
        document["datasets"][1][key] = value
        run(PipelineSpec.from_mapping(document), 1, state)
        assert "had another datasets[b] (keep, fps, sample_weight, module" in caplog.text
    older = {key: value for key, value in state.items() if key != "values"}
    caplog.clear()
    run(other, 1, sealed(older))
    assert "other values" not in caplog.text


def test_a_resume_says_that_the_files_hold_something_else_but_not_that_they_are_a_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    first, copy, other = (
        write_dataset(tmp_path / place, [[episode(number, 9)]], name="r")
        for place, number in (("first", 1), ("copy", 1), ("other", 2))
    )
    _, state = run(mixture([first], [1]), 1)
    run(mixture([copy], [1]), 1, state)
    assert "other values" not in caplog.text
    run(mixture([other], [1]), 1, state)
    assert "the run that saved the state: it had another content of datasets[r]" in caplog.text
