"""Transforms in both readers: the samples of a function applied by hand, or a clear refusal."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lab_hooks
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_samples import Episode, Sample, samples_of
from rlds_files import PLAIN, TEXT, episode, image, numbers, png, write_dataset
from streams import dataset_of, episodes_of_pass, mixture_of
from test_both_readers import PASSES, Data, Key, check, read_from_index, read_from_stream, samples

from autoloader.errors import SpecError
from autoloader.index import count_indexed, open_dataset_index
from autoloader.index.counting import count_mixture
from autoloader.samples.block import EmptyEpisode
from autoloader.samples.resolve import ResolvedMixture, resolve_plain
from autoloader.samples.transforms.keep import DatasetCount
from autoloader.samples.transforms.rlds import FunctionFailedError
from autoloader.samples.transforms.transform import ask_elsewhere

SHARDS = [[5, 1, 7], [6, 4], [9]]
Hand = Callable[[Episode], tuple[Episode | None, Sequence[bool] | None]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    features = {
        **PLAIN,
        "observation/wrist": image(),
        "points": numbers(6, dtype="int64"),
        "episode_metadata/file_path": TEXT,
    }
    found: dict[tuple[int, int], Episode] = {}
    shards = []
    for shard, lengths in enumerate(SHARDS):
        records = []
        for record, steps in enumerate(lengths):
            number = sum(map(len, SHARDS[:shard])) + record
            values = episode(
                number,
                steps,
                **{
                    "observation/wrist": [png(number, step) for step in range(steps)],
                    "points": [ord(c) for c in f"pick{number} "] * steps,
                    "episode_metadata/file_path": [f"/lab/{number}".encode()],
                },
            )
            records.append(values)
            found[shard, record] = Episode(
                frames={
                    "primary": values["observation/image"],
                    "wrist": values["observation/wrist"],
                },
                action=np.asarray(values["action"], np.float32).reshape(steps, -1),
                state=np.asarray(values["observation/state"], np.float32).reshape(steps, -1),
                language=[f"episode {number}"] * steps,
                metadata={"episode_metadata/file_path": f"/lab/{number}"},
            )
        shards.append(records)
    folder = tmp_path_factory.mktemp("transforms")
    return Data(write_dataset(folder, shards, features=features), found)


# --- by hand ------------------------------------------------------------------------------------


def taken(one: Episode, steps: slice) -> Episode:
    return replace(
        one,
        frames={camera: frames[steps] for camera, frames in one.frames.items()},
        action=one.action[steps],
        state=one.state[steps],
        language=one.language[steps],
    )


def rebuilt(one: Episode) -> Episode:
    rows = [
        [2 * a[0], 1 - min(max(a[-1], np.float32(0)), np.float32(1)), *a[1:]] for a in one.action
    ]
    return replace(one, action=np.asarray(rows, np.float32))


def mixed(one: Episode) -> Episode:
    one = taken(one, slice(None, None, -1))
    name = one.metadata["episode_metadata/file_path"]
    both = zip(one.frames["primary"], one.frames["wrist"], strict=True)
    head = [pair[0] if t % 2 else pair[1] for t, pair in enumerate(both)]
    return replace(
        one,
        frames={**one.frames, "primary": head},
        language=[f"{name} é {t}" for t in range(len(head))],
    )


HEAD = {"primary": "observation/head", "wrist": "observation/wrist"}
BY_HAND: dict[str, tuple[dict[str, Any], Hand]] = {
    "drop_first": ({}, lambda one: (taken(one, slice(1, None)), None)),
    "strided": ({"every": 3}, lambda one: (taken(one, slice(None, None, 3)), None)),
    "renamed": ({}, lambda one: (one, None)),
    "rebuilt": ({}, lambda one: (rebuilt(one), None)),
    "mixed": ({}, lambda one: (mixed(one), None)),
    "only_even": ({}, lambda one: (None if one.state[0, 0] % 2 else one, None)),
    "barred": ({}, lambda one: (one, [s[1] % 3 != 0 and s[0] != 3 for s in one.state])),
}
FIELDS: dict[str, dict[str, Any]] = {
    "renamed": {"images": HEAD},
    "mixed": {"images": HEAD, "language": "task"},
}
CAMERAS = {"primary": {"size": [12, 16]}, "wrist": {"size": [12, 16]}}
WINDOW: dict[str, Any] = {
    "frame_offsets": [-1, 0, 2], "state_offsets": [0, -1], "action_start": 0, "action_horizon": 2,
    "action_reduce": "none", "action_relative_to_state": [1], "edges": {"start": "zero",
    "end": "repeat"}, "goal": "uniform", "per_episode": "all",
}  # fmt: skip


def counted(mixture: ResolvedMixture) -> DatasetCount:
    return count_indexed(open_dataset_index(mixture.datasets[0]))


def mixture_with(
    data: Data,
    call: str,
    sample: Mapping[str, Any] = WINDOW,
    *,
    stride: int = 1,
    keep: Mapping[str, Any] | None = None,
    language: str | None = None,
    **own: Any,
) -> ResolvedMixture:
    name = call.partition(":")[2]
    declared = {
        "images": {"primary": "observation/image", "wrist": "observation/wrist"},
        **FIELDS.get(name, {}),
        **({} if keep is None else {"keep": keep}),
        **({} if language is None else {"language": language}),
        "stride": stride,
        "transform": {"call": call, "kwargs": BY_HAND.get(name, ({}, None))[0], **own},
    }
    return mixture_of(dataset_of(data.written, **declared), sample=sample, cameras=CAMERAS)


def wanted_by(
    data: Data,
    mixture: ResolvedMixture,
    hand: Hand,
    sample: Mapping[str, Any],
    stride: int = 1,
    **rules: Any,
) -> dict[Key, Sample]:
    (dataset,) = mixture.datasets
    wanted = {}
    for place, one in data.episodes.items():
        made, valid = hand(one)
        if made is None or not len(made.action):
            continue
        for pass_ in range(PASSES):
            found = samples_of(
                made, sample, (pass_, *place), key=dataset.key, stride=stride, valid=valid, **rules
            )
            wanted |= {(pass_, *place, t): each for t, each in found.items()}
    return wanted


@given(st.sampled_from(sorted(BY_HAND)), samples(), st.integers(1, 3))
def test_the_indexed_reader_gives_the_samples_of_the_function_applied_by_hand(
    data: Data, name: str, sample: dict[str, Any], stride: int
):
    mixture = mixture_with(data, f"lab_hooks:{name}", sample, stride=stride)
    wanted = wanted_by(data, mixture, BY_HAND[name][1], sample, stride)
    check(wanted, read_from_index(mixture))


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_the_stream_reader_gives_the_samples_of_the_function_applied_by_hand(data: Data, name: str):
    mixture = mixture_with(data, f"lab_hooks:{name}", stride=1 + (name == "barred"))
    stride = mixture.datasets[0].stride
    wanted = wanted_by(data, mixture, BY_HAND[name][1], WINDOW, stride)
    check(wanted, read_from_stream(mixture))


OCTO: dict[str, Hand] = {
    **{name: BY_HAND[name][1] for name in ("drop_first", "strided", "renamed", "rebuilt")},
    "named": lambda one: (
        replace(one, language=[one.metadata["episode_metadata/file_path"]] * len(one.action)),
        None,
    ),
}


@pytest.mark.parametrize("read", [read_from_index, read_from_stream])
def test_functions_written_for_octo_run_unchanged(data: Data, read: Any):
    for name, hand in OCTO.items():
        mixture = mixture_with(data, f"octo_hooks:{name}", framework="tensorflow")
        check(wanted_by(data, mixture, hand, WINDOW), read(mixture))


# --- dropped, barred, failed --------------------------------------------------------------------


def test_an_exception_quarantines_the_episode_with_its_reason_in_both_readers(data: Data):
    mixture = mixture_with(data, "lab_hooks:fails_late")
    (damaged,) = open_dataset_index(mixture.datasets[0]).damaged
    assert (damaged.slice, damaged.record) == (0, 2)
    assert "lab_hooks:fails_late raised KeyError: 'no depth here' (lab_hooks.py, line" in damaged[2]
    empty = [one for one in episodes_of_pass(mixture) if isinstance(one, EmptyEpisode)]
    assert [(one.place.shard, one.place.record, one.reason) for one in empty] == [damaged]


def test_a_function_runs_once_for_an_episode_and_its_results_are_kept(data: Data):
    lab_hooks.calls.clear()
    spec = mixture_with(data, "lab_hooks:counted", version=7)
    tried = len(lab_hooks.calls)
    open_dataset_index(spec.datasets[0])
    assert len(lab_hooks.calls) == tried + len(data.episodes)
    count_mixture(mixture_with(data, "lab_hooks:counted", version=7))
    assert len(lab_hooks.calls) == tried + len(data.episodes)
    open_dataset_index(mixture_with(data, "lab_hooks:counted", version=8).datasets[0])
    assert len(lab_hooks.calls) == 2 * (tried + len(data.episodes))


def test_a_module_that_was_changed_since_its_import_is_refused_until_it_is_loaded_again(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    source = "def pick(episode):\n    episode['action'][:] = {}\n    return episode\n"

    def actions() -> set[float]:
        (dataset,) = mixture_with(data, "edited_lab:pick").datasets
        index = open_dataset_index(dataset)
        return set(np.unique(np.concatenate(list(index.values("column", "action")))).tolist())

    path = tmp_path / "edited_lab.py"
    path.write_text(source.format(1))
    assert actions() == {1.0}
    before = mixture_with(data, "edited_lab:pick").plain()
    path.write_text(source.format(22))
    with pytest.raises(SpecError, match="was changed since this process imported it"):
        actions()
    importlib.reload(importlib.import_module("edited_lab"))
    assert actions() == {22.0}
    with pytest.raises(SpecError, match=r"datasets\[robot\]: the module of its transform"):
        resolve_plain(before)


# --- refusals -----------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"call": "lambda e: e"}, "transform.call", "put the function in a module"),
    ({"call": lab_hooks.same}, "transform.call", "put the function in a module"),
    ({"call": "__main__:f"}, "transform.call", "put the function in a module"),
    ({"call": "lab_hooks.same"}, "transform.call", "my_module:my_function"),
    ({"call": "no_such_lab:f"}, "transform.call", "no module 'no_such_lab'"),
    ({"call": "no_such_lab.oxe:f"}, "transform.call", "No module named 'no_such_lab'"),
    ({"call": "lab_hooks:samee"}, "transform", "has no attribute 'samee'"),
    ({"call": "lab_hooks:not_a_function"}, "transform", "is int, not a function"),
    ({"call": "lab_hooks:same", "kwargs": {"a": 1}}, "transform", "unexpected keyword"),
    ({"call": "lab_hooks:same", "framework": "torch"}, "transform.framework", "numpy"),
    ({"call": "lab_hooks:fails"}, "transform", "KeyError: 'depth'"),
    ({"call": "lab_hooks:ragged"}, "transform", "differ in their number of steps"),
    ({"call": "lab_hooks:returns_list"}, "transform", "list, not a dict"),
    ({"call": "lab_hooks:bad_valid"}, "transform", "'valid' is float32"),
]


@pytest.mark.parametrize(("transform", "path", "words"), REFUSED)
def test_what_cannot_be_is_refused_before_a_process_starts(
    data: Data, transform: dict[str, Any], path: str, words: str
):
    with pytest.raises(SpecError) as error:
        mixture_of(dataset_of(data.written, transform=transform))
    assert error.value.path == f"datasets[robot].{path}"
    assert words in str(error.value)


def test_the_end_of_the_process_that_runs_tensorflow_functions_is_told(data: Data):
    class Gone:
        def __reduce__(self) -> Any:
            return (exit, (0,))

    with pytest.raises(FunctionFailedError, match="ended"):
        ask_elsewhere(Gone())
