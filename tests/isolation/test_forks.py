"""A loader belongs to the process that made it, and its stream is the same whatever a fork does.

Every row is held against the files by its provenance. ``AUTOLOADER_TEST_RUNS`` says how many runs
each case does (default 1).
"""

import functools
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from coded_rows import SHARDS
from ended import python, ran

from autoloader import errors

RUNS = int(os.environ.get("AUTOLOADER_TEST_RUNS", "1"))
ROWS = sum(sum(map(sum, shards)) for _, shards in SHARDS.values())
"""Of a pass."""


SCENARIOS = {
    ("process", "indexed"): ("forks", "beside_a_loop", "processes"),
    ("thread", "indexed"): ("forks",),
}
"""Isolation and reader: what is tried with them, one after the other in one process."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[str, Any]]:
    """What came of each scenario, by isolation and reader."""

    @functools.cache
    def run(isolation: str, reader: str) -> dict[str, Any]:
        here = Path(__file__).parent
        folder = str(tmp_path_factory.mktemp("forks"))
        script = [sys.executable, str(here / "forks_script.py"), folder, str(RUNS)]
        path = f"{here.parents[1]}:{here.parent}:{here}"
        words = (*script, isolation, reader, *SCENARIOS[isolation, reader])
        told = ran(*words, env={**os.environ, "PYTHONPATH": path}).stdout
        every = map(json.loads, told.splitlines())
        return {one["scenario"]: one for one in every}

    return run


@pytest.mark.parametrize(
    ("isolation", "reader", "scenario"),
    [(*sides, scenario) for sides, every in SCENARIOS.items() for scenario in every],
)
def test_a_fork_is_refused_and_the_parent_reads_on_as_if_there_were_none(
    isolation: str, reader: str, scenario: str, found: Callable[[str, str], dict[str, Any]]
):
    one = found(isolation, reader)[scenario]
    assert one["missed"] == []
    assert one["tried"] or scenario == "processes"
    assert one["rows"] > RUNS * 2 * ROWS
    assert (one["wrong"], one["missing"], one["twice"]) == (0, 0, 0)


@pytest.mark.parametrize("kind", [errors.UsageError, errors.SpecError, errors.WorkerError])
def test_an_error_crosses_to_another_process_whole(kind: type[errors.AutoloaderError]):
    error = kind("what happened", remedy="what to do")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)


LOCKS = """
import os, pkgutil, threading, autoloader
from importlib import import_module
from pathlib import Path
kinds = type(threading.Lock()), type(threading.RLock())
def locks():
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, kinds):
                yield f"{module.__name__}.{name}", value
            elif type(value).__module__ == module.__name__:  # the process has one of them
                for part, own in list(getattr(value, "__dict__", {}).items()):
                    if isinstance(own, kinds):
                        yield f"{module.__name__}.{name}.{part}", own
modules = []
for one in pkgutil.walk_packages(autoloader.__path__, "autoloader."):
    if "threading." in Path(one.module_finder.find_spec(one.name).origin).read_text():
        if ".graph." not in one.name and "integrations" not in one.name:
            modules.append(import_module(one.name))
held, over = threading.Event(), threading.Event()
def hold():
    for name, lock in locks():
        if name != "autoloader.decode.ring._lending":  # a fork waits for it
            lock.acquire()
    held.set()
    over.wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
pid = os.fork()
if not pid:
    busy = [name for name, lock in locks() if not lock.acquire(blocking=False)]
    print(len(list(locks())), busy, flush=True)
    os._exit(bool(busy))
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_fork_finds_every_modules_lock_free_whoever_held_it():
    count, *held = python("-W", "ignore", "-c", LOCKS).stdout.split()
    assert held == ["[]"]
    assert int(count) >= 14
