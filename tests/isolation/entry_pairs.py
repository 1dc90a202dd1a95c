"""Entries and loaders that differ in one field, each row held against a fresh process' own.

A pair is two entries of one mixture over the same files, or two loaders that are open together.
Both are read with frames held in memory and on a disk, and all pairs share one cache directory, so
that what one left there is found by the next. Each entry alone, read by a new process that finds no
cache, says what every row must hold. ``make hunt`` reads many pairs.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import itertools
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from lerobot_files import LeRobotFiles
from rlds_files import PLAIN, TEXT, Declared, image, numbers, write_dataset

from autoloader import AutoLoader
from autoloader.controller.profile import Profile
from autoloader.controller.profiles import shipped_profiles_dir
from autoloader.spec import CameraSpec, PipelineSpec

PASSES = 3
STEPS = [[7, 4], [9], [3, 6]]
TOP, SIDE = "observation.images.top", "observation.images.side"
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
ARM: dict[str, Any] = {
    "images": {"primary": TOP, "wrist": "p.one"},
    "action": "action",
    "state": "observation.state",
    "language": "task",
    "features": {"more": "timestamp"},
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


def _turned(path: str, how: Any = "flip_channels") -> dict[str, Any]:
    return {"path": path, "ops": [how]}


PUBLIC = {"images.primary": _turned(IMAGE, {"flip_channels": "public"})}
ENTRY_FIELDS: dict[str, list[tuple[str, Any, dict[str, Any]]]] = {
    "oak": [
        ("images.primary", _turned(IMAGE), {}),
        ("images.primary", WRIST, {}),
        ("images.primary", {"any_of": [IMAGE, WRIST]}, {}),
        ("images.primary", {"path": IMAGE, "present": "success"}, {}),
        ("images.wrist", _turned(WRIST), {}),
        ("images.wrist", IMAGE, {}),
        ("images.deep", "observation/far", {}),
        ("files", "public", {**PUBLIC, "files": "rewritten"}),
        ("action", "action[1:]", {}),
        ("action", {"path": "action", "ops": [{"scale": 2}]}, {}),
        ("action", {"path": "observation/state", "ops": ["relabel"]}, {"steps": {"drop_last": 1}}),
        ("state", "observation/state[:2]", {}),
        ("state", {"path": "observation/state", "ops": ["invert"]}, {}),
        ("language", "task", {}),
        ("language", None, {}),
        ("language", {"any_of": ["task", "language_instruction"]}, {}),
        ("features", {"more": "success"}, {"features": {"more": "success"}, "stride": 2}),
        ("stride", 2, {}),
        ("fps", 5.0, {}),
        ("sample", {"edges": {"end": "zero"}}, {}),
        ("sample", {"frame_offsets": [-1, 0]}, {}),
        ("sample", {"action_start": 1}, {}),
        ("sample", {"action_reduce": "none", "action_relative_to_state": [0]}, {}),
        ("sample", {"per_episode": 2}, {}),
        ("keep", {"match": {"task": "fold"}}, {}),
        ("keep", {"flags": ["success"]}, {}),
        ("keep", {"language": "required"}, {}),
        ("transform", {"call": "pair_functions:halved"}, {}),
        ("transform.kwargs", {"by": 3}, {"transform": {"call": "pair_functions:scaled"}}),
        ("transform.call", "pair_functions:scaled", {"transform": {"call": "pair_functions:same"}}),
        ("transform.version", 2, {"transform": {"call": "pair_functions:same"}}),
        ("steps", {"drop_last": 1}, {}),
        ("steps", {"every": 2}, {}),
        ("split", "train[:60%]", {}),
        ("weight", 3.0, {}),
    ],
    "arm": [
        ("images.primary", SIDE, {}),
        ("images.primary", "p.two", {}),
        ("images.primary", _turned(TOP), {}),
        ("images.primary", {"any_of": [TOP, SIDE]}, {}),
        ("images.wrist", "p.two", {}),
        ("images.wrist", SIDE, {}),
        ("images.wrist", _turned("p.one"), {}),
        ("action", "action[1:]", {}),
        ("state", "action[:2]", {}),
        ("language", None, {}),
        ("stride", 2, {}),
        ("sample", {"frame_offsets": [-1, 0]}, {}),
        ("keep", {"match": {"task": "cube"}}, {}),
        ("steps", {"drop_first": 2}, {}),
        ("split", "train[1:]", {}),
        ("transform.kwargs", {"every": 2}, {"transform": {"call": "pair_functions:strided"}}),
    ],
}
"""By dataset: the field, another value of it, and what both entries say beside it."""
RESIZES = [v for v in get_args(CameraSpec.model_fields["resize"].annotation) if v != "bilinear"]
MIXTURE_FIELDS: list[tuple[str, Any, dict[str, Any]]] = [
    *(("cameras.wrist.resize", how, {}) for how in RESIZES),
    *(("cameras.primary.resize", how, {}) for how in RESIZES),
    *(("cameras.wrist.fit", how, {}) for how in ("pad", "crop")),
    *(("cameras.primary.fit", how, {}) for how in ("pad", "crop")),
    ("cameras.primary.size", [18, 12], {}),
    ("cameras.wrist.size", [24, 96], {}),
    ("cameras.deep.depth", "float32", {}),
    ("cameras.deep.size", [3, 4], {}),
    ("cameras.deep.fit", "pad", {"cameras.deep.size": [9, 9]}),
    ("seed", 7, {"sample.goal": "uniform"}),
    ("normalize", {"action": {"method": "mean_std"}}, {}),
    ("normalize.state", {"method": "q01_q99"}, {"normalize": {"action": {"method": "mean_std"}}}),
    ("sample.frame_offsets", [1], {}),
    ("sample.goal", "uniform", {}),
    ("mixing.block_length", 1, {}),
    ("mixing.chain", True, {"reader": "indexed"}),
    ("batch.size", 3, {}),
    ("pad_to.action", 5, {}),
    ("errors.max_corrupt_ratio", 0.5, {}),
]
KNOBS: list[tuple[str, Any]] = [
    ("cache_bytes", 0), ("cache_bytes", 60_000), ("decode_threads", 1), ("read_ahead", 4),
    ("io_threads", 1), ("ring_slots", 6),
]  # fmt: skip


def write_data(folder: Path) -> dict[str, Path]:
    """The datasets of all pairs; frames are noise, so that each differs from every other."""
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
    files = LeRobotFiles(
        lengths=(9, 5, 8, 6), cameras={TOP: 2, SIDE: 2}, pictures=["p.one", "p.two"], rows_a_file=2
    )
    return {
        "oak": write_dataset(folder, shards, name="oak", features=FEATURES).path,
        "arm": files.write(folder / "arm"),
    }


def _with(plain: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``plain`` with other values at dotted places."""
    found = copy.deepcopy(dict(plain))
    for place, value in changes.items():
        *above, name = place.split(".")
        holder = found
        for part in above:
            holder = holder.setdefault(part, {})
        holder[name] = copy.deepcopy(value)
    return found


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


def draw(drawn: random.Random, places: Mapping[str, Path], *, streams: bool = True) -> Pair:
    """A pair at random: half are entries of one mixture, half loaders."""
    name = drawn.choice(["oak", "oak", "oak", "arm"])
    base = {"path": str(places[name]), **copy.deepcopy(OAK if name == "oak" else ARM)}
    streams = streams and name == "oak" and drawn.random() < 0.35
    knobs = {"cache_bytes": 2**26, "decode_threads": 2, "ring_slots": 4}
    knobs["decode_processes"] = 1 if streams else drawn.randint(1, 3)
    reader = "stream" if streams else "indexed"
    kind = drawn.random()
    if kind < 0.6:
        place, value, both = drawn.choice(ENTRY_FIELDS[name])
        entries = [{"name": "one", **_with(base, both)}]
        entries.append(_with({**entries[0], "name": "two"}, {place: value}))
        if drawn.random() < 0.5:
            return Pair(place, [spec_of(entries, reader=reader)], [knobs])
        entries[1]["name"] = "one"
        return Pair(place, [spec_of([one], reader=reader) for one in entries], [knobs, knobs])
    first = spec_of([{"name": "one", **base}], reader=reader)
    if kind < 0.9:
        fields = [one for one in MIXTURE_FIELDS if name == "oak" or "deep" not in one[0]]
        place, value, both = drawn.choice(fields)
        first = _with(first, both)
        return Pair(place, [first, _with(first, {place: value})], [knobs, knobs])
    knob, setting = drawn.choice(KNOBS)
    return Pair(knob, [first, first], [knobs, {**knobs, knob: setting}])


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
        folder: for data and caches; ``AUTOLOADER_CACHE_DIR`` is set to one below it.
    """

    def __init__(self, folder: Path) -> None:
        self.seen = Seen()
        self.places = write_data(folder / "data")
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
                env={**os.environ, "AUTOLOADER_CACHE_DIR": own},
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


def drawn_pairs(seed: int, places: Mapping[str, Path], *, streams: bool = True) -> Iterator[Pair]:
    """Pairs without end; ``streams``: of both readers."""
    drawn = random.Random(seed)
    while True:
        yield draw(drawn, places, streams=streams)


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
