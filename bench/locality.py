"""An order with locality on a disk head: rates in turn, and bytes read in a pass.

    python -m bench.locality [--pairs 3] [--seconds 10] [--block 8MiB] [--window 8]

The data is one dataset of 256×256 frames. Its folder is shown by ``bench.disk_head``: 8 ms where a
read does not go on from the last, 200 MB/s, nothing kept by the kernel. Loaders follow each other:
in the default order and with locality, from the head and from the page cache; no decoded frame is
held. Then one loader with locality goes through whole passes, and the head tells what it read.

Result on stdout as JSON. Exit code 1 where there can be no such file system; it says why.

Not here: shuffle quality (``bench.locality_shuffle``), that samples are right (``tests/runtime``).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autoloader import AutoLoader, PipelineSpec
from bench.data import drop_from_cache, ensure_data
from bench.disk_head import counts, mounted
from bench.host import load
from bench.paired import estimate, in_turn, paired_ratios
from bench.shown_files import why_not

DATA = "even_1"
PASSES = 2
HEAD, CACHED = "disk head", "page cache"
ORDERS = ("any order", "locality")


def main() -> int:
    chosen = _arguments()
    if (why := why_not()) is not None:
        print(why, file=sys.stderr)
        return 1
    began, mix = load(), ensure_data(DATA)
    near = {"block": chosen.block, "window": chosen.window}
    rates: dict[str, list[float]] = {f"{o}, {w}": [] for w in (HEAD, CACHED) for o in ORDERS}
    with tempfile.TemporaryDirectory() as folder:
        drop_from_cache(mix)
        with mounted(mix.parent, Path(folder) / "head") as mount:
            specs = {
                f"{order}, {where}": _spec(mix, place, near if order == "locality" else None)
                for where, place in ((HEAD, mount), (CACHED, mix.parent))
                for order in ORDERS
            }
            for name in specs:
                _rate(specs[name], 0.0)  # indexes are built, and the page cache is warm
            for order in in_turn(list(specs), chosen.pairs):
                for name in order:
                    rates[name].append(_rate(specs[name], chosen.seconds))
                    print(name, f"{rates[name][-1]:.0f} samples/s", file=sys.stderr)
            read = _bytes_of_a_pass(specs[f"locality, {HEAD}"], mount)
    here = rates[f"locality, {HEAD}"]
    data = _data_bytes(mix)
    found: dict[str, Any] = {
        "samples_per_s": rates,
        "locality against any order, disk head": _ratio(here, rates[f"any order, {HEAD}"]),
        "locality on the head against any order in the page cache": _ratio(
            here, rates[f"any order, {CACHED}"]
        ),
        "bytes": {"of the data": data, "of a pass": read, "ratio": read / data},
        "locality": near,
        "load": {"began": began, "ended": load()},
    }
    print(json.dumps(found, indent=1))
    return 0


def _ratio(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    return estimate(paired_ratios(ours, theirs)).as_dict()


def _spec(mix: Path, place: Path, near: dict[str, Any] | None) -> PipelineSpec:
    plain = PipelineSpec.from_yaml(mix).model_dump(mode="json")
    for dataset in plain["datasets"]:
        dataset["path"] = str(place / Path(dataset["path"]).relative_to(mix.parent))
    mixing = {"epoch": "pass", "locality": near}
    return PipelineSpec.from_mapping(
        plain | {"reader": "indexed", "weights": "natural", "mixing": mixing}
    )


def _loader(spec: PipelineSpec) -> AutoLoader:
    return AutoLoader(
        spec,
        ram_floor="500MB",
        knobs={"cache_bytes": 0, "decode_threads": 2},
        controller=False,
        output="numpy",
    )


def _rate(spec: PipelineSpec, seconds: float) -> float:
    """Samples per second, after the ring is full or two seconds."""
    with _loader(spec) as loader:
        samples, since = 0, None
        while True:
            for batch in loader:
                now = time.monotonic()
                since = now + min(2.0, seconds) if since is None else since
                if now >= since:
                    samples += len(batch["provenance"])
                if now >= since + seconds:
                    return samples / max(now - since, 1e-9)


def _bytes_of_a_pass(spec: PipelineSpec, mount: Path) -> float:
    """Bytes that the head read in a pass; what is read ahead is so at its beginning and its end."""
    told = []
    with _loader(spec) as loader:
        for _ in range(PASSES + 1):
            for _ in loader:
                pass
            told.append(counts(mount)["bytes"])
    return (told[-1] - told[0]) / PASSES


def _data_bytes(mix: Path) -> int:
    spec = PipelineSpec.from_yaml(mix)
    return sum(
        path.stat().st_size
        for dataset in spec.datasets
        for path in Path(str(dataset.path)).glob("*-train.tfrecord*")
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.locality", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn")
    parser.add_argument("--block", default="8MiB")
    parser.add_argument("--window", type=int, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
