"""Scenarios of rates: what helpers bring, what of a link they use, what idle ones cost.

Not here: faults (``bench.helpers.faults``), the trainer (``bench.helpers.trainer``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import psutil

from bench.helpers.nodes import cpu_group, node, two_networks
from bench.helpers.play import demo_spec, played, rate, trainer
from bench.paired import estimate, in_turn, paired_ratios

LEAST_CORES_RATIO = 2.0
LEAST_LINK_RATIO = 0.85
GIVEN_BACK_S = 30.0
LEAST_COST_RATIO = 0.99
LINK_BITS_PER_S = 1e9
_HEAD_BITS = 8


def _all_cores() -> float:
    return float(os.cpu_count() or 1)


def cores(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """Half a core alone, and with a node of one; the head's node has no processors to give."""
    whole, half, one = (stack.enter_context(cpu_group(cpus)) for cpus in (2.0, 0.5, 1.0))
    address = stack.enter_context(node(0, group=whole))
    stack.enter_context(node(1, group=one, head=address))
    alone: dict[str, Any] = {"spec": demo_spec(chosen.size, 48), "seconds": chosen.seconds}
    alone["knobs"] = {"decode_threads": 1, "ring_slots": 8}
    helped = {**alone, "helpers": f"ray@{address}", "present": 1}
    helped["knobs"] = {**alone["knobs"], "helper_slots": 1}
    rates: dict[str, list[float]] = {"alone": [], "helped": []}
    for _ in range(chosen.pairs):
        for name, wanted in (("alone", alone), ("helped", helped)):
            rates[name].append(rate(played(wanted, half), wanted))
            print(name, f"{rates[name][-1]:.0f} samples/s", file=sys.stderr)
    ratios = sorted(b / a for a, b in zip(rates["alone"], rates["helped"], strict=True))
    median = ratios[len(ratios) // 2]
    kept = median >= LEAST_CORES_RATIO
    return {"samples_per_s": rates, "ratios": ratios, "median": median, "kept": kept}


def link(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """What crosses a shaped link: the helpers' batches in bytes, of what the link carries."""
    group = stack.enter_context(cpu_group(_all_cores()))
    near, far = stack.enter_context(two_networks(LINK_BITS_PER_S))
    address = stack.enter_context(node(0, group=group, network=near, ip="10.77.0.1"))
    cpus = max(1, int(_all_cores()) - 1)
    stack.enter_context(node(cpus, group=group, network=far, ip="10.77.0.2", head=address))
    wanted: dict[str, Any] = {
        "spec": demo_spec(chosen.size, 48),
        "seconds": chosen.seconds,
        "present": cpus,
    }
    wanted["helpers"] = f"ray@{address}"
    wanted["knobs"] = {"decode_threads": 1, "ring_slots": 8, "helper_slots": cpus}
    shares = []
    for _ in range(chosen.pairs):
        said = played(wanted, group, near)
        cameras = wanted["spec"]["cameras"].values()
        frames = len(wanted["spec"]["sample"]["frame_offsets"])
        sample = sum(3 * frames * one["size"][0] * one["size"][1] for one in cameras)
        sent = said["helped"] * wanted["spec"]["batch"]["size"] * sample
        shares.append(_HEAD_BITS * sent / said["seconds"] / LINK_BITS_PER_S)
        print(f"{shares[-1]:.2f} of the link", file=sys.stderr)
    shares.sort()
    median = shares[len(shares) // 2]
    return {"shares": shares, "median": median, "kept": median >= LEAST_LINK_RATIO}


def idle(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """Helpers that a slow trainer does not need: when the controller has given them back."""
    group = stack.enter_context(cpu_group(_all_cores()))
    address = stack.enter_context(node(0, group=group))
    stack.enter_context(node(1, group=group, head=address))
    wanted: dict[str, Any] = {"spec": demo_spec(64, 16), "seconds": max(60.0, chosen.seconds)}
    wanted |= {"helpers": f"ray@{address}", "present": 1, "step_s": 0.25, "controller": True}
    wanted["knobs"] = {"decode_threads": 2, "ring_slots": 8, "helper_slots": 1}
    back_s, last = None, {}
    with trainer(wanted, group) as saying:
        for said in saying:
            if "end" in said or back_s is not None:
                break
            if "warned" not in said:
                last = said
                back_s = said["at_s"] if said["present"] == 0 else None
    kept = back_s is not None and back_s <= GIVEN_BACK_S
    return {"given_back_s": back_s, "last": last, "kept": kept}


def cost(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """A loader that has given its helpers back, beside one that has none, in the same cluster.

    Ray's own cost on this host, whoever asked for the cluster, is told beside it: rates without a
    cluster, and the processor time of its idle processes.
    """
    group = stack.enter_context(cpu_group(_all_cores()))
    ray = stack.enter_context(cpu_group(_all_cores()))
    plain: dict[str, Any] = {"spec": demo_spec(64, 16), "seconds": chosen.seconds}
    plain["knobs"] = {"decode_threads": int(_all_cores()), "ring_slots": 8}
    rates: dict[str, list[float]] = {"no cluster": [], "no helpers": [], "given back": []}
    shares: list[float] = []
    with contextlib.ExitStack() as cluster:
        address = cluster.enter_context(node(0, group=ray))
        cluster.enter_context(node(1, group=ray, head=address))
        back = {**plain, "helpers": f"ray@{address}", "present": 1, "give_back": True}
        back["knobs"] = {**plain["knobs"], "helper_slots": 1}
        kinds = {"no helpers": plain, "given back": back}
        for order in in_turn(list(kinds), chosen.pairs):
            for name in order:
                before_s = _processor_s(ray)
                said = played(kinds[name], group)
                rates[name].append(rate(said, plain))
                if name == "no helpers":
                    shares.append((_processor_s(ray) - before_s) / said["wall_s"])
                print(name, f"{rates[name][-1]:.0f} samples/s", file=sys.stderr)
    for _ in range(chosen.pairs):
        rates["no cluster"].append(rate(played(plain, group), plain))
        print("no cluster", f"{rates['no cluster'][-1]:.0f} samples/s", file=sys.stderr)
    ours = estimate(paired_ratios(rates["given back"], rates["no helpers"]))
    return {
        "samples_per_s": rates,
        "ratio": ours.as_dict(),
        "ratio_of_a_cluster_without_helpers": estimate(
            paired_ratios(rates["no helpers"], rates["no cluster"])
        ).as_dict(),
        "cores_of_an_idle_cluster": estimate(shares).as_dict(),
        "kept": ours.high >= LEAST_COST_RATIO,
    }


def _processor_s(group: Path) -> float:
    """Processor time so far of the processes in a cgroup, in seconds."""
    found = 0.0
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(int(pid)).cpu_times()
            found += times.user + times.system
    return found
