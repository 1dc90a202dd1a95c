"""Resizing as Pillow and TensorFlow do it: within one grey level, whatever the sizes."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from autoloader.decode.frames import FrameDecoder
from autoloader.decode.resize import resample
from autoloader.spec import CameraSpec

GOLDEN = Path(__file__).parents[2].parent / "shared" / "upstream" / "golden" / "resize.npz"
METHODS = {
    "pillow_bilinear": "pillow_bilinear",
    "tf_bilinear": "tf_bilinear_antialias",
    "tf_lanczos3": "tf_lanczos3_antialias",
}
quick = settings(max_examples=60, deadline=None, derandomize=True)
side = st.integers(1, 24) | st.integers(1, 400)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A picture with the hardest edges there are."""
    rng = np.random.default_rng(seed)
    picture = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    picture[: height // 2] = np.where(picture[: height // 2] > 127, 255, 0)
    return picture


def through_the_decoder(
    picture: np.ndarray, size: tuple[int, int], how: str, fit: str
) -> np.ndarray:
    out = np.full((*size, 3), 77, np.uint8)
    camera = CameraSpec.model_validate({"size": size, "resize": how, "fit": fit})
    png = bytes(cv2.imencode(".png", picture[..., ::-1])[1])
    FrameDecoder(camera).decode_into(png, out)
    return out


def levels_off(found: np.ndarray, wanted: np.ndarray) -> int:
    return int(np.abs(found.astype(int) - wanted).max())


def by_pillow(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(Image.fromarray(picture).resize(size[::-1], Image.Resampling.BILINEAR))


def padded_as_openpi(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    (height, width), (rows, columns) = picture.shape[:2], size
    ratio = max(width / columns, height / rows)
    inner = max(1, int(height / ratio)), max(1, int(width / ratio))
    canvas = Image.new("RGB", (columns, rows))
    place = int((columns - inner[1]) / 2), int((rows - inner[0]) / 2)
    canvas.paste(Image.fromarray(by_pillow(picture, inner)), place)
    return np.asarray(canvas)


def cut_to(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    (height, width), (rows, columns) = picture.shape[:2], size
    scale = max(rows / height, columns / width)
    tall, wide = (
        min(height, max(1, round(rows / scale))),
        min(width, max(1, round(columns / scale))),
    )
    top, left = (height - tall) // 2, (width - wide) // 2
    return picture[top : top + tall, left : left + wide]


@pytest.mark.skipif(not GOLDEN.is_file(), reason="the upstream projects' pictures are not here")
@pytest.mark.parametrize("method", METHODS)
def test_pictures_are_those_of_the_upstream_projects(method: str):
    with np.load(GOLDEN) as golden:
        for name in {key.split("/")[0] for key in golden}:
            wanted = golden[f"{name}/{METHODS[method]}"]
            found = through_the_decoder(golden[f"{name}/in"], wanted.shape[:2], method, "stretch")
            assert levels_off(found, wanted) <= 1, name


@pytest.mark.skipif(not GOLDEN.is_file(), reason="the upstream projects' pictures are not here")
def test_padded_pictures_are_those_of_openpi():
    with np.load(GOLDEN) as golden:
        for name in {key.split("/")[0] for key in golden}:
            wanted = golden[f"{name}/pillow_bilinear_padded"]
            found = through_the_decoder(
                golden[f"{name}/in"], wanted.shape[:2], "pillow_bilinear", "pad"
            )
            assert levels_off(found, wanted) <= 1, name


@quick
@given(
    height=side,
    width=side,
    rows=side,
    columns=side,
    fit=st.sampled_from(["stretch", "pad", "crop"]),
)
@example(height=187, width=300, rows=224, columns=224, fit="pad")  # 139.6 rows: 139, not 140
@example(height=480, width=640, rows=224, columns=224, fit="stretch")
@example(height=1, width=400, rows=400, columns=1, fit="stretch")
def test_pillow_bilinear_is_pillows_and_its_padding_openpis(
    height: int, width: int, rows: int, columns: int, fit: str
):
    picture, size = noise(height, width), (rows, columns)
    if fit == "pad":
        wanted = padded_as_openpi(picture, size)
    else:
        wanted = by_pillow(cut_to(picture, size) if fit == "crop" else picture, size)
    assert levels_off(through_the_decoder(picture, size, "pillow_bilinear", fit), wanted) <= 1


def exactly(picture: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    """The definition, an output pixel after the other, in float64."""

    def weights(length: int, wanted: int) -> np.ndarray:
        stretch = max(length / wanted, 1)
        centres = (np.arange(wanted) + 0.5) * length / wanted
        x = (np.arange(length) + 0.5 - centres[:, None]) / stretch
        if method == "tf_lanczos3":
            values = np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)
        else:
            values = np.maximum(0, 1 - np.abs(x))
        return np.asarray(values / values.sum(axis=1, keepdims=True))

    down, right = weights(picture.shape[0], size[0]), weights(picture.shape[1], size[1])
    return np.clip(np.einsum("rh,hwc,kw->rkc", down, picture, right, optimize=True), 0, 255)


def test_a_picture_of_many_stripes_and_one_too_large_to_keep_memory_for():
    for size, shape in (((33, 31), (1500, 1100)), ((2, 2), (1600, 1200)), ((900, 5), (7, 6000))):
        picture, out = noise(*shape), np.empty((*size, 3), np.uint8)
        resample(picture, out, "tf_lanczos3")
        assert np.abs(out - exactly(picture, size, "tf_lanczos3")).max() < 0.501
