"""The rows: each runs studies, measures what they left, and says whether a promise holds.

Not here: running them (``bench.tuner.studies``), arguments (``bench.tuner.__main__``).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import optuna

from autoloader.knobs import Knobs
from autoloader.planning.start import LoaderPlan, plan_loader
from autoloader.probes.headroom import HeadroomProbe
from autoloader.spec import PipelineSpec
from autoloader.tune.finals import interval_of
from autoloader.tune.ladder import LadderReport
from autoloader.tune.search_space import SearchSpace
from autoloader.tune.shared import shown_study
from autoloader.tune.trial import Outcome
from bench.control.group import MemoryGroup, join
from bench.control.slow_files import SlowFiles
from bench.data import ensure_data
from bench.tuner.studies import Row, knobs_of, watched_headroom

RANDOM_SETS = 16
SLOW_MS = 4.0
SHIPPED = ("local_dev", "l40s", "h200", "lrz_a100", "mcml_a100")
STEPS_MS = (20, 80, 320)
_NOISE = 1.03
_LONGEST_S, _LIFTED = 300.0, 4 / 3
GIB = 2**30


def random_sets(spec_path: Path, count: int, seed: int) -> list[Knobs]:
    """Legal sets drawn evenly from the space that a study would search."""
    spec = PipelineSpec.from_yaml(spec_path)
    plan = plan_loader(spec, profile="local_dev", headroom=HeadroomProbe(), probe_only=True)
    readers = ("indexed", "stream") if spec.reader == "auto" else ()
    space = SearchSpace.around(plan.knobs, plan.limits, readers=readers)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [space.suggest(study.ask()) for _ in range(count)]


def against_random(row: Row, count: int = RANDOM_SETS) -> dict[str, Any]:
    """The winner beside the best of random legal sets; the floor at 20 Hz meanwhile."""
    with watched_headroom() as least:
        answer = row.study("--profile", "local_dev")
        winner = knobs_of(answer)
        drawn = random_sets(row.spec, count, seed=1)
        first = row.in_turn(winner, drawn, budget_s=0.0)
        best = sorted(
            (one for one in first.rungs if one.contender.samples_per_s is not None),
            key=lambda one: -(one.contender.samples_per_s or 0.0),
        )[:2]
        last = row.in_turn(winner, [one.contender.knobs for one in best], budget_s=row.budget_s)
    found = _ratios(last)
    lows = [one["low"] for one in found if one["low"] is not None]
    return {
        "winner": answer["best"],
        "bound_samples_per_s": answer["bound_samples_per_s"],
        "limited_by": answer["limited_by"],
        "winner over the best random sets": found,
        "least_headroom_bytes": least[0],
        "kept": bool(lows) and min(lows) >= 0.97 and least[0] >= row.floor_bytes,
    }


def predicted(row: Row, names: list[str]) -> dict[str, Any]:
    """The bound beside the best measured, mixture by mixture."""
    found = {}
    for name in names:
        with _mixture(row, name) as own:
            more = ["--prove-cache"] if name == "cached" else []
            answer = own.study("--profile", "local_dev", *more, name=name)
            rates = [one["samples_per_s"] for one in _fates(own, name) if one["samples_per_s"]]
            measured = max([answer["best"]["samples_per_s"], *rates])
            bound = answer["bound_samples_per_s"]
            if name == "cached":
                proof = answer["cache_proof"] or {}
                measured, bound = proof.get("samples_per_s"), answer["cached_samples_per_s"]
            rate, relaxed = _relaxed(own, name, knobs_of(answer))
            if name != "cached":
                measured = max(measured, rate)
            error = None if not measured or not bound else bound / measured - 1
            found[name] = {
                "bound_samples_per_s": bound,
                "best_samples_per_s": measured,
                "error": error,
                "limited_by": answer["limited_by"],
                "relaxed": relaxed,
                "named rightly": _lifts(relaxed, answer["limited_by"]),
                "kept": error is not None
                and abs(error) <= 0.15
                and _lifts(relaxed, answer["limited_by"]),
            }
    return {"mixtures": found, "kept": all(one["kept"] for one in found.values())}


def from_worst(row: Row) -> dict[str, Any]:
    """A study from the slowest of the shipped profiles."""
    starts = {name: _start_rate(row, name) for name in SHIPPED}
    worst = min(starts, key=lambda name: starts[name])
    answer = row.study("--profile", worst, name="worst")
    again = row.in_turn(knobs_of(answer, "start"), [knobs_of(answer)], budget_s=row.budget_s / 2)
    ratio = again.rungs[0].as_dict(again.base)
    interval = ratio["interval"]
    return {
        "starts_samples_per_s": starts,
        "worst": worst,
        "speedup": ratio["ratio"],
        "interval": interval,
        "ended": answer["ended"],
        "kept": interval is not None and interval[0] > 1.0,
    }


def two_seeds(row: Row) -> dict[str, Any]:
    """Two studies with different seeds, their winners in turn."""
    winners = [
        knobs_of(row.study("--profile", "local_dev", "--seed", seed, name=f"seed{seed}"))
        for seed in ("1", "2")
    ]
    if winners[0] == winners[1]:
        return {"winners": "the same", "kept": True}
    again = row.in_turn(winners[0], [winners[1]], budget_s=row.budget_s)
    ratio = again.rungs[0].as_dict(again.base)
    return {"ratio": ratio["ratio"], "interval": ratio["interval"]} | {
        "kept": ratio["ratio"] is not None and abs(ratio["ratio"] - 1) <= 0.03
    }


def steps(row: Row, steps_ms: tuple[int, ...] = STEPS_MS) -> dict[str, Any]:
    """Studies for a trainer's step, and what was found run once more."""
    found: dict[str, dict[str, Any]] = {}
    for step_ms in steps_ms:
        answer = row.study(
            "--profile", "local_dev", "--step-time", f"{step_ms}ms", name=f"step{step_ms}"
        )
        batches = max(40, min(row.batches, 20_000 // step_ms))
        again = replace(row, batches=batches).in_turn(
            knobs_of(answer), [], budget_s=0.0, step_time_s=step_ms / 1e3
        )
        waits = [(one.measurement or {})["wait_ratio"] for one in again.base.rounds.values()]
        found[f"{step_ms} ms"] = {
            "knobs": {name: answer["best"]["knobs"][name] for name in _TOLD},
            "wait_ratio": max(waits, default=None),
            "peak_rss_bytes": again.base.peak_rss_bytes,
        }
    peaks: list[int] = [one["peak_rss_bytes"] or 0 for one in found.values()]
    waits = [one["wait_ratio"] for one in found.values()]
    return {
        "steps": found,
        "kept": all(wait is not None and wait <= 0.01 for wait in waits)
        and all(later <= _NOISE * before for before, later in pairwise(peaks))
        and peaks[-1] < peaks[0],
    }


def small_group(row: Row, limit_bytes: int, count: int = RANDOM_SETS) -> dict[str, Any]:
    """A study in a memory cgroup in which about half of its legal sets cross the floor."""
    with MemoryGroup(limit_bytes) as group:

        def inside(command: list[str]) -> tuple[int, dict[str, Any]]:
            done = subprocess.run(
                command,
                env=row.environment(),
                stdout=subprocess.PIPE,
                check=False,
                preexec_fn=lambda: join(group.run),
            )
            return done.returncode, json.loads(done.stdout or b"{}")

        _, drawn = inside(row.bench("sets", "--sets", str(count)))
        code, answer = inside(row.command("--profile", "local_dev", name="small"))
        kills = group.oom_kills
    reasons = _fates(row, "small")
    least = [one["min_headroom_bytes"] for one in reasons if one["min_headroom_bytes"]]
    least.append(drawn["least_headroom_bytes"])
    named = [one["reason"] for one in reasons if one["outcome"] == "infeasible"]
    return {
        "limit_bytes": limit_bytes,
        "random sets that would breach": drawn["infeasible"],
        "random sets": drawn["ends"],
        "exit_code": code,
        "trials": answer.get("trials"),
        "best": {name: answer["best"]["knobs"][name] for name in _TOLD} if code == 0 else None,
        "infeasible": named,
        "least_headroom_bytes": min(least),
        "oom_kills": kills,
        "kept": code == 0
        and kills == 0
        and min(least) >= row.floor_bytes
        and bool(named)
        and all(named)
        and 0.25 <= drawn["infeasible"] / count <= 0.75,
    }


def sets(row: Row, count: int = RANDOM_SETS) -> dict[str, Any]:
    """How each of the random legal sets ends."""
    measure, watch = row.measurer(), lambda *_: True
    drawn = random_sets(row.spec, count, seed=1)
    ends = [measure(knobs, timeout_s=_LONGEST_S, watch=watch) for knobs in drawn]
    least = [one.min_headroom_bytes for one in ends if one.min_headroom_bytes]
    return {
        "ends": [
            f"{knobs.reader}, {knobs.ring_slots} slots: {one.outcome.value} {one.reason}".strip()
            for knobs, one in zip(drawn, ends, strict=True)
        ],
        "infeasible": sum(one.outcome is Outcome.INFEASIBLE for one in ends),
        "least_headroom_bytes": min(least, default=None),
        "kept": all(one.outcome in (Outcome.COMPLETE, Outcome.INFEASIBLE) for one in ends),
    }


def kills(row: Row) -> dict[str, Any]:
    """A trial killed, one stopped for good, the tuner killed; then the study goes on."""
    rng, hurt = random.Random(0), []
    command = row.command("--profile", "local_dev", "--trials", "6", name="kills")
    tuner = subprocess.Popen(command, env=row.environment(), stdout=subprocess.PIPE)
    for number, how in ((2, signal.SIGKILL), (3, signal.SIGSTOP)):
        if _wait_for_trial(row, tuner, number):
            for child in _children(tuner.pid):
                os.kill(child, how)
            hurt.append(how.name)
    _wait_for_trial(row, tuner, 4)
    time.sleep(rng.random())
    tuner.kill()
    tuner.wait()
    before = _fates(row, "kills")
    answer = row.study("--profile", "local_dev", "--trials", "3", name="kills")
    fates = _fates(row, "kills")
    measured = [one["knobs"] for one in fates if one["outcome"] == "complete"]
    return {
        "hurt": [*hurt, "the tuner"],
        "before": [one["outcome"] for one in before],
        "fates": [one["outcome"] for one in fates],
        "exit_code": answer["exit_code"],
        "measured_twice": len(measured) - len(set(measured)),
        "kept": answer["exit_code"] == 0 and len(measured) == len(set(measured)) and len(hurt) == 2,
    }


_TOLD = ("reader", "decode_threads", "io_threads", "decode_processes", "ring_slots", "read_ahead")


def _ratios(report: LadderReport) -> list[dict[str, Any]]:
    """The base over each rung."""
    found = []
    for rung in report.rungs:
        ratios = [1 / ratio for ratio in rung.contender.ratios_to(report.base)]
        interval = interval_of(ratios)
        found.append(
            {
                "samples_per_s": rung.contender.samples_per_s,
                "low": None if interval is None else interval[0],
                "high": None if interval is None else interval[1],
                "rounds": len(ratios),
                "failed": rung.contender.out or None,
            }
        )
    return found


def _start_rate(row: Row, profile: str) -> float:
    """What a shipped profile gives on this machine, clamped to it; infinite where it cannot run."""
    once = row.in_turn(_plan(row, profile).knobs, [], budget_s=0.0)
    return once.base.samples_per_s or float("inf")


def _plan(row: Row, profile: str = "local_dev") -> LoaderPlan:
    spec = PipelineSpec.from_yaml(row.spec)
    return plan_loader(spec, profile=profile, headroom=HeadroomProbe(), probe_only=True)


@contextmanager
def _mixture(row: Row, name: str, delay_ms: float = SLOW_MS) -> Iterator[Row]:
    """One of the six mixtures; ``slow`` lies behind a slow disk, ``cached`` fits into memory."""
    if name != "slow":
        yield replace(row, spec=ensure_data("demo_small" if name == "cached" else name))
        return
    source = ensure_data("even_1")
    target = row.folder / f"slow-{delay_ms:g}"
    with SlowFiles(source.parent, target) as files:
        files.tell({"storage_ms": delay_ms})
        yield replace(row, spec=target / source.name)
    target.rmdir()


def _relaxed(row: Row, name: str, knobs: Knobs) -> tuple[float, dict[str, float | None]]:
    """The rate, and what giving more of one resource does: the rate with it over that without.

    Processors are all over half of them; the disk, of the slow mixture, has half the delay over all
    of it. A quarter of the batches will do, for what is named must lift the rate by a third.
    """
    cpus = sorted(os.sched_getaffinity(0))
    row = replace(row, batches=max(10, row.batches // 4))
    whole = row.in_turn(knobs, [], budget_s=0.0).base.samples_per_s
    os.sched_setaffinity(0, cpus[: max(1, len(cpus) // 2)])
    try:
        legal, _ = knobs.clamp(_plan(row).limits)
        half = row.in_turn(legal, [], budget_s=0.0).base.samples_per_s
    finally:
        os.sched_setaffinity(0, cpus)
    found = {"cores": whole / half if whole and half else None}
    if name == "slow":
        with _mixture(row, name, SLOW_MS / 2) as faster:
            quick = faster.in_turn(knobs, [], budget_s=0.0).base.samples_per_s
        found["disk"] = quick / whole if quick and whole else None
    return whole or 0.0, found


def _lifts(relaxed: dict[str, float | None], limited_by: str) -> bool:
    """Whether more of what is named lifts the rate, and more of no other thing does."""
    lifted = {name for name, ratio in relaxed.items() if ratio is not None and ratio >= _LIFTED}
    return lifted == ({limited_by} & set(relaxed))


def _fates(row: Row, name: str) -> list[dict[str, Any]]:
    """What became of each trial of a study."""
    return told_fates(f"sqlite:///{row.folder / name / 'studies.db'}", name)


def told_fates(storage: str, name: str) -> list[dict[str, Any]]:
    """What became of each trial of a study, of hosts of all kinds."""
    trials = [
        trial
        for one in optuna.get_all_study_names(storage)
        if shown_study(one) == name and not one.partition("@")[2].count(" ")
        for trial in optuna.load_study(study_name=one, storage=storage).get_trials()
    ]
    return [
        {
            "outcome": trial.user_attrs.get("outcome", trial.state.name.lower()),
            "reason": trial.user_attrs.get("reason", ""),
            "min_headroom_bytes": trial.user_attrs.get("min_headroom_bytes"),
            "samples_per_s": trial.value if trial.state.name == "COMPLETE" else None,
            "knobs": json.dumps(trial.user_attrs.get("knobs"), sort_keys=True),
        }
        for trial in trials
    ]


def _wait_for_trial(row: Row, tuner: subprocess.Popen[bytes], number: int) -> bool:
    """Until trial ``number`` (from 1) runs and has a child; false where the study ended before."""
    while tuner.poll() is None:
        time.sleep(0.3)
        if not (row.folder / "kills" / "studies.db").exists():
            continue
        begun = [one for one in _fates(row, "kills") if one["outcome"] != "waiting"]
        if len(begun) >= number and _children(tuner.pid):
            return True
    return False


def _children(pid: int) -> list[int]:
    """Direct children of a process."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]
