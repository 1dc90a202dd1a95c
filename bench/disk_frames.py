"""Frames on a disk beside decoding them: rates in turn, and the same pixels whatever is done to it.

    python -m bench.disk_frames [--folder DIR] [--reader indexed] [--pairs 3] [--seconds 5]

The mixture is one dataset of 480×640 PNGs, resized to 256×256; no frame is held in memory. A first
turn decodes every sample and notes a checksum of its pixels. Then turns without the disk and with
it follow each other. At last a loader is disturbed: its child is killed while it writes, its file
is damaged, and its folder is on a file system that is full (where this user may mount one). All
samples of all turns are held against the checksums.

Result on stdout as JSON. Exit code 1 where a frame was wrong.

Not here: faults one by one (``tests/cache/test_frames_on_disk.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoloader import AutoLoader, PipelineSpec
from bench.data import ensure_data
from bench.host import load
from bench.paired import estimate, in_turn, paired_ratios

DATA = "png_480"
ROOM = "1GB"
KILLS = 2
Sums = dict[tuple[int, ...], int]


def main() -> int:
    arguments = _arguments()
    began = load()
    rates: dict[str, list[float]] = {"without": [], "with": []}
    wrong: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(arguments.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        frames = folder / "frames"
        stack.callback(shutil.rmtree, frames, ignore_errors=True)
        profiles = {"without": _profile(folder, None), "with": _profile(folder, frames)}
        bench = _Bench(arguments.reader, arguments.seconds)
        bench.known = bench.all_of_it(profiles["without"])[0]
        bench.all_of_it(profiles["with"])
        for order in in_turn(list(rates), arguments.pairs):
            for name in order:
                rates[name].append(bench.rate(profiles[name]))
                print(name, f"{rates[name][-1]:.0f} samples/s", file=sys.stderr)
        shutil.rmtree(frames)
        wrong["killed while it writes"] = bench.killed(profiles["with"])
        wrong["damaged"] = bench.damaged(profiles["with"], frames)
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            full = stack.enter_context(_full_disk(folder / "full"))
            wrong["a full disk"] = bench.all_of_it(_profile(folder, full))[1]
    ratios = estimate(paired_ratios(rates["with"], rates["without"]))
    found: dict[str, Any] = {
        "samples_per_s": rates,
        "with against without": ratios.as_dict(),
        "wrong_frames": {"in turns": bench.wrong, **wrong},
        "frames": len(bench.known),
        "load": {"began": began, "ended": load()},
    }
    print(json.dumps(found, indent=1))
    return int(any(found["wrong_frames"].values()))


class _Bench:
    """Loaders over the mixture; their samples are held against what is known."""

    def __init__(self, reader: str, seconds: float) -> None:
        plain = PipelineSpec.from_yaml(ensure_data(DATA)).model_dump(mode="json")
        plain |= {"reader": reader, "mixing": {"epoch": "pass"}, "weights": "natural"}
        self._spec = PipelineSpec.from_mapping(plain)
        self._seconds = seconds
        self.known: Sums = {}
        self.wrong = 0

    def all_of_it(self, profile: Path) -> tuple[Sums, int]:
        """Every sample once: checksums of their pixels, and how many are not as they should be."""
        sums: Sums = {}
        with self._loader(profile) as loader:
            for batch in loader:
                self._note(batch, sums)
        return sums, self._wrong(sums)

    def rate(self, profile: Path) -> float:
        """Samples per second, after a second."""
        with self._loader(profile) as loader:
            sums: Sums = {}
            samples, since = 0, None
            for batch in _endless(loader):
                now = time.monotonic()
                since = now + 1.0 if since is None else since
                if now >= since:
                    samples += len(batch["provenance"])
                if now >= since + self._seconds:
                    self._note(batch, sums)
                    self.wrong += self._wrong(sums)
                    return samples / (now - since)
        raise AssertionError

    def killed(self, profile: Path) -> int:
        """Wrong samples of loaders whose children are killed in their first pass."""
        wrong = 0
        for _ in range(KILLS):
            sums: Sums = {}
            with self._loader(profile) as loader:
                for number, batch in enumerate(loader):
                    self._note(batch, sums)
                    if number == 1:
                        os.kill(loader.statistics().worker_pids[0], signal.SIGKILL)
            wrong += self._wrong(sums) + len(self.known.keys() - sums.keys())
        return wrong

    def damaged(self, profile: Path, frames: Path) -> int:
        """Wrong samples after every third page of the file was overwritten."""
        for path in frames.iterdir():
            with path.open("r+b") as file:
                for at in range(0, path.stat().st_size, 3 * 4096):
                    file.seek(at)
                    file.write(os.urandom(512))
        return self.all_of_it(profile)[1]

    def _loader(self, profile: Path) -> AutoLoader:
        return AutoLoader(
            self._spec,
            profile=str(profile),
            ram_floor="500MB",
            knobs={"cache_bytes": 0, "decode_threads": 2},
            controller=False,
            output="numpy",
        )

    def _note(self, batch: Any, sums: Sums) -> None:
        for row, shown in zip(batch["provenance"], batch["images"]["primary"], strict=True):
            sums[tuple(row[2:].tolist())] = zlib.crc32(shown.tobytes())

    def _wrong(self, sums: Sums) -> int:
        return sum(self.known.get(place, one) != one for place, one in sums.items())


def _endless(loader: AutoLoader) -> Iterator[Any]:
    while True:
        yield from loader


def _profile(folder: Path, frames: Path | None) -> Path:
    shipped = Path(__file__).parents[1] / "profiles" / "local_dev.yaml"
    lent = "" if frames is None else f"cache: {{disk: {frames}, bytes: {ROOM}}}\n"
    path = folder / f"{'none' if frames is None else frames.name}.yaml"
    path.write_text(shipped.read_text() + lent)
    return path


@contextlib.contextmanager
def _full_disk(place: Path) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.disk_frames", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--folder", help="on the disk that is measured; default: a temporary one")
    parser.add_argument("--reader", default="indexed", choices=("indexed", "stream"))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
