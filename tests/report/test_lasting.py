"""What of a run's record is offered for its profile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoloader.cli.app import main
from autoloader.controller.profile import MixtureKind, host_facts
from autoloader.controller.profiles import find_profile, user_profiles_dir
from autoloader.process.proven import proven_knobs
from autoloader.telemetry.run_record import PipelineRecord, RunLog
from autoloader.telemetry.statistics import Move, Statistics

PAID = Move(100.0, "policy", "decode is short", {"decode_threads": (2, 4)}, "paid")
KIND = {"datasets": 3, "batch": 16, "pixels": 4096}


def moment(at_s: float, *, rate: float = 100.0, moves: Any = (), **knobs: int) -> Statistics:
    return Statistics(
        run="vm-1",
        pipeline=1,
        split="train",
        at_s=at_s,
        started_at_s=0.0,
        phase="running",
        batches=int(at_s),
        samples_per_s=rate,
        knobs={"reader": "indexed", "decode_threads": 2, "ring_slots": 8, **knobs},
        moves=tuple(moves),
    )


def run_of(*moments: Statistics) -> PipelineRecord:
    return PipelineRecord(Path("x"), {"cpus": 2, "mixture": KIND}, moments)


LONG = (
    moment(90.0, rate=100.0),
    moment(110.0, rate=150.0, moves=[PAID], decode_threads=4),
    moment(200.0, rate=150.0, moves=[PAID], decode_threads=4),
)


def test_a_growth_that_paid_and_held_is_found_with_its_rates() -> None:
    found = proven_knobs(run_of(*LONG), "vm-1")
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
    assert proven_knobs(run_of(*moments), "vm-1").knobs == {}


def test_what_was_taken_away_later_or_held_for_a_moment_is_not() -> None:
    shrunk = moment(210.0, moves=[PAID], decode_threads=2)
    assert proven_knobs(run_of(*LONG, shrunk), "vm-1").knobs == {}
    assert proven_knobs(run_of(*LONG[:2]), "vm-1").knobs == {}


def record(folder: Path, cpus: int) -> str:
    """The folder of a run that was on a host with so many processors."""
    log = RunLog(folder / "train-1.jsonl", lambda: {"cpus": cpus, "mixture": KIND}, lambda: ())
    for one in LONG:
        log.write(one)
    log.close()
    return str(folder)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", str(tmp_path / "config"))


@pytest.mark.usefixtures("own_folder")
def test_an_accepted_finding_is_a_profile_that_says_where_it_is_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cpus = host_facts().cpus
    run = record(tmp_path / "run", cpus)
    assert main(["profile", "diff", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] is None
    assert main(["profile", "diff", run, "--accept", "--name", "lab", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    changed = {row["field"]: (row["a"], row["b"]) for row in told["differences"]}
    accepted = find_profile("lab").profile
    assert told["path"] == str(user_profiles_dir() / "lab.yaml")
    assert changed["knobs.decode_threads"][1] == accepted.knobs.decode_threads
    assert accepted.knobs.decode_threads == min(4, 2 * cpus)
    assert accepted.mixture == MixtureKind(datasets=3, batch=16, pixels=4096)
    assert accepted.provenance.source == "controller"
    assert "100 → 150 samples/s" in accepted.provenance.detail
    assert accepted.measurements == {}
    assert main(["profile", "diff", "lab", run, "--accept", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["differences"], again["path"]) == ([], None)


@pytest.mark.usefixtures("own_folder")
def test_a_run_of_another_host_and_a_file_that_is_no_record_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "diff", record(tmp_path / "run", 77), "--accept"]) == 2
    assert "77 processors" in capsys.readouterr().err
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("text", "bytes", "nowhere"):
        assert main(["profile", "diff", str(tmp_path / name)]) == 2
        assert name in capsys.readouterr().err
