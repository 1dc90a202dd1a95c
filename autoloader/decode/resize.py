"""Resizing: a decoded picture into its place in a batch, by OpenCV, Pillow, or in float32.

Bilinear and area are OpenCV's, on uint8. Bilinear has half-pixel centres and no antialiasing, as
``tf.image.resize`` has by default. ``lanczos3`` is Pillow's, which is antialiased.

*In float32*, antialiased, as TensorFlow and Pillow weigh pixels. An output pixel is the weighted
mean of the input pixels under a kernel. Where a picture shrinks, the kernel is as much wider. So
the resize of an axis is a product with a band matrix. The band is cut into windows of equal width:
window w begins at input ``w * step`` and has the outputs whose centres lie in its step. So one call
of NumPy's ``matmul`` multiplies all windows, without the interpreter's lock. Rows come first,
columns second, and only the result is rounded to uint8.

``tf.image.resize(antialias=True)`` computes the same; halves may be rounded the other way. Pillow
also rounds between the two axes, so its bilinear differs by one grey level at most.

A picture passes in stripes that stay in the processor's cache. A thread keeps the memory of one.

Not here: decoding (``decode.frames``), TensorFlow's resizing (``integrations.tfdata.mixture``).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from autoloader.spec import CameraSpec

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]

_BY_OPENCV = {"area": cv2.INTER_AREA, "bilinear": cv2.INTER_LINEAR}
_STRIPE_BYTES = 5 * 2**18
_WINDOW_OUTPUTS = 8
"""More: wide windows, mostly zeros. Fewer: products too small for the BLAS."""
_PRODUCT = 250_000
"""Multiplications of one matrix product: OpenBLAS starts threads for more than 262,144."""
_KEPT_VALUES = 4_000_000
"""A thread keeps memory for so many; a larger stripe's is made for the occasion."""


def resize_into(picture: Pixels, out: Pixels, camera: CameraSpec) -> None:
    """Fit and resize ``picture`` [h, w, 3] into ``out`` [H, W, 3] as a camera says."""
    if camera.fit == "stretch":
        _scale(picture, out, camera)
        return
    part, place = fitted(picture, out, camera)
    if place.shape == out.shape:
        _scale(part, out, camera)
        return
    inner = np.empty(place.shape, np.uint8)
    _scale(part, inner, camera)
    place[:] = inner


def _scale(picture: Pixels, out: Pixels, camera: CameraSpec) -> None:
    """Scale a picture to the size of ``out``, as the camera's ``resize`` says."""
    height, width = out.shape[:2]
    how = _BY_OPENCV.get(camera.resize)
    if picture.shape[:2] == (height, width) or camera.resize == "nearest":
        nearest_into(picture, out)
    elif how is not None:
        cv2.resize(picture, (width, height), dst=out, interpolation=how)
    elif camera.resize == "lanczos3":
        from PIL import Image  # the other methods, and the first batch, do without it

        scaled = Image.fromarray(np.ascontiguousarray(picture)).resize(
            (width, height), Image.Resampling.LANCZOS
        )
        out[:] = np.asarray(scaled)
    else:
        resample(picture, out, camera.resize)


def fitted(
    picture: NDArray[Any], out: NDArray[Any], camera: CameraSpec
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Visible part of ``picture``, and its place in ``out``, by ``camera.fit``.

    The rest of ``out`` becomes zero. The first axes of both are rows and columns.
    """
    (height, width), (rows, columns) = picture.shape[:2], out.shape[:2]
    if camera.fit == "crop":
        scale = max(rows / height, columns / width)
        cut = min(height, max(1, round(rows / scale))), min(width, max(1, round(columns / scale)))
        return _centre(picture, *cut), out
    if camera.fit == "pad":
        out[:] = 0
        return picture, _centre(out, *_padded(height, width, camera))
    return picture, out


def _padded(height: int, width: int, camera: CameraSpec) -> tuple[int, int]:
    """Rows and columns of a picture inside its padding; openpi rounds them down."""
    rows, columns = camera.size
    if camera.upstream:
        ratio = max(width / columns, height / rows)
        return max(1, int(height / ratio)), max(1, int(width / ratio))
    scale = min(rows / height, columns / width)
    return min(rows, max(1, round(height * scale))), min(columns, max(1, round(width * scale)))


def _centre(picture: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    top, left = (picture.shape[0] - rows) // 2, (picture.shape[1] - columns) // 2
    return picture[top : top + rows, left : left + columns]


def nearest_into(picture: NDArray[Any], out: NDArray[Any]) -> None:
    """Fill ``out`` with the values of ``picture`` at the nearest places (half-pixel centres)."""
    if picture.shape[:2] == out.shape[:2]:
        out[:] = picture
        return
    (height, width), (rows, columns) = picture.shape[:2], out.shape[:2]
    down = (2 * np.arange(rows) + 1) * height // (2 * rows)
    right = (2 * np.arange(columns) + 1) * width // (2 * columns)
    out[:] = picture[down[:, None], right]


def _triangle(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(0.0, 1.0 - np.abs(x))


def _lanczos3(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


KERNELS: Mapping[str, tuple[Callable[[NDArray[np.float64]], NDArray[np.float64]], int]] = {
    "pillow_bilinear": (_triangle, 1),
    "tf_bilinear": (_triangle, 1),
    "tf_lanczos3": (_lanczos3, 3),
}
"""Value of ``cameras.X.resize`` → kernel, and its radius in pixels."""
_BELOW_ZERO = frozenset({"tf_lanczos3"})


@dataclass(frozen=True, slots=True, eq=False)
class _Axis:
    """The weights of one axis, cut into windows.

    Attributes:
        weights: [windows, outputs, span] of the inputs; zero outside the picture.
        turned: [windows, span, outputs], the same; the BLAS is faster so on columns.
        step: inputs from the start of a window to the start of the next.
        before: inputs that a window needs in front of its start.
        real: [windows * outputs] which outputs exist; ``None`` where all do.
    """

    weights: Floats
    turned: Floats
    step: int
    before: int
    real: NDArray[np.bool_] | None

    def inputs(self, windows: int) -> int:
        """Number of inputs that consecutive windows need, those outside the picture included."""
        span: int = self.weights.shape[2]
        return (windows - 1) * self.step + span


@lru_cache(maxsize=64)
def _axis(length: int, wanted: int, method: str) -> _Axis:
    """Weights that make ``wanted`` pixels of ``length``."""
    kernel, radius = KERNELS[method]
    ratio = length / wanted
    stretch = max(ratio, 1.0)
    centres = (np.arange(wanted) + 0.5) * ratio
    first = np.maximum(np.ceil(centres - radius * stretch - 0.5).astype(np.intp), 0)
    last = np.minimum(np.floor(centres + radius * stretch - 0.5).astype(np.intp), length - 1)
    step = _step(length, wanted)
    window = (centres // step).astype(np.intp)
    before = max(0, int((window * step - first).max()))
    span = before + int((last - window * step).max()) + 1
    place = np.arange(wanted) - np.searchsorted(window, window)
    inputs = (window * step - before)[:, None] + np.arange(span)
    values = kernel((inputs + 0.5 - centres[:, None]) / stretch)
    values[(inputs < 0) | (inputs >= length)] = 0
    weights = np.zeros((int(window[-1]) + 1, int(place.max()) + 1, span), np.float32)
    weights[window, place] = values / values.sum(axis=1, keepdims=True)
    real = np.zeros(weights.shape[:2], np.bool_)
    real[window, place] = True
    turned = np.ascontiguousarray(weights.transpose(0, 2, 1))
    return _Axis(weights, turned, step, before, None if real.all() else real.reshape(-1))


def _step(length: int, wanted: int) -> int:
    """Inputs of a window: where the weights repeat after a short period, a multiple of that."""
    about = max(1, round(_WINDOW_OUTPUTS * length / wanted))
    period = length // math.gcd(length, wanted)
    return period * max(1, round(about / period)) if period <= 2 * about else about


class _Scratch(threading.local):
    """Memory of one thread."""

    def __init__(self) -> None:
        self._memory: dict[type[np.generic], NDArray[Any]] = {}

    def arrays(self, dtype: type[np.generic], *shapes: tuple[int, ...]) -> Iterator[NDArray[Any]]:
        """Arrays of these shapes; their values are arbitrary."""
        wanted = sum(map(math.prod, shapes))
        memory = self._memory.get(dtype)
        if memory is None or len(memory) < wanted:
            memory = np.empty(wanted, dtype)
            if wanted <= _KEPT_VALUES:
                self._memory[dtype] = memory
        for shape in shapes:
            size = math.prod(shape)
            yield memory[:size].reshape(shape)
            memory = memory[size:]


_scratch = _Scratch()


def resample(picture: Pixels, out: Pixels, method: str) -> None:
    """Resize ``picture`` [h, w, 3] into ``out`` [H, W, 3] by one of ``KERNELS``."""
    (height, width), (rows, columns) = picture.shape[:2], out.shape[:2]
    down, right = _axis(height, rows, method), _axis(width, columns, method)
    row_windows, row_outputs, row_span = down.weights.shape
    windows, span, outputs = right.turned.shape
    needed = right.inputs(windows)
    pieces = math.ceil(3 * needed * row_outputs * row_span / _PRODUCT)
    wide = math.ceil(needed / pieces)
    padded = pieces * wide
    left, shown = right.before, min(width, padded - right.before)
    fitting = (_STRIPE_BYTES // (12 * padded) - row_span) // down.step + 1
    each = max(1, min(fitting, _PRODUCT // (row_outputs * span * outputs)))
    done = 0
    for start in range(0, row_windows, each):
        stripe = down.weights[start : start + each]
        made = len(stripe) * row_outputs
        top = start * down.step - down.before
        first, end = max(0, top), min(height, top + down.inputs(len(stripe)))
        plane = made * padded | 1
        source, by_rows, planes, result = _scratch.arrays(
            np.float32,
            (down.inputs(len(stripe)), padded, 3),
            (made, padded, 3),
            (3, plane),
            (3, made, windows, outputs),
        )
        (rounded,) = _scratch.arrays(np.uint8, (3, made, windows * outputs))
        source[: first - top] = source[end - top :] = 0  # what lies outside has no weight
        source[:, :left] = source[:, left + shown :] = 0
        source[first - top : end - top, left : left + shown] = picture[first:end, :shown]
        row, pixel, item = source.strides
        np.matmul(
            stripe[:, None],
            _view(
                source,
                (len(stripe), pieces, row_span, 3 * wide),
                (down.step * row, wide * pixel, row, item),
            ),
            out=by_rows.reshape(len(stripe), row_outputs, pieces, 3 * wide).swapaxes(1, 2),
        )
        # An odd distance of the planes keeps ``cv2.split`` from writing past the processor's cache.
        cv2.split(by_rows, [one[: made * padded].reshape(made, padded) for one in planes])
        np.matmul(
            _view(
                planes,
                (windows, 3, made, span),
                (right.step * item, plane * item, padded * item, item),
            ),
            right.turned[:, None],
            out=result.transpose(2, 0, 1, 3),
        )
        if method in _BELOW_ZERO:
            np.maximum(result, 0, out=result)
        # As ``rint`` and ``clip``, of what is not negative.
        cv2.convertScaleAbs(result.reshape(rounded.shape), dst=rounded)
        if down.real is not None:
            rounded = rounded[:, down.real[start * row_outputs :][:made]]
        if right.real is not None:
            rounded = rounded[:, :, right.real]
        cv2.merge(list(rounded), dst=out[done : done + rounded.shape[1]])
        done += rounded.shape[1]


def _view(values: Floats, shape: tuple[int, ...], strides: tuple[int, ...]) -> Floats:
    """A view of float32 ``values``, as ``as_strided`` makes it at six times the cost."""
    return np.ndarray(shape, np.float32, values, 0, strides)
