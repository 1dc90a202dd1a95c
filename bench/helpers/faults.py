"""Scenarios of faults: nodes, helpers and the head that go, object stores that are full.

Each plays a trainer with helpers, and afterwards the same batches without any.

Not here: hosts that are not the same (``bench.helpers.strangers``).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil

from bench.helpers.nodes import StartError, cpu_group, inside, kill_all, node
from bench.helpers.play import demo_spec, same_alone, trainer

LONGEST_GAP_S = 2.0
MOST_NODES = 4
SMALL_STORE_BYTES = 80 * 2**20
"""Ray allows no less than 75 MiB."""
_STAYS_S = (6.0, 16.0)
_HURT_RATIO = 0.15


class _Nodes:
    """Up to four nodes of one core, which join in a thread of their own and leave at once."""

    def __init__(self, stack: contextlib.ExitStack, address: str, most: int) -> None:
        self._stack, self._address, self.most = stack, address, most
        self._lock = threading.Lock()
        self._running: list[tuple[Path, contextlib.ExitStack]] = []
        self._joining: list[threading.Thread] = []
        stack.callback(self.settle)

    def __len__(self) -> int:
        with self._lock:
            self._joining = [one for one in self._joining if one.is_alive()]
            return len(self._running) + len(self._joining)

    def join(self) -> None:
        thread = threading.Thread(target=self._join)
        with self._lock:
            self._joining.append(thread)
        thread.start()

    def _join(self) -> None:
        own = contextlib.ExitStack()
        place = own.enter_context(cpu_group(1.0))
        with self._lock:
            self._stack.callback(own.close)
        with contextlib.suppress(StartError):  # the head may be gone by then
            own.enter_context(node(1, group=place, head=self._address))
            with self._lock:
                self._running.append((place, own))

    def leave(self, which: int) -> bool:
        """Kill a node without grace; False where none runs."""
        with self._lock:
            if not self._running:
                return False
            place, own = self._running.pop(which % len(self._running))
        kill_all(place)
        own.close()
        return True

    def settle(self) -> None:
        for thread in [*self._joining]:
            thread.join()

    def helpers(self) -> list[int]:
        """Processes of helpers."""
        with self._lock:
            groups = [place for place, _ in self._running]
        found = []
        for pid in [pid for one in groups for pid in (one / "cgroup.procs").read_text().split()]:
            with contextlib.suppress(psutil.Error):
                if any("ray::Helper" in part for part in psutil.Process(int(pid)).cmdline()):
                    found.append(int(pid))
        return found


def faults(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """Nought to four helpers: nodes come and go, helpers are killed and stopped, at last the head.

    A number of nodes is drawn every few seconds, and nodes join or are killed until it is reached.
    """
    drawn = random.Random(chosen.seed)
    group = stack.enter_context(cpu_group(float(os.cpu_count() or 1)))
    head = contextlib.ExitStack()
    stack.callback(head.close)
    address = head.enter_context(node(0, group=group))
    wanted: dict[str, Any] = {"spec": demo_spec(64, 16), "seconds": chosen.seconds, "sums": True}
    wanted |= {"helpers": f"ray@{address}", "step_s": 0.02, "present": MOST_NODES}
    wanted["knobs"] = {"decode_threads": 1, "ring_slots": 8, "helper_slots": MOST_NODES}
    nodes = _Nodes(stack, address, MOST_NODES)
    for _ in range(MOST_NODES):
        nodes.join()
    nodes.settle()
    done: list[str] = []
    present: collections.Counter[int] = collections.Counter()
    target, until_s = MOST_NODES, _STAYS_S[1]
    with trainer(wanted, group) as saying:
        for said in saying:
            if "end" in said:
                break
            if "warned" in said:
                continue
            present[said["present"]] += 1
            if "head" in done:
                continue
            what = ""
            if said["at_s"] > 0.85 * chosen.seconds:
                what = "head"
                head.close()
            elif said["at_s"] > until_s:
                target = drawn.randint(0, MOST_NODES)
                until_s = said["at_s"] + drawn.uniform(*_STAYS_S)
                what = _moved(nodes, target, drawn)
            elif drawn.random() < _HURT_RATIO and (pids := nodes.helpers()):
                what = drawn.choice(["kill", "stop"])
                with contextlib.suppress(ProcessLookupError):
                    os.kill(drawn.choice(pids), getattr(signal, f"SIG{what.upper()}"))
            if what:
                done.append(what)
                print(f"{said['at_s']:.0f} s: {what}, {said['present']} help", file=sys.stderr)
    same = same_alone(wanted, said, group)
    return {
        "done": done,
        "seconds_by_helpers": {str(count): present[count] for count in sorted(present)},
        "batches": said["batches"],
        "helped": said["helped"],
        "same": same,
        "longest_gap_s": said["longest_s"],
        "ray_imported": said["ray_imported"],
        "kept": same and said["longest_s"] <= LONGEST_GAP_S and not said["ray_imported"],
    }


def _moved(nodes: _Nodes, target: int, drawn: random.Random) -> str:
    """Have so many nodes; what was done, "" for nothing."""
    before = len(nodes)
    for _ in range(before, target):
        nodes.join()
    for _ in range(target, before):
        nodes.leave(drawn.randrange(MOST_NODES))
    return f"{before} nodes to {target}" if before != target else ""


def full(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """Somebody else fills the object store of this host, later those of the helpers' hosts."""
    group = stack.enter_context(cpu_group(float(os.cpu_count() or 1)))
    address = stack.enter_context(node(0, group=group, store_bytes=SMALL_STORE_BYTES))
    for _ in range(2):
        helping = node(1, group=group, head=address, store_bytes=SMALL_STORE_BYTES)
        stack.enter_context(helping)
    wanted: dict[str, Any] = {"spec": demo_spec(256, 48), "seconds": chosen.seconds, "sums": True}
    wanted |= {"helpers": f"ray@{address}", "step_s": 0.1, "present": 2}
    wanted["knobs"] = {"decode_threads": 1, "ring_slots": 8, "helper_slots": 2}
    command = [sys.executable, "-m", "bench.helpers.hoarder", address, str(SMALL_STORE_BYTES)]
    hoarder = subprocess.Popen(
        inside(group, "", command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stack.callback(hoarder.wait)
    stack.callback(hoarder.kill)
    assert hoarder.stdin is not None
    assert hoarder.stdout is not None
    orders = [(0.15, "here"), (0.4, "free"), (0.55, "there"), (0.8, "free")]
    told: list[tuple[str, dict[str, Any]]] = []
    held: list[Any] = []
    phase = "0: before"
    with trainer(wanted, group) as saying:
        for said in saying:
            if "end" in said:
                break
            if "warned" in said:
                print(f"warned: {said['warned']}", file=sys.stderr)
                continue
            told.append((phase, said))
            if orders and said["at_s"] > orders[0][0] * chosen.seconds:
                _, order = orders.pop(0)
                phase = f"{4 - len(orders)}: {order}"
                print(order, file=hoarder.stdin, flush=True)
                if order == "free":
                    held.append(json.loads(hoarder.stdout.readline()))
                print(f"{said['at_s']:.0f} s: {phase}, {held[-1:]}", file=sys.stderr)
    same = same_alone(wanted, said, group)
    return {
        "phases": _by_phase(told),
        "held_bytes_and_seconds": held,
        "batches": said["batches"],
        "helped": said["helped"],
        "same": same,
        "longest_gap_s": said["longest_s"],
        "kept": same and said["longest_s"] <= LONGEST_GAP_S and not orders,
    }


def _by_phase(told: list[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """What happened in each phase, from what the trainer said in the course of it."""
    found: dict[str, dict[str, float]] = {}
    before = {"batches": 0, "helped": 0, "late": 0}
    for phase, group in itertools.groupby(told, key=lambda one: one[0]):
        rows = [said for _, said in group]
        found[phase] = {name: rows[-1][name] - before[name] for name in before}
        found[phase]["longest_gap_s"] = max(said["gap_s"] for said in rows)
        before = {name: rows[-1][name] for name in before}
    return found
