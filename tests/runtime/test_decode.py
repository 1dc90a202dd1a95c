"""Decoding one frame: every encoding, fit and resize, and an answer to whatever is no picture."""

import contextlib
import io
import random
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image
from rlds_files import jpeg, png

from autoloader.decode.frames import FrameDecoder, UndecodableFrameError
from autoloader.spec import CameraSpec


def decoded(encoded: bytes, height: int, width: int, **camera: Any) -> np.ndarray:
    out = np.full((height, width, 3), 77, np.uint8)
    decoder = FrameDecoder(CameraSpec(size=(height, width), **camera))
    decoder.decode_into(encoded, out)
    return out


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A smooth coloured picture."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC))


def as_png(pixels: np.ndarray) -> bytes:
    return bytes(cv2.imencode(".png", pixels[..., ::-1])[1])


def test_a_png_of_the_wanted_size_comes_out_exactly():
    pixels = picture(20, 30)
    assert (decoded(as_png(pixels), 20, 30) == pixels).all()


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "411"])
@pytest.mark.parametrize("size", [(20, 30), (48, 64)])
def test_a_jpeg_comes_out_close_to_its_picture(sampling: str, size: tuple[int, int]):
    pixels = picture(20, 30)
    encoded = bytes(simplejpeg.encode_jpeg(pixels, quality=95, colorsubsampling=sampling))
    wanted = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_LINEAR)
    assert np.abs(decoded(encoded, *size).astype(int) - wanted).mean() < 12


def test_colours_are_red_green_blue_whatever_the_encoding():
    for encoded in (jpeg(0, 0), png(0, 0), jpeg(0, 0, height=30), png(0, 0, height=30)):
        red, green, blue = decoded(encoded, 12, 16).reshape(-1, 3).mean(axis=0)
        assert (round(red / 8), round(green / 8), round(blue / 8)) == (0, 0, 16)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_no_format_is_turned_by_the_orientation_beside_its_pixels(kind: str, orientation: int):
    pixels = picture(16, 24)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {"lossless": True}
    Image.fromarray(pixels).save(buffer, kind, exif=exif, **options)
    assert Image.open(io.BytesIO(buffer.getvalue())).getexif()[0x0112] == orientation
    for size in ((16, 24), (8, 12)):
        off = np.abs(
            decoded(buffer.getvalue(), *size, resize="area").astype(int)
            - cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA)
        )
        assert off.max() <= (12 if kind == "JPEG" else 0)


def test_bilinear_has_half_pixel_centres_and_no_antialiasing():
    pixels = np.zeros((1, 4, 3), np.uint8)
    pixels[0, :, 0] = [0, 100, 200, 100]
    assert decoded(as_png(pixels), 1, 2)[0, :, 0].tolist() == [50, 150]
    assert decoded(as_png(pixels[:, :2]), 1, 4)[0, :, 0].tolist() == [0, 25, 75, 100]


def test_lanczos3_is_antialiased():
    pixels = picture(64, 64)
    wanted = np.asarray(Image.fromarray(pixels).resize((9, 7), Image.Resampling.LANCZOS))
    assert (decoded(as_png(pixels), 7, 9, resize="lanczos3") == wanted).all()


def test_area_is_the_mean_of_what_a_pixel_covers():
    pixels = np.random.default_rng(1).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    wanted = pixels.reshape(2, 4, 3, 4, 3).mean(axis=(1, 3))
    assert np.abs(decoded(as_png(pixels), 2, 3, resize="area") - wanted).max() <= 0.51


@pytest.mark.parametrize(
    "encoded",
    [b"", b"\xff\xd8\xff", b"no picture at all", jpeg(1, 1)[:40], jpeg(1, 1)[:-30],
     jpeg(1, 1)[:200], png(1, 1)[:30], png(1, 1)[:-20], b"\x89PNG\r\n\x1a\n", b"\0" * 1000],
    ids=range(10),
)  # fmt: skip
def test_what_is_no_whole_picture_is_undecodable_with_a_reason(encoded: bytes):
    for size in ((12, 16), (30, 30)):
        with pytest.raises(UndecodableFrameError, match=r"\S"):
            decoded(encoded, *size)


def test_a_jpeg_that_claims_to_be_huge_is_refused_before_memory_is_taken():
    encoded = bytearray(jpeg(1, 1))
    at = encoded.index(b"\xff\xc0")
    encoded[at + 5 : at + 9] = b"\xfd\xe8\xfd\xe8"
    with pytest.raises(UndecodableFrameError, match="65000"):
        decoded(bytes(encoded), 8, 8)


def test_damaged_bytes_give_a_picture_or_the_undecodable_error_and_nothing_else():
    rng = random.Random(4)
    sources = [jpeg(1, 2), png(3, 4), jpeg(1, 2, height=40, width=50)]
    decoder = FrameDecoder(CameraSpec(size=(12, 16)))
    out = np.empty((12, 16, 3), np.uint8)
    for _ in range(120):
        encoded = bytearray(rng.choice(sources))
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(min(len(encoded), rng.choice([40, 10_000])))
            encoded[at] = rng.randrange(256)
            if rng.random() < 0.2:
                del encoded[at:]
                break
        with contextlib.suppress(UndecodableFrameError):
            decoder.decode_into(bytes(encoded), out)
