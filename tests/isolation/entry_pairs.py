"""Entries and loaders that differ in one field, each row held against a fresh process' own.

A pair is two entries of one mixture over the same files, or two loaders that are open together.
Both are read with frames held in memory and on a disk, and all pairs share one cache directory, so
that what one left there is found by the next. Each entry alone, read by a new process that finds no
cache, says what every row must hold.

Not here: pairs at random (``tools/hunt/pairs.py``).
"""

import contextlib
import copy
import hashlib
import io
import itertools
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from rlds_files import PLAIN, TEXT, Declared, image, numbers, write_dataset

from autoloader import AutoLoader
from autoloader.controller.profile import Profile
from autoloader.controller.profiles import shipped_profiles_dir
from autoloader.spec import PipelineSpec

PASSES = 3
STEPS = [[7, 4], [9], [3, 6]]
IMAGE, WRIST, DEPTH = "observation/image", "observation/wrist", "observation/depth"
FEATURES: dict[str, Declared] = {
    **PLAIN,
    IMAGE: image(24, 40),
    WRIST: image(240, 320),
    DEPTH: image(6, 9, dtype="uint16", channels=1),
    "observation/far": image(6, 9, dtype="uint16", channels=1),
    "task": TEXT,
    "reward": numbers(),
    "success": numbers(dtype="bool"),
}
OAK: dict[str, Any] = {
    "images": {"primary": IMAGE, "wrist": WRIST, "deep": DEPTH},
    "action": "action",
    "state": "observation/state",
    "language": "language_instruction",
    "features": {"more": "reward"},
}
CAMERAS: dict[str, Any] = {
    "primary": {"size": [12, 18]}, "wrist": {"size": [48, 48]},
    "deep": {"size": [6, 9], "depth": "uint16"},
}  # fmt: skip
MIXTURE: dict[str, Any] = {
    "sample": {"frame_offsets": [0, 2], "action_horizon": 2},
    "batch": {"size": 5, "drop_last": False},
    "mixing": {"epoch": "pass", "block_length": 2},
    "pad_to": {"action": 4, "state": 4},
}


def write_oak(folder: Path) -> Path:
    """A dataset; its frames are noise, so that each differs from every other."""
    random_ = np.random.default_rng(0)

    def noise(suffix: str, height: int, width: int, low: int, high: int) -> bytes:
        shown = random_.integers(low, high, (height, width, 3), np.uint8)
        shown[: height // 3, :, 0] += 40  # upper and lower, and the channels, are told apart
        return bytes(cv2.imencode(suffix, shown)[1])

    def far() -> bytes:
        return bytes(cv2.imencode(".png", random_.integers(0, 2**16, (6, 9), np.uint16))[1])

    number, shards = itertools.count(), []
    for lengths in STEPS:
        records = []
        for steps, episode in zip(lengths, number, strict=False):
            records.append({
                IMAGE: [noise(".jpg", 24, 40, 0, 200) for _ in range(steps)],
                WRIST: [noise(".png", 240, 320, 100, 108) for _ in range(steps)],
                DEPTH: [far() for _ in range(steps)],
                "observation/far": [far() for _ in range(steps)],
                "observation/state": random_.random(3 * steps).tolist(),
                "action": random_.random(2 * steps).tolist(),
                "language_instruction": [f"episode {episode}".encode()] * steps,
                "task": [b"fold" if (episode + k) % 3 else b"" for k in range(steps)],
                "reward": random_.random(steps).tolist(),
                "success": [int((episode + k) % 4 > 0) for k in range(steps)],
            })  # fmt: skip
        shards.append(records)
    return write_dataset(folder, shards, name="oak", features=FEATURES).path


@dataclass(frozen=True)
class Pair:
    """What is read together.

    Attributes:
        differs: the field or knob.
        specs: one with both entries, or one for each loader.
        knobs: of each loader.
    """

    differs: str
    specs: list[dict[str, Any]]
    knobs: list[dict[str, Any]]


def spec_of(entries: list[dict[str, Any]], **top: Any) -> dict[str, Any]:
    """A spec over some entries."""
    used = {camera for entry in entries for camera in entry["images"]}
    cameras = {camera: one for camera, one in CAMERAS.items() if camera in used}
    return {**copy.deepcopy(MIXTURE), "cameras": cameras, "datasets": entries, **top}


Rows = dict[tuple[Any, ...], dict[str, str]]
"""Dataset, pass, shard, record and t → name of an array → a hash of what the row holds of it."""


def note(batch: Mapping[str, Any], names: tuple[str, ...], rows: Rows) -> None:
    """Keep what a batch's rows hold."""
    arrays: dict[str, Any] = {}

    def collect(holder: Mapping[str, Any], above: str) -> None:
        for name, value in holder.items():
            if isinstance(value, Mapping):
                collect(value, f"{above}{name}/")
            elif name not in ("provenance", "dataset_index"):
                arrays[above + name] = value

    collect(batch, "")
    for row, (dataset, *place) in enumerate(np.asarray(batch["provenance"]).tolist()):
        found = {}
        for name, values in arrays.items():
            held = values[row]
            told = held.tobytes() if isinstance(held, np.ndarray) else repr(held).encode()
            found[name] = hashlib.blake2b(told, digest_size=12).hexdigest()
        rows[(names[dataset], *place)] = found


@dataclass
class Seen:
    """What pairs have shown.

    Attributes:
        rows, wrong: counted.
        faults: what was wrong, by the field that differs.
        hits, from_disk: frames that were held in memory, and on the disk.
        fields: pairs by the field that differs.
    """

    rows: int = 0
    wrong: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    hits: int = 0
    from_disk: int = 0
    fields: Counter[str] = field(default_factory=Counter)


class Pairs:
    """Reads pairs, in this process and its child, and holds their rows against fresh processes'.

    Args:
        folder: for caches; ``AUTOLOADER_CACHE_DIR`` is set to one below it.
    """

    def __init__(self, folder: Path) -> None:
        self.seen = Seen()
        self._known: dict[str, Rows] = {}
        os.environ["AUTOLOADER_CACHE_DIR"] = str(folder / "cache")
        lent = f"cache: {{disk: {folder / 'frames'}, bytes: 64MiB}}\n"
        plain = Profile.from_yaml(shipped_profiles_dir() / "local_dev.yaml").to_yaml()
        self._profile = folder / "lent.yaml"
        self._profile.write_text(plain + lent)

    def check(self, pair: Pair) -> None:
        """Read a pair, and count its wrong rows."""
        self.seen.fields[pair.differs] += 1
        keys = [
            [
                json.dumps({**spec, "datasets": [entry], "reader": "indexed"}, sort_keys=True)
                for entry in spec["datasets"]
            ]
            for spec in pair.specs
        ]
        self._learn([key for each in keys for key in each if key not in self._known])
        for each, spec, rows in zip(keys, pair.specs, self._read(pair), strict=True):
            expected: Rows = {}
            for key in each:
                expected |= self._known[key]
            assert rows, pair
            for place, row in rows.items():
                self.seen.rows += 1
                wanted = expected.get(place)
                if wanted != row:
                    self.seen.wrong += 1
                    names = [n for n in row if wanted is not None and wanted.get(n) != row[n]]
                    where = f"{spec['reader']}: {', '.join(names) or 'no such sample'}"
                    self.seen.faults[f"{pair.differs}: {where}"] += 1

    def _read(self, pair: Pair) -> list[Rows]:
        found: list[Rows] = [{} for _ in pair.specs]
        with contextlib.ExitStack() as stack:
            loaders = []
            for spec, knobs in zip(pair.specs, pair.knobs, strict=True):
                loaders.append(stack.enter_context(self._loader(spec, knobs)))
            for _ in range(PASSES):
                for batches in itertools.zip_longest(*loaders):
                    for loader, rows, batch in zip(loaders, found, batches, strict=True):
                        if batch is not None:
                            note(batch, loader.dataset_names, rows)
            for loader in loaders:
                self.seen.hits += loader.statistics().cache.hits
                self.seen.from_disk += loader.statistics().cache.from_disk
        return found

    def _loader(self, spec: Mapping[str, Any], knobs: Mapping[str, Any]) -> AutoLoader:
        with patch("autoloader.process.planning.cores_of_rank", lambda _: 4):  # wherever this runs
            return AutoLoader(
                PipelineSpec.from_mapping(spec),
                profile=str(self._profile),
                knobs=knobs,
                ram_floor="100MB",
                output="numpy",
                controller=False,
            )

    def _learn(self, keys: list[str]) -> None:
        """What each spec's rows hold, each in a process of its own that has read nothing."""
        with tempfile.TemporaryDirectory() as own:
            ran = subprocess.run(
                [sys.executable, __file__],
                input="\n".join(keys).encode(),
                stdout=subprocess.PIPE,
                env={
                    **os.environ,
                    "AUTOLOADER_CACHE_DIR": own,
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
                check=True,
            )
        found = io.BytesIO(ran.stdout)
        self._known |= {key: pickle.load(found) for key in keys}


def alone(spec: Mapping[str, Any]) -> Rows:
    """What the rows of a spec hold, in this process, with no frame held."""
    rows: Rows = {}
    with AutoLoader(
        PipelineSpec.from_mapping(spec),
        profile="local_dev",
        knobs={"cache_bytes": 0, "decode_threads": 1},
        ram_floor="100MB",
        output="numpy",
        controller=False,
        isolation="thread",
    ) as loader:
        for _ in range(PASSES):
            for batch in loader:
                note(batch, loader.dataset_names, rows)
    return rows


def main() -> None:
    """Say the rows of each spec on stdin, each from a fork of a process that has read nothing."""
    for number, line in enumerate(sys.stdin.read().splitlines()):
        if os.fork() == 0:
            os.environ["AUTOLOADER_CACHE_DIR"] += f"/{number}"
            sys.stdout.buffer.write(pickle.dumps(alone(json.loads(line))))
            sys.stdout.flush()
            os._exit(0)
        assert os.wait()[1] == 0


if __name__ == "__main__":
    main()
