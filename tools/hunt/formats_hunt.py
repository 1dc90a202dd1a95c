"""Kills runs over TFRecord, LeRobot, HDF5 and image–text in one spec, and resumes each exactly.

    python tools/hunt/formats_hunt.py --kills 100 --seed 0

A run goes on from the state of the run before, on 1, 2 or 3 ranks. All its processes that train are
killed (SIGKILL) after a drawn step, at whatever they do then: with the loader in a process or on
threads, with one or two decode processes. Every row of every step, its pixels
too, is held against one run that nobody killed. Ends with 1 where one differs.

Not here: forks, stops and signals of one format (``hunt``).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2] / "tests"
sys.path.insert(0, str(TESTS))

from hdf5_files import write_aloha, write_robomimic
from image_text_files import records, spec_of, write_lines, write_tar
from lerobot_files import LeRobotFiles
from rlds_files import write_steps

from autoloader import AutoLoader, PipelineSpec

BATCH = 8
LONGEST = 6
"""Steps of a run, at most."""


def written(folder: Path) -> PipelineSpec:
    """Every format on disk, and a spec of all."""
    talk = write_lines(folder / "talk.jsonl", records(folder, [1, 0, 1, 1, 0, 1, 1]))
    (folder / "t").mkdir()
    write_tar(folder / "t/talk.tar", [1, 1, 0])
    write_robomimic(folder / "demos/d.hdf5", {"demo_0": 14, "demo_1": 11}, "gzip")
    for episode, steps in enumerate((8, 9)):
        write_aloha(folder / f"arms/episode_{episode}.hdf5", episode, steps, {"top": "jpeg_rows"})
    lero = LeRobotFiles(lengths=(12, 7)).write(folder / "lero")
    oak = write_steps(folder, [[9, 4], [12]], name="oak").path
    others: list[dict[str, Any]] = [
        {"name": "tar", "path": str(folder / "t"), "kind": "image_text",
         "images": {"top": "image_0"}, "weight": 1.0},
        {"name": "demos", "path": str(folder / "demos"), "action": "actions[:2]",
         "images": {"top": "obs/agentview_image"}, "weight": 2.0},
        {"name": "arms", "path": str(folder / "arms"), "action": "action[:2]",
         "images": {"top": "observations/images/top"}, "weight": 1.0},
        {"name": "lero", "path": str(lero), "action": "action[:2]",
         "images": {"top": "observation.images.top"}, "weight": 1.0},
        {"name": "oak", "path": str(oak), "action": "action[:2]",
         "images": {"top": "observation/image"}, "weight": 1.0},
    ]  # fmt: skip
    return spec_of(
        talk, *others, weight=3.0, batch={"size": BATCH}, mixing={"epoch": "forever"},
        sample={"frame_offsets": [-1, 0], "action_horizon": 3}, metadata="full",
    )  # fmt: skip


def rows_of(batch: Any) -> list[list[int]]:
    """Place of each row, and a checksum of what it shows."""
    shown = zip(
        batch["provenance"].tolist(), batch["images"]["top"], batch["action"], batch["language"],
        strict=True,
    )  # fmt: skip
    return [
        [*place, zlib.crc32(picture.tobytes() + action.tobytes() + str(text).encode())]
        for place, picture, action, text in shown
    ]


def told(spec: PipelineSpec, state: Any, **how: Any) -> Iterator[Any]:
    """(rows, state behind them) of each step."""
    with AutoLoader(spec, output="numpy", ram_floor="64MiB", **how) as loader:
        if state is not None:
            loader.load_state_dict(state)
        for batch in loader:
            yield rows_of(batch), loader.state_dict()


class Rank:
    """A process that trains, and tells each step."""

    def __init__(self, *given: Any, **how: Any) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.close(read)
                with os.fdopen(write, "w") as file:
                    for step in told(*given, **how):
                        print(json.dumps(step), file=file, flush=True)
            finally:
                os._exit(1)
        os.close(write)
        self.steps = os.fdopen(read)

    def step(self) -> Any:
        """The next step's rows and state."""
        return json.loads(self.steps.readline())

    def kill(self) -> None:
        """Kill the process, whatever it does."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.steps.close()


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)  # noqa: T201


def hunt(folder: Path, kills: int, seed: int) -> int:
    """Kill so many runs; the number of rows that were held against the run that nobody killed."""
    spec, drawn = written(folder), random.Random(seed)
    runs = [(drawn.randint(1, 3), drawn.randint(1, LONGEST)) for _ in range(kills)]
    wanted, whole = sum(world * steps for world, steps in runs), []
    for rows, _ in told(spec, None):
        whole += rows
        if len(whole) >= wanted * BATCH:
            break
    state, at = None, 0
    for number, (world, steps) in enumerate(runs):
        knobs = {"decode_processes": drawn.choice((1, 1, 2)), "ring_slots": drawn.randint(4, 9)}
        own = {"knobs": knobs, "isolation": drawn.choice(("thread", "thread", "process"))}
        ranks = [Rank(spec, state, rank=k, world_size=world, **own) for k in range(world)]
        try:
            for _ in range(steps):
                found = [rank.step() for rank in ranks]
                rows = [row for own, _ in found for row in own]
                if rows != whole[at : at + len(rows)]:
                    raise SystemExit(f"run {number} on {world} ranks: rows differ at row {at}")
                at, state = at + len(rows), found[drawn.randrange(world)][1]
        finally:
            for rank in ranks:
                rank.kill()
        say(f"killed {number + 1} runs; this one on {world} ranks, {at} rows equal")
    return at


def main() -> None:
    """Kill runs as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="formats-hunt-") as folder:
        os.environ["AUTOLOADER_CACHE_DIR"] = f"{folder}/cache"
        rows = hunt(Path(folder), given.kills, given.seed)
    say(f"{given.kills} runs killed and resumed on 1 to 3 ranks, {rows} rows equal")


if __name__ == "__main__":
    main()
