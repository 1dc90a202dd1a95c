"""Steps and ops that see whole episodes: by their rules, in both readers, under every window."""

import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episode_rules import binarise, rel2abs, rotation, rotation_of
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_samples import Episode, Sample, samples_of
from rlds_files import PLAIN, TEXT, episode, numbers, write_dataset
from streams import dataset_of, mixture_of
from test_both_readers import PASSES, Data, Key, check, read_from_index, read_from_stream, samples

from autoloader.cli.witness import stages
from autoloader.errors import SpecError
from autoloader.index import count_indexed, open_dataset_index
from autoloader.samples.resolve import ResolvedMixture
from autoloader.samples.transforms import fields
from autoloader.spec import FieldTerm
from autoloader.spec.fields import FieldOp

SHARDS = [[5, 1, 9], [2, 7], [12]]
SUCCESS = {0: True, 1: True, 2: False, 3: True, 4: True, 5: True}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Episodes with a relative and an absolute gripper, a pose, and a packed vector."""
    features = {
        **PLAIN,
        "relative": numbers(),
        "absolute": numbers(2),
        "packed": numbers(2, dtype="float32", encoding="zlib"),
        "success": numbers(dtype="bool"),
        "episode_metadata/file_path": TEXT,
    }
    random = np.random.default_rng(3)
    found: dict[tuple[int, int], Episode] = {}
    shards = []
    for shard, lengths in enumerate(SHARDS):
        records = []
        for record, steps in enumerate(lengths):
            number = sum(map(len, SHARDS[:shard])) + record
            relative = random.choice([-1, -0.1, 0, 0, 0.1, 0.11, 1], steps).astype(np.float32)
            absolute = random.choice([0, 0.05, 0.3, 0.7, 0.96, 1], (steps, 2)).astype(np.float32)
            packed = random.normal(size=(steps, 2)).astype(np.float32)
            state = random.normal(size=(steps, 3)).astype(np.float32)
            values = episode(
                number,
                steps,
                **{
                    "observation/state": [float(v) for v in state.ravel()],
                    "relative": [float(v) for v in relative],
                    "absolute": [float(v) for v in absolute.ravel()],
                    "packed": [zlib.compress(row.tobytes()) for row in packed],
                    "success": [int(SUCCESS[number])] * steps,
                    "episode_metadata/file_path": [f"/lab/{number}".encode()],
                },
            )
            records.append(values)
            found[shard, record] = Episode(
                frames={"primary": values["observation/image"]},
                action=np.concatenate([relative[:, None], absolute, packed], axis=1),
                state=state,
                language=[f"episode {number}"] * steps,
                metadata={"episode_metadata/file_path": f"/lab/{number}"},
            )
        shards.append(records)
    folder = tmp_path_factory.mktemp("ops")
    return Data(write_dataset(folder, shards, features=features), found)


FIELDS = {
    "action": [
        {"path": "observation/state[:2]", "ops": ["relabel"]},
        {"path": "relative", "ops": ["rel2abs"]},
        {"path": "absolute[1]", "ops": ["binarise", "invert"]},
        {"ones": 1},
        "packed[1:]",
    ],
    "state": [{"path": "observation/state", "ops": [{"scale": 2}, {"quaternion": "xyzw"}]}],
}


def by_hand(one: Episode, drop_first: int, every: int, drop_last: int) -> Episode | None:
    """What the fields above are of an episode."""
    taken = slice(drop_first, None, every)
    action, state = one.action[taken], one.state[taken]
    if len(action) <= drop_last:
        return None
    moved = np.concatenate([state[1:, :2] - state[:-1, :2], np.zeros((1, 2), np.float32)])
    columns = [
        moved,
        rel2abs(action[:, 0])[:, None],
        np.float32(1) - binarise(action[:, 2])[:, None],
        np.ones((len(action), 1), np.float32),
        action[:, 4:],
    ]
    stop = len(action) - drop_last
    return replace(
        one,
        frames={camera: frames[taken][:stop] for camera, frames in one.frames.items()},
        action=np.concatenate(columns, axis=1)[:stop],
        state=fields.quaternion(np.float32(2) * state, "xyzw")[:stop],
        language=one.language[taken][:stop],
    )


def wanted_of(
    data: Data, mixture: ResolvedMixture, steps: dict[str, int], sample: Any, **own: Any
) -> dict[Key, Sample]:
    (dataset,) = mixture.datasets
    wanted = {}
    for place, one in data.episodes.items():
        made = by_hand(one, **steps)
        for pass_ in range(PASSES if made is not None else 0):
            assert made is not None
            found = samples_of(made, sample, (pass_, *place), key=dataset.key, **own)
            wanted |= {(pass_, *place, t): each for t, each in found.items()}
    return wanted


DROPS = st.fixed_dictionaries(
    {"drop_first": st.integers(0, 2), "every": st.integers(1, 3), "drop_last": st.integers(1, 2)}
)


@given(DROPS, samples(), st.integers(1, 3))
def test_ops_see_the_whole_episode_whatever_windows_take_of_it(
    data: Data, steps: dict[str, int], sample: dict[str, Any], stride: int
):
    mixture = mixture_of(
        dataset_of(data.written, **FIELDS, steps=steps, stride=stride), sample=sample
    )
    check(wanted_of(data, mixture, steps, sample, stride=stride), read_from_index(mixture))


@given(DROPS, samples(), st.integers(1, 3))
@settings(max_examples=4)
def test_the_stream_reader_gives_the_same(
    data: Data, steps: dict[str, int], sample: dict[str, Any], stride: int
):
    mixture = mixture_of(
        dataset_of(data.written, **FIELDS, steps=steps, stride=stride), sample=sample
    )
    check(wanted_of(data, mixture, steps, sample, stride=stride), read_from_stream(mixture))


SAMPLE: dict[str, Any] = {
    "frame_offsets": [-1, 0], "state_offsets": [0], "action_start": 0, "action_horizon": 3,
    "action_reduce": "none", "action_relative_to_state": [], "edges": {"start": "zero",
    "end": "repeat"}, "goal": "none", "per_episode": "all",
}  # fmt: skip


@pytest.mark.parametrize("read", [read_from_index, read_from_stream])
def test_rules_of_keep_speak_of_the_steps_that_are_left(data: Data, read: Any):
    steps = {"drop_first": 1, "every": 1, "drop_last": 1}
    keep = {
        "match": {"episode_metadata/file_path": "[0245]$"},
        "flags": ["success"],
        "moving": {"path": "observation/state[:2]", "above": [0.5, 1.0]},
    }
    mixture = mixture_of(dataset_of(data.written, **FIELDS, steps=steps, keep=keep), sample=SAMPLE)
    (dataset,) = mixture.datasets
    wanted = {}
    for place, one in data.episodes.items():
        made = by_hand(one, **steps)
        number = int(one.metadata["episode_metadata/file_path"][-1])
        if made is None or number in (1, 3) or not SUCCESS[number]:
            continue
        state = one.state[1:-1]
        moves = (abs(state[:, 0]) > 0.5) | (abs(state[:, 1]) > 1)
        for pass_ in range(PASSES):
            found = samples_of(made, SAMPLE, (pass_, *place), key=dataset.key, valid=moves.tolist())
            wanted |= {(pass_, *place, t): each for t, each in found.items()}
    assert 0 < len(wanted) < PASSES * 20
    check(wanted, read(mixture))
    rules = [one.rule for one in count_indexed(open_dataset_index(dataset)).lost]
    assert rules == ["steps", "keep.moving", "keep.match.episode_metadata/file_path",
                     "keep.flags.success"]  # fmt: skip


def test_a_users_function_comes_first_and_the_ops_see_what_it_gives(data: Data):
    steps = {"drop_first": 1, "every": 1, "drop_last": 1}
    transform = {"call": "lab_hooks:strided", "kwargs": {"every": 2}}
    fields = {**FIELDS, "state": "observation/state"}
    declared = dataset_of(data.written, **fields, steps=steps, transform=transform)
    mixture = mixture_of(declared, sample=SAMPLE)
    halved = {
        place: replace(
            one,
            frames={camera: frames[::2] for camera, frames in one.frames.items()},
            action=one.action[::2],
            state=one.state[::2],
            language=one.language[::2],
        )
        for place, one in data.episodes.items()
    }
    (dataset,) = mixture.datasets
    wanted = {}
    for place, one in halved.items():
        made = by_hand(one, **steps)
        for pass_ in range(PASSES if made is not None else 0):
            assert made is not None
            made = replace(made, state=one.state[1:-1])
            found = samples_of(made, SAMPLE, (pass_, *place), key=dataset.key)
            wanted |= {(pass_, *place, t): each for t, each in found.items()}
    check(wanted, read_from_index(mixture))
    check(wanted, read_from_stream(mixture))


def test_steps_that_a_function_bars_stay_barred_when_others_are_dropped(data: Data):
    declared = dataset_of(
        data.written,
        steps={"drop_first": 1, "every": 2},
        transform={"call": "lab_hooks:relabelled"},
    )
    (dataset,) = mixture_of(declared).datasets
    index = open_dataset_index(dataset)
    wanted = []
    for one in data.episodes.values():
        given_steps = range(len(one.action) - 1)  # the function takes the first
        wanted += [t % 5 != 1 for t in list(given_steps)[1::2]]
    assert index.valid_steps().tolist() == wanted
    assert {True, False} == set(wanted)


def test_an_index_is_built_anew_where_the_ops_change_and_only_there(data: Data):
    def identity(**own: Any) -> str:
        (dataset,) = mixture_of(dataset_of(data.written, **own)).datasets
        return dataset.transform.identity

    rel = {"path": "relative", "ops": ["rel2abs"]}
    first = identity(action=rel)
    assert identity(action=rel, weight=2.0, stride=2) == first
    others = [
        identity(action={"path": "relative", "ops": ["rel2abs", "invert"]}),
        identity(action=rel, steps={"drop_first": 1}),
        identity(action=rel, steps={"drop_first": 2}),
        identity(action=rel, keep={"moving": {"path": "observation/state", "above": 0.1}}),
        identity(action=rel, keep={"moving": {"path": "observation/state", "above": 0.2}}),
    ]
    assert len({first, *others}) == 6


# --- the rules themselves -----------------------------------------------------------------------

SIGNAL = st.lists(
    st.one_of(
        st.sampled_from([-1.0, 0.0, 1.0, -0.1, 0.1, 0.05, 0.95, math.nan]),
        st.floats(-1.5, 1.5, width=32),
    ),
    min_size=1,
    max_size=40,
)


def column(values: list[float]) -> np.ndarray:
    return np.asarray(values, np.float32)[:, None]


@given(SIGNAL)
def test_grippers_follow_their_rules_on_any_signal(values: list[float]):
    signal = column(values)
    for rule in (rel2abs, binarise):
        wanted = np.where(np.isnan(signal), np.nan, rule(signal[:, 0])[:, None])
        op = FieldOp(rule.__name__)
        np.testing.assert_array_equal(fields.apply_op(op, signal), wanted)
        *_, told = stages([{"x": row} for row in signal], FieldTerm("x", ops=(op,)))
        np.testing.assert_array_equal(told, wanted)


ANGLES = st.tuples(st.floats(-3.1, 3.1), st.floats(-1.3, 1.3), st.floats(-3.1, 3.1))


@given(ANGLES, st.sampled_from(["xyzw", "wxyz"]))
def test_angles_and_quaternions_are_the_same_rotation(
    angles: tuple[float, float, float], order: Any
):
    matrix = rotation(*angles)
    given_ = np.asarray([angles], np.float32)
    turned = fields.quaternion(given_, order)
    named = dict(zip(order, turned[0].astype(np.float64), strict=True))
    np.testing.assert_allclose(rotation_of(**named), matrix, atol=2e-6)
    back = fields.euler(turned, order)[0]
    np.testing.assert_allclose(rotation(*back.astype(np.float64)), matrix, atol=1e-5)
    rows = fields.rotation6d(given_)[0]
    np.testing.assert_allclose(rows, matrix[:2].ravel(), atol=2e-6)


@given(ANGLES, st.floats(0.1, 9.0))
def test_every_form_of_a_rotation_has_the_first_two_rows_of_its_matrix(
    angles: tuple[float, float, float], length: float
):
    matrix, (x, y, z) = rotation(*angles), angles
    turned = fields.quaternion(np.asarray([angles], np.float32), "wxyz")[0] * length
    forms = {
        "wxyz": (turned, matrix),
        "xyzw": (turned[[1, 2, 3, 0]], matrix),
        "matrix": (matrix.ravel(), matrix),
        "euler_angles_ypr": ([z, y, x], matrix),
        "euler_angles_rpy": ([x, y, z], rotation(-x, -y, -z).T),
        "axis_angle": ([0.0, y, 0.0], rotation(0.0, y, 0.0)),
    }
    for form, (given_, wanted) in forms.items():
        row = np.asarray([given_], np.float32)
        for rows in (fields.rotation6d(row, form), witness_rotation6d(row, form)):
            np.testing.assert_allclose(rows[0], wanted[:2].ravel(), atol=3e-6, err_msg=form)


def witness_rotation6d(row: np.ndarray, form: str) -> list[np.ndarray]:
    *_, last = stages([{"x": row[0]}], FieldTerm("x", ops=(FieldOp("rotation6d", order=form),)))
    return last


# --- refusals -----------------------------------------------------------------------------------

BINARISE = {"path": "relative", "ops": ["binarise"]}
REFUSED: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"action": {"path": "relative", "ops": ["rel2ab"]}}, "action", ["'rel2ab'", "rel2abs"]),
    ({"action": {"path": "relative", "ops": ["euler"]}}, "action", ["euler", "xyzw"]),
    ({"action": {"path": "relative", "ops": [{"euler": "zyx"}]}}, "action", ["'zyx'", "wxyz"]),
    ({"action": {"path": "relative", "ops": [{"rel2abs": 1}]}}, "action", ["rel2abs", "1"]),
    ({"action": {"path": "relative", "ops": [{"median": 3}]}}, "action", ["median", "binarise"]),
    ({"action": {"path": "absolute", "ops": [{"euler": "xyzw"}]}}, "action", ["4 columns", "2"]),
    ({"action": {"path": "observation/state[:2]", "ops": ["rotation6d"]}}, "action", ["3 columns"]),
    ({"action": {"path": "absolute[2:4]", "ops": ["binarise"]}}, "action", ["absolute", "[0:2]"]),
    ({"action": BINARISE}, "action", ["binarise of 'relative'", "-1", "rel2abs"]),
    ({"action": {"path": "relative", "ops": ["binarise", "rel2abs"]}}, "action", ["a single time"]),
    ({"action": {"path": "relative", "ops": ["rel2abs", "binarise"]}}, "action", ["a single time"]),
    ({"action": {"path": "relative", "ops": ["rel2abs", "rel2abs"]}}, "action", ["a single time"]),
    ({"action": {"path": "packed", "ops": [{"scale": 9}, "rel2abs"]}}, "action", ["takes a rel"]),
    ({"action": {"path": "observation/state", "ops": ["relabel", "relabel"]}}, "action",
     ["a single time"]),
    ({"action": {"path": "observation/state", "ops": ["relabel"]}}, "", ["drop_last: 1"]),
    ({"action": {"ones": 2}}, "action", ["only constants"]),
    ({"action": ["relative", {"ones": 0}]}, "action", ["{ones: N}"]),
    ({"steps": {"drop_frist": 1}}, "steps", ["drop_frist", "drop_first"]),
    ({"steps": {"every": 0}}, "steps.every", ["0", "at least 1"]),
    ({"keep": {"flags": ["relative"]}}, "keep.flags.relative", ["float32", "keep.match"]),
    ({"keep": {"flags": ["succes"]}}, "keep.flags.succes", ["success"]),
    ({"keep": {"moving": {"path": "absolute", "above": [1, 2, 3]}}}, "keep.moving.above",
     ["3 bounds for 2 columns", "give one number for all columns, or a list of 2"]),
    ({"keep": {"moving": {"path": "absolute", "above": -1}}}, "keep.moving.above", ["at least 0"]),
    ({"keep": {"moving": {"path": ["relative", "absolute"], "above": 1}}}, "keep.moving.path", []),
]  # fmt: skip


@pytest.mark.parametrize(("own", "path", "words"), REFUSED)
def test_what_cannot_be_is_refused_with_its_place_and_a_remedy(
    data: Data, own: dict[str, Any], path: str, words: list[str]
):
    with pytest.raises(SpecError) as error:
        mixture_of(dataset_of(data.written, **own))
    assert error.value.path.replace("datasets[robot]", "").lstrip(".").startswith(path)
    for word in words:
        assert word in str(error.value)


def test_a_damaged_packed_tensor_quarantines_its_episode(tmp_path: Path):
    features = {**PLAIN, "packed": numbers(2, encoding="zlib")}
    good = [zlib.compress(np.zeros(2, np.float32).tobytes())] * 3
    wrong = [zlib.compress(bytes(900)), b"no zlib", zlib.compress(bytes(4))]
    records = [episode(0, 3, packed=good)]
    records += [episode(k + 1, 3, packed=[good[0], one, good[0]]) for k, one in enumerate(wrong)]
    written = write_dataset(tmp_path, [records], features=features)
    (dataset,) = mixture_of(dataset_of(written, state="packed")).datasets
    index = open_dataset_index(dataset)
    assert [one.record for one in index.damaged] == [1, 2, 3]
    assert all("packed" in one.reason for one in index.damaged)


def test_the_tf_data_front_door_gives_the_same(data: Data):
    from autoloader.tfdata import as_dataset

    steps = {"drop_first": 1, "every": 2, "drop_last": 1}
    mixture = mixture_of(dataset_of(data.written, **FIELDS, steps=steps), sample=SAMPLE)
    wanted = wanted_of(data, mixture, steps, SAMPLE)
    came = []
    for row in as_dataset(mixture.spec, passes=1).as_numpy_iterator():
        key = tuple(row["provenance"][1:].tolist())
        came.append(key)
        np.testing.assert_array_equal(row["action"], wanted[key].action)
        np.testing.assert_array_equal(row["action_mask"], wanted[key].action_mask)
        np.testing.assert_array_equal(row["state"], wanted[key].state)
        assert row["language"].decode() == wanted[key].language
    assert sorted(came) == sorted(key for key in wanted if key[0] == 0)
