"""The ranks of a node share one child: one to start, none to wait for, all to outlive."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from leftovers import ends_within
from streams import opened, spec_file

from autoloader import AutoLoader, PipelineSpec
from autoloader.errors import BudgetInfeasibleError
from autoloader.host.headroom import Headroom
from autoloader.host.processes import tree_own_bytes
from autoloader.host.units import MIB
from autoloader.process.planning import LoaderPlan, plan_loader

FOLDER = Path(__file__).parent
KNOBS = {"ring_slots": 4, "decode_threads": 1, "io_threads": 1, "read_ahead": 2}
EPOCH = 107
STEPS = 7


def environment(rank: int, **own: str) -> dict[str, str]:
    """What torchrun gives rank ``rank`` of two on one node."""
    python_path = os.pathsep.join([str(FOLDER.parents[1]), os.environ.get("PYTHONPATH", "")])
    return {
        **os.environ, "PYTHONPATH": python_path, "RANK": str(rank), "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_PORT": "0",
        "TORCHELASTIC_RUN_ID": f"test-{os.getpid()}", "OMP_NUM_THREADS": "1", **own,
    }  # fmt: skip


def gone(pid: int) -> bool:
    """Whether a process ends within ten seconds."""
    return ends_within(pid, 10)


@pytest.fixture(scope="module")
def mix(demo_mix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six datasets, small frames, short epochs that drop nothing."""
    plain = PipelineSpec.from_yaml(demo_mix).model_dump(mode="json")
    plain["cameras"]["primary"]["size"] = [32, 32]
    plain["batch"] = {"size": 8, "drop_last": False}
    plain["mixing"]["epoch"] = EPOCH
    return spec_file(tmp_path_factory.mktemp("two"), plain)


@pytest.fixture(scope="module")
def one_rank(mix: Path) -> tuple[list[list[int]], int]:
    """The sequence as one rank has it, and the bytes of its child."""
    found: list[list[int]] = []
    with AutoLoader(mix, ram_floor="64MiB", knobs=KNOBS, output="numpy") as loader:
        for _ in range(6):
            for batch in loader:
                found += batch["provenance"].tolist()
        memory = tree_own_bytes(loader.statistics().worker_pids[0])
    return found, memory


@pytest.fixture(scope="module")
def told(
    mix: Path, tmp_path_factory: pytest.TempPathFactory, warm_python: Path
) -> list[dict[str, Any]]:
    """What each of two gloo ranks saw; see the script."""
    meeting = tmp_path_factory.mktemp("gloo") / "meeting"
    script = str(FOLDER / "two_ranks_script.py")
    processes = [
        subprocess.Popen(
            [warm_python, script, str(mix), str(meeting)],
            env=environment(rank),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    answers = [process.communicate(timeout=230) for process in processes]
    codes = [process.returncode for process in processes]
    assert codes == [0, -signal.SIGKILL], answers
    return [json.loads(out) for out, _ in answers]


def dealt(told: list[dict[str, Any]], act: str) -> list[list[int]]:
    """The samples of an act in the order of the sequence."""
    every = zip(*(one[act] for one in told), strict=True)
    return [row for steps in every for step in steps for row in step]


def test_the_ranks_have_one_child_between_them(told: list[dict[str, Any]]):
    assert told[0]["pids"] == told[1]["pids"]
    assert len(told[0]["pids"]) == 1
    assert [one["rank_and_world"] for one in told] == [[0, 2], [1, 2]]


def test_ranks_that_train_together_are_disjoint_complete_and_take_equal_steps(
    told: list[dict[str, Any]], one_rank: tuple[list[list[int]], int]
):
    assert (
        [len(one["together"]) for one in told] == [one["length"] for one in told] == [STEPS, STEPS]
    )
    assert dealt(told, "together") == one_rank[0][:EPOCH]


def test_a_killed_child_is_started_once_for_all_by_whoever_needs_it(
    told: list[dict[str, Any]], one_rank: tuple[list[list[int]], int]
):
    before = EPOCH + len(dealt(told, "lopsided"))
    found = dealt(told, "killed")
    assert found == one_rank[0][before : before + len(found)]
    assert told[0]["pids_after"] == told[1]["pids_after"] != told[0]["pids"]
    assert [one["restarts"] for one in told] == [1, 1]
    assert [one["started_here"] for one in told] == [False, True]  # rank 0 was in a collective


def test_a_rank_that_dies_takes_neither_the_child_nor_the_others_along(
    told: list[dict[str, Any]], one_rank: tuple[list[list[int]], int]
):
    assert told[0]["pids_alone"] == told[0]["pids_after"]
    assert told[0]["restarts_alone"] == 1
    before = EPOCH + len(dealt(told, "lopsided")) + len(dealt(told, "killed"))
    mine = [row for step in told[0]["alone"] for row in step]
    assert all(row in one_rank[0][before:] for row in mine)
    assert gone(told[0]["pids_after"][0])


def test_any_ranks_state_resumes_at_another_world_size(
    told: list[dict[str, Any]], mix: Path, one_rank: tuple[list[list[int]], int]
):
    at = sum(len(dealt(told, act)) for act in ("together", "lopsided", "killed"))
    for one in told:
        assert one["state"]["position"] == at
        with opened(mix, knobs=KNOBS) as loader:
            loader.load_state_dict(one["state"])
            assert next(iter(loader))["provenance"].tolist() == one_rank[0][at : at + 8]


NODE = """
import json, sys
from autoloader import AutoLoader
with AutoLoader(sys.argv[1], ram_floor="64MiB", output="numpy", knobs={"ring_slots": 4}) as loader:
    steps = [batch["provenance"].tolist() for batch in loader]
    pid = loader.statistics().worker_pids[0]
    print(json.dumps({"steps": steps, "pid": pid, "state": loader.state_dict()}), flush=True)
    for line in sys.stdin:
        if line != "more\\n":
            break
        next(iter(loader))
        seen = loader.statistics()
        print(json.dumps({"pid": seen.worker_pids[0], "restarts": seen.restarts}), flush=True)
"""


@contextlib.contextmanager
def running(mix: Path, *environments: Mapping[str, str]) -> Iterator[list[subprocess.Popen[str]]]:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", NODE, str(mix)],
            env=dict(own),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for own in environments
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    return json.loads(process.stdout.readline())


def test_two_nodes_have_a_child_each_one_sequence_and_a_state_for_one_rank_alone(
    mix: Path, one_rank: tuple[list[list[int]], int]
):
    nodes = [
        environment(node, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GROUP_RANK=str(node))
        for node in (0, 1)
    ]
    with running(mix, *nodes) as processes:
        found = [answer(process) for process in processes]
    assert found[0]["pid"] != found[1]["pid"]
    assert [len(one["steps"]) for one in found] == [STEPS, STEPS]
    assert dealt(found, "steps") == one_rank[0][:EPOCH]
    assert all(gone(one["pid"]) for one in found)
    with opened(mix, knobs=KNOBS) as loader:
        loader.load_state_dict(found[1]["state"])
        assert next(iter(loader))["provenance"].tolist() == one_rank[0][EPOCH : EPOCH + 8]


def test_the_rank_that_started_the_child_may_end_before_the_others(mix: Path):
    with running(mix, environment(0), environment(1)) as processes:
        found = [answer(process) for process in processes]
        child = found[0]["pid"]
        assert found[1]["pid"] == child
        stat = Path(f"/proc/{child}/stat").read_text()
        starter = int(stat.rpartition(")")[2].split()[1])
        first, second = sorted(processes, key=lambda process: process.pid != starter)
        assert first.pid == starter
        first.communicate("\n")
        second.stdin.write("more\n")
        second.stdin.flush()
        assert answer(second) == {"pid": child, "restarts": 0}
        second.communicate("\n")
        assert gone(child)
    assert [process.returncode for process in processes] == [0, 0]


class _Headroom:
    """A machine that can give so much."""

    def __init__(self, bytes_: int) -> None:
        self._bytes = bytes_

    def read(self) -> Headroom:
        return Headroom(self._bytes, "host")


def test_memory_for_all_ranks_of_the_node_is_asked_for_before_any_starts(mix: Path):
    machine = _Headroom(300 * MIB)

    def plan(ranks: int, *, joining: bool = False) -> LoaderPlan:
        return plan_loader(
            PipelineSpec.from_yaml(mix),
            ram_floor="64MiB",
            headroom=machine,
            ranks_here=ranks,
            joining=joining,
        )

    plan(1)
    with pytest.raises(BudgetInfeasibleError) as caught:
        plan(16)
    assert "the loaders of the node's 16 ranks need about" in str(caught.value)
    assert "only 300.0 MiB are free, and 64.0 MiB of that must stay free" in str(caught.value)
    assert "fewer ranks" in caught.value.remedy
    # Once the first has been let in for all, the others ask for their own part.
    plan(16, joining=True)
