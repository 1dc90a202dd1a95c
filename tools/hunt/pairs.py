"""Pairs of entries and of loaders at random: the field that differs, its values, the knobs.

Not here: how a pair is read and held against fresh processes (``tests/isolation/entry_pairs.py``).
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

TESTS = Path(__file__).parents[2] / "tests"
sys.path[:0] = [str(TESTS / folder) for folder in ("isolation", ".")]

from entry_pairs import IMAGE, OAK, WRIST, Pair, spec_of, write_oak
from lerobot_files import LeRobotFiles

from autoloader.spec import CameraSpec

TOP, SIDE = "observation.images.top", "observation.images.side"
ARM: dict[str, Any] = {
    "images": {"primary": TOP, "wrist": "p.one"},
    "action": "action",
    "state": "observation.state",
    "language": "task",
    "features": {"more": "timestamp"},
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
    """The datasets of all pairs."""
    files = LeRobotFiles(
        lengths=(9, 5, 8, 6), cameras={TOP: 2, SIDE: 2}, pictures=["p.one", "p.two"], rows_a_file=2
    )
    return {"oak": write_oak(folder), "arm": files.write(folder / "arm")}


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


def drawn_pairs(seed: int, places: Mapping[str, Path], *, streams: bool = True) -> Iterator[Pair]:
    """Pairs without end; ``streams``: of both readers."""
    drawn = random.Random(seed)
    while True:
        yield draw(drawn, places, streams=streams)
