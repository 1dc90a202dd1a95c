"""Public files and rewritten copies are told apart; colours are put right in public ones alone."""

from pathlib import Path
from typing import Any

import pytest
from rlds_files import Declared, Written, colour, episode, image, numbers, png, write_dataset
from streams import Running, mixture_of

from autoloader import recipes
from autoloader.errors import SpecError
from autoloader.samples.resolve import ResolvedDataset

PUBLIC_ONLY = {"path": "observation/image", "ops": [{"flip_channels": "public"}]}


def written(folder: Path, name: str, picture: Declared, wrist: Declared | None = None) -> Written:
    """Episodes whose pictures are declared with these sizes."""
    features = {"observation/image": picture, "action": numbers(2)}
    more: dict[str, Any] = {}
    if wrist is not None:
        features["observation/wrist"] = wrist
        more["observation/wrist"] = [png(7, step) for step in range(6)]
    records = []
    for number in range(2):
        values = episode(number, 6, encode=png, **more)
        records.append({path: values[path] for path in features})
    return write_dataset(folder, [records], name=name, features=features)


def dataset(files: Written, camera: Any, /, **own: Any) -> dict[str, Any]:
    return {
        "name": files.name,
        "path": str(files.path),
        "images": {"primary": camera},
        "action": "action",
        **own,
    }


def resolved(files: Written, camera: Any, /, **own: Any) -> ResolvedDataset:
    (found,) = mixture_of(dataset(files, camera, **own)).datasets
    return found


@pytest.mark.parametrize(
    ("picture", "wrist", "own", "turned", "words"),
    [
        (image(240, 320), None, {}, True, "public files (observation/image is 240×320)"),
        (image(256, 256), None, {}, False, "rewritten files"),
        (Declared("image", "uint8", (256, 256, 3), "png"), None, {}, True, "256×256 png"),
        (Declared("image", "uint8", (256, 256, 3), "jpeg"), None, {}, False, "rewritten files"),
        (image(256, 256), image(84, 84), {}, True, "observation/wrist is 84×84"),
        (image(256, 256), image(48, 60), {}, False, "rewritten files"),
        (image(256, 256), None, {"files": "public"}, True, "public files (as the spec says)"),
        (image(240, 320), None, {"files": "rewritten"}, False, "rewritten files (as the spec"),
    ],
)
def test_files_are_told_apart_by_the_sizes_of_their_pictures(
    tmp_path: Path, picture: Declared, wrist: Declared | None, own: Any, turned: bool, words: str
):
    found = resolved(written(tmp_path, "robot", picture, wrist), PUBLIC_ONLY, **own)
    assert found.reversed == ({"primary"} if turned else set())
    assert words in found.files_are


def test_where_sizes_are_not_told_the_spec_must_say_which_files_they_are(tmp_path: Path):
    files = written(tmp_path, "robot", Declared("image", "uint8", (None, None, 3)))
    with pytest.raises(SpecError, match="observation/image") as error:
        resolved(files, PUBLIC_ONLY)
    assert error.value.path == "datasets[robot].files"
    assert "files: public" in error.value.remedy
    assert resolved(files, PUBLIC_ONLY, files="public").reversed == {"primary"}
    plain = resolved(files, "observation/image")
    assert (plain.reversed, plain.files_are) == (set(), "")
    always = {"any_of": ["observation/image"], "ops": ["flip_channels"]}
    assert resolved(files, always).reversed == {"primary"}


@pytest.mark.parametrize(
    ("camera", "words"),
    [
        ({"path": "observation/image", "ops": ["flip"]}, ["'flip'", "flip_channels"]),
        ({"path": "observation/image", "ops": [{"flip_channels": "never"}]}, ["public"]),
        ({"path": "observation/image", "ops": []}, ["flip_channels"]),
        ({"ops": ["flip_channels"]}, ["feature's path", "any_of"]),
        ({"path": "observation/image", "op": "flip_channels", "ops": []}, ["'op'", "ops"]),
    ],
)
def test_what_no_camera_can_be_is_refused(tmp_path: Path, camera: Any, words: list[str]):
    files = written(tmp_path, "robot", image())
    with pytest.raises(SpecError) as error:
        resolved(files, camera)
    assert error.value.path.startswith("datasets[robot].images.primary")
    for word in words:
        assert word in str(error.value)


def test_red_and_blue_change_places_in_the_datasets_that_ask_for_it(tmp_path: Path):
    public = written(tmp_path, "public", image(240, 320))
    copy = written(tmp_path, "copy", image(256, 256))
    mixture = mixture_of(dataset(public, PUBLIC_ONLY), dataset(copy, PUBLIC_ONLY))
    with Running(mixture) as running:
        got = running.batches(6)
    seen = set()
    for place, frame in zip(
        got.joined("provenance").tolist(), got.joined("images/primary"), strict=True
    ):
        which, _, _, record, t = place
        wanted = colour(record, t)
        if which == 0:
            wanted = wanted[::-1]
        assert frame[0, 0, 0].tolist() == list(wanted)
        seen.add(which)
    assert seen == {0, 1}


def test_only_four_recipes_turn_channels_and_only_those_of_public_files():
    turned = {}
    for name in recipes.names("octo"):
        images = recipes.recipe(name, "octo").dataset["images"]
        found = [camera for camera, one in images.items() if isinstance(one, dict)]
        if found:
            turned[name] = found
    assert turned == {
        "berkeley_autolab_ur5": ["wrist"],
        "stanford_hydra_dataset_converted_externally_to_rlds": ["primary", "wrist"],
        "utaustin_mutex": ["primary", "wrist"],
        "berkeley_fanuc_manipulation": ["primary", "wrist"],
    }
