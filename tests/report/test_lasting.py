"""What of a run's record is offered for its profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoloader.cli.app import main
from autoloader.cli.recorded_run import Run, proven_knobs_of
from autoloader.controller.profile import MixtureKind, find_profile, host_facts
from autoloader.telemetry.run_record import PipelineRecord, RunLog
from autoloader.telemetry.statistics import ConsumerMoment, Move, Snapshot

PAID = Move(100.0, "policy", "decode is short", {"decode_threads": (2, 4)}, "paid")
KIND = {"datasets": 3, "batch": 16, "pixels": 4096}


def moment(at_s: float, *, rate: float = 100.0, moves: Any = (), **knobs: int) -> Snapshot:
    return Snapshot(
        run="vm-1",
        pipeline=1,
        split="train",
        at_s=at_s,
        started_at_s=0.0,
        phase="running",
        consumer=ConsumerMoment(batches=int(at_s), samples_per_s=rate),
        knobs={"reader": "indexed", "decode_threads": 2, "ring_slots": 8, **knobs},
        moves=tuple(moves),
    )


def run_of(*moments: Snapshot, cpus: int = 2) -> Run:
    facts = {"cpus": cpus, "mixture": KIND}
    return Run("vm-1", PipelineRecord(Path("x"), facts, moments))


LONG = (
    moment(90.0, rate=100.0),
    moment(110.0, rate=150.0, moves=[PAID], decode_threads=4),
    moment(200.0, rate=150.0, moves=[PAID], decode_threads=4),
)


def test_a_growth_that_paid_and_held_is_found_with_its_rates() -> None:
    found = proven_knobs_of(run_of(*LONG))
    assert found.knobs == {"decode_threads": 4}
    assert (found.reader, found.cpus, found.looked_at) == ("indexed", 2, 1)
    assert found.mixture == MixtureKind(datasets=3, batch=16, pixels=4096)
    assert found.paid[0].describe() == ("decode_threads 4: 100 → 150 samples/s (+50%), held 100 s")


@pytest.mark.parametrize(
    "move",
    [
        replace(PAID, verdict="nothing"),
        replace(PAID, verdict=""),
        replace(PAID, by="person"),
        replace(PAID, changes={"decode_threads": (8, 4)}),
        replace(PAID, changes={"cache_bytes": (0, 4)}),
        replace(PAID, changes={}),
    ],
    ids=["no gain", "not known", "a person", "given back", "frames", "none"],
)
def test_what_did_not_pay_or_was_no_growth_is_not(move: Move) -> None:
    moments = [replace(one, moves=(move,) if one.moves else ()) for one in LONG]
    assert proven_knobs_of(run_of(*moments)).knobs == {}


def test_what_was_taken_away_later_or_held_for_a_moment_is_not() -> None:
    shrunk = moment(210.0, moves=[PAID], decode_threads=2)
    assert proven_knobs_of(run_of(*LONG, shrunk)).knobs == {}
    assert proven_knobs_of(run_of(*LONG[:2])).knobs == {}


def test_a_run_is_accepted_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", str(tmp_path / "config"))
    cpus = host_facts().cpus
    facts = {"cpus": cpus, "mixture": KIND}
    log = RunLog(tmp_path / "run" / "train-1.jsonl", lambda: facts, lambda: ())
    for one in LONG:
        log.write(one)
    log.close()
    words = ["profile", "diff", str(tmp_path / "run"), "--yes", "--name", "lab"]
    assert main(words) == 0
    accepted = find_profile("lab").profile
    assert accepted.knobs.decode_threads == min(4, 2 * cpus)
    assert accepted.mixture == MixtureKind(datasets=3, batch=16, pixels=4096)
    assert "100 → 150 samples/s" in accepted.provenance.detail
