"""The regression gate lets the loader through as it is, and stops it when it became worse."""

import json
import os
import shutil
import sys
from pathlib import Path

from ended import python

sys.path.insert(0, str(Path(__file__).with_name("planted")))
from regressions import PLANTS

PLANTED = Path(__file__).with_name("planted")
ROOT = Path(__file__).parents[2]
_PLANT = """

import sys
from regressions import {name}
{name}(sys.modules[__name__])
"""


def _gate(root: Path) -> tuple[int, list[str]]:
    """Exit code of the gate's short form, and the figures that failed.

    Args:
        root: the folder that holds the library and its bench.
    """
    path = [str(root), str(PLANTED), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    done = python("-m", "bench.gate", "--short", "--json", env=env, cwd=root, code=None)
    assert done.returncode in (0, 1), done.stderr
    verdicts = json.loads(done.stdout)
    return done.returncode, [one["figure"] for one in verdicts if not one["passed"]]


def _worse_copy(folder: Path) -> Path:
    """A copy of the library with regressions in it; nothing in the product knows of them.

    Each batch shows them, so few batches are enough.
    """
    for part in ("autoloader", "profiles", "bench"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("results"))
    for file, many, few in (
        ("counted.py", "\nWARMUP = 128\nBATCHES = 512\n", "\nWARMUP = 32\nBATCHES = 64\n"),
        ("settling.py", "\nWINDOWS = 9\n", "\nWINDOWS = 3\n"),
    ):
        text = (folder / "bench/gate" / file).read_text()
        assert many in text
        (folder / "bench/gate" / file).write_text(text.replace(many, few))
    for name, file in PLANTS.items():
        module = folder / "autoloader" / file
        module.write_text(module.read_text() + _PLANT.format(name=name))
    return folder


def test_the_loader_as_it_is_passes_the_gate():
    assert _gate(ROOT) == (0, [])


def test_the_gate_stops_planted_regressions(tmp_path: Path):
    """All at once: none of them moves the figure of another to its limit."""
    code, failed = _gate(_worse_copy(tmp_path))
    assert code == 1
    assert set(failed) >= {"copies_per_batch", "threads", "growth_bytes_per_batch"}
