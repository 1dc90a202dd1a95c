"""Stands in for SLURM on one machine: what ``sbatch``, ``srun`` and ``scontrol`` do to a job.

    python stand_in.py sbatch|srun|scontrol …

It sets the variables that SLURM sets, starts as many processes as
are asked for, and sends the signals that are asked for; "nodes" are all this machine. The time of
a job is over when a task prints the line that ``STAND_IN_OVER_AT`` begins, once. That task stands
still from there until the signal arrives: on a crowded machine it would be at its end before.

Not here: queues, allocations, limits.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

_POLL_S = 0.02


def sbatch(script: str) -> int:
    """Runs a job to its end, starts after requeues included."""
    said = re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?", Path(script).read_text(), re.MULTILINE)
    asked = dict(said)
    number = 1 + len(list(Path.cwd().glob("*-[0-9]*.out")))
    sys.stdout.write(f"Submitted batch job {number}\n")
    sys.stdout.flush()
    nodes = int(asked.get("nodes", "1"))
    here = int(asked.get("ntasks-per-node", "0")) or int(asked.get("ntasks", "1")) // nodes
    output = Path(asked["output"].replace("%j", str(number)))
    again = Path(f".requeue-{number}")
    for restart in range(2):
        environment = {
            **os.environ,
            "SLURM_JOB_ID": str(number),
            "SLURM_NTASKS": str(nodes * here),
            "SLURM_NNODES": str(nodes),
            "SLURM_NTASKS_PER_NODE": str(here),
            "SLURM_TASKS_PER_NODE": f"{here}(x{nodes})",
            "SLURM_JOB_NODELIST": f"node[1-{nodes}]",
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
            "SLURM_NODEID": "0",
        }
        over = environment.get("STAND_IN_OVER_AT") if not restart else None
        if restart:
            environment["SLURM_RESTART_COUNT"] = str(restart)
            environment.pop("STAND_IN_OVER_AT", None)
        with output.open("a") as file:
            job = subprocess.Popen(["bash", script], env=environment, stdout=file, stderr=file)
        while job.poll() is None:
            if over and f"\n{over}" in f"\n{output.read_text()}" and "signal" in asked:
                over = None
                job.send_signal(getattr(signal, f"SIG{asked['signal'].strip('B:').split('@')[0]}"))
            time.sleep(_POLL_S)
        if not again.exists():
            return job.returncode
        again.unlink()
        Path("requeued").write_text(f"{number}\n")
    return job.returncode


def srun(*command: str) -> int:
    """Runs the tasks of a step, whose output comes by lines; a signal goes on to all of them."""
    here, nodes = (int(os.environ[f"SLURM_{name}"]) for name in ("NTASKS_PER_NODE", "NNODES"))
    tasks = []
    for task in range(here * nodes):
        own = {
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task % here),
            "SLURM_NODEID": str(task // here),
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": str(here * nodes),
            "SLURM_STEP_TASKS_PER_NODE": f"{here}(x{nodes})",
        }
        environment = {**os.environ, **own}
        tasks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))

    over = os.environ.get("STAND_IN_OVER_AT")
    told = threading.Event()

    def copy(task: subprocess.Popen[bytes], lines: IO[bytes]) -> None:
        for line in lines:
            if over and line.startswith(over.encode()) and not told.is_set():
                task.send_signal(signal.SIGSTOP)
                if told.is_set():  # in between
                    task.send_signal(signal.SIGCONT)
            os.write(1, line)

    def forward(number: int, _: object) -> None:
        told.set()
        for task in tasks:
            task.send_signal(number)
            task.send_signal(signal.SIGCONT)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, forward)
    copies = [threading.Thread(target=copy, args=(task, task.stdout)) for task in tasks]
    for one in copies:
        one.start()
    for one in copies:
        one.join()
    return max(abs(task.wait()) for task in tasks)


def scontrol(verb: str, *words: str) -> int:
    """``show hostnames`` and ``requeue``."""
    if (verb, *words[:1]) == ("show", "hostnames"):
        sys.stdout.write("localhost\n" * int(os.environ["SLURM_NNODES"]))
    elif verb == "requeue":
        Path(f".requeue-{words[0]}").touch()
    else:
        return 1
    return 0


if __name__ == "__main__":
    _, name, *words = sys.argv
    sys.exit({"sbatch": sbatch, "srun": srun, "scontrol": scontrol}[name](*words))
