"""Environments that nobody meant: whatever is around it, a command ends in order and says why.

Each case is a process of its own, which costs about a second. The suite runs those of
stdout and one in fourteen of all; AUTOLOADER_HOSTILE_SEED chooses another part, and
AUTOLOADER_HOSTILE_ENVIRONMENTS=all runs all of them.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import rlds_files

WAIT_S = 10.0
"""Processor seconds within which the command ends."""
HANG_S = 120.0

SPEC = """\
datasets: [{name: arm, path: robot/1.0.0, images: {primary: observation/image}}]
cameras: {primary: {size: [8, 8]}}
batch: {size: 2}
"""


def shell(*commands: str) -> dict[str, str]:
    """What a shell does before it becomes the command."""
    return {"before": "; ".join(commands)}


def env(**changes: str | None) -> dict[str, Any]:
    """Variables that are set, or unset."""
    return {"env": changes}


LONG = "x" * 5_000
PLACES = {
    "none": None,
    "empty": "",
    "relative": "some/where",
    "not there": "/nonexistent/deeper",
    "no directory": "/dev/null",
    "cannot be written": "/proc/self",
    "somebody's": "~nobody-at-all/x",
    "long": "/" + LONG,
    "of control characters": "/tmp/\x1b[31m\n",
}

OWN: dict[str, None] = {"AUTOLOADER_CACHE_DIR": None, "AUTOLOADER_CONFIG_DIR": None}
FOLDERS: list[tuple[str, list[str], dict[str, None]]] = [
    ("HOME", ["HOME"], {}),
    ("cache", ["AUTOLOADER_CACHE_DIR"], {}),
    ("config", ["AUTOLOADER_CONFIG_DIR"], {}),
    ("XDG", [f"XDG_{one}_HOME" for one in ("CACHE", "CONFIG", "DATA", "STATE")], OWN),
    ("TMPDIR", ["TMPDIR"], {}),
    ("decisions", ["AUTOLOADER_DECISIONS"], {}),
]
FULL = "/dev/full"
CASES: dict[str, dict[str, Any]] = {
    **{
        f"{what} {name}": env(**dict.fromkeys(variables, place), **others)
        for what, variables, others in FOLDERS
        for name, place in PLACES.items()
    },
    "no variables": {"env": None},
    "LANG=C": env(LANG="C", LC_ALL="C"),
    "an unknown locale": env(LANG="xx_YY.UTF-9", LC_ALL="xx_YY.UTF-9"),
    "C without UTF-8": env(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"),
    "ASCII output": env(PYTHONIOENCODING="ascii"),
    "UTF-16 output": env(PYTHONIOENCODING="utf-16"),
    "no asserts, no docstrings": env(PYTHONOPTIMIZE="2"),
    "TERM=dumb": env(TERM="dumb"),
    "forced colours": env(FORCE_COLOR="1", TERM="xterm-256color"),
    "COLUMNS=1": env(COLUMNS="1", LINES="1"),
    "COLUMNS=0": env(COLUMNS="0"),
    "TZ of words": env(TZ=":no/such\x07"),
    "no PATH": env(PATH=""),
    "threads of words": env(OMP_NUM_THREADS="many", OPENBLAS_NUM_THREADS="many"),
    "devices of words": env(CUDA_VISIBLE_DEVICES="many,-7"),
    "stdin closed": shell("exec 0<&-"),
    "stdout closed": shell("exec 1>&-"),
    "stderr closed": shell("exec 2>&-"),
    "all three closed": shell("exec 0<&- 1>&- 2>&-"),
    "stdout full": shell(f"exec 1>{FULL}"),
    "stderr full": shell(f"exec 2>{FULL}"),
    "both full": shell(f"exec 1>{FULL} 2>{FULL}"),
    "stdout without reader": shell("exec 1> >(exec 0<&-)", "sleep 0.2"),
    "stderr without reader": shell("exec 2> >(exec 0<&-)", "sleep 0.2"),
    "umask 0777": shell("umask 0777"),
    "working directory deleted": shell("gone=$(mktemp -d)", 'cd "$gone"', 'rmdir "$gone"'),
    "SIGPIPE ignored": shell("trap '' PIPE"),
    "SIGCHLD ignored": shell("trap '' CHLD"),
    "SIGTERM and SIGINT ignored": shell("trap '' TERM INT"),
    "4 open files": shell("ulimit -n 4"),
    "16 open files": shell("ulimit -n 16"),
    "256 MB of addresses": shell("ulimit -v 256000"),
    "1.5 GB of addresses": shell("ulimit -v 1500000"),
    "one process": shell("ulimit -u 1"),
    "no file grows": shell("ulimit -f 0"),
    "256 kB of stack": shell("ulimit -s 256"),
    "a low priority": shell("renice 19 $$ >&2"),
}
EVERY = 1 if os.environ.get("AUTOLOADER_HOSTILE_ENVIRONMENTS") == "all" else 14
ALWAYS = ("stdout closed", "stdout full", "stdout without reader")
FIRST = int(os.environ.get("AUTOLOADER_HOSTILE_SEED", "0")) % EVERY
CHOSEN = dict.fromkeys([*ALWAYS, *list(CASES)[FIRST::EVERY]])


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spec of one small dataset."""
    folder = tmp_path_factory.mktemp("environments")
    rlds_files.write_dataset(folder, [[rlds_files.episode(0, 3)]])
    (folder / "mix.yaml").write_text(SPEC)
    return folder / "mix.yaml"


def environment(changes: Mapping[str, str | None] | None, tmp_path: Path) -> dict[str, str]:
    if changes is None:
        return {}
    own = {"AUTOLOADER_CACHE_DIR": str(tmp_path / "cache"), "AUTOLOADER_CONFIG_DIR": str(tmp_path)}
    return {k: v for k, v in {**os.environ, **own, **changes}.items() if v is not None}


@pytest.mark.parametrize("case", CHOSEN)
def test_a_command_ends_in_order_wherever_it_runs(spec: Path, tmp_path: Path, case: str):
    command = [sys.executable, "-m", "autoloader", "plan", "--spec", str(spec), "--json"]
    before = CASES[case].get("before", ":")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        ["/bin/bash", "-c", f'{before}; exec "$@"', "bash", *command, "--ram-floor", "64MiB"],
        capture_output=True,
        timeout=HANG_S,
        cwd=tmp_path,
        env=environment(CASES[case].get("env", {}), tmp_path),
        check=False,
    )
    took = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = done.stderr.decode(errors="replace")
    assert done.returncode in (0, 2, 3, 4), said
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert took.ru_utime + took.ru_stime - used.ru_utime - used.ru_stime < WAIT_S
    if done.stdout and case != "UTF-16 output":
        assert ("error" in json.loads(done.stdout)) == (done.returncode != 0)
    elif done.returncode and not {"stderr", "three", "both"} & set(case.split()):
        assert "→" in said or "\\u2192" in said
