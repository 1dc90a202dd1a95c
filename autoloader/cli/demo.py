"""``autoloader demo``: 29 TFDS datasets of drawn robot episodes, and their ``mix.yaml``.

Theory of operation. The mixture is built in a temporary folder and renamed when it is complete, so
that a folder with a ``demo.json`` is always complete.

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoloader.cli.demo_writer import DATASETS, VERSION, DemoDataset, write_dataset
from autoloader.cli.output import Advance, answered, emit, note, progress_bar
from autoloader.errors import SourceError, UsageError
from autoloader.host.files import Waiting, locked
from autoloader.host.frozen import frozen
from autoloader.spec.reading import flow
from autoloader.storage.places import cache_root

logger = logging.getLogger(__name__)

FORMAT = 3
"""Raised when the same arguments begin to give other data."""
MARKER = "demo.json"
SPEC_FILE = "mix.yaml"
_BUILT_WITHIN_S = 3600.0


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
    """Write the datasets, and tell each episode."""
    scale, done = asked.scale, 0
    total = sum(one.train_episodes(scale) + one.val_episodes(scale) for one in asked.chosen)
    for dataset in asked.chosen:
        for _ in write_dataset(directory, scale, asked.seed, dataset):
            done += 1
            if progress is not None:
                progress(done, total)


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
