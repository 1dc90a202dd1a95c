"""The reflex's last resort in a real child under a real memory limit: it restarts small."""

import itertools
import json
import logging
from pathlib import Path

import pytest
from rlds_files import write_steps
from streams import opened, rows, spec_of, until

from autoloader import AutoLoader, PipelineSpec
from autoloader.host.processes import tree_own_bytes
from autoloader.host.units import GIB, MIB

FLOOR = GIB
BALLAST = 600 * MIB
SLOTS = 12
KNOBS = {"ring_slots": SLOTS, "decode_threads": 2, "io_threads": 2, "read_ahead": 3}
HOARDS = f"""
import importlib, os, sys
told = os.environ.get("TOLD_TO_HOARD", "")
if "autoloader.process.worker" in sys.orig_argv and os.path.exists(told):
    os.remove(told)  # the next child does not
    sys.HOARD = b"1" * {BALLAST}
sys.path.remove(os.path.dirname(__file__))
del sys.modules["simplejpeg"]
importlib.import_module("simplejpeg")
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> PipelineSpec:
    written = write_steps(tmp_path_factory.mktemp("small"), [[50] * 5] * 2, name="a")
    return spec_of(written, mixing={"epoch": "forever"}, reader="indexed")


@pytest.fixture
def hoarding_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first child holds memory that is none of the loader's to drop, as a leak would be."""
    told = tmp_path / "told"
    told.touch()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "simplejpeg.py").write_text(HOARDS)  # in front of the real one
    monkeypatch.setenv("TOLD_TO_HOARD", str(told))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return told


def test_what_cannot_be_dropped_is_left_behind_by_a_restart_and_the_sequence_goes_on(
    spec: PipelineSpec,
    small_group: Path,
    hoarding_child: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    log = tmp_path / "decisions.jsonl"
    monkeypatch.setenv("AUTOLOADER_DECISIONS", str(log))
    with AutoLoader(spec, output="numpy", ram_floor=FLOOR, knobs=KNOBS) as loader:
        stream = iter(loader)
        got = rows(stream, 5)
        assert not hoarding_child.exists()
        first = loader.statistics().worker_pids[0]
        assert tree_own_bytes(first) > BALLAST
        # Less than the floor can be had from now on, but far more than the child still needs.
        (small_group / "memory.limit_in_bytes").write_text(str(FLOOR - 100 * MIB))
        (small_group / "cgroup.procs").write_text(str(first))
        let_through = 0
        with caplog.at_level(logging.WARNING):
            while loader.statistics().restarts == 0:
                got += rows(stream)
                let_through += 1
        assert loader.knobs.ring_slots == 4
        assert loader.knobs.read_ahead == 1
        second = loader.statistics().worker_pids[0]
        got += rows(stream, 40)
        assert loader.statistics().restarts == 1
        assert tree_own_bytes(second) < BALLAST
    # More than the ring had: the consumer was never blocked for good.
    assert let_through > SLOTS
    assert any("started again" in record.message for record in caplog.records)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    acts = [line["action"] for line in lines if line["kind"] == "reflex"]
    assert acts[0] == "drop"
    assert acts.index("restart") == len(acts) - 1
    seen = [line["headroom_bytes"] for line in lines if line["kind"] == "reflex"]
    assert all(headroom < FLOOR for headroom in seen)
    starts = [line for line in lines if line["kind"] == "start"]
    assert len(starts) == 2
    with opened(spec, controller=False) as calm:
        batches = itertools.chain.from_iterable(itertools.repeat(calm))
        assert got == rows(batches, len(got) // 4)


def test_within_the_margin_the_childs_gate_is_shut_and_opens_for_the_next_batches(
    spec: PipelineSpec, small_group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = tmp_path / "decisions.jsonl"
    monkeypatch.setenv("AUTOLOADER_DECISIONS", str(log))
    with AutoLoader(spec, output="numpy", ram_floor=FLOOR, knobs=KNOBS) as loader:
        stream = iter(loader)
        rows(stream)
        until(lambda: loader.statistics().ring.filled >= SLOTS - 2)
        (small_group / "memory.limit_in_bytes").write_text(str(FLOOR + 100 * MIB))
        (small_group / "cgroup.procs").write_text(str(loader.statistics().worker_pids[0]))
        until(lambda: loader.statistics().state == "SHRINK")
        assert loader.knobs.ring_slots < SLOTS
        rows(stream, 40)
        assert loader.statistics().restarts == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert next(line["action"] for line in lines if line["kind"] == "reflex") == "gate"
    seen = [line["observation"] for line in lines if line["kind"] == "decision"]
    assert any(one["gate_closed"] for one in seen)
    assert any((one["occupancy_ratio"] or 0.0) > 0.5 for one in seen)
