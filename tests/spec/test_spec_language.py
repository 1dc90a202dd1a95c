"""The spec language: what it takes, what it refuses, and that a refusal helps."""

import ast
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import autoloader.spec
from autoloader.errors import SpecError
from autoloader.spec import PipelineSpec, SampleSpec
from autoloader.spec.reading import parse_yaml

PLAIN: dict[str, Any] = {
    "schema_version": 1,
    "datasets": [{"name": "bridge", "path": "/data/bridge/1.0.0", "action": "action",
                  "images": {"primary": "observation/image_0"}}],
    "cameras": {"primary": {"size": [32, 48]}},
}  # fmt: skip
FULL: dict[str, Any] = {
    "schema_version": 1, "seed": 7, "reader": "stream",
    "datasets": [
        {
            "name": "bridge", "path": "/data/bridge/1.0.0", "stride": 5, "weight": 0.5,
            "split": {"train": "train[:90%]", "val": None},
            "images": {"primary": "observation/image_0",
                       "wrist": {"any_of": ["observation/image_1", "observation/image_2"]}},
            "action": [
                "action/world_vector",
                {"path": "action/open_gripper[-1:]", "ops": [{"clip": [0, 1]}, "invert"]},
                {"path": "action/angle[2]", "ops": [{"scale": 0.5}]},
                {"zeros": 2},
            ],
            "state": ["observation/state[:3]", {"zeros": 1}],
            "language": {"any_of": ["language_instruction", "language_instruction_2"]},
            "sample": {"frame_offsets": [0, 10], "edges": {"start": "drop"}, "per_episode": 3},
        },
        {"name": "rt1", "tfds": "rt1:1.0.0", "data_dir": "/data", "action": "action[:7]"},
    ],
    "weights": "natural_scaled",
    "sample": {
        "frame_offsets": [0, 5], "state_offsets": [-1, 0], "action_start": -2, "action_horizon": 8,
        "action_reduce": "sum", "edges": {"start": "zero", "end": "drop"}, "per_episode": "all",
    },
    "cameras": {"primary": {"size": [256, 320], "resize": "lanczos3", "fit": "crop"},
                "wrist": {"size": [128, 128], "resize": "area", "fit": "pad"}},
    "pad_to": {"action": 14, "state": 8},
    "batch": {"size": 12, "drop_last": False},
    "metadata": "dataset_only",
    "mixing": {"strategy": "python", "block_length": 4, "on_stall": "wait", "epoch": 1000},
    "errors": {"max_corrupt_ratio": 0.1},
    "validation": {"samples": 96},
}  # fmt: skip


def changed(place: str, value: Any, base: dict[str, Any] = PLAIN) -> dict[str, Any]:
    """``base`` with one value replaced; ``datasets.0.weight`` names it."""
    raw = copy.deepcopy(base)
    holder: Any = raw
    *parents, leaf = place.split(".")
    for part in parents:
        holder = holder[int(part)] if isinstance(holder, list) else holder.setdefault(part, {})
    holder[int(leaf) if isinstance(holder, list) else leaf] = value
    return raw


def refused(raw: dict[str, Any]) -> SpecError:
    with pytest.raises(SpecError) as caught:
        PipelineSpec.from_mapping(raw)
    assert caught.value.remedy
    assert caught.value.exit_code == 2
    return caught.value


# --- what it takes ------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [PLAIN, FULL], ids=["plain", "full"])
def test_a_spec_written_out_and_read_again_is_the_same(raw: dict[str, Any]):
    spec = PipelineSpec.from_mapping(raw)
    plain = json.loads(json.dumps(spec.model_dump(mode="json")))
    assert PipelineSpec.from_mapping(plain) == spec


def test_the_defaults_are_the_documented_ones():
    spec = PipelineSpec.from_mapping(PLAIN)
    assert (spec.seed, spec.reader, spec.weights, spec.metadata) == (0, "auto", "explicit", "full")
    assert (spec.batch.size, spec.batch.drop_last) == (48, True)
    assert (spec.mixing.strategy, spec.mixing.block_length) == ("python", 1)
    assert (spec.mixing.on_stall, spec.mixing.epoch) == ("auto", "auto")
    assert spec.errors.max_corrupt_ratio == 0.01
    assert spec.validation.samples == 960
    assert spec.sample.frame_offsets == (0,)
    assert spec.sample.per_episode == "all"
    assert dict(spec.datasets[0].split) == {"train": "train"}
    camera = spec.cameras["primary"]
    assert (camera.size, camera.resize, camera.fit) == ((32, 48), "bilinear", "stretch")


def test_a_weight_that_would_change_nothing_is_refused_with_what_to_do():
    natural = PLAIN | {"weights": "natural"}
    error = refused(changed("datasets.0.weight", 2, natural))
    assert "datasets[bridge].weight: 2 changes nothing" in str(error)
    assert "natural_scaled (weight × samples)" in error.remedy
    for weight in (0, 1):  # no samples for now, and the usual
        spec = PipelineSpec.from_mapping(changed("datasets.0.weight", weight, natural))
        assert spec.datasets[0].weight == weight


def test_the_json_schema_names_every_block_and_describes_every_field():
    schema = PipelineSpec.model_json_schema()
    json.dumps(schema)
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(PipelineSpec.model_fields)
    for block in ("DatasetSpec", "CameraSpec", "BatchSpec", "MixingSpec", "SampleSpec"):
        assert schema["$defs"][block]["additionalProperties"] is False
    for name, own in schema["$defs"]["DatasetSpec"]["properties"].items():
        assert own.get("description") or "$ref" in own or name == "sample", name
    _, written, _ = schema["$defs"]["DatasetSpec"]["properties"]["language"]["anyOf"]
    assert written["properties"]["several"] == {"enum": ["first", "draw"]}
    assert written["properties"]["any_of"]["items"] == {"type": "string"}


# --- what it refuses ----------------------------------------------------------------------------


def bad(place: str, *values: Any, at: str = "") -> list[tuple[str, Any, str]]:
    """(place, value, what the refusal names) of values that ``place`` does not take."""
    return [
        (place, value, place.replace("datasets.0", "datasets[bridge]") + at) for value in values
    ]


def ops(*each: Any) -> list[dict[str, Any]]:
    return [{"path": "a", "ops": one} for one in each]


BAD_KEYS: list[dict[str, str]] = [{}, {"key": "always"}, {"key": "{a"}, {"key": "{a:5}"}]
BAD_VALUES = [
    *bad("datasets.0.weight", float("inf"), float("nan"), 1e308),
    ("datasets.0.name", "a b", "datasets[a b].name"),
    *bad("datasets.0.images", {"primary": 5}, {"primary": {"any_of": []}}, at=".primary"),
    *bad("datasets.0.action", [], {"zeros": 2}, ["a", {"zeros": 0}], "a[]", "a[x]", "a[1:2:3:4]"),
    *bad("datasets.0.action", "a[::0]", {"path": "a", "opps": []}, *ops(["square"], 5, None)),
    *bad("datasets.0.action", *ops([{"clip": [1, 0]}], [{"clip": [None, 1]}], [{"clip": "01"}])),
    *bad("datasets.0.action", *ops([{"clip": [0]}], [{"scale": "2"}], [{"scale": float("inf")}])),
    *bad("datasets.0.language", {"any": ["a"]}),
    *bad("datasets.0.split", {"train": 5}, at=".train"),
    ("datasets.0", "bridge", "datasets[0]"),
    *bad("datasets", "bridge"),
    *bad("sample.frame_offsets", 5),
    *bad("sample.frame_offsets", [0, 10**30], at="[1]"),
    *bad("sample.frame_offsets", [0.5], at="[0]"),
    *bad("sample.action_start", 10**30),
    *bad("sample.action_reduce", "mean"),
    *bad("sample.per_episode", 0, "some"),
    *bad("datasets.0.sample", {"per_episode": 0}, at=".per_episode"),
    *bad("sample.goal", "random", True),
    *bad("datasets.0.sample", {"goal": "last"}, at=".goal"),
    *bad("sample.action_relative_to_state", [-1], at="[0]"),
    *bad("sample.action_relative_to_state", [0, 0], "[:6]"),
    *bad("datasets.0.sample.action_relative_to_state", [1, 2, 1]),
    *bad("datasets.0.keep", {}, "all", {"langauge": "required"}),
    *bad("datasets.0.keep", {"language": True}, at=".language"),
    *bad("datasets.0.keep", {"match": "x"}, {"match": {"a/b": "("}}, at=".match"),
    *bad("datasets.0.keep", {"match": {"a/b": 5}}, at=".match.a/b"),
    *bad("datasets.0.keep", {"ranges": "keep.json"}, at=".ranges"),
    *bad("datasets.0.keep.ranges", *({"file": "k"} | key for key in BAD_KEYS), at=".key"),
    *bad("cameras", {}),
    *bad("cameras.primary.size", [256]),
    *bad("pad_to", {"acton": 7}, at=".acton"),
    *bad("pad_to", {"action": 0}, at=".action"),
    *bad("batch.drop_last", "perhaps"),
    *bad("mixing.on_stall", "skip"),
    *bad("mixing.epoch", 0),
    *bad("validation.per_dataset", "each"),
]


@pytest.mark.parametrize(("place", "value", "path"), BAD_VALUES, ids=lambda v: str(v)[:40])
def test_a_bad_value_is_refused_with_its_path_and_a_remedy(place: str, value: Any, path: str):
    error = refused(changed(place, value))
    assert error.path == path
    assert path in error.what
    assert "Traceback" not in error.what


@pytest.mark.parametrize(
    ("mixing", "reader", "words", "remedy"),
    [
        ({"chain": True}, "auto", "a block of one sample", "leave chain"),
        ({"chain": True, "block_length": 4}, "stream", "reader: stream", "leave mixing.chain"),
        ({"strategy": "choose", "on_stall": "owe"}, "auto", "choose waits", "strategy: python"),
        ({"locality": {}}, "stream", "reader: stream", ""),
        ({"locality": {"lanes": 2}, "chain": True, "block_length": 4}, "auto", "lanes above 1", ""),
        ({"locality": {"block": "1kB"}}, "auto", "'1kB'", "at least 65536 bytes"),
        ({"locality": {"windows": 4}}, "auto", "windows", ""),
    ],
)
def test_what_a_mixing_cannot_be_together_is_refused(
    mixing: dict[str, Any], reader: str, words: str, remedy: str
):
    error = refused({**PLAIN, "mixing": mixing, "reader": reader})
    assert words in error.what
    assert remedy in error.remedy


def test_choose_waits():
    assert PipelineSpec.from_mapping({**PLAIN, "mixing": {"strategy": "choose"}}).mixing.waits


@pytest.mark.parametrize(
    ("own", "key"),
    [({"frame_offsets": [0, 1]}, "frame_offsets"), ({"state_offsets": [0, 1]}, "state_offsets"),
     ({"action_horizon": 4}, "action_horizon"), ({"goal": "uniform"}, "goal")],
)  # fmt: skip
def test_shapes_must_agree_over_datasets(own: dict[str, Any], key: str):
    raw = copy.deepcopy(PLAIN)
    raw["datasets"].append({**raw["datasets"][0], "name": "other", "sample": own})
    error = refused(raw)
    assert key in error.what
    assert "'other'" in error.what


@pytest.mark.parametrize(
    ("own", "word"),
    [({"tfds": "x:1.0.0"}, "both"), ({"path": None}, "neither"),
     ({"path": None, "tfds": "x:1.0.0"}, "data_dir")],
)  # fmt: skip
def test_a_dataset_lies_in_one_place(own: dict[str, Any], word: str):
    raw = copy.deepcopy(PLAIN)
    raw["datasets"][0].update(own)
    error = refused(raw)
    assert word in error.what + error.remedy


# --- files --------------------------------------------------------------------------------------


def write(folder: Path, text: str) -> Path:
    path = folder / "mix.yaml"
    path.write_text(text, encoding="utf-8")
    return path


DATASETS = """
datasets:
  - {name: a, path: a/1.0.0, images: {primary: image}}
  - {name: b, path: /far/b/1.0.0, images: {primary: image}, split: {val: "train[95%:]"}}
  - {name: c, tfds: "c:1.0.0", images: {primary: image}, weight: 3, language: null}
cameras: {primary: {size: [8, 8]}}
"""


def test_defaults_fill_what_a_dataset_leaves_out_and_mappings_merge(tmp_path: Path):
    text = (
        'defaults: {data_dir: oxe, weight: 2, language: words, split: {train: "train[:95%]", '
        "val: val}}" + DATASETS
    )
    a, b, c = PipelineSpec.from_yaml(write(tmp_path, text)).datasets
    assert (a.weight, c.weight) == (2, 3)
    assert dict(b.split) == {"train": "train[:95%]", "val": "train[95%:]"}
    assert a.language is not None
    assert c.language is None
    assert a.data_dir is None
    assert c.data_dir == str(tmp_path / "oxe")


def test_relative_paths_start_at_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path, "defaults: {data_dir: .}" + DATASETS)
    monkeypatch.chdir("/")
    a, b, _ = PipelineSpec.from_yaml(path).datasets
    assert a.path == str(tmp_path / "a/1.0.0")
    assert b.path == "/far/b/1.0.0"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
PLACES = sorted({place for place, _, _ in BAD_VALUES} | {"defaults", "defaults.num_samples"})


@given(st.sampled_from(PLACES), JUNK)
def test_whatever_a_spec_says_the_answer_is_a_spec_or_a_spec_error(place: str, value: Any):
    remedy = "none needed"
    try:
        PipelineSpec.from_mapping(changed(place, value))
    except SpecError as error:
        remedy = error.remedy
    assert remedy


def test_defaults_are_named_so_that_every_type_checker_sees_them():
    """pyright takes ``Field(1)`` for a field without a default; ``Field(default=1)`` has one."""
    for path in Path(autoloader.spec.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Field":
                assert not node.args, f"{path}:{node.lineno}"


FILE = """\
defaults: {weight: 2}
datasets:
  - name: bridge
    path: bridge/1.0.0
    images: {primary: observation/image_0}
cameras:
  primary: {size: [32, 48]}
batch: {size: 4}
"""
LINES = [
    ("images:", "camera:", "line 5: datasets[bridge]: unknown key 'camera'"),
    ("{primary: obs", "{front: obs", "line 5: datasets[bridge].images: there is no camera 'front'"),
    ("weight: 2", "weight: -2", "line 1: datasets[bridge].weight: -2 is"),
    ("[32, 48]", "32", "line 7: cameras.primary.size: 32 is"),
    ("size: 4", "size: 0", "line 8: batch.size: 0 is"),
    ("    path", "   path", "line 4: 'path: bridge/1.0.0' is indented differently"),
    ("primary: {", "\tprimary: {", "line 7: 'primary: {size: [32, 48]}' has a tab"),
    ("[32, 48]", "[32, 48", "line 7: 'primary: {size: [32, 48}' has a bracket that"),
    ("batch:", "cameras:", "line 8: 'cameras: {size: 4}' repeats a key of its block"),
    ("  primary:", "  <<: {a: 1}\n  primary: 1\n  primary:", "line 9: 'primary: {size: [32, 48]}'"),
    ("path: bridge", "path: a: b", "line 4: 'path: a: b/1.0.0' has a colon"),
]


@pytest.mark.parametrize(("old", "new", "told"), LINES, ids=lambda v: v[:20])
def test_a_fault_of_a_file_is_told_with_the_file_and_the_line(
    tmp_path: Path, old: str, new: str, told: str
):
    assert FILE.count(old) == 1
    place = tmp_path / "mix.yaml"
    place.write_text(FILE.replace(old, new))
    with pytest.raises(SpecError) as caught:
        PipelineSpec.from_yaml(place)
    assert caught.value.what.startswith(f"{place}, {told}")


BLOCKS = (
    "cameras", "cameras.primary", "datasets.0", "datasets.0.images", "datasets.0.features",
    "datasets.0.split", "datasets.0.sample", "datasets.0.keep", "datasets.0.keep.match",
    "datasets.0.keep.ranges", "datasets.0.keep.moving", "datasets.0.transform", "datasets.0.steps",
    "datasets.0.sample_weight",
    "datasets.0.normalize", "datasets.0.normalize.action", "sample", "sample.edges",
    "sample.delta_timestamps", "normalize", "normalize.action", "normalize.group", "pad_to",
    "augment", "batch", "batch.gives", "mixing", "mixing.locality", "errors", "validation",
)  # fmt: skip


@pytest.mark.parametrize("place", BLOCKS)
def test_what_is_no_block_is_refused_with_its_keys_or_an_example_that_holds(place: str):
    plain: dict[str, Any] = copy.deepcopy(PLAIN)
    plain["datasets"][0] |= {"action": "action", "language": "text", "images": {"primary": "image"}}
    *above, key = place.split(".")
    holder: Any = plain
    for part in above:
        holder = holder[int(part)] if part.isdigit() else holder.setdefault(part, {})
    if key == "gives":
        holder["call"] = "json:loads"
    if above == ["normalize"] and key != "action":
        holder["action"] = {"method": "q01_q99"}
    which: Any = int(key) if key.isdigit() else key
    holder[which] = 3.5
    with pytest.raises(SpecError, match="is not allowed") as caught:
        PipelineSpec.from_mapping(plain)
    told = caught.value.remedy.partition("such as ")[2]
    if not told:
        assert "a block of keys and values; its keys: " in caught.value.remedy
        return
    holder[which] = parse_yaml(told)
    if which == 0:
        holder[0]["images"] = {"primary": "image"}
    if place == "normalize.group":
        plain["datasets"][0]["name"] = "bridge"
    PipelineSpec.from_mapping(plain)


def test_a_spec_made_in_python_is_refused_in_the_same_words():
    with pytest.raises(SpecError, match=r"datasets: \(\) lists no dataset") as caught:
        PipelineSpec(datasets=(), cameras=PipelineSpec.from_mapping(PLAIN).cameras)
    assert caught.value.path == "datasets"


def test_a_goal_is_one_more_frame_to_read():
    assert SampleSpec(frame_offsets=(-1, 0)).decodes == 2
    assert SampleSpec(frame_offsets=(0, -1, 0), goal="uniform").decodes == 3
