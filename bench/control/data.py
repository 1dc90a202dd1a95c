"""The mixtures that control scenarios name.

``demo_quarter`` is the demo mixture with a quarter of its episodes, so that a run goes through its
files several times; what is cached is read again.

``jump`` is a mixture whose frames become eight times larger in the middle of an epoch, by either
reader and in the same place. An epoch deals first the full blocks of every dataset, then what is
left over; so datasets of one block come first, and datasets one sample short of a block come last.
The early ones have frames of 181×181, the late ones of 512×512; batches have the same size all
along. The late datasets are one set of files under several names.

Not here: the bench's other mixtures (``bench.data``).
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import cv2
import simplejpeg

from autoloader.cli.demo import ensure_demo
from autoloader.storage.places import cache_root
from bench.records import example_bytes, parse_example, read_records, write_records
from bench.versions import build_whole, write_mix, write_version

FORMAT = 2
"""Raised when the same name begins to mean other data."""
BLOCK = 1024
EARLY, LATE = 3, 8
_SOURCE = "demo_toy_sort"
_IMAGE = "steps/observation/image_0"
_SHARDS = 4


def ensure_data(name: str) -> Path:
    """The ``mix.yaml`` of the named mixture, built in the user's cache directory on first use.

    Raises:
        ValueError: there is no mixture of that name.
    """
    if name == "demo_quarter":
        return ensure_demo(scale=0.25)
    if name != "jump":
        raise ValueError(f"there is no mixture {name!r}; there are demo_quarter, jump")
    place = cache_root() / "bench" / f"jump-{FORMAT}"
    if not place.exists():
        build_whole(place, _build_jump)
    return place / "mix.yaml"


def _build_jump(place: Path) -> None:
    source = ensure_demo().parent / _SOURCE / "1.0.0"
    info = json.loads((source / "dataset_info.json").read_text())
    features = (source / "features.json").read_text()
    records = [one for path in sorted(source.glob("*-train.*")) for one in read_records(path)]
    # 32 × 32 steps are one block, 33 × 31 one sample less.
    names = []
    for kind, count, episodes, steps, size in (
        ("early", EARLY, 32, 32, 181),
        ("late", LATE, 33, 31, 512),
    ):
        made = _episodes(records, episodes, steps, size)
        lengths = [(episodes + shard) // _SHARDS for shard in range(_SHARDS)]
        first: list[Path] = []
        for number in range(count):
            names.append(f"{kind}_{number}")
            paths = write_version(place, names[-1], features, lengths, info)
            for at, (path, length) in enumerate(zip(paths, lengths, strict=True)):
                if first:
                    os.link(first[at], path)
                else:
                    write_records(path, itertools.islice(made, length))
            first = first or paths
    mixing = f"weights: natural\nmixing: {{epoch: pass, block_length: {BLOCK}}}"
    write_mix(place / "mix.yaml", dict.fromkeys(names, 1.0), more=mixing)


def _episodes(records: list[bytes], episodes: int, steps: int, size: int) -> Iterator[bytes]:
    """So many episodes of exactly so many steps, their frames of another size."""
    found = list(map(parse_example, records))
    long = [one for one in found if len(one[_IMAGE]) >= steps]
    for number in range(episodes):
        example = dict(long[number % len(long)])
        whole = len(example[_IMAGE])
        for name, values in example.items():
            if name.startswith("steps/"):
                example[name] = values[: len(values) // whole * steps]
        example[_IMAGE] = [_resized(bytes(frame), size) for frame in example[_IMAGE]]
        yield example_bytes(example)


def _resized(frame: bytes, size: int) -> bytes:
    picture = simplejpeg.decode_jpeg(frame)
    scaled = cv2.resize(picture, (size, size), interpolation=cv2.INTER_CUBIC)
    return bytes(simplejpeg.encode_jpeg(scaled))
