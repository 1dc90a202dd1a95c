"""Field expressions over real features: columns, values, and refusals that name what there is."""

from typing import Any

import pytest

from autoloader.errors import SpecError, UnsupportedError
from autoloader.formats.features import Feature, FeatureKind
from autoloader.samples.transforms.fields import check_same_kind, find_feature, numeric_field
from autoloader.spec import parse_expression


def feature(
    path: str,
    *shape: int | None,
    dtype: str = "float32",
    kind: FeatureKind = "tensor",
    encoding: str | None = None,
    per_step: bool = True,
) -> Feature:
    return Feature(path, f"steps/{path}", kind, dtype, shape, encoding, per_step)


FEATURES = {
    one.path: one
    for one in (
        feature("action/world_vector", 3),
        feature("action/gripper", dtype="float64"),
        feature("pose", 2, 3),
        feature("flag", dtype="bool"),
        feature("image", 8, 8, 3, dtype="uint8", kind="image"),
        feature("depth", 8, 8, 1, dtype="float32", kind="image"),
        feature("depth16", 8, 8, 1, dtype="uint16", kind="image"),
        feature("rgba", 8, 8, 4, dtype="uint8", kind="image"),
        feature("words", dtype="string", kind="text"),
        feature("three_words", 3, dtype="string"),
        feature("codes", 6, dtype="int32"),
        feature("grid", 2, 2, dtype="int32"),
        feature("ragged_codes", None, dtype="int32"),
        feature("ragged", None, 3),
        feature("nested", 5, 3, kind="other"),
        feature("packed", 3, encoding="zlib"),
        feature("odd", 3, encoding="lz4"),
        feature("episode_metadata/number", per_step=False),
    )
}


def bind(raw: Any) -> Any:
    return numeric_field(parse_expression(raw), FEATURES, field="datasets[d].action")


def test_of_many_features_an_error_lists_the_closest_and_where_all_are():
    many = {f"image_{k}": FEATURES["image"] for k in range(60)} | {"prompt": FEATURES["words"]}
    with pytest.raises(SpecError) as caught:
        find_feature(many, "promt", field="f")
    assert "did you mean 'prompt'?" in caught.value.remedy
    assert "`autoloader inspect PATH` lists all 61" in caught.value.remedy
    assert caught.value.remedy.count("image_") < 6


@pytest.mark.parametrize("raw", ["ragged", "odd"])
def test_what_is_stored_in_a_way_not_supported_yet_is_refused_so(raw: str):
    with pytest.raises(UnsupportedError, match="not supported yet"):
        bind(raw)


def test_language_is_not_drawn_from_text_here_and_code_points_there():
    check_same_kind([FEATURES["words"]], field="f")
    with pytest.raises(SpecError, match="different kinds"):
        check_same_kind([FEATURES["words"], FEATURES["codes"]], field="f")
