"""What the tf.data front door computes in TensorFlow equals what NumPy computes for a loader."""

import io

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from autoloader.cli import witness
from autoloader.decode.frames import FrameDecoder
from autoloader.integrations.tfdata import samples as tensor_values
from autoloader.integrations.tfdata.mixture import decode_frame
from autoloader.pipeline.graph.tensorflow import tf
from autoloader.samples import windows as numpy_windows
from autoloader.samples.transforms.fields import NumericField
from autoloader.spec import CameraSpec, SampleSpec
from autoloader.spec.fields import FieldOp, FieldTerm
from autoloader.spec.sample import Finish

quick = settings(max_examples=20, deadline=None, derandomize=True)
edges = st.sampled_from(["repeat", "zero"])
offsets = st.lists(st.integers(-9, 9), min_size=1, max_size=5)


@quick
@given(
    steps=st.integers(1, 12),
    t=st.lists(st.integers(0, 11), max_size=6),
    offsets=offsets,
    start=edges,
    end=edges,
    width=st.integers(1, 3),
    wider=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_windows_and_their_sums_are_those_of_numpy(
    steps: int,
    t: list[int],
    offsets: list[int],
    start: str,
    end: str,
    width: int,
    wider: int,
    seed: int,
):
    sample = SampleSpec.model_validate({"edges": {"start": start, "end": end}})
    places = np.array([one for one in t if one < steps], dtype=np.int64)
    around = np.array(offsets, dtype=np.int64)
    column = np.random.default_rng(seed).normal(size=(steps, width)).astype(np.float32)
    wanted = numpy_windows.rows(places, around, steps, sample)
    found = tensor_values.window_rows(
        tf.constant(places), tf.constant(around), tf.constant(steps, tf.int64), sample
    )
    for name in ("index", "inside", "zeroed", "offset"):
        np.testing.assert_array_equal(getattr(found, name).numpy(), getattr(wanted, name))
    for summed in (False, True):
        values, mask = tensor_values.window_values(
            tf.constant(column), found, width + wider, Finish(summed=summed)
        )
        padded = np.pad(column[wanted.index], [(0, 0), (0, 0), (0, wider)])
        inside = np.pad(
            np.repeat(wanted.inside[..., None], width, axis=2), [(0, 0), (0, 0), (0, wider)]
        )
        numpy_values, numpy_mask = numpy_windows.finished_values(
            padded, inside, wanted, Finish(summed=summed), None
        )
        np.testing.assert_allclose(values.numpy(), numpy_values, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(mask.numpy(), numpy_mask)


operations = st.lists(
    st.sampled_from([FieldOp("clip", (-0.5, 0.5)), FieldOp("invert"), FieldOp("scale", (0.3,))]),
    max_size=3,
)


@quick
@given(
    steps=st.integers(0, 5),
    slices=st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(-3, 2), operations),
        min_size=1,
        max_size=4,
    ),
    constants=st.integers(1, 2),
    value=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 99),
)
def test_field_expressions_are_those_of_numpy(
    steps: int,
    slices: list[tuple[str, int, list[FieldOp]]],
    constants: int,
    value: float,
    seed: int,
):
    rng = np.random.default_rng(seed)
    columns = {name: rng.normal(size=(steps, 3)).astype(np.float32) for name in ("a", "b")}
    if steps:
        columns["a"][0, 0] = np.nan
    terms = [FieldTerm(path, (first, None, None), tuple(ops)) for path, first, ops in slices]
    terms.append(FieldTerm(None, constants=constants, value=value))
    widths = [len(range(3)[term.slice()]) for term in terms[:-1]]
    field = NumericField(tuple(terms), (*widths, constants))
    found = tensor_values.evaluate(
        field,
        {name: tf.constant(column) for name, column in columns.items()},
        tf.constant(steps, tf.int64),
    )
    np.testing.assert_array_equal(found.numpy(), field.evaluate(columns, steps))


def scene(height: int, width: int) -> np.ndarray:
    """A picture smooth enough for two JPEG decoders, with edges enough for a resize to show."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    red = 127 + 120 * np.sin(x / 9) * np.cos(y / 7)
    green = 255 * x / width
    blue = np.where((x - width / 3) ** 2 + (y - height / 2) ** 2 < (height / 4) ** 2, 230, 20)
    return np.stack([red, green, blue], axis=-1).astype(np.uint8)


@pytest.mark.parametrize("fit", ["stretch", "pad", "crop"])
@pytest.mark.parametrize(
    "resize", ["bilinear", "area", "lanczos3", "tf_bilinear", "tf_lanczos3", "pillow_bilinear"]
)
@pytest.mark.parametrize("size", [(60, 80), (32, 32), (90, 150), (45, 100)])
def test_kernels_decode_resize_and_fit_as_the_pool_does(
    fit: str, resize: str, size: tuple[int, int]
):
    camera = CameraSpec.model_validate({"size": size, "fit": fit, "resize": resize})
    jpeg = bytes(simplejpeg.encode_jpeg(scene(60, 80), quality=90))
    png = bytes(cv2.imencode(".png", scene(60, 80)[..., ::-1])[1])
    kernel = tf.function(lambda encoded: decode_frame(encoded, camera), autograph=False)
    for encoded in (jpeg, png):
        wanted = np.empty((*size, 3), np.uint8)
        FrameDecoder(camera).decode_into(encoded, wanted)
        found = kernel(tf.constant(encoded)).numpy()
        assert np.abs(found.astype(np.int16) - wanted).mean() <= 2
        black = (wanted == 0).all(axis=-1)
        np.testing.assert_array_equal((found == 0).all(axis=-1) & black, black)


side = st.integers(1, 20) | st.integers(1, 300)


@quick
@given(
    height=side,
    width=side,
    size=st.tuples(side, side),
    fit=st.sampled_from(["stretch", "pad", "crop"]),
    resize=st.sampled_from(["tf_bilinear", "tf_lanczos3", "pillow_bilinear"]),
)
def test_kernels_resize_and_fit_as_the_pool_does_within_one_level(
    height: int, width: int, size: tuple[int, int], fit: str, resize: str
):
    camera = CameraSpec.model_validate({"size": size, "fit": fit, "resize": resize})
    picture = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    wanted = np.empty((*size, 3), np.uint8)
    png = bytes(cv2.imencode(".png", picture[..., ::-1])[1])
    FrameDecoder(camera).decode_into(png, wanted)
    graphs = np.asarray(decode_frame(png, camera))
    for found in (graphs, witness.fitted_picture(picture, camera)):
        assert np.abs(found.astype(int) - wanted).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_kernels_and_the_pool_turn_no_picture_by_its_orientation(kind: str, orientation: int):
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(scene(32, 48)).save(buffer, kind, exif=exif)
    camera = CameraSpec(size=(32, 48))
    wanted = np.empty((32, 48, 3), np.uint8)
    FrameDecoder(camera).decode_into(buffer.getvalue(), wanted)
    found = decode_frame(tf.constant(buffer.getvalue()), camera).numpy()
    assert np.abs(found.astype(int) - wanted).mean() < (2 if kind == "JPEG" else 0.001)
