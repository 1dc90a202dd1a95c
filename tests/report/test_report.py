"""The page of a run answers what limited it, what was done and why; it needs no network."""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_lines import Cli
from html_pages import ReadPage
from record_moments import BEGAN_S, a_moment
from rlds_files import episode, write_dataset
from streams import write_spec

from autoloader.cli.app import main
from autoloader.cli.recorded_run import Run, read_run
from autoloader.cli.report import findings, page
from autoloader.host.units import GIB
from autoloader.process.observer import identity_of
from autoloader.spec import PipelineSpec
from autoloader.telemetry.run_record import RunFile, RunLog
from autoloader.telemetry.statistics import Move, Statistics

FACTS = {"batch_size": 48, "spec_digest": "5p3c", "host": "vm: 2 processors", "reader": "indexed"}
DROPPED = Move(
    BEGAN_S + 41,
    "reflex",
    "below the RAM floor",
    {"ring_slots": (16, 4), "cache_bytes": (2 * GIB, 0)},
)
BACK = Move(BEGAN_S + 59, "policy", "memory is back", {})
GREW = Move(BEGAN_S + 10, "policy", "decode is short", {"decode_threads": (2, 4)}, "paid")


def moments(seconds: int = 120, **every: Any) -> list[Statistics]:
    return [a_moment(float(second), **every) for second in range(1, seconds)]


def squeezed() -> list[Statistics]:
    """Two minutes in which a neighbour takes 4 GiB for a while and the reflex answers."""
    found = []
    for moment in moments():
        after = moment.at_s - BEGAN_S
        moves = tuple(move for move in (GREW, DROPPED, BACK) if move.at_s <= moment.at_s)
        short = 40 <= after < 60
        found.append(
            replace(
                moment,
                headroom_bytes=(4 if short else 8) * GIB,
                margin_bytes=0,
                loader_bytes=GIB if after >= 41 else 2 * GIB,
                moves=moves,
                limited_by="memory" if short else "decode",
            )
        )
    return found


@pytest.fixture
def left(tmp_path: Path) -> Callable[..., Path]:
    """Leaves a record of moments, and gives its folder."""

    def leave(told: Iterable[Statistics], name: str = "run", bad: Any = (), **facts: Any) -> Path:
        file = tmp_path / name / "train-0.jsonl"
        log = RunLog(file, lambda: {**FACTS, **facts}, lambda: bad)
        for moment in told:
            log.write(moment)
        log.close()
        return file.parent

    return leave


def answers(run: Run, ideal: Run | None = None) -> dict[str, str]:
    return {one.question: " ".join((one.answer, *one.more)) for one in findings(run, ideal)}


# --- what it says -------------------------------------------------------------------------------


def test_it_says_which_stage_limits_a_run_that_waits(left: Callable[..., Path]):
    told = answers(read_run(left(moments())))
    assert "waited for data 25 % of its time" in told["What limits this run?"]
    assert "decoding images" in told["What limits this run?"]
    assert "The loader costs you 25 %" in told["Would a perfect loader help?"]
    assert told["Was memory short?"].startswith("No: the least headroom was 8.00 GiB")


def test_it_says_that_the_loader_does_not_limit_a_run_that_does_not_wait(left: Callable[..., Path]):
    calm = [replace(one, limited_by="gpu", wait_ratio=0.001) for one in moments()]
    told = answers(read_run(left(calm)))
    assert told["What limits this run?"].startswith("Not the loader")
    assert "the GPU" in told["What limits this run?"]


def test_it_tells_a_neighbour_that_took_memory_and_what_was_done_about_it(
    left: Callable[..., Path],
):
    told = answers(read_run(left(squeezed())))
    memory = told["Was memory short?"]
    assert "below the floor of 5.00 GiB once, for 20 s" in memory
    assert "At 40 s" in memory
    assert "others took 4.00 GiB" in memory
    done = told["What did the controller do, and why?"]
    assert done.startswith("Knobs moved 2 times: the controller 1 ×, the memory reflex 1 ×.")
    assert "At 41 s, the memory reflex: below the RAM floor: cache_bytes 2.00 GiB→0; ring" in done
    assert "At 59 s, the controller: memory is back." in done
    assert "100 % of its time in HOLD" in done


def test_against_a_run_that_repeated_one_batch_it_says_what_the_loader_costs(
    left: Callable[..., Path],
):
    quick = [
        replace(one, batches=int(one.batches * 1.25), samples_per_s=600.0, wait_ratio=0.0)
        for one in moments()
    ]
    ideal = read_run(left(quick, "ideal", replay_one_batch=True))
    run = read_run(left(moments()))
    assert "The loader costs you 20 %" in answers(run, ideal)["Would a perfect loader help?"]


@pytest.mark.parametrize(("waits", "told"), [(0.25, "needed 640"), (0.75, "got 480")])
def test_plan_tells_what_the_last_run_of_the_spec_needed(
    waits: float,
    told: str,
    left: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Cli,
):
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "cache"))
    path = write_spec(tmp_path, write_dataset(tmp_path, [[episode(0, 6)]]))
    words = ["plan", str(path), "--ram-floor", "64MiB"]
    left(moments(), "cache/runs/other", spec_digest="other")
    assert "the last run" not in cli(*words).out
    own = identity_of(PipelineSpec.from_yaml(path))
    left(moments(wait_ratio=waits), "cache/runs/mine", **own)
    left(moments(), "cache/runs/ideal", **own, replay_one_batch=True)
    said = cli(*words).out
    assert f"samples/s; the last run {told}" in said
    assert "autoloader index" in said.splitlines()[-1]
    (tmp_path / "cache/runs/gone").mkdir()
    (tmp_path / "cache/runs/gone/train-0.jsonl").symlink_to("removed meanwhile")
    left(moments(), "cache/runs/torn", **own).joinpath("train-0.jsonl").write_bytes(b"\xff\n")
    assert main(["index", str(path)]) == 0
    said = cli(*words).out
    assert said.splitlines()[-1] == "Next   autoloader report mine  # what limited the last run"
    assert cli.json(*words)["last_run"]["run"] == "mine"


def test_a_run_that_stopped_without_an_end_is_told_as_such(
    left: Callable[..., Path], tmp_path: Path
):
    file = left(moments()) / "train-0.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-1]))
    run = read_run(tmp_path)
    assert run.state == "killed"
    assert "without an end" in answers(run)["How did it end?"]
    assert "How did it end?" not in answers(read_run(left(moments(), "whole")))


def test_a_run_that_goes_on_is_told_from_one_that_was_killed(
    left: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AUTOLOADER_RUNTIME_DIR", str(tmp_path / "runtime"))
    file = left(moments()) / "train-0.jsonl"
    file.write_text("\n".join(file.read_text().splitlines()[:-1]))
    seen = RunFile(read_run(file).own.last.run, 0)
    seen.write(a_moment(time.time() - BEGAN_S))
    going = read_run(file)
    assert going.state == "runs"
    assert answers(going)["How did it end?"] == "It has not ended: it is running."
    seen.close()
    assert read_run(file).state == "killed"


def test_of_several_ranks_the_one_that_waits_most_is_shown(tmp_path: Path):
    for rank, waited in ((0, 0.1), (1, 0.4), (2, 0.1)):
        log = RunLog(tmp_path / f"host-{rank}" / "train-0.jsonl", lambda: FACTS, list)
        for one in moments(60):
            log.write(
                replace(
                    one, run=f"host-{rank}", node="job", rank=rank, world_size=3, wait_ratio=waited
                )
            )
        log.close()
    run = read_run(tmp_path)
    assert run.own.last.rank == 1
    told = answers(run)["Do all ranks fare alike?"]
    assert "Rank 1 waited most: 40 %" in told
    assert "the mean of 3 ranks is 20 %" in told


# --- the page -----------------------------------------------------------------------------------


def test_the_page_is_whole_loads_nothing_and_every_mark_leads_to_its_row(left: Callable[..., Path]):
    text = page(read_run(left(squeezed())))
    read = ReadPage(text)
    assert not re.search(r"<script|@import|url\(|https?://", text)
    assert {"#move-A1", "#move-A2"} <= set(read.links)
    assert {link[1:] for link in read.links} <= read.ids
    assert "prefers-color-scheme: dark" in text
    for word in ("below the RAM floor", "decode is short", "it paid", "bridge", "fractal"):
        assert word in text


def test_a_page_of_weeks_with_many_datasets_stays_small(left: Callable[..., Path]):
    plain = a_moment()
    names = [f"dataset_with_a_long_name_{number}" for number in range(40)]
    datasets = dict.fromkeys(names, plain.datasets["bridge"])
    knobs = {f"{name}.cycle_length": number for number, name in enumerate(names)}
    every = [
        a_moment(
            float(minute * 60),
            datasets=datasets,
            knobs={**knobs, "ring_slots": 4 + minute % 7},
            moves=(Move(BEGAN_S + 60 * minute, "policy", "rates vary", {"ring_slots": (4, 5)}),),
            batches=minute * 600,
            samples_per_s=400.0 + minute % 97,
            wait_ratio=(minute % 11) / 20,
        )
        for minute in range(1, 900)
    ]
    bad = [{"dataset": names[0], "path": "/data/" + "x" * 80, "record": n, "reason": "torn " * 99}
           for n in range(500)]  # fmt: skip
    torn = replace(plain.datasets["bridge"], quarantined=500)
    every[-1] = replace(every[-1], datasets={**datasets, names[0]: torn})
    run = read_run(left(every, bad=bad))
    assert len(run.own.moves) > 500
    assert len(page(run, run).encode()) <= 500_000


def test_what_records_hold_is_shown_as_text_never_as_markup(left: Callable[..., Path]):
    evil = "<script>alert(1)</script>"
    move = Move(BEGAN_S + 5, "policy", evil, {evil: (1, 2)})
    told = moments(60, moves=(move,), script=evil, knobs={evil: 1, "ring_slots": 2})
    told[-1] = replace(told[-1], knobs={evil: 2, "ring_slots": 3}, why=evil)
    assert "<script" not in page(read_run(left(told, notes=[evil], host=evil)))


def test_two_runs_stand_side_by_side_with_axes_that_compare(left: Callable[..., Path]):
    calm = [
        replace(
            each,
            bound_per_s=None,
            samples_per_s=200.0,
            wait_ratio=0.01,
            headroom_bytes=GIB,
            ring=replace(each.ring, slots=4),
        )
        for each in moments(60)
    ]
    one, other = read_run(left(squeezed())), read_run(left(calm, "other"))
    text = page(one, other)
    assert {"A-memory", "B-memory", "move-A2"} <= ReadPage(text).ids
    assert "B / A" in text
    for key in ("throughput", "waits", "memory", "ring"):
        drawn = [text[text.index(f'id="{side}-{key}"') :].partition("</svg>")[0] for side in "AB"]
        axes = [re.findall(r"text-anchor: end[^>]*>([^<]+)", svg) for svg in drawn]
        assert axes[0] == axes[1]
        assert len(axes[0]) > 1
    assert text.index('id="A-memory"') < text.index('id="B-memory"') < text.index('id="A-ring"')


# --- the command --------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_tells_where(
    left: Callable[..., Path], tmp_path: Path, cli: Cli
):
    folder = left(squeezed())
    target = tmp_path / "page.html"
    told = cli("report", folder, "--output", target)
    assert told.out.strip() == str(target)
    assert "What limits this run?" in told.err
    assert target.read_text().startswith("<!DOCTYPE html>")
    assert "another loader" not in told.err
    second = folder / "train-1.jsonl"
    shutil.copy(folder / "train-0.jsonl", second)
    told = cli("report", folder, "--output", target).err
    assert "another loader of this run, not on the page: " in told
    second.unlink()
    document = cli.json("report", folder, folder, "--output", target)
    assert len(document["runs"]) == 2
    assert document["runs"][0]["limits"]["decode"] > 0.8


def test_the_command_knows_the_runs_of_the_ring_by_name(
    left: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
):
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert cli.json("report")["runs"] == []
    monkeypatch.setenv("AUTOLOADER_RUN_DIR", "elsewhere")
    assert "RUN_DIR=elsewhere sends records elsewhere" in cli("report", "last", code=2).err
    monkeypatch.delenv("AUTOLOADER_RUN_DIR")
    assert "a run of less than 3 s is not kept" in cli("report", "last", code=2).err
    left(moments(), "runs/host-17-a")
    left(moments(), "runs/other-18-b")
    assert len(cli.json("report")["runs"]) == 2
    assert "host-17-a" in cli("report").out
    for name in ("host-17-a", "host", "last"):
        assert main(["report", name]) == 0
    assert {one.name for one in tmp_path.glob("*.html")} == {"host-17-a.html", "other-18-b.html"}
    assert "keeps no run" in cli("report", "nothing", code=2).err


def test_a_run_is_found_by_its_script_and_the_last_is_one_that_ended(
    left: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
):
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AUTOLOADER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import autoloader")
    ended, going = left(moments(), "runs/host-17-a"), left(moments(), "runs/host-18-b")
    (tmp_path / "runs" / "host-19-c").mkdir()  # of a run that has just begun
    file = going / "train-0.jsonl"
    text = file.read_text().replace("host-4711-20260101T120000", "host-18-b")
    file.write_text("\n".join(text.splitlines()[:-1]))
    os.utime(going, (2e9, 2e9))
    left(moments(batches=0), "runs/host-19-looks")
    seen = RunFile("host-18-b", 0)
    seen.write(a_moment(time.time() - BEGAN_S, run="host-18-b", worker_pid=os.getpid()))
    said = cli("report", "last")
    assert said.out.strip() == f"{ended.name}.html"
    assert "passed over, since training took no batch: host-19-looks\n" in said.err
    assert "host-17-a (train.py): ended\nWhat limits this run?" in said.err
    said = cli("report", "train.py")
    assert said.out.strip() == "host-18-b.html"
    assert said.err.startswith("host-18-b (train.py): it runs\n")
    seen.close()


def test_a_page_that_cannot_be_written_is_an_error_in_words(
    left: Callable[..., Path], tmp_path: Path, cli: Cli
):
    target = tmp_path / "missing" / "page.html"
    assert "--output" in cli("report", left(moments()), "--output", target, code=2).err
