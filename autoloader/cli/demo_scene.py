"""Draws the demo mixture's pictures: robots that move things on a table.

A place (table, wall, cameras, robot) belongs to a dataset. An ``Episode`` puts things on the table
and moves a gripper along waypoints; its poses are what states and actions tell, and its words name
what is seen. World: x to the right and y away from the viewer, both over the table, z up; in half
widths of the table.

Not here: episodes as records, and their files (``cli.demo_writer``).
"""

from __future__ import annotations

import cmath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from autoloader.host.frozen import frozen
from autoloader.spec.reading import packaged

Pixels = npt.NDArray[np.uint8]
"""``[H, W, 3] uint8``, RGB."""
Numbers = npt.NDArray[np.float64]
Sprite = tuple[Pixels, Pixels]
"""A thing's colours × its cover, and 255 × the rest that shines through; ``[h, w, 3]`` both."""

THINGS = packaged(__package__, "demo_things.yaml", dict[str, dict[str, Any]])
_LOOKS = packaged(__package__, "demo_looks.yaml", dict[str, Any])
_COLOURS, _TABLES, _WALLS, _METALS, _SAID = (
    _LOOKS[name] for name in ("colours", "tables", "walls", "metals", "said")
)
_FRONT, _FAR, _SHIFT = 0.94, 2 / 3, 4
_NOISE_MARGIN = 61
"""Pixels by which the noise field is larger than a frame; prime, so that shifts repeat late."""


@frozen
class Camera:
    """A camera of a dataset.

    Attributes:
        size: height and width in pixels.
        wrist: whether the camera looks down from the gripper.
        side: 1 from the front, -1 from the back.
        grain: strength of the place's finest texture.
        noise: peak of the sensor noise in grey levels.
    """

    size: tuple[int, int]
    wrist: bool
    side: int
    grain: float
    noise: int

    @property
    def unit(self) -> float:
        """Pixels of half a table's width, at its front."""
        height, width = self.size
        return 0.85 * width if self.wrist else 0.47 * min(width, 1.5 * height)

    def at(self, x: float, y: float, z: float = 0.0) -> tuple[float, float, float]:
        """(column, row, pixels of a unit there) of a point."""
        height, width = self.size
        if self.wrist:  # from the corner of the table
            return width / 2 + (x + 1) * self.unit, height / 2 + (1 - y) * self.unit, self.unit
        if self.side < 0:
            x, y = -x, 1 - y
        near = 1 / (1 + 0.5 * y)
        row = height * (_FRONT - 0.58 * (1 - near) / (1 - _FAR))
        return width / 2 + x * near * self.unit, row - z * near * self.unit, near * self.unit


def _texture(
    colour: Sequence[int], fields: Any, size: tuple[int, int], grain: float, key: int
) -> npt.NDArray[np.float32]:
    """``[height, width, 3]`` of a colour with random fields on it."""
    rng, (height, width) = np.random.default_rng(key), size
    picture = np.empty((height, width, 3), np.float32)
    picture[:] = colour
    for rows, columns, strength in (*fields, (height, width, 6 * grain)):
        field = rng.standard_normal((min(rows, height), min(columns, width)), dtype=np.float32)
        picture += strength * cv2.resize(field, (width, height))[..., None]
    return picture


@lru_cache(maxsize=3)
def _place(camera: Camera, key: int) -> Pixels:
    """A dataset's table as a camera sees it: before a wall, or from above."""
    rng = np.random.default_rng(key)
    table, wall = _TABLES[rng.integers(len(_TABLES))], _WALLS[rng.integers(len(_WALLS))]
    (height, width), span = camera.size, int(camera.unit)
    if camera.wrist:
        size = (span + height + 1, 2 * span + width + 1)
        return _clipped(_texture(table[0], table[1], size, camera.grain, key))
    room = _texture(wall, ((4, 4, 6), (height // 3, width // 3, 3)), camera.size, 0.0, key)
    for _ in range(4):  # frames and cupboards at the wall
        left, top, right, down = (
            rng.uniform(0, 1, 4) * (width, 0.2 * height, 0.25 * width, 0.25 * height)
        ).astype(int)
        box = (int(left), int(top), int(right), int(down))
        cv2.rectangle(room, box, rng.uniform(60, 225, 3).tolist(), -1)
        cv2.rectangle(room, box, (70.0, 66.0, 62.0), max(1, height // 100))
    room = cv2.GaussianBlur(room, (0, 0), height / 160)
    room += 5 * camera.grain * rng.standard_normal((height, width, 1), dtype=np.float32)
    ends = ((-1.12, 1.05), (1.12, 1.05), (1.12, -0.02), (-1.12, -0.02))
    front = replace(camera, side=1)
    corners = np.array([front.at(*end)[:2] for end in ends], np.float32)
    edge = np.concatenate([corners[2:], corners[:1:-1] + np.array([0, height / 20])])
    edge = edge.astype(np.int32)
    cv2.fillConvexPoly(room, edge, [0.5 * part for part in table[0]])
    whole = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    top = _texture(table[0], table[1], camera.size, camera.grain, key)
    warp = cv2.getPerspectiveTransform(whole, corners)
    cv2.warpPerspective(top, warp, (width, height), room, borderMode=cv2.BORDER_TRANSPARENT)
    return _clipped(room)


def _clipped(picture: Any) -> Pixels:
    clipped: Pixels = np.clip(picture, 0, 255).astype(np.uint8)
    return clipped


@lru_cache(maxsize=256)
def _sprite(name: str, colour: tuple[int, int, int], pixels: int) -> Sprite:
    """A thing of so many pixels, lit from the left; ``""`` is a shadow."""
    if not name:
        away = np.hypot(*np.mgrid[-1 : 1 : 1j * max(2, pixels // 3), -1 : 1 : 1j * pixels])
        rest = _clipped(255 - 140 * (1 - away).clip(0))
        return np.zeros((*rest.shape, 3), np.uint8), np.repeat(rest[..., None], 3, axis=2)
    side = 4 * pixels
    drawn = np.zeros((side, side, 4), np.uint8)
    for shade, *numbers in THINGS[name]["parts"]:
        tone = (*(min(255.0, shade * part) for part in colour), 255.0)
        points = (np.array(numbers).reshape(-1, 2) * side).astype(np.int32)
        if len(points) > 2:
            cv2.fillPoly(drawn, [points], tone)
        else:
            cv2.ellipse(drawn, points[0].tolist(), points[1].tolist(), 0, 0, 360, tone, -1)
    small = cv2.resize(drawn, (pixels, pixels), interpolation=cv2.INTER_AREA)
    lit = small[..., :3] * np.linspace(1.12, 0.8, pixels)[:, None]
    return _clipped(np.minimum(lit, small[..., 3:])), np.repeat(255 - small[..., 3:], 3, axis=2)


def _paste(frame: Pixels, sprite: Sprite, across: float, down: float) -> None:
    """Draw a sprite whose foot is at a place; what lies outside of the frame is left out."""
    (colours, rest), (height, width) = sprite, sprite[0].shape[:2]
    left, top = round(across - width / 2), round(down - height)
    rows = slice(max(top, 0), min(top + height, frame.shape[0]))
    columns = slice(max(left, 0), min(left + width, frame.shape[1]))
    if rows.start < rows.stop and columns.start < columns.stop:
        part = frame[rows, columns]
        own = (
            slice(rows.start - top, rows.stop - top),
            slice(columns.start - left, columns.stop - left),
        )
        cv2.multiply(part, rest[own], part, 1 / 255)
        cv2.add(part, colours[own], part)


@frozen
class Thing:
    """A thing on the table.

    Attributes:
        name: name of the thing.
        colour: name of the colour.
        at: position of the thing at each step [T, 3]; [1, 3] of one that stays.
    """

    name: str
    colour: str
    at: Numbers

    def __str__(self) -> str:
        return f"the {self.colour} {self.name}".replace("  ", " ")

    def draw(self, frame: Pixels, camera: Camera, t: int, corner: tuple[int, int] = (0, 0)) -> None:
        """Draw it and its shadow at step t; ``corner`` is the frame's in what the camera sees."""
        x, y, z = self.at[min(t, len(self.at) - 1)]
        kind = THINGS[self.name]
        column, row, unit = camera.at(x, y)
        step = 2 if unit < 200 else 4
        pixels = max(6, step * round(kind["width"] * unit / step))
        tone = tuple(kind.get("colour") or _COLOURS[self.colour])
        column, row = column - corner[0], row - corner[1] + (pixels / 2 if camera.wrist else 0)
        shadow = _sprite("", (0, 0, 0), round(1.3 * pixels))
        _paste(frame, shadow, column + pixels / 10, row + pixels / 6)
        up = 0.0 if camera.wrist else z * unit
        _paste(frame, _sprite(self.name, tone, pixels), column, row - up)


@frozen
class Episode:
    """The poses and things of an episode of T steps.

    Attributes:
        task: key of ``_SAID``.
        poses: of each arm ``[T, 7]``: x, y, z, roll, pitch, yaw, opening (1 is open).
        moved: the things that arms act on, one for each.
        others: things that stay where they are; the first is the goal where there is one.
    """

    task: str
    poses: list[Numbers]
    moved: list[Thing]
    others: list[Thing]

    def said(self, form: int) -> str:
        """Instruction, in one of three forms."""
        what, goal = " and ".join(map(str, self.moved)), self.others[0]
        kind = THINGS[goal.name].get("goal", "")
        left = self.moved[0].at[-1, 0] < self.moved[0].at[0, 0]
        words: str = _SAID[self.task][form]
        return words.format(
            thing=what, where=f"{kind} {goal}", side=f"to the {'left' if left else 'right'}"
        )


def draw_task(
    task: str, things: Sequence[str], goals: Sequence[str], arms: int, progress: Numbers,
    rng: np.random.Generator,
) -> Episode:  # fmt: skip
    """Put things on a table, and move them.

    Args:
        task: key of ``_SAID``.
        things: names to draw from.
        goals: names of what things are put in or on.
        arms: number of arms, 1 or 2.
        progress: [T] rising from 0 to 1, equal where the robot stands still.
        rng: generator that everything is drawn by.
    """
    colours = rng.permutation(list(_COLOURS))
    kinds = rng.permutation(things)
    names = [*np.resize(kinds, arms), rng.choice(goals), *np.roll(kinds, -arms)]
    order = np.array([0, 4, 2, 1, 3]) if arms == 2 else rng.permutation(5)
    spots = rng.uniform((-0.06, 0.5, 0), (0.06, 0.8, 0), (5, 3))
    spots += np.linspace(-0.78, 0.78, 5)[order, None] * (1, 0, 0)
    spots[:arms, 1] -= 0.4
    laid = [
        Thing(str(name), "" if "colour" in THINGS[name] else str(colour), spot[None])
        for name, colour, spot in zip(names, colours, spots, strict=False)
    ]
    first, count = arms + (task != "put"), int(rng.integers(2, 5 - arms))
    poses, moved = [], []
    for thing in laid[:arms]:
        way, grab, release = _way(task, thing.at[0], laid[arms].at[0], rng)
        lengths = np.linalg.norm(np.diff(way, axis=0) * (1, 1, 1, 0.3), axis=1) + 0.1
        along = np.interp(progress, np.append(0, lengths.cumsum()) / lengths.sum(), range(len(way)))
        place = _eased(way, along)
        speed, phase = rng.uniform(1, 4, 3), rng.uniform(0, 6, 3)
        turn = np.array([0.2, 0.2, 0.7]) * np.sin(speed * progress[:, None] + phase)
        if task == "drive":
            turn[:, 2] = np.arctan2(*(way[-1] - way[0])[1::-1])
        poses.append(np.concatenate([place[:, :3], turn, place[:, 3:]], axis=1))
        carried = _eased(way, along.clip(grab, release))[:, :3] - way[grab, :3]
        moved.append(replace(thing, at=thing.at + carried))
    return Episode(task, poses, moved, laid[first : first + count])


def _way(
    task: str, here: Numbers, goal: Numbers, rng: np.random.Generator
) -> tuple[Numbers, int, int]:
    """Waypoints [n, 4] of a gripper (x, y, z, opening); the two between which a thing moves."""
    (x, y, _), (u, v, _) = here, goal
    home = [rng.uniform(-0.4, 0.4), rng.uniform(0.5, 0.8), rng.uniform(0.5, 0.65), 1]
    reach = [home, [x, y, 0.3, 1], [x, y, 0.06, 1], [x, y, 0.06, 0], [x, y, 0.4, 0]]
    if task == "put":
        there = [[u, v, 0.45, 0], [u, v, 0.12, 0], [u, v, 0.12, 1], [u, v, 0.4, 1]]
        return np.array([*reach, *there]), 3, 6
    if task == "lift":
        return np.array(reach), 3, 4
    if task == "push":
        to = -1 if x > 0 else 1
        at, end = x - 0.14 * to, x + 0.4 * to
        down, along = [[at, y, 0.3, 0], [at, y, 0.05, 0]], [[end, y, 0.05, 0], [end, y, 0.3, 0]]
        return np.array([home, *down, *along]), 2, 3
    if task == "press":
        return np.array([home, [x, y, 0.3, 0], [x, y, 0.1, 0], [x, y, 0.3, 0]]), 0, 0
    start = -np.copysign(rng.uniform(0.5, 0.8), x)
    stops = [[start, 0.7, 0, 1], [start / 2, 0.35, 0, 1], [x - np.copysign(0.3, x), y, 0, 1]]
    return np.array(stops), 0, 0


def _eased(way: Numbers, along: Numbers) -> Numbers:
    """Points on the way; ``along`` counts waypoints, and the pace is zero at each."""
    part = along % 1
    slow = along - np.sin(2 * np.pi * part) / (2 * np.pi)
    return np.stack([np.interp(slow, range(len(way)), column) for column in way.T], axis=1)


def draw_pictures(
    episode: Episode, camera: Camera, key: int, rng: np.random.Generator
) -> Iterator[Pixels]:
    """Yield the episode's pictures, ``[H, W, 3]``, each a new array.

    Args:
        episode: the poses and things that are drawn.
        camera: place and lens of the camera.
        key: key of the dataset's place.
        rng: generator that light and noise are drawn by.
    """
    (height, width), place = camera.size, _place(camera, key)
    ends = rng.uniform(0.85, 1.1, 4)
    light = cv2.resize(ends.reshape(2, 2, 1), place.shape[1::-1])[..., None]
    scene = _clipped(place * light)
    for thing in sorted(episode.others, key=lambda one: -camera.side * one.at[0, 1]):
        thing.draw(scene, camera, 0)
    metal = _METALS[key % len(_METALS)]
    peak = camera.noise and int(rng.integers(camera.noise // 2, camera.noise + 1))
    patch = rng.integers(0, peak + 1, (height + _NOISE_MARGIN, width + _NOISE_MARGIN, 3), np.uint8)
    for t in range(len(episode.poses[0])):
        left, top = 0, 0
        if camera.wrist:
            column, row, _ = camera.at(*episode.poses[0][t, :2])
            left = min(max(round(column) - width // 2, 0), scene.shape[1] - width)
            top = min(max(round(row) - height // 2, 0), scene.shape[0] - height)
        frame = scene[top : top + height, left : left + width].copy()
        for thing in episode.moved:
            thing.draw(frame, camera, t, (left, top))
        for number, pose in enumerate(episode.poses):
            base = (2 * number - 1) * 0.75 if len(episode.poses) > 1 else (key % 3 - 1) * 0.6
            if episode.task == "drive":
                Thing("rover", "", pose[t : t + 1, :3]).draw(frame, camera, 0, (left, top))
            elif not camera.wrist:
                _draw_arm(frame, camera, base, pose[t], metal)
            elif not number:
                _draw_fingers(frame, pose[t, 6])
        if peak:
            down, right = (17 * t) % _NOISE_MARGIN, (29 * t + 7) % _NOISE_MARGIN
            cv2.add(frame, patch[down : down + height, right : right + width], frame)
        yield frame


def _draw_arm(
    frame: Pixels, camera: Camera, base: float, pose: Numbers, metal: Sequence[int]
) -> None:
    """An arm of two links whose hand is at a pose; points are complex numbers, in pixels."""
    x, y, z, roll, _, yaw, opening = pose.tolist()
    column, row, unit = camera.at(x, y, z)
    _paste(frame, _sprite("", (0, 0, 0), round(0.3 * unit)), column, row + z * unit + 0.05 * unit)
    tip, along = complex(column, row), cmath.rect(unit, roll - cmath.pi / 2)
    across = 1j * along * (0.05 + 0.08 * opening) * (0.7 + 0.3 * abs(cmath.cos(yaw)))
    wrist, palm = tip + 0.42 * along, tip + 0.17 * along
    column, row, far = camera.at(base, 1.08)
    foot, shoulder = complex(column, row), complex(column, row - 0.5 * far)
    half = (wrist - shoulder) / 2
    up = max((0.8 * far) ** 2 - abs(half) ** 2, 0.0) ** 0.5 * (1 if half.real < 0 else -1)
    elbow = shoulder + half + 1j * up * half / abs(half)
    for start, end, width in (
        (foot, shoulder, 0.26 * far), (shoulder, elbow, 0.2 * far), (elbow, wrist, 0.16 * unit),
    ):  # fmt: skip
        _draw_bar(frame, start, end, width, metal)
    dark = [0.3 * part for part in metal]
    for joint, width in ((shoulder, 0.16 * far), (elbow, 0.14 * far), (wrist, 0.11 * unit)):
        _draw_stroke(frame, joint, joint, 2 * width, dark)
        _draw_stroke(frame, joint, joint, width, metal, cv2.LINE_8)
    _draw_stroke(frame, wrist, palm, 0.1 * unit, dark)
    _draw_stroke(frame, palm - across, palm + across, 0.06 * unit, dark)
    for finger in (across, -across):
        _draw_stroke(frame, palm + finger, tip + 0.9 * finger, 0.045 * unit, (62, 64, 70))


def _draw_fingers(frame: Pixels, opening: float) -> None:
    """The gripper as its own camera sees it: two fingers from below."""
    height, width = frame.shape[:2]
    for side in (-1, 1):
        tip = complex((0.5 + side * (0.07 + 0.09 * opening)) * width, 0.6 * height)
        root = complex((0.5 + side * 0.24) * width, 1.05 * height)
        _draw_bar(frame, root, tip, 0.09 * width, (84, 86, 92))
        _draw_stroke(frame, tip, tip, 0.06 * width, (40, 40, 44))


def _draw_bar(
    frame: Pixels, start: complex, end: complex, width: float, colour: Sequence[int]
) -> None:
    """A round bar, lit from the upper left."""
    _draw_stroke(frame, start, end, width, [0.55 * part for part in colour])
    for share, tone, move in ((0.8, 0.85, 0.05), (0.35, 1.12, 0.14)):
        lit, shade = move * width * (1 + 1j), [min(255.0, tone * part) for part in colour]
        _draw_stroke(frame, start - lit, end - lit, share * width, shade, cv2.LINE_8)


def _draw_stroke(
    frame: Pixels, start: complex, end: complex, width: float, colour: Any, line: int = cv2.LINE_AA
) -> None:
    """Draw a line between two points of the picture, which are complex numbers of pixels."""
    begin, stop = ((round(16 * point.real), round(16 * point.imag)) for point in (start, end))
    cv2.line(frame, begin, stop, colour, max(1, round(width)), line, _SHIFT)


def draw_depth(episode: Episode, camera: Camera) -> Iterator[bytes]:
    """Yield PNG files of uint16 millimetres, ``[H, W]``: a table, and the arm's hand over it."""
    height, width = camera.size
    down, across = np.mgrid[:height, :width].astype(np.float32)
    table = 1800 - 900 * down / height
    for x, y, z, *_ in episode.poses[0]:
        column, row, unit = camera.at(x, y, z)
        hand = np.hypot(down - row, across - column) < 0.25 * unit
        depth = np.where(hand, table - 120 - 300 * z, table).astype(np.uint16)
        yield bytes(cv2.imencode(".png", depth)[1])
