"""Installs the wheel beside other people's pins, at both ends of its own, and works in each.

    make compat [ARGS="openpi oldest --keep"]

In each environment the core's commands run, and every use that what is installed there allows;
where torch is, ``examples/train_bc.py`` trains 50 steps; the fast tests run at the oldest versions
and with each Python. An environment takes up to 5 GB, and goes when it has been tried. One of a
Python that is not to be had is left out, and said so.

Not here: how an environment is made (``environments``), what is done in one (``usage_script``).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "install")]

from environments import ENVIRONMENTS, Environment, Workshop
from installation import ROOT, check, lerobot_data, local_data, ran

from autoloader.host.extras import EXTRA_OF

STEPS = 50
FAST_TESTS = ("controller", "knobs", "profile", "runtime", "sampling", "spec", "statistics")
"""Folders of tests that start few processes."""
OF_EXTRAS = (
    "--ignore=tests/statistics/test_normalisation.py",
    "--deselect=tests/controller/test_control.py::"
    "test_below_the_floor_the_loader_is_at_minimum_at_once_and_batches_still_come[stream]",
)
"""Those among them that need torch or TensorFlow."""
SHOWN = (
    "numpy", "torch", "tensorflow", "tensorflow-cpu", "opencv-python-headless", "opencv-python",
    "pydantic", "jax",
)  # fmt: skip
SPEC = """\
datasets:
  - name: robot
    path: {data}/robot/1.0.0
    split: {{train: "train[:3]", val: "train[3:]"}}
    images: {{primary: observation/image}}
    action: action
    state: observation/state
sample: {{action_horizon: 3}}
normalize: {{action: {{method: q01_q99}}, state: {{method: mean_std}}}}
cameras: {{primary: {{size: [32, 32]}}}}
batch: {{size: 8}}
"""


def main() -> int:
    """Try the environments that are named, or all; 1 where one fails."""
    names = [one.name for one in ENVIRONMENTS]
    parser = argparse.ArgumentParser(description="try the wheel in environments of its own")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv-compat")
    parser.add_argument("--keep", action="store_true", help="leave the environments there")
    given = parser.parse_args()
    if unknown := set(given.names) - set(names):
        parser.error(f"no environment {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    workshop = Workshop(given.folder.absolute())
    workshop.folder.mkdir(exist_ok=True)
    wheel, failed = workshop.wheel(), []
    for one in ENVIRONMENTS:
        if given.names and one.name not in given.names:
            continue
        if one.python and not workshop.has_python(one.python):
            say(one, f"left out: there is no Python {one.python} here")
            continue
        try:
            tried(one, workshop, wheel)
        except (AssertionError, subprocess.CalledProcessError) as error:
            say(one, f"FAILED: {error}")
            failed.append(one.name)
        if not given.keep:
            shutil.rmtree(workshop.folder / one.name, ignore_errors=True)
    told = f"failed: {', '.join(failed)}" if failed else "all that was tried works"
    sys.stdout.write(f"{told}\n")
    return bool(failed)


def tried(one: Environment, workshop: Workshop, wheel: Path) -> None:
    """Make an environment and work in it.

    Raises:
        AssertionError, subprocess.CalledProcessError: something does not work.
    """
    began_s = time.monotonic()
    python = workshop.make(one, wheel)
    made_s = time.monotonic()
    versions = dict(line.split("==") for line in workshop.packages(python))
    say(one, f"made in {made_s - began_s:.0f} s: " + ", ".join(
        f"{name} {versions[name]}" for name in SHOWN if name in versions
    ))  # fmt: skip
    code = "import sys; from importlib.util import find_spec as f; print(*filter(f, sys.argv[1:]))"
    answer = subprocess.run(
        [python, "-c", code, *EXTRA_OF], check=True, capture_output=True, text=True
    )
    there = answer.stdout.split()
    with own_directories() as folder:
        data, lerobot = local_data(folder / "rlds"), lerobot_data(folder / "lerobot")
        (folder / "run").mkdir()
        check(ran(python, data, folder / "run", lerobot=lerobot), there)
        say(one, f"works: the core, and what {', '.join(there) or 'no extra'} brings")
        if "torch" in there:
            spec = folder / "mix.yaml"
            spec.write_text(SPEC.format(data=data))
            command = [python, ROOT / "examples/train_bc.py", spec, "--steps", str(STEPS)]
            log = subprocess.run(
                [*command, "--every", "25", "--checkpoint", folder / "policy.pt"],
                check=True, stdout=subprocess.PIPE, text=True, cwd=folder,
            ).stdout.splitlines()  # fmt: skip
            assert len(log) == STEPS // 25, log
            say(one, f"trains: {log[-1]}")
        if one.tests:
            tests = [f"tests/{name}" for name in FAST_TESTS]
            quiet = ["--quiet", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
            # Old packages warn of each other, which is no fault of ours.
            quiet += ["-W", "ignore::DeprecationWarning", *OF_EXTRAS]
            subprocess.run([python, "-m", "pytest", *quiet, *tests], check=True, cwd=ROOT)


@contextmanager
def own_directories() -> Iterator[Path]:
    """A folder that goes, with the caches and profiles of whatever runs meanwhile."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in ("CACHE", "CONFIG", "DATA", "STATE"):
            os.environ[f"XDG_{name}_HOME"] = str(folder / name.lower())
        yield folder


def say(one: Environment, text: str) -> None:
    """A line about an environment, at once."""
    sys.stdout.write(f"{one.name}: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
