"""Runs every command of pages that no test follows, on small data, and says which do not end well.

    make docs && .venv/bin/python tools/follow_pages.py             # PAGES; ten minutes
    .venv/bin/python tools/follow_pages.py docs/howto/slow-disk.md

The commands are those of the page, line by line, but for where data lie and for how long a study or
a measurement takes. ``doctor`` may find something. What is printed is not compared; that of the
quickstart and of the SLURM page is, by tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from lerobot_files import LeRobotFiles
from rlds_files import episode, write_dataset
from written_pages import steps

from autoloader.cli.demo import ensure_demo
from autoloader.controller.profiles import load_profile

PAGES = (
    "tutorials/workstation.md", "tutorials/own-dataset.md", "tutorials/lerobot.md",
    "howto/slow-disk.md", "howto/out-of-memory.md", "howto/team-profiles.md",
)  # fmt: skip
"""Of ``docs``."""
FEWER = {
    "autoloader tune ": "autoloader tune --trials 2 --warmup 1 --batches 4 --budget 60s ",
    "autoloader measure ": "autoloader measure --warmup 1 --batches 4 ",
    "autoloader verify ": "autoloader verify -n 8 ",
    "autoloader peek ": "autoloader peek --samples 8 ",
}


def furnished(place: Path) -> dict[str, str]:
    """Data where the pages say that they lie: that path → the real one; and a ``demo.yaml``."""
    mixture = ensure_demo(place / "demo", datasets=3, scale=0.02).parent
    roots = {name: place / name for name in ("oxe", "lab", "lerobot")}
    for root in roots.values():
        root.mkdir()
    kitchen, _, blocks = sorted(one for one in mixture.iterdir() if one.is_dir())
    (roots["oxe"] / "kitchen").symlink_to(kitchen)
    (roots["oxe"] / "viola").symlink_to(blocks)
    (roots["lab"] / "pick_cups").symlink_to(kitchen)
    write_dataset(roots["oxe"], [[episode(0, 5), episode(1, 5)]], name="bridge_dataset")
    LeRobotFiles(version="v2.1").write(roots["lerobot"] / "g1_pick")
    (place / "demo.yaml").write_text(
        (mixture / "mix.yaml").read_text().replace("path: demo_", f"path: {mixture}/demo_")
    )
    # A study so short may find nothing faster, and then it saves nothing.
    team = load_profile("local_dev").profile.model_copy(update={"name": "a100-node"})
    (place / "profiles").mkdir()
    (place / "profiles/a100-node.yaml").write_text(team.to_yaml())
    subprocess.run(["git", "init", "--quiet"], cwd=place, check=True)
    return {f"/data/{name}": str(root) for name, root in roots.items()}


def faults(page: Path, place: Path, data: dict[str, str]) -> Iterator[str]:
    """Which commands of a page end with something else than 0."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {f"AUTOLOADER_{name}_DIR": str(place / name) for name in ("CACHE", "CONFIG")}
    environment = {**os.environ, **kept, "PATH": path, "PYTHONPATH": str(ROOT)}
    shutil.copy(place / "demo.yaml", place / "mix.yaml")  # pages of their own begin with one
    for line in (line for step in steps(page) for line in step.commands.strip().splitlines()):
        command = line
        for said, real in {**data, **FEWER}.items():
            command = command.replace(said, real)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=place, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        sys.stderr.write(f"[{done.returncode}] {line}\n")
        if done.returncode > ("doctor" in line):
            yield f"{page.name}: {line}\n    ends with {done.returncode}: {done.stderr[-400:]}"


def main() -> int:
    """Follow the pages; 1 where a command ends badly."""
    pages = [Path(name) for name in sys.argv[1:]] or [ROOT / "docs" / name for name in PAGES]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        data = furnished(place)
        found = [fault for page in pages for fault in faults(page, place, data)]
    sys.stdout.writelines(f"{fault}\n" for fault in found)
    sys.stdout.write(f"{len(pages)} pages, {len(found)} faults\n")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
