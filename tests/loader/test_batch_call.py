"""A function of the user's over each finished batch: what it sees, what it gives, how it fails."""

import itertools
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_lines import Cli
from rlds_files import Written, episode, png, write_dataset
from streams import dataset_of, spec_file, spec_of

from autoloader import AutoLoader, PipelineSpec
from autoloader.errors import PipelineError, SpecError, UnsupportedError, WorkerError
from autoloader.host import supervision
from autoloader.samples.transforms import transform

KNOBS = {"ring_slots": 4, "decode_threads": 1, "io_threads": 1, "read_ahead": 1}
MODULE = """
import os
import sys
import time
import numpy as np

def tokens(batch, length=4, upper=False):
    rows = len(batch["language"])
    ids = np.zeros((rows, length), np.int64)
    for row, text in enumerate(batch["language"]):
        codes = list(text.encode()[:length])
        ids[row, :len(codes)] = codes
    words = [text.upper() if upper else text for text in batch["language"]]
    return {"input_ids": ids, "t": batch["provenance"][:, 4], "prompt": words,
            "mean": batch["images"]["primary"].mean(axis=(1, 2, 3, 4))}

def writes(batch):
    batch["action"][:] = 0

def another(batch):
    return {"tokens": np.zeros(len(batch["language"]))}

def narrow(batch):
    return {"x": np.zeros((len(batch["language"]), 3), np.float64)}

def texts(batch):
    return {"x": [1] * len(batch["language"])}

class Cancelled(BaseException):
    pass

def is_cancelled(batch):
    raise Cancelled("no such word")

KEPT = []
def keeps(batch):
    KEPT.append(batch["action"][0, :1])
    return {"x": np.zeros(len(batch["language"]), np.int32)}

def cycle(batch):
    batch["itself"] = batch
    return {"x": np.full(len(batch["language"]), 2**31)}

def forks(batch):
    os.fork()
    return {"x": np.full(len(batch["language"]), os.getpid(), np.int32)}

def closes(batch):
    os.closerange(3, 1024)
    return {"x": np.zeros(len(batch["language"]), np.int32)}

def slow(batch):
    time.sleep(0.05)
    return {"x": np.zeros(len(batch["language"]), np.int32)}

def ragged(batch):
    return {"x": [list(text.encode()) for text in batch["language"][:-1]] + [[1] * 99]}

def on_another_device(batch):
    class Tensor:
        def __array__(self, *_, **__):
            raise OSError("the device does not answer")
    return {"x": Tensor()}

def leaves(batch):
    sys.exit("no such word")

def raises(batch):
    raise KeyError("no such word")
"""
GIVES = {
    "input_ids": {"dtype": "int64", "shape": [4]},
    "t": {"dtype": "int64"},
    "mean": {"dtype": "float32"},
    "prompt": {"dtype": "text"},
}


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """A dataset of 11 samples, beside a module that can be imported."""
    folder = tmp_path_factory.mktemp("called")
    (folder / "batch_functions.py").write_text(MODULE)
    for module in ("module_that_leaves.py", "package_that_leaves/__init__.py"):
        (folder / module).parent.mkdir(exist_ok=True)
        (folder / module).write_text("import sys\nsys.exit('no licence')")
    sys.path.append(str(folder))
    yield write_dataset(folder, [[episode(0, 5, encode=png), episode(1, 6, encode=png)]], name="a")
    sys.path.remove(str(folder))
    sys.modules.pop("batch_functions", None)


def spec_with(robot: Written, call: str, gives: Any = GIVES, **batch: Any) -> PipelineSpec:
    called = {"size": 4, "drop_last": False, "call": call, "gives": gives, **batch}
    return spec_of(dataset_of(robot), batch=called, mixing={"epoch": "pass"})


def opened(spec: PipelineSpec, **own: Any) -> AutoLoader:
    options: dict[str, Any] = {"output": "numpy", "isolation": "thread", **own}
    return AutoLoader(spec, ram_floor="64MiB", knobs=KNOBS, **options)


def check(batch: dict[str, Any], upper: bool) -> None:
    rows = len(batch["language"])
    assert batch["t"].tolist() == batch["provenance"][:, 4].tolist()
    assert batch["prompt"] == [t.upper() if upper else t for t in batch["language"]]
    wanted = [list(text.encode()[:4].ljust(4, b"\0")) for text in batch["language"]]
    assert batch["input_ids"].tolist() == wanted
    images = np.asarray(batch["images"]["primary"])
    np.testing.assert_allclose(batch["mean"], images.mean(axis=(1, 2, 3, 4)), rtol=1e-5)
    assert batch["mean"].dtype == np.float32
    assert len(batch["mean"]) == rows


def test_what_it_gives_is_in_every_batch_also_the_last_and_after_a_resume(robot: Written):
    spec = spec_with(robot, "batch_functions:tokens", kwargs={"upper": True})
    with opened(spec) as loader:
        batches = iter(loader)
        first = next(batches)
        assert loader.statistics().batch_call_s is not None
        state = loader.state_dict()
        rest = [{k: np.copy(v) for k, v in b.items() if k in ("t", "mean")} for b in batches]
        assert [len(batch["t"]) for batch in rest] == [4, 3]
        check(first, upper=True)  # its slot is its own as long as it is held
        loader.load_state_dict(state)
        for batch, before in zip(loader, rest, strict=True):
            check(batch, upper=True)
            assert batch["t"].tolist() == before["t"].tolist()


@pytest.mark.parametrize(
    ("call", "gives", "said"),
    [
        ("raises", {"x": {"dtype": "int32"}}, r"functions:raises raised KeyError.*no such word"),
        ("writes", {"x": {"dtype": "int32"}}, r"read-only"),
        ("another", {"x": {"dtype": "int32"}}, r"gave \['tokens'\], and batch\.gives names"),
        ("narrow", {"x": {"dtype": "float32", "shape": [2]}},
         r"gave float64 \[4, 3\] for 'x', and batch\.gives says float32 \[4, 2\]"),
        ("narrow", {"x": {"dtype": "int32", "shape": [3]}}, r"says int32 \[4, 3\]"),
        ("texts", {"x": {"dtype": "text"}}, r"says dtype: text"),
        ("ragged", {"x": {"dtype": "int32", "shape": [4]}}, r"NumPy makes no array: setting an"),
        ("on_another_device", {"x": {"dtype": "int32"}}, r"no array: the device does not"),
        ("leaves", {"x": {"dtype": "int32"}}, r"SystemExit: no such word"),
        ("is_cancelled", {"x": {"dtype": "int32"}}, r"is_cancelled raised Cancelled: no such"),
        ("keeps", {"x": {"dtype": "int32"}}, r"functions:keeps keeps an array of the batch"),
        ("cycle", {"x": {"dtype": "int32"}}, r"numbers for 'x' that int32 cannot hold"),
        ("missing", {"x": {"dtype": "int32"}}, r"missing cannot be imported: .* 'missing'\n"),
    ],
)  # fmt: skip
def test_what_goes_wrong_names_the_function(robot: Written, call: str, gives: Any, said: str):
    loader = opened(spec_with(robot, f"batch_functions:{call}", gives))
    with loader, pytest.raises(PipelineError, match=said):
        next(iter(loader))


def test_a_fork_in_which_it_returns_too_ends_and_says_nothing_to_the_trainer(robot: Written):
    spec = spec_with(robot, "batch_functions:forks", {"x": {"dtype": "int32"}})
    with opened(spec, isolation="process") as loader:
        pids = [pid for batch in loader for pid in batch["x"].tolist()]
        assert pids == [loader.statistics().worker_pid] * 11


def test_a_child_whose_descriptors_it_closes_ends_and_says_why(
    robot: Written, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervision, "MAX_RESTARTS", 0)
    spec = spec_with(robot, "batch_functions:closes", {"x": {"dtype": "int32"}})
    with (
        opened(spec, isolation="process") as loader,
        pytest.raises(WorkerError, match="a function of the spec closed descriptors"),
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"gives": {}}, "call needs gives"),
        ({"call": None}, "gives needs call"),
        ({"gives": {"action": {"dtype": "int32"}}}, "gives names 'action'"),
        ({"gives": {"x": {"dtype": "text", "shape": [3]}}}, "text takes no shape"),
        ({"call": "no function"}, "is not a module:function"),
        ({"gives": {"x": {"dtype": "int8"}}}, r"batch\.gives\.x\.dtype: 'int8'"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_with_its_field(
    robot: Written, batch: dict[str, Any], said: str
):
    with pytest.raises(SpecError, match=said):
        spec_with(robot, **{"call": "batch_functions:tokens", **batch})


def test_plan_tells_its_time_and_heeds_it_or_says_why_it_is_not_known(
    robot: Written, tmp_path: Path, cli: Cli
):
    def planned(call: str, gives: Any) -> dict[str, Any]:
        spec = spec_with(robot, f"batch_functions:{call}", gives)
        path = spec_file(tmp_path, spec)
        return cli.json("plan", "--spec", path, "--ram-floor", "64MiB")

    slow = planned("slow", {"x": {"dtype": "int32"}})
    assert slow["batch_call"]["call"] == "batch_functions:slow"
    assert slow["batch_call"]["seconds"] >= 0.05
    assert slow["bound"]["stage"] == "batch.call"
    assert slow["bound"]["samples_per_s"] == pytest.approx(4 / slow["batch_call"]["seconds"])
    odd = planned("raises", {"x": {"dtype": "int32"}})
    assert odd["batch_call"]["seconds"] is None
    assert "raised KeyError" in odd["batch_call"]["unknown_why"]
    assert odd["bound"]["stage"] == "decode"


def test_an_epoch_in_tensorflows_graph_refuses_it(robot: Written):
    tfdata = pytest.importorskip("autoloader.tfdata")
    with pytest.raises(UnsupportedError, match=r"batch\.call: batch_functions:tokens"):
        tfdata.as_dataset(spec_with(robot, "batch_functions:tokens"))


def test_a_module_that_ends_the_process_when_it_is_imported_is_named(robot: Written):
    loader = opened(spec_with(robot, "module_that_leaves:tokens"))
    with loader, pytest.raises(PipelineError, match=r"module_that_leaves:tokens.*SystemExit"):
        next(iter(loader))
    with pytest.raises(SpecError, match="cannot be imported: SystemExit: no licence"):
        opened(spec_with(robot, "package_that_leaves.inner:tokens"))


def test_a_function_that_is_not_there_or_not_wanted_is_refused_before_anything_starts(
    robot: Written, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(SpecError, match=r"batch\.call: 'nowhere:tokens' cannot be imported"):
        opened(spec_with(robot, "nowhere:tokens"))
    monkeypatch.setattr(transform, "_refused", True)
    with pytest.raises(SpecError, match=r"batch\.call: .*--no-transforms forbids it"):
        opened(spec_with(robot, "batch_functions:tokens"))


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_module_that_is_changed_meanwhile_never_mixes_its_batches_with_those_of_before(
    robot: Written, isolation: str
):
    module = robot.path.parents[1] / f"edited_{isolation}.py"
    source = "def f(batch):\n    return {{'x': [{}] * len(batch['language'])}}\n"
    module.write_text(source.format(1))
    batch = {"size": 4, "call": f"{module.stem}:f", "gives": {"x": {"dtype": "int32"}}}
    spec = spec_of(dataset_of(robot), batch=batch, mixing={"epoch": "forever"})
    with ExitStack() as stack:
        loader = stack.enter_context(opened(spec, isolation=isolation))
        batches = iter(loader)
        assert next(batches)["x"].tolist() == [1] * 4
        module.write_text(source.format(22))
        if isolation == "process":
            os.kill(loader.statistics().worker_pid, signal.SIGKILL)
            rest = (batch["x"].tolist() for batch in batches)
        else:
            again = stack.enter_context(opened(spec))
            rest = (batch["x"].tolist() for batch in again)
        with pytest.raises(PipelineError, match=r"code of edited_\w+:f was changed after"):
            assert 22 not in itertools.chain.from_iterable(rest)
