"""What may be asked of helpers, refused in the trainer and without Ray; who agrees with whom."""

import socket
import sys
import types
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from index_views import open_in
from streams import until

from autoloader import AutoLoader, PipelineSpec
from autoloader.errors import AutoloaderError, MissingExtraError, UsageError
from autoloader.host import extras
from autoloader.index import open_indexes
from autoloader.integrations.ray.ray_client import other_nodes
from autoloader.pipeline.builders import Helpers
from autoloader.pipeline.messages import HelpersStart, Wire
from autoloader.process.arguments import with_helpers
from autoloader.process.planning import LoaderPlan, plan_loader
from autoloader.spec.knobs import Knobs


@pytest.fixture(scope="module")
def plan(spec: PipelineSpec) -> LoaderPlan:
    return plan_loader(spec, ram_floor="100MB", knobs={"helper_slots": 2})


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray counts as installed, and no cluster is named."""
    monkeypatch.setattr(extras, "find_spec", lambda name: ModuleSpec(name, None))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_without_ray_one_error_names_the_extra(plan: LoaderPlan, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"autoloader-rlds\[ray\]") as caught:
        with_helpers(plan, "ray")
    assert "needs ray" in str(caught.value)


def test_the_stream_reader_is_refused_by_name(plan: LoaderPlan):
    streamed = replace(
        plan, knobs=Knobs.build({"reader": "stream"}, base=plan.knobs), reader_reason="as set"
    )
    with pytest.raises(UsageError, match=r"takes reader: stream \(as set\)"):
        with_helpers(streamed, "ray@10.0.0.1:6379")


@pytest.mark.parametrize("address", ["local", "ray://10.0.0.1:10001"])
def test_no_cluster_is_started_and_no_ray_client_used(plan: LoaderPlan, address: str):
    with pytest.raises(UsageError, match="is not the address of a Ray head"):
        with_helpers(plan, f"ray@{address}")


def test_the_cluster_is_the_given_one_else_the_trainers_else_the_environments(
    plan: LoaderPlan, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(UsageError, match="RAY_ADDRESS is not set"):
        with_helpers(plan, "ray")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.3:6379")
    assert with_helpers(plan, "ray").helpers == "10.0.0.3:6379"
    joined: Any = types.ModuleType("ray")
    joined.is_initialized = lambda: True
    joined.get_runtime_context = lambda: types.SimpleNamespace(gcs_address="10.0.0.2:6379")
    monkeypatch.setitem(sys.modules, "ray", joined)
    assert with_helpers(plan, "ray").helpers == "10.0.0.2:6379"
    assert with_helpers(plan, "ray@10.0.0.1:6379").helpers == "10.0.0.1:6379"
    joined.is_initialized = lambda: False
    assert with_helpers(plan, "ray").helpers == "10.0.0.3:6379"


def test_a_loader_says_what_is_wrong_before_anything_starts(spec: PipelineSpec):
    wrong: Any = 3
    with pytest.raises(UsageError, match="helpers=3"):
        AutoLoader(spec, helpers=wrong)


def test_a_shard_that_differs_is_named_and_a_copy_is_as_good(plan: LoaderPlan, tmp_path: Path):
    dataset = plan.mixture.datasets[0]
    (index,) = open_indexes([dataset])
    copies = []
    for piece in dataset.slices:
        there = tmp_path / Path(piece.path).name
        there.write_bytes(Path(piece.path).read_bytes())
        copies.append(replace(piece, path=str(there)))
    (copied,) = open_in(tmp_path / "index", replace(dataset, slices=tuple(copies)))
    assert copied.digest() == index.digest()
    first, second = copies[0].path, copies[1].path
    Path(first).write_bytes(Path(second).read_bytes())
    try:
        (changed,) = open_in(tmp_path / "index", replace(dataset, slices=tuple(copies)))
    except AutoloaderError:
        return  # it has fewer records than its metadata says, which is found before
    assert changed.digest() != index.digest()


def test_where_nodes_declare_the_resource_they_alone_help_and_with_no_more_than_that():
    def node(name: str, *, alive: bool = True, **resources: float) -> dict[str, Any]:
        return {
            "NodeID": name,
            "NodeManagerAddress": f"{name}.lan",
            "Alive": alive,
            "Resources": {"memory": 1e9, **resources},
        }

    def found(*nodes: dict[str, Any]) -> dict[str, tuple[int, bool]]:
        ray = types.SimpleNamespace(nodes=lambda: list(nodes))
        return {one.name: (one.cpus, one.declared) for one in other_nodes(ray, "head")}

    head, plain = node("head", CPU=4.0), node("plain", CPU=8.0)
    others = [node("gone", alive=False, CPU=8.0), node("poor")]
    assert found(head, plain, *others) == {"plain": (8, False)}
    chosen = [node("four", CPU=8.0, autoloader=4.0), node("most", CPU=2.0, autoloader=99.0)]
    assert found(head, plain, *others, *chosen) == {"four": (4, True), "most": (2, True)}


def test_a_driver_that_is_gone_before_it_was_told_what_is_read_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
):
    drivers: list[socket.socket] = []

    def spawn(self: Helpers, **_: object) -> Wire:
        ours, theirs = socket.socketpair()
        if not drivers:
            theirs.close()
        drivers.append(theirs)
        return Wire(ours)

    monkeypatch.setattr(Helpers, "spawn", spawn)
    told = HelpersStart(0, {}, {}, {}, "there:1", 0, [])
    answers: Any = types.SimpleNamespace(helped=lambda: (0, 0), lost=lambda: None)
    helpers = Helpers(lambda: told, -1, answers, bad=lambda *_: None)
    helpers.want(1)
    until(lambda: len(drivers) == 2)
    with drivers[1]:
        assert Wire(drivers[1]).receive(10.0) == told
        assert helpers.close(10.0)
