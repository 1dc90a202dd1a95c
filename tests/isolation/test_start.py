"""A start: the child comes up while its trainer plans, and goes again where the plan is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from leftovers import loader_children

from autoloader import AutoLoader, PipelineSpec
from autoloader.errors import BudgetInfeasibleError, SourceError, SpecError
from autoloader.process.child import Child
from autoloader.process.ranks import Neighbours

HEAVY = (
    "tensorflow",
    "ray",
    "torch",
    "optuna",
    "pandas",
    "rich",
    "pynvml",
    "lightning",
    "PIL",
    "numpy.ma",
)
TRAINERS = (
    "autoloader.pipeline.graph",
    "autoloader.process.planning.start",
    "autoloader.controller.profile",
    "autoloader.spec.reading",
    "ruamel",
)
"""What only the trainer's side needs, and a stream."""


@pytest.mark.parametrize(
    ("broken", "own", "error"),
    [
        ({"path": "/nowhere/1.0.0"}, {}, SourceError),
        ({"split": {"train": "train[:0%]"}}, {}, SpecError),
        ({}, {"ram_floor": "900TB"}, BudgetInfeasibleError),
    ],
)
def test_a_refused_start_has_ended_its_child_when_it_says_so(
    broken: dict[str, Any], own: dict[str, Any], error: type[Exception], small_spec: PipelineSpec
) -> None:
    plain = small_spec.model_dump(mode="json")
    plain["datasets"][0].update(broken)
    with pytest.raises(error):
        AutoLoader(PipelineSpec.from_mapping(plain), output="numpy", **{"ram_floor": "1GB", **own})
    assert loader_children() == []
    assert Child._current == {}


def test_a_second_loader_that_is_refused_leaves_the_first_one_its_child(
    small_spec: PipelineSpec,
) -> None:
    with AutoLoader(small_spec, output="numpy", ram_floor="1GB") as loader:
        batches = iter(loader)
        next(batches)
        pids = loader_children()
        with pytest.raises(BudgetInfeasibleError):
            AutoLoader(small_spec, output="numpy", ram_floor="900TB")
        next(batches)
        assert loader_children() == pids
        assert loader.statistics().restarts == 0


def test_a_child_that_is_expected_outlives_the_loader_before_it(small_spec: PipelineSpec) -> None:
    first = AutoLoader(small_spec, output="numpy", ram_floor="1GB")
    child = Child.shared(Neighbours())
    first.close()
    assert child.usable
    child.spare()
    assert not child.usable


def test_before_its_first_batch_the_child_imports_what_that_batch_needs(small_mix: Path) -> None:
    """The same parts as in the child, in a process that can be asked."""
    code = """
        import json, sys
        from types import SimpleNamespace
        import autoloader.process.worker
        from autoloader.spec.knobs import Knobs
        from autoloader.decode.ring.message import PipelineStart
        from autoloader.process.control.pipeline import open_pipeline
        from autoloader.sampling.dealing import Ranks
        from autoloader.process.setup import PipelineSetup
        from autoloader.pipeline.read.open_mixture import CompiledMixture
        from autoloader.decode.ring.memory import RingMemory
        from autoloader.sampling.mixture import MixtureOrder
        from autoloader.samples.resolve import resolve_plain

        start = json.load(sys.stdin)
        mixture = resolve_plain(start["mixture"])
        knobs = Knobs.build(start["knobs"])
        setup = PipelineSetup(
            mixture, MixtureOrder.from_plain(start["order"]), knobs, RingMemory(mixture.layout),
            page=None, ranks=Ranks(),
            control=SimpleNamespace(frames_on_disk=None, helpers="", disk_floor_bytes=None),
            ranks_here=1,
            position=lambda: PipelineStart.beginning(mixture), lent=tuple,
        )
        pipeline = open_pipeline(setup, CompiledMixture())
        pipeline.start()
        while pipeline.next(1.0) is None:
            pass
        folders = {name: hasattr(module, "__path__") for name, module in sys.modules.items()}
        print(json.dumps(folders))
        sys.stdout.flush()
        pipeline.close()
    """
    from dataclasses import asdict

    from autoloader.process.planning.start import plan_loader

    plan = plan_loader(PipelineSpec.from_yaml(small_mix), ram_floor="64MiB")
    start = {
        "mixture": plan.mixture.plain(),
        "knobs": plan.knobs.flat(),
        "order": asdict(plan.order),
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        input=json.dumps(start),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imported = json.loads(done.stdout)
    assert "autoloader.pipeline.indexed" in imported
    assert sorted(imported.keys() & {*HEAVY, *TRAINERS}) == []
    # Every class costs the first batch a millisecond, every module a part of one; the package's
    # own folders hold a sentence each.
    modules = [name for name, folder in imported.items() if not folder]
    assert len([name for name in modules if name.startswith("autoloader")]) <= 156
