"""What the whole suite shares: caches of its own, demo mixtures, real data if there."""

import contextlib
import functools
import gc
import io
import json
import logging
import os
import runpy
import signal
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import leftovers
import pytest
import typer
from hypothesis import HealthCheck, settings

from autoloader.cli.demo import demo_directory, ensure_demo
from autoloader.host.headroom import memory_cgroup
from autoloader.spec import PipelineSpec

pytest_plugins = ["command_lines", "forked_workers", "warm_child", "warm_python"]

settings.register_profile(
    "suite",
    max_examples=20,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("hunt", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

# Frameworks are imported while tests are collected: that makes a million objects and no garbage.
gc.set_threshold(10_000)

# A process of a user makes the commands once; here thousands of command lines run in one process.
typer.main.get_command = functools.cache(typer.main.get_command)

# A shell starts its background jobs with SIGINT ignored, and they all that they start themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

# torch reads this when it is imported. Threads that wait for each other take processors: on a busy
# machine of two, `peek` of an augmented mixture took 8.5 s of them, and 0.9 s by one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# TensorFlow's gs:// client reads these when it is imported: it gives up at once, for our own part
# to go on, and asks for little at a time, so that a small shard takes several requests.
os.environ["GCS_RETRY_CONFIG_MAX_RETRIES"] = "0"
os.environ["GCS_READ_CACHE_BLOCK_SIZE_MB"] = "1"

CASES = Path(__file__).parents[1].parent / "shared/cases"
BRIDGE = Path(__file__).parents[1].parent / "shared/data/bridge_dataset/1.0.0"


COSTLY = (
    "install/test_extras.py", "bench/test_regression_gate.py", "slurm/test_page.py",
    "training/test_run.py", "cluster/test_helpers_of_a_cluster.py", "trainers/test_trainers.py",
    "examples/test_worked_specs.py", "tfdata/test_tfdata_mixture.py", "jax/test_jax.py",
    "reference/test_upstream_samples.py", "install/test_wheel.py",
    "isolation/test_state_machine.py", "reference/test_project_styles.py",
    "remote/test_remote_streams.py", "loader/test_struck.py", "isolation/test_exactly_once.py",
    "lerobot/test_changed_files.py", "graph/test_damage.py", "bad_input/test_cases.py",
    "isolation/test_stopped_processes.py", "cli/test_cli_verify.py", "tune/test_study.py",
    "isolation/test_few_descriptors.py", "isolation/test_late_writers.py",
    "cache/test_cached_batches.py", "lerobot/test_gr00t.py", "lerobot/test_lerobot_cases.py",
    "examples/test_trainings.py", "lightning/test_lightning_ranks.py",
    "remote/test_remote_runs.py", "tfdata/test_tfdata_service.py", "ranks/test_strangers.py",
    "isolation/test_forks.py", "isolation/test_entry_pairs.py", "tune/test_tune_offline.py",
    "isolation/test_lifetime.py", "isolation/test_large_pictures.py",
    "isolation/test_restart_small.py", "cli/test_documentation.py",
)  # fmt: skip
"""Files that run longest: they come first, so that all workers end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that run longest first."""
    place = {Path(__file__).parent / name: number for number, name in enumerate(COSTLY)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    """What is there by now stays to the end: no collection that a test asks for looks at it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_user_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's caches and profiles neither serve the tests nor are touched by them."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
            patch.setenv(variable, str(tmp_path_factory.mktemp(variable.lower())))
        patch.delenv("AUTOLOADER_CACHE_DIR", raising=False)
        patch.setenv("AUTOLOADER_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _every_decision_replays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every loader of the suite writes its decisions; in the end each is derived again."""
    folder = tmp_path_factory.mktemp("decisions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOLOADER_DECISIONS", f"{folder}/")
        yield
    if any(folder.iterdir()):
        from autoloader.cli.app import main

        with contextlib.redirect_stdout(io.StringIO()) as told:
            status = main(["replay", str(folder), "--json"])
        assert json.loads(told.getvalue())["differences"] == []
        assert status == 0


@pytest.fixture(scope="module")
def one_child() -> Iterator[None]:
    """One child for all loaders of a module that run in one: what it imports, it imports once.

    The first of them starts it.
    """
    from autoloader.process.child import Child

    kept: list[Child] = []
    shared = Child.shared

    def kept_shared(*neighbours: Any) -> Child:
        child = shared(*neighbours)
        if child not in kept and child.expect():
            kept.append(child)
        return child

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Child, "shared", kept_shared)
        yield
    for child in kept:
        child.spare()


@pytest.fixture
def no_thread_left_behind() -> Iterator[None]:
    """Threads of the loader that were begun meanwhile have ended."""
    yield from leftovers.no_thread_left_behind()


@pytest.fixture(autouse=True)
def _logging_as_imported() -> Iterator[None]:
    """A command line that ran, in a test or in a module's fixture, leaves its level to no test."""
    log = logging.getLogger("autoloader")
    log.setLevel(logging.NOTSET)
    log.handlers.clear()
    yield
    log.setLevel(logging.NOTSET)
    log.handlers.clear()


@pytest.fixture(scope="session")
def kept_demo(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Gives ``mix.yaml`` of a demo mixture of real TFDS files, with the arguments of its size.

    It is kept between sessions, and for all processes of one: TFDS takes seconds to write it.
    """
    cache = getattr(pytestconfig, "cache", None)
    folder = tmp_path_factory.mktemp("demo") if cache is None else cache.mkdir("demo")

    def ensured(**size: float) -> Path:
        # Another version's demo is another folder: one that is there is never overwritten.
        return ensure_demo(folder / f"{demo_directory(**size).name}-{os.getuid()}", **size)

    return ensured


@pytest.fixture(scope="session")
def demo_mix(kept_demo: Callable[..., Path]) -> Path:
    """``mix.yaml`` of a small demo mixture."""
    return kept_demo(datasets=6, scale=0.02, seed=1)


@pytest.fixture(scope="session")
def small_mix(demo_mix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spec file of the demo mixture's first four datasets."""
    plain = PipelineSpec.from_yaml(demo_mix).model_dump(mode="json", by_alias=True)
    path = tmp_path_factory.mktemp("small") / "mix.yaml"
    four = {**plain, "seed": 0, "datasets": plain["datasets"][:4]}
    path.write_text(json.dumps(four))  # JSON is YAML
    return path


@pytest.fixture(scope="session")
def demo_spec(demo_mix: Path) -> PipelineSpec:
    """The demo mixture's spec, as it is written."""
    return PipelineSpec.from_yaml(demo_mix)


@pytest.fixture(scope="session")
def bridge() -> Path:
    """The version directory of real BridgeData episodes."""
    if not BRIDGE.is_dir():
        pytest.skip(f"no real episodes at {BRIDGE}")
    return BRIDGE


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a small dataset that people reported, once: (its name, words for its script) → it."""
    made: dict[tuple[str, ...], Path] = {}

    def case(*words: str) -> Path:
        if not (CASES / words[0]).is_dir():
            pytest.skip(f"there is no {CASES / words[0]}")
        if words not in made:
            out = tmp_path_factory.mktemp("case") / words[0]
            with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                patch.setattr(sys, "argv", ["make.py", str(out), *words[1:]])
                patch.syspath_prepend(str(CASES / "lib"))
                patch.chdir(CASES / words[0])
                runpy.run_path("make.py")
            made[words] = out
        return made[words]

    return case


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory cgroup (v1) below this process's own."""
    own = memory_cgroup()
    if not own or not (Path(own) / "memory.limit_in_bytes").exists():
        pytest.skip("no v1 memory controller to make a group in")
    group = Path(own) / f"autoloader-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"a memory cgroup cannot be made here: {error}")
    yield group
    for pid in (group / "cgroup.procs").read_text().split():
        (Path(own) / "cgroup.procs").write_text(pid)
    group.rmdir()
