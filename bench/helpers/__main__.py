"""Helpers on other hosts, measured on this one: nodes in cgroups, links that are shaped.

    python -m bench.helpers cores    # a trainer of half a core alone, and with a helper of one core
    python -m bench.helpers link     # a helper over a link of 1 Gb/s: what of it is used
    python -m bench.helpers faults   # random deaths and joins: same batches, the longest gap
    python -m bench.helpers idle     # a trainer that needs none: when they are given back
    python -m bench.helpers cost     # a loader whose helpers are all given back: what that costs

Needs root (cpu cgroups of version 1, network namespaces) and Ray. Result on stdout as JSON. Exit
code 1 where a promise is not kept; rates mean something on a quiet machine only.

Not here: the nodes (``bench.helpers.nodes``), the trainer (``bench.helpers.trainer``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from autoloader import PipelineSpec
from autoloader.demo.build import ensure_demo
from bench.helpers.nodes import StartError, cpu_group, inside, kill_all, node, two_networks
from bench.host import load
from bench.paired import estimate, in_turn, paired_ratios

LEAST_CORES_RATIO = 2.0
LEAST_LINK_RATIO = 0.85
LONGEST_GAP_S = 2.0
GIVEN_BACK_S = 30.0
LEAST_COST_RATIO = 0.99
LINK_BITS_PER_S = 1e9
_HEAD_BITS = 8


def main() -> int:
    """Run one scenario; see above."""
    parser = argparse.ArgumentParser(prog="bench.helpers")
    parser.add_argument("scenario", choices=("cores", "link", "faults", "idle", "cost"))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=256, help="of frames; of cores and link")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave no process, no cgroup behind
    began = load()
    with contextlib.ExitStack() as stack:
        found = globals()[f"_{chosen.scenario}"](stack, chosen)
    found = {"scenario": chosen.scenario, **found, "load": [began, load()]}
    print(json.dumps(found, indent=2))
    return 0 if found["kept"] else 1


def _spec(size: int, batch: int) -> dict[str, Any]:
    """The demo mixture with frames of a size."""
    spec = PipelineSpec.from_yaml(ensure_demo())
    plain = spec.model_dump(mode="json")
    for camera in plain["cameras"].values():
        camera["size"] = [size, size]
    plain["batch"]["size"] = batch
    return plain


@contextlib.contextmanager
def _trainer(
    wanted: dict[str, Any], group: Path, network: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """A trainer in a cgroup; it, and what it has started, is gone afterwards."""
    command = [sys.executable, "-m", "bench.helpers.trainer", json.dumps(wanted)]
    process = subprocess.Popen(
        inside(group, network, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _said(stream: IO[str] | None) -> Iterator[dict[str, Any]]:
    assert stream is not None
    for line in stream:
        if line.startswith("{"):
            yield json.loads(line)


def _played(wanted: dict[str, Any], group: Path, network: str = "") -> dict[str, Any]:
    """What a trainer said in the end."""
    with _trainer(wanted, group, network) as process:
        *_, last = _said(process.stdout)
    if "end" not in last:
        raise SystemExit(f"the trainer ended early: {last}")
    return last


def _rate(said: dict[str, Any], wanted: dict[str, Any]) -> float:
    return float(said["batches"] * wanted["spec"]["batch"]["size"] / said["seconds"])


def _cores(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """Half a core alone, and with a node of one; the head's node has no processors to give."""
    whole, half, one = (stack.enter_context(cpu_group(cpus)) for cpus in (2.0, 0.5, 1.0))
    address = stack.enter_context(node(0, group=whole))
    stack.enter_context(node(1, group=one, head=address))
    alone: dict[str, Any] = {"spec": _spec(chosen.size, 48), "seconds": chosen.seconds}
    alone["knobs"] = {"decode_threads": 1, "ring_slots": 8}
    helped = {**alone, "helpers": f"ray@{address}", "present": 1}
    helped["knobs"] = {**alone["knobs"], "helper_slots": 1}
    rates: dict[str, list[float]] = {"alone": [], "helped": []}
    for _ in range(chosen.pairs):
        for name, wanted in (("alone", alone), ("helped", helped)):
            rates[name].append(_rate(_played(wanted, half), wanted))
            print(name, f"{rates[name][-1]:.0f} samples/s", file=sys.stderr)
    ratios = sorted(b / a for a, b in zip(rates["alone"], rates["helped"], strict=True))
    median = ratios[len(ratios) // 2]
    kept = median >= LEAST_CORES_RATIO
    return {"samples_per_s": rates, "ratios": ratios, "median": median, "kept": kept}


def _link(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """What crosses a shaped link: the helpers' batches in bytes, of what the link carries."""
    group = stack.enter_context(cpu_group(float(os.cpu_count() or 1)))
    near, far = stack.enter_context(two_networks(LINK_BITS_PER_S))
    address = stack.enter_context(node(0, group=group, network=near, ip="10.77.0.1"))
    cpus = max(1, (os.cpu_count() or 1) - 1)
    stack.enter_context(node(cpus, group=group, network=far, ip="10.77.0.2", head=address))
    wanted: dict[str, Any] = {
        "spec": _spec(chosen.size, 48),
        "seconds": chosen.seconds,
        "present": cpus,
    }
    wanted["helpers"] = f"ray@{address}"
    wanted["knobs"] = {"decode_threads": 1, "ring_slots": 8, "helper_slots": cpus}
    shares = []
    for _ in range(chosen.pairs):
        said = _played(wanted, group, near)
        cameras = wanted["spec"]["cameras"].values()
        frames = len(wanted["spec"]["sample"]["frame_offsets"])
        sample = sum(3 * frames * one["size"][0] * one["size"][1] for one in cameras)
        sent = said["helped"] * wanted["spec"]["batch"]["size"] * sample
        shares.append(_HEAD_BITS * sent / said["seconds"] / LINK_BITS_PER_S)
        print(f"{shares[-1]:.2f} of the link", file=sys.stderr)
    shares.sort()
    median = shares[len(shares) // 2]
    return {"shares": shares, "median": median, "kept": median >= LEAST_LINK_RATIO}


def _faults(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """Nodes that come and go, helpers killed and stopped, at last the head; against a run alone."""
    drawn = random.Random(chosen.seed)
    group = stack.enter_context(cpu_group(float(os.cpu_count() or 1)))
    head = contextlib.ExitStack()
    stack.callback(head.close)
    address = head.enter_context(node(0, group=group))
    wanted: dict[str, Any] = {"spec": _spec(64, 16), "seconds": chosen.seconds, "sums": True}
    wanted |= {"helpers": f"ray@{address}", "step_s": 0.02, "present": 0}
    wanted["knobs"] = {"decode_threads": 1, "ring_slots": 8, "helper_slots": 4}
    nodes: list[tuple[Path, contextlib.ExitStack]] = []
    done: list[str] = []
    with _trainer(wanted, group) as process:
        for said in _said(process.stdout):
            if "end" in said:
                break
            what = drawn.choice(["join", "leave", "kill", "stop", "rest"])
            if said["at_s"] > 0.8 * chosen.seconds and "head" not in done:
                what = "head"
                head.close()
            elif "head" in done:
                continue
            elif what == "join" and len(nodes) < 4:
                own = contextlib.ExitStack()
                stack.callback(own.close)
                place = own.enter_context(cpu_group(1.0))
                try:
                    own.enter_context(node(1, group=place, head=address))
                except StartError:  # a busy machine: Ray gives up after half a minute
                    continue
                nodes.append((place, own))
            elif what == "leave" and nodes:
                place, own = nodes.pop(drawn.randrange(len(nodes)))
                kill_all(place)
                own.close()
            elif what in ("kill", "stop") and (pids := _helper_pids([one[0] for one in nodes])):
                sent = signal.SIGKILL if what == "kill" else signal.SIGSTOP
                with contextlib.suppress(ProcessLookupError):
                    os.kill(drawn.choice(pids), sent)
            else:
                continue
            done.append(what)
            print(f"{said['at_s']:.0f} s: {what}", file=sys.stderr)
    alone = {**wanted, "helpers": None, "batches": said["batches"], "seconds": 1e6, "step_s": 0}
    alone["knobs"] = {"decode_threads": 2}
    print(f"the same {said['batches']} batches without helpers", file=sys.stderr)
    same = _played(alone, group)["sums"] == said["sums"]
    return {
        "done": done,
        "batches": said["batches"],
        "helped": said["helped"],
        "same": same,
        "longest_gap_s": said["longest_s"],
        "ray_imported": said["ray_imported"],
        "kept": same and said["longest_s"] <= LONGEST_GAP_S and not said["ray_imported"],
    }


def _helper_pids(groups: list[Path]) -> list[int]:
    found = []
    for pid in [pid for one in groups for pid in (one / "cgroup.procs").read_text().split()]:
        with contextlib.suppress(psutil.Error):
            if any("ray::Helper" in part for part in psutil.Process(int(pid)).cmdline()):
                found.append(int(pid))
    return found


def _idle(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """Helpers that a slow trainer does not need: when the controller has given them back."""
    group = stack.enter_context(cpu_group(float(os.cpu_count() or 1)))
    address = stack.enter_context(node(0, group=group))
    stack.enter_context(node(1, group=group, head=address))
    wanted: dict[str, Any] = {"spec": _spec(64, 16), "seconds": max(60.0, chosen.seconds)}
    wanted |= {"helpers": f"ray@{address}", "present": 1, "step_s": 0.25, "controller": True}
    wanted["knobs"] = {"decode_threads": 2, "ring_slots": 8, "helper_slots": 1}
    back_s, last = None, {}
    with _trainer(wanted, group) as process:
        for said in _said(process.stdout):
            if "end" in said or back_s is not None:
                break
            last = said
            if said["present"] == 0:
                back_s = said["at_s"]
    return {
        "given_back_s": back_s,
        "last": last,
        "kept": back_s is not None and back_s <= GIVEN_BACK_S,
    }


def _cost(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """Rates with helpers given and none asked for, beside rates without; no cluster is needed."""
    group = stack.enter_context(cpu_group(float(os.cpu_count() or 1)))
    wanted: dict[str, Any] = {"spec": _spec(64, 16), "seconds": chosen.seconds}
    wanted["knobs"] = {"decode_threads": os.cpu_count() or 1, "ring_slots": 8}
    kinds = {"without": wanted, "with": {**wanted, "helpers": "ray@127.0.0.1:6379"}}
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for order in in_turn(list(kinds), chosen.pairs):
        for name in order:
            rates[name].append(_rate(_played(kinds[name], group), wanted))
            print(name, f"{rates[name][-1]:.0f} samples/s", file=sys.stderr)
    ratio = estimate(paired_ratios(rates["with"], rates["without"]))
    return {
        "samples_per_s": rates,
        "ratio": ratio.as_dict(),
        "kept": ratio.high >= LEAST_COST_RATIO,
    }


if __name__ == "__main__":
    began_s = time.monotonic()
    status = main()
    print(f"{time.monotonic() - began_s:.0f} s in all", file=sys.stderr)
    sys.exit(status)
