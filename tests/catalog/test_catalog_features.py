"""Feature trees: paths, keys, kinds, shapes and encodings in every way of writing them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.errors import SourceError
from autoloader.formats.features import RAGGED_LENGTHS, RAGGED_VALUES, Feature, parse_features

CORE = "tensorflow_datasets.core.features."


def node(class_name: str, **content: Any) -> dict[str, Any]:
    return {"pythonClassName": CORE + class_name, **content}


def group(**features: Any) -> dict[str, Any]:
    return node("features_dict.FeaturesDict", featuresDict={"features": features})


def steps(**features: Any) -> dict[str, Any]:
    inner = {"feature": group(**features), "length": "-1"}
    return group(steps=node("dataset_feature.Dataset", sequence=inner))


def shape(*sizes: int) -> dict[str, Any]:
    return {"dimensions": [str(size) for size in sizes]} if sizes else {}


def tensor(dtype: str, *sizes: int, **more: Any) -> dict[str, Any]:
    return node(
        "tensor_feature.Tensor",
        tensor={"shape": shape(*sizes), "dtype": dtype, "encoding": "none", **more},
    )


def image(**content: Any) -> dict[str, Any]:
    return node("image_feature.Image", image=content)


def parse_one(feature: dict[str, Any]) -> Feature:
    return parse_features(steps(x=feature), source="here")["x"]


def test_a_per_step_feature_keeps_its_path_when_the_episode_has_the_same():
    document = steps(language=node("text_feature.Text", text={}))
    for order in (1, -1):
        pairs = [*document["featuresDict"]["features"].items(), ("language", tensor("int64"))][
            ::order
        ]
        features = parse_features(group(**dict(pairs)), source="here")
        assert features["language"].key == "steps/language"


@pytest.mark.parametrize(
    "feature",
    [
        node("video_feature.Video", video={"shape": shape(-1, 8, 8, 3), "dtype": "uint8"}),
        node("audio_feature.Audio", audio={"dtype": "int64"}),
        node("translation_feature.Translation", translation={"languages": ["en"]}),
        {"pythonClassName": "my_lab.features.Gripper", "jsonFeature": {"json": "{}"}},
        {"pythonClassName": "my_lab.features.Nothing"},
        node("sequence_feature.Sequence", sequence={"feature": image(), "length": "3"}),
        node("sequence_feature.Sequence", sequence={"feature": tensor("int64", -1), "length": "3"}),
        tensor("float32", -1, -1),
    ],
)
def test_what_is_stored_in_another_way_is_other(feature: dict[str, Any]):
    assert parse_one(feature).kind == "other"


def test_the_older_way_of_writing_means_the_same():
    def old(class_name: str, content: Any, **more: Any) -> dict[str, Any]:
        return {"type": CORE + class_name, "content": content, **more}

    inner = old(
        "features_dict.FeaturesDict",
        {
            "image": old(
                "image_feature.Image",
                {"shape": [None, None, 3], "dtype": "uint8", "encoding_format": "jpeg"},
            ),
            "state": old(
                "tensor_feature.Tensor",
                json.dumps({"shape": {"dimensions": ["8"]}, "dtype": "float32"}),
                proto_cls="tensorflow_datasets.TensorFeature",
            ),
            "text": old("text_feature.Text", {}),
            "done": old("tensor_feature.Tensor", {"shape": [], "dtype": "<dtype: 'bool'>"}),
            "coded": old("text_feature.Text", {"use_encoder": True}),
        },
    )
    dataset = old("dataset_feature.Dataset", {"feature": inner, "length": None})
    found = parse_features(old("features_dict.FeaturesDict", {"steps": dataset}), source="x")
    new = parse_features(
        steps(
            image=image(shape=shape(-1, -1, 3), dtype="uint8", encodingFormat="jpeg"),
            state=tensor("float32", 8),
            text=node("text_feature.Text", text={}),
            done=tensor("bool"),
        ),
        source="x",
    )
    assert found.pop("coded").kind == "other"
    assert found == new


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"a": 1},
        tensor("float32"),
        steps(x=[]),
        steps(x={}),
        steps(x=tensor("float32") | {"tensor": {"shape": {"dimensions": ["x"]}}}),
        {"pythonClassName": "x", "featuresDict": {"features": []}},
        {"type": "FeaturesDict", "content": "{"},
    ],
)
def test_what_is_no_feature_tree_is_a_source_error_with_its_origin(document: Any):
    with pytest.raises(SourceError, match="over here"):
        parse_features(document, source="over here")


NAMES = [
    "type", "content", "featuresDict", "features", "sequence", "feature", "tensor", "shape",
    "dimensions", "dtype", "image", "pythonClassName", "steps", "encoding",
]  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(NAMES), below, max_size=4)
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_json_gives_features_or_a_source_error(value: Any):
    document = {"pythonClassName": "x", "featuresDict": {"features": {"steps": value}}}
    try:
        features = parse_features(document, source="here")
    except SourceError:
        return
    assert all(feature.path == path for path, feature in features.items())


def test_keys_and_counts_are_those_that_tfds_writes():
    tfds = pytest.importorskip("tensorflow_datasets", reason="needs tfds")
    import numpy as np
    from tensorflow_datasets.core import example_serializer

    from autoloader.formats.records import parse_example

    kinds = tfds.features
    tree = kinds.FeaturesDict(
        {
            "steps": kinds.Dataset(
                {
                    "observation": {
                        "wrist/image": kinds.Image(shape=(8, 8, 3), encoding_format="png"),
                        "depth": kinds.Image(
                            shape=(8, 8, 1), dtype=np.uint16, encoding_format="png"
                        ),
                        "state": kinds.Tensor(shape=(2, 3), dtype=np.float64),
                        "packed": kinds.Tensor(shape=(4,), dtype=np.uint8, encoding="zlib"),
                    },
                    "action": {"grip": np.int8, "label": kinds.ClassLabel(num_classes=3)},
                    "language": kinds.Text(),
                    "note": kinds.Tensor(shape=(), dtype=np.str_),
                    "done": kinds.Scalar(np.bool_),
                    "ragged": kinds.Sequence(np.int64),
                }
            ),
            "episode_metadata": {"id": kinds.Tensor(shape=(3,), dtype=np.int32)},
            "marks": kinds.Sequence(np.float32),
        }
    )
    step = {
        "observation": {
            "wrist/image": np.zeros((8, 8, 3), np.uint8),
            "depth": np.zeros((8, 8, 1), np.uint16),
            "state": np.zeros((2, 3)),
            "packed": np.zeros(4, np.uint8),
        },
        "action": {"grip": 1, "label": 2},
        "language": "go",
        "note": "x",
        "done": True,
        "ragged": [1, 2],
    }
    episode = {"steps": [step] * 3, "episode_metadata": {"id": [1, 2, 3]}, "marks": [1.0, 2.0]}
    serializer = example_serializer.ExampleSerializer(tree.get_serialized_info())
    record = parse_example(serializer.serialize_example(tree.encode_example(episode)))
    features = parse_features(tree.to_json(), source="tfds")
    ragged = features.pop("ragged")
    assert (ragged.kind, ragged.shape, ragged.encoding) == ("tensor", (None,), "ragged")
    values, lengths = (record[f"{ragged.key}/{part}"] for part in (RAGGED_VALUES, RAGGED_LENGTHS))
    assert (len(values), lengths.values.tolist()) == (6, [2, 2, 2])
    per_step = {"observation/state": 6}
    for feature in features.values():
        assert feature.kind != "other", feature
        expected = 3 * per_step.get(feature.path, 1) if feature.per_step else None
        if expected is not None:
            assert len(record[feature.key]) == expected, feature
    assert len(record["marks"]) == 2
    assert features["observation/depth"].dtype == "uint16"
    assert features["observation/packed"].encoding == "zlib"
    assert features["note"].kind == "text"
    assert {feature.key for feature in features.values()} <= set(record)
