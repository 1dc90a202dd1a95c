"""``autoloader demo``: 29 TFDS datasets of drawn robot episodes, and their ``mix.yaml``.

Theory of operation. A child (``cli.demo_writer``) writes the datasets. It reports each episode on
its stdout, and ends when its stdin does, so with the caller. The mixture is built in a temporary
folder and renamed when it is complete, so that a folder with a ``demo.json`` is always complete.

The same arguments give the same files: seed, dataset name, split and episode key every draw.

What it holds at scale 1 and seed 0:
848 episodes of 31,821 frames, 46,076 images with the other cameras, 810 MB. Small frames flatter a
loader, so the sizes of the encoded images (kB, 10³ bytes):

    ======  =====  ======  =====  ======  =====  =====  =====  =====  =====
    kB       0–5    5–10   10–15  15–20   20–25  25–30  30–35  35–40  40–50
    images    421  10,931  8,361  14,341  3,230  2,181  3,277  2,704    630
    ======  =====  ======  =====  ======  =====  =====  =====  =====  =====

and frames by the size of the primary camera's pictures (height × width):

    ==================  ======  ========
    pictures            frames  datasets
    ==================  ======  ========
    128×128 – 160×160    4,189         6
    180×240 – 224×224    5,692         6
    180×320 – 256×320   13,023         9
    300×300 – 300×400    1,529         2
    360×640              2,512         2
    480×640              4,876         4
    ==================  ======  ========

The features follow what Open X-Embodiment mixtures hold. Actions are flat or nested, of 4 to 14
dims. States are in one piece, in several, or absent. Language stands per step, in the observation
or in the episode's metadata, as code points, or nowhere. ``features.json`` has the image encoding
or not. There are large datasets and one of 24 episodes. One is at 50 Hz, one has a robot that
stands still now and then, one has depth beside RGB. Two thirds have no second camera. The first few
are already varied.

Not here: writing a dataset (``cli.demo_writer``), pictures (``cli.demo_scene``).
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from autoloader.cli.output import Advance, answered, emit, note, progress_bar
from autoloader.errors import SourceError, UsageError
from autoloader.host.files import Waiting, locked
from autoloader.host.frozen import frozen
from autoloader.host.supervision import start
from autoloader.spec.reading import flow, packaged
from autoloader.storage.places import cache_root

logger = logging.getLogger(__name__)

FORMAT = 3
"""Raised when the same arguments begin to give other data."""
MARKER = "demo.json"
SPEC_FILE = "mix.yaml"
VERSION = "1.0.0"
"""Version directory of every demo dataset."""
RANGES_FILE = "keep_ranges.json"
"""Beside the version directory of a dataset that idles: the steps at which it does not."""
CODE_POINTS = 96
"""Length of language that is stored as code points; what is left over is NUL."""
_BUILT_WITHIN_S = 3600.0


@frozen
class Look:
    """Look of a dataset's frames, and their encoding.

    Attributes:
        encoding: file format of a frame, ``jpeg`` or ``png``.
        quality: JPEG quality, 1 to 100; unused for PNG.
        noise: peak of the sensor noise in grey levels; 0 is a rendered picture.
        grain: strength of the finest texture for each camera.
    """

    encoding: str = "jpeg"
    quality: int = 90
    noise: int = 6
    grain: tuple[float, ...] = (1.0, 1.0, 1.0)


@frozen
class DemoDataset:
    """One dataset of the demo mixture.

    Attributes:
        name: dataset and folder name.
        weight: relative share in ``mix.yaml``.
        frames: frames of the train split at scale 1 (in the mean; lengths are drawn).
        lengths: shortest and longest episode, in frames.
        size: height and width of the primary camera in pixels.
        look: the picture's texture and encoding.
        primary: feature of the primary camera.
        second, third: feature and size of another camera, or ``None``.
        depth: feature of depth pictures (uint16 millimetres, PNG, the primary's size), or ``None``.
        hz: control rate, where steps are timed: ``observation/timestamp`` in seconds; ``None`` is
            untimed.
        idles: whether the robot stands still at the start and once later (action 0, state held),
            and ``keep_ranges.json`` lists the steps between.
        action: feature below ``action`` → dims; ``""`` is a flat action. 0 dims is a scalar.
        action_fields: the spec's expression; default every feature in order.
        action_dtype: NumPy type of the action, as stored.
        state: feature → dims; 0 dims is a scalar.
        language: features that hold the instruction.
        language_kind: ``text``, or ``codes`` (int32 code points).
        has_val: whether there is a ``val`` split of about 5 % more episodes.
        states_encoding: whether ``features.json`` says how images are encoded.
        shards: at most so many train shards.
        episodes: a fixed number of train episodes, whatever the scale.
        tasks: tasks, keys of ``demo_scene``'s words; one is drawn for each episode.
        things: names of what it is done to, as ``demo_things.yaml`` has them.
        goals: names of what things are put in or on.
        standard_names: shards are called ``-00000-of-00008``; else as TFDS's sequential writer
            leaves them, ``-00000``.
    """

    name: str
    weight: float
    frames: int
    lengths: tuple[int, int]
    size: tuple[int, int]
    look: Look
    primary: str = "observation/image"
    second: tuple[str, tuple[int, int]] | None = None
    third: tuple[str, tuple[int, int]] | None = None
    depth: str | None = None
    hz: int | None = None
    idles: bool = False
    action: Mapping[str, int] = field(default_factory=lambda: {"": 7})
    action_fields: tuple[object, ...] = ()
    action_dtype: str = "float32"
    state: Mapping[str, int] = field(default_factory=lambda: {"observation/state": 8})
    language: tuple[str, ...] = ("language_instruction",)
    language_kind: str = "text"
    has_val: bool = True
    states_encoding: bool = True
    shards: int = 8
    episodes: int | None = None
    standard_names: bool = True
    tasks: tuple[str, ...] = ("put", "put", "lift", "push")
    things: tuple[str, ...] = ("block", "cup", "ball", "can", "apple", "café crème pot")
    goals: tuple[str, ...] = ("bowl", "plate", "tray")

    @property
    def action_paths(self) -> tuple[str, ...]:
        """The action's features, in order."""
        return tuple(f"action/{key}" if key else "action" for key in self.action)

    @property
    def arms(self) -> int:
        """Number of arms: two where an action has 12 numbers or more, else one."""
        return 2 if sum(self.action.values()) >= 12 else 1

    @property
    def cameras(self) -> tuple[tuple[str, tuple[int, int]], ...]:
        """Every camera's feature and size, the primary first."""
        return ((self.primary, self.size), *filter(None, (self.second, self.third)))

    def train_episodes(self, scale: float) -> int:
        """Episodes of the train split at ``scale``; never fewer than 2."""
        if self.episodes is not None:
            return self.episodes
        return max(2, round(scale * self.frames / (sum(self.lengths) / 2)))

    def val_episodes(self, scale: float) -> int:
        """Episodes of the val split at ``scale``; 0 where there is none."""
        return max(1, round(0.05 * self.train_episodes(scale))) if self.has_val else 0


DATASETS = packaged(__package__, "demo.yaml", tuple[DemoDataset, ...])
"""The whole mixture as ``demo.yaml`` beside this file has it, in the order of ``mix.yaml``."""


def show_demo(directory: Path | None, *, datasets: int, scale: float, seed: int) -> None:
    """Write the demo mixture unless it is there, and say where its spec lies."""
    built = False
    with progress_bar("writing episodes") as advance:

        def tell(done: int, total: int) -> None:
            nonlocal built
            built = True
            advance(done, total)

        spec_path = ensure_demo(directory, datasets=datasets, scale=scale, seed=seed, progress=tell)
    given = {"datasets": datasets, "scale": scale, "seed": seed}
    if not answered({"spec": spec_path, "directory": spec_path.parent, **given, "built": built}):
        note("demo mixture written" if built else "the demo mixture is there already")
        emit(str(spec_path))


def demo_spec() -> Path:
    """Give the spec of the demo mixture, written now unless it is there."""
    with progress_bar("writing the demo mixture") as advance:
        spec_path = ensure_demo(progress=advance)
    note(f"demo mixture: {spec_path}")
    return spec_path


@frozen
class _Asked:
    """Arguments that a demo mixture follows from; see ``ensure_demo``."""

    datasets: int
    scale: float
    seed: int

    def __post_init__(self) -> None:
        for name, fits, remedy in (
            ("datasets", 1 <= self.datasets <= len(DATASETS), f"choose 1 to {len(DATASETS)}"),
            ("scale", 0 < self.scale <= 1000, "choose above 0 and up to 1000; 1 is about 810 MB"),
            ("seed", 0 <= self.seed < 2**63, "choose 0 or a positive integer"),
        ):
            if not fits:
                raise UsageError(f"--{name}: {getattr(self, name)} is out of range", remedy=remedy)

    @property
    def chosen(self) -> tuple[DemoDataset, ...]:
        """The datasets of the mixture."""
        return DATASETS[: self.datasets]

    def identity(self) -> dict[str, Any]:
        """Content of the marker file by which this very mixture is known."""
        declared = hashlib.sha256(repr(self.chosen).encode()).hexdigest()[:12]
        given = {"datasets": self.datasets, "scale": float(self.scale), "seed": self.seed}
        return {"format": FORMAT, "declared": declared, **given}

    def lies_in(self, directory: Path) -> bool:
        """Tell whether this very mixture lies there; raises where another one does."""
        try:
            found = json.loads((directory / MARKER).read_text(encoding="utf-8"))["identity"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        mine = self.identity()
        if found == mine:
            return True
        held = found if isinstance(found, dict) else {}
        differing = [
            f"{key} {held.get(key)!r}, and you asked for {one!r}"
            for key, one in mine.items()
            if held.get(key) != one
        ]
        raise UsageError(
            f"{directory} holds another demo mixture: {', '.join(differing)}",
            remedy="delete the folder to build it again, or give another folder",
        )


def demo_directory(*, datasets: int = 29, scale: float = 1.0, seed: int = 0) -> Path:
    """Folder of the user's cache for the demo mixture of these arguments; may not exist yet."""
    identity = json.dumps(_Asked(datasets, scale, seed).identity())
    return cache_root() / "demo" / hashlib.sha256(identity.encode()).hexdigest()[:12]


def ensure_demo(
    directory: Path | None = None,
    *,
    datasets: int = 29,
    scale: float = 1.0,
    seed: int = 0,
    progress: Advance | None = None,
) -> Path:
    """Give the demo mixture's ``mix.yaml``, built now unless it is there.

    Processes may call at once: one of them builds.

    Args:
        directory: folder of the mixture; ``None``: one in the user's cache directory.
        datasets: number of datasets, the first ones of the 29.
        scale: factor on the number of episodes; about 810 MB at 1.
        seed: seed of everything that is drawn.
        progress: called with episodes done and in all while it is built.

    Raises:
        UsageError: an argument is out of range, or ``directory`` holds something else.
        SourceError: the demo could not be written.
    """
    asked = _Asked(datasets, scale, seed)
    place = directory or demo_directory(datasets=datasets, scale=scale, seed=seed)
    place = place.resolve()
    if not asked.lies_in(place):
        lock = place.with_name(f".{place.name}.lock")
        waits = Waiting(f"the demo mixture in {place}", _BUILT_WITHIN_S, say=logger.warning)
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            with locked(lock, waits):
                try:
                    if not asked.lies_in(place):
                        _build(place, asked, progress)
                finally:
                    lock.unlink(missing_ok=True)
        except OSError as error:
            raise SourceError(
                f"the demo mixture cannot be written to {place}: {error}",
                remedy="give a folder that can be written to and has about 1 GB free",
            ) from error
    return place / SPEC_FILE


def _build(directory: Path, asked: _Asked, progress: Advance | None) -> None:
    """Write the mixture into ``directory``, which is new or empty; the caller holds the lock."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(
            f"{directory} exists already and is not empty; nothing was written",
            remedy="give a new folder, or delete this one if you do not need its content",
        )
    partial = directory.with_name(f".{directory.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write(partial, asked, progress)
        text = spec_text(asked.chosen, asked.scale, asked.seed)
        (partial / SPEC_FILE).write_text(text, encoding="utf-8")
        told = json.dumps({"identity": asked.identity()}) + "\n"
        (partial / MARKER).write_text(told, encoding="utf-8")
        if directory.exists():
            directory.rmdir()
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(directory: Path, asked: _Asked, progress: Advance | None) -> None:
    """Start the child, and pass its progress on."""
    chosen, scale, done = asked.chosen, asked.scale, 0
    total = sum(one.train_episodes(scale) + one.val_episodes(scale) for one in chosen)
    names = [one.name for one in chosen]
    job = {"into": str(directory), "names": names, "scale": scale, "seed": asked.seed}
    with (
        tempfile.TemporaryFile("w+", errors="replace") as log,
        start(  # at the end of this block its stdin is closed, and it ends
            "autoloader.cli.demo_writer",
            [json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as child,
    ):
        assert child.stdout is not None
        for _ in child.stdout:
            done += 1
            if progress is not None:
                progress(done, total)
        if child.wait() != 0:
            log.seek(0)
            last = [line.strip() for line in log if line.strip()][-1:] or ["no message"]
            raise SourceError(
                f"a process that writes the demo mixture ended with exit code {child.returncode}: "
                f"{last[0]}",
                remedy="check free disk space and memory",
            )


def spec_text(chosen: Sequence[DemoDataset], scale: float, seed: int) -> str:
    """``mix.yaml`` of these datasets."""
    lines = [
        "# The demo mixture. Paths start at this file's folder.",
        "schema_version: 1",
        f"seed: {seed}",
        'defaults: {split: {train: "train", val: "val"}}',
        "datasets:",
    ]
    for one in chosen:
        values: dict[str, Any] = {"name": one.name, "path": f"{one.name}/{VERSION}"}
        values["weight"] = one.weight
        if not one.has_val:
            few = one.train_episodes(scale) < 40
            parts = ("train[:-1]", "train[-1:]") if few else ("train[:95%]", "train[95%:]")
            values["split"] = dict(zip(("train", "val"), parts, strict=True))
        values["images"] = {"primary": one.primary}
        values["action"] = _one_or_all(one.action_fields or one.action_paths)
        values["state"] = _one_or_all(tuple(one.state))
        words = _one_or_all(one.language)
        values["language"] = {"any_of": words} if len(one.language) > 1 else words
        told = [f"{key}: {flow(value)}" for key, value in values.items() if value]
        lines += [f"  - {told[0]}", *(f"    {line}" for line in told[1:])]
        if one.second:
            lines.append(f"    # a second camera: {one.second[0]}")
    lines += [
        "sample: {frame_offsets: [0, 5]}",
        "cameras: {primary: {size: [256, 256]}}",
        "batch: {size: 48}",
    ]
    return "\n".join(lines) + "\n"


def _one_or_all(words: Sequence[object]) -> Any:
    """The only word, or the list of several."""
    return words[0] if len(words) == 1 else list(words)
