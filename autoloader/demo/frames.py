"""Draws the demo mixture's frames: cheap to make, natural to compress, each one unlike the next.

Not here: which datasets there are and how each looks (``demo.datasets``), how they are written
(``demo.write``).

Theory of operation. An episode has one *scene*, larger than its frames: random fields of several
grain sizes on top of each other, which is how energy lies in photographs (about 1/f). A frame is a
window into that scene, moved at a steady pace, with a gripper and an object drawn over it and a
shifted patch of sensor noise added. That costs a copy, two small polygons and one saturating add;
the codec is most of the work. Everything follows from the generator handed in.

1. Frames of an episode all differ, also after being resized: the window moves every frame, and the
   gripper's colour and place change with it.
2. The same generator state gives the same pixels (and, with the same codec, the same bytes).
"""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

from autoloader.demo.datasets import Look

Pixels = npt.NDArray[np.uint8]
"""``[H, W, 3] uint8``, RGB."""

NOISE_MARGIN = 61
"""Pixels by which the noise field is larger than a frame; prime, so that shifts repeat late."""


def _scene(height: int, width: int, look: Look, rng: np.random.Generator) -> Pixels:
    """``[height, width, 3]`` of layered random fields, busier in some episodes than in others."""
    clutter = rng.uniform(0.25, 1.35)
    scene = np.zeros((height, width, 3), np.float32)
    fields = ((3, 42.0), (9, 26.0), (26, 16.0 * clutter), (84, 9.0 * clutter * look.detail))
    for cells, strength in fields:
        if strength <= 0:
            continue
        grain = rng.standard_normal((cells + 2, cells * width // height + 2, 3), dtype=np.float32)
        grain += grain.mean(axis=2, keepdims=True)  # photographs are mostly luminance
        scene += strength * cv2.resize(grain, (width, height), interpolation=cv2.INTER_LINEAR)
    scene += rng.uniform(90, 160, 3).astype(np.float32)
    if look.bands < 256:
        step = 256 / look.bands
        scene = np.floor(scene / step) * step
    return np.clip(scene, 0, 255).astype(np.uint8)


def _bounce(start: float, pace: float, t: int, room: int) -> int:
    """Where a point is after ``t`` frames that runs to and fro over ``0 … room``."""
    place = (start + pace * t) % (2 * room)
    return int(place if place <= room else 2 * room - place)


def draw_episode(
    height: int, width: int, frames: int, look: Look, rng: np.random.Generator
) -> Iterator[Pixels]:
    """Yields the episode's ``frames`` pictures, ``[height, width, 3] uint8``, each a new array."""
    room = max(8, height // 4)
    scene = _scene(height + room, width + room, look, rng)
    noise = None
    if look.noise:
        peak = int(rng.integers(look.noise // 2, look.noise + 1))
        patch = rng.integers(0, peak + 1, (height, width + NOISE_MARGIN, 3), dtype=np.uint8)
        noise = np.concatenate((patch, patch[:NOISE_MARGIN]))
    start = rng.uniform(0, 2 * room, 2)
    pace = height / 128 * rng.uniform(1.6, 2.6, 2) * rng.choice((-1.0, 1.0), 2)
    colour = rng.integers(20, 236, 3)
    angle, turn = rng.uniform(0, 2 * np.pi), rng.uniform(0.06, 0.15)
    corners = np.array([[-1, -0.4], [1, -0.4], [1, 0.4], [-1, 0.4]]) * height * 0.14
    for t in range(frames):
        top = _bounce(start[0], pace[0], t, room)
        left = _bounce(start[1], pace[1], t, room)
        frame = scene[top : top + height, left : left + width].copy()
        phase = angle + turn * t
        reach = np.array([np.cos(phase), np.sin(phase)]) * (0.22 + 0.1 * np.sin(0.31 * t))
        centre = np.array([width, height]) * (0.5 + reach)
        spin = np.array([[np.cos(phase), np.sin(phase)], [-np.sin(phase), np.cos(phase)]])
        shade = [float((channel + 3 * t) % 256) for channel in colour]
        cv2.fillConvexPoly(frame, (corners @ spin + centre).astype(np.int32), shade)
        spot = (int(width * (0.5 - reach[0])), int(height * (0.5 - reach[1])))
        cv2.circle(frame, spot, max(4, height // 14), [float(255 - c) for c in colour], -1)
        if noise is not None:
            down, right = (17 * t) % NOISE_MARGIN, (29 * t + 7) % NOISE_MARGIN
            cv2.add(frame, noise[down : down + height, right : right + width], dst=frame)
        yield frame


def draw_depth(height: int, width: int, frames: int) -> Iterator[bytes]:
    """PNG files of uint16 millimetres, ``[height, width]``: a floor, and a thing that wanders."""
    down, across = np.mgrid[:height, :width].astype(np.float32)
    floor = 1800 - 900 * down / height
    for t in range(frames):
        centre = width * (0.5 + 0.3 * np.sin(0.2 * t))
        near = np.hypot(down - 0.6 * height, across - centre) < height / 7
        depth = np.where(near, 700 + 3 * t, floor).astype(np.uint16)
        done, data = cv2.imencode(".png", depth)
        assert done
        yield bytes(data)


def encode_frame(frame: Pixels, look: Look) -> bytes:
    """The picture as a JPEG (4:2:0) or PNG file's bytes."""
    if look.encoding == "png":
        bgr = cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)
        done, data = cv2.imencode(".png", bgr, [cv2.IMWRITE_PNG_COMPRESSION, 2])
        assert done
        return bytes(data)
    return bytes(simplejpeg.encode_jpeg(frame, quality=look.quality, colorsubsampling="420"))
