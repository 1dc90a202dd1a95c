"""``normalize`` and ``augment``: what may be said, and what is refused with path and remedy."""

from pathlib import Path
from typing import Any

import pytest

from autoloader.errors import SpecError
from autoloader.spec import PipelineSpec

BASE: dict[str, Any] = {
    "datasets": [{"name": "a", "path": "/a", "images": {"primary": "image"}, "action": "action"}],
    "cameras": {"primary": {"size": [8, 8]}},
}


def crop(**how: Any) -> dict[str, Any]:
    return {"augment": {"primary": {"random_resized_crop": how}}}


def action(**how: Any) -> dict[str, Any]:
    return {"normalize": {"action": {"method": "q01_q99", **how}}}


WRONG = [
    ({"normalize": {}}, "normalize", "neither action nor state", "add action"),
    ({"normalize": {"statistics": "s.json"}}, "normalize", "neither", "add action"),
    ({"normalize": {"actoin": {}}}, "normalize", "'actoin'", "did you mean 'action'?"),
    ({"normalize": {"action": {}}}, "normalize.action.method", "missing", "add"),
    (action(method="zscore"), "normalize.action.method", "'zscore'", "'mean_std'"),
    (action(method="mean_std", clip=True), "normalize.action", "needs bounds", "leave clip out"),
    (action(dims=":-1"), "normalize.action.dims", "':-1'", '"[:-1]"'),
    (action(dims="[]"), "normalize.action.dims", "selects no columns", "write"),
    (action(dims=[]), "normalize.action.dims", "[]", "write"),
    (action(dims=[True]), "normalize.action.dims", "[True]", "write"),
    (action(clip="maybe"), "normalize.action.clip", "'maybe'", "true or false"),
    (action(dimensions=[0]), "normalize.action", "'dimensions'", "dims, "),
    ({"augment": {"wrist": {"hue": 0.1}}}, "augment", "camera 'wrist'", "choose one of: primary"),
    ({"augment": {"primary": {}}}, "augment.primary", "no operation", "write"),
    ({"augment": {"primary": {"blur": 1}}}, "augment.primary", "'blur'", "choose one of:"),
    ({"augment": {"primary": {"hue": 0.6}}}, "augment.primary", "0.6", "[-0.5, 0.5]"),
    ({"augment": {"primary": {"brightness": -0.1}}}, "augment.primary", "-0.1", "smaller"),
    ({"augment": {"primary": {"brightness": 10**400}}}, "augment.primary", "1000", "smaller"),
    ({"augment": {"primary": {"contrast": 1.5}}}, "augment.primary", "1.5", "smaller"),
    ({"augment": {"primary": {"saturation": [2, 1]}}}, "augment.primary", "[2, 1]", "smaller"),
    ({"augment": {"primary": {"contrast": [-1, 1]}}}, "augment.primary", "[-1, 1]", "[0, inf]"),
    (crop(scale=[0, 1]), "augment.primary", "scale: [0, 1]", "within [1e-06, 1]"),
    (crop(scale=[0.5, 1.5]), "augment.primary", "[0.5, 1.5]", "within [1e-06, 1]"),
    (crop(ratio=[0, 1]), "augment.primary", "ratio", "within [1e-06, inf]"),
    (crop(area=0.9), "augment.primary", "'area'", "choose one of: ratio, scale"),
    (
        {"augment": {"primary": {"hue": 0.1}}, "metadata": "none"},
        "", "has metadata: none", "metadata: full",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "path", "what", "remedy"), WRONG, ids=lambda v: str(v)[:50] if v else "-"
)
def test_what_cannot_be_is_refused_with_its_path_and_what_to_do(
    said: dict[str, Any], path: str, what: str, remedy: str
):
    with pytest.raises(SpecError) as caught:
        PipelineSpec.from_mapping({**BASE, **said})
    assert caught.value.path == path
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_a_spec_with_both_is_the_same_when_written_out_and_read_again():
    spec = PipelineSpec.from_mapping(
        {
            **BASE,
            "normalize": {
                "action": {"method": "q01_q99", "dims": "[:-1]", "clip": True},
                "state": {"method": "mean_std", "dims": [0, -1]},
                "statistics": "given/statistics.json",
            },
            "augment": {"primary": {"hue": 0.05, "random_resized_crop": {}, "contrast": 0.1}},
        },
        folder="/lab",
    )
    assert spec.normalize.statistics == str(Path("/lab/given/statistics.json"))
    listed = ["hue", "random_resized_crop", "contrast"]
    assert [op.name for op in spec.augment["primary"]] == listed
    again = PipelineSpec.model_validate(spec.model_dump(mode="json"))
    assert again == spec
    assert [op.name for op in again.augment["primary"]] == [
        "hue",
        "random_resized_crop",
        "contrast",
    ]


@pytest.mark.parametrize(
    ("dims", "taken"),
    [("[:-1]", (True, True, False)), ("[1]", (False, True, False)), ([0, -1], (True, False, True)),
     (None, None)],
)  # fmt: skip
def test_dims_are_counted_in_the_datasets_own_columns(dims: Any, taken: Any):
    spec = PipelineSpec.from_mapping({**BASE, **action(dims=dims)})
    assert spec.normalize.action.mask(3) == taken
