"""The recipes of ``docs/howto/ray.md``, run as they are written, on machines of ``machines``.

Not here: the recipes (``docs/howto/ray.md``, ``examples/slurm/helpers.sbatch``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autoloader.demo.build import ensure_demo
from bench.helpers.machines import Machine, machines
from bench.helpers.play import demo_spec

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs/howto/ray.md"
_SCRIPTS = (_ROOT / "examples/slurm/helpers.sbatch", _ROOT / "examples/train_bc.py")
_LONGEST_JOB_S = 900.0
_SLURM_FILES = {
    "slurm.conf": """\
ClusterName=bench
SlurmctldHost=gpu1(10.0.0.1)
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=gpu1 NodeAddr=10.0.0.1 CPUs=16 Gres=gpu:1
NodeName=cpu1 NodeAddr=10.0.0.2 CPUs=32
NodeName=cpu2 NodeAddr=10.0.0.3 CPUs=32
PartitionName=main Nodes=ALL Default=YES State=UP
""",
    "gres.conf": "NodeName=gpu1 Name=gpu File=/dev/null\n",
}


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"PATH": path, "PYTHONPATH": str(_ROOT), "RAY_USAGE_STATS_ENABLED": "0"}


def _commands(heading: str) -> list[str]:
    """The shell lines of a section of the page."""
    section = _PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [
        line
        for block in re.findall(r"```sh\n(.*?)```", section, re.S)
        for line in block.split("\n")
        if line
    ]


def lan(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """Two machines of a LAN: the page's commands on each, a trainer on the first, ``ray stop``."""
    first, second = stack.enter_context(machines(["gpu1", "cpu1"]))
    at_head, at_other = _commands("Two machines of a LAN")
    environment = _environment()
    helped = {}
    first.run(at_head, _ROOT, environment)
    second.run(at_other, _ROOT, environment)
    for helpers in ("ray", "ray@10.0.0.1:6379", "ray@gpu1:6379"):
        wanted: dict[str, Any] = {"spec": demo_spec(64, 16), "seconds": chosen.seconds}
        wanted |= {"helpers": helpers, "present": 1}
        wanted["knobs"] = {"decode_threads": 1, "ring_slots": 8, "helper_slots": 1}
        line = shlex.join([sys.executable, "-m", "bench.helpers.trainer", json.dumps(wanted)])
        named = {} if "@" in helpers else {"RAY_ADDRESS": "10.0.0.1:6379"}
        said = first.run(line, _ROOT, environment | named).splitlines()
        helped[helpers] = json.loads(said[-1])["helped"]
        print(f"{helpers}: {helped[helpers]} batches by the second machine", file=sys.stderr)
    left = {}
    for machine in (second, first):
        machine.run("ray stop", _ROOT, environment)
        left[machine.name] = machine.processes("raylet")
    kept = all(helped.values()) and not any(left.values())
    return {"helped": helped, "left": left, "kept": kept}


def slurm(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """SLURM on three machines: the page's ``sbatch``, to the job's end."""
    del chosen
    own = stack.enter_context(machines(["gpu1", "cpu1", "cpu2"]))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm")))
    for script in _SCRIPTS:
        shutil.copy(script, folder)
    (folder / "mix.yaml").write_text(_mixture())
    environment = {**_environment(), "SLURM_CONF": str(folder / "slurm.conf")}
    _started(own, folder, environment)
    (submit,) = _commands("SLURM")
    began_s = time.monotonic()
    print(own[0].run(submit, folder, environment).strip(), file=sys.stderr)
    while own[0].run("squeue --noheader", folder, environment).strip():
        if time.monotonic() - began_s > _LONGEST_JOB_S:
            break
        time.sleep(1)
    took_s = time.monotonic() - began_s
    (output,) = folder.glob("helped-*.out")
    said = output.read_text()
    print(said, file=sys.stderr)
    joined = said.count("Ray runtime started")
    left = {machine.name: machine.processes("raylet") for machine in own}
    finished = "step 300" in said
    kept = finished and joined == len(own) and not any(left.values())
    return {
        "seconds": took_s,
        "nodes_of_ray": joined,
        "finished": finished,
        "left": left,
        "kept": kept,
    }


def _mixture() -> str:
    """The demo's, with whole paths."""
    file = ensure_demo()
    return re.sub(r"(?m)^( +path: )(?=demo_)", rf"\1{file.parent}/", file.read_text())


def _started(own: list[Machine], folder: Path, environment: dict[str, str]) -> None:
    """Start SLURM on the machines, the first of which holds its controller."""
    for name, text in _SLURM_FILES.items():
        (folder / name).write_text(text.format(folder=folder))
    for name in ("state", *(f"spool-{machine.name}" for machine in own)):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(bytes(range(256)) * 4)
    key.chmod(0o400)
    munge = " ".join(
        f"--{name}={folder}/munge.{ending}"
        for name, ending in (
            ("key-file", "key"),
            ("socket", "socket"),
            ("pid-file", "pid"),
            ("log-file", "log"),
            ("seed-file", "seed"),
        )
    )
    own[0].run(f"munged --force {munge}", folder, environment)
    own[0].run("slurmctld", folder, environment)
    for machine in own:
        machine.run("slurmd", folder, environment)
    own[0].run(
        "until sinfo -h -o %T | grep -qx idle; do sleep 0.5; done; sinfo", folder, environment
    )
