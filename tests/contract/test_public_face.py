"""What users and other packages may rely on: names, import cost, remedies, layers."""

import ast
import functools
import inspect
import json
import re
from pathlib import Path

import pytest
from ended import python
from rlds_files import write_steps

import autoloader
from autoloader import errors
from autoloader.errors import AutoloaderError, nearest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("tensorflow", "tensorflow_datasets", "torch", "lightning", "optuna", "jax")


def test_the_front_door_has_these_names_and_no_others():
    errors_of_users = [
        "AutoloaderError", "BudgetInfeasibleError", "KnobError", "MissingExtraError",
        "PipelineError", "ProfileError", "SourceError", "SpecError", "UnsupportedError",
        "UsageError", "WorkerError",
    ]  # fmt: skip
    others = [
        "AutoLoader", "Batch", "PipelineSpec", "ValidationLoader", "__version__", "augment",
        "join_states", "validation_loaders",
    ]  # fmt: skip
    assert sorted(autoloader.__all__) == sorted(errors_of_users + others)
    shown = [name for name in dir(autoloader) if not name.startswith("__")]
    assert shown == sorted(set(autoloader.__all__) - {"__version__"})
    for name in autoloader.__all__:
        assert getattr(autoloader, name) is not None
    assert autoloader.PipelineSpec.__module__.startswith("autoloader.spec")
    with pytest.raises(AttributeError, match="Autoloader"):
        _ = autoloader.Autoloader


def test_every_error_is_at_the_front_door():
    assert {kind.__name__ for kind in every_error()} <= set(autoloader.__all__)


def test_a_loader_has_these_public_names_and_no_others():
    assert {name for name in dir(autoloader.AutoLoader) if not name.startswith("_")} == {
        "as_torch_dataloader", "awaited", "batches", "close", "dataset_names", "even_epoch",
        "knobs", "load_state_dict", "locate", "metrics", "normalization", "park", "prepare",
        "quarantined", "rank", "retune", "set_weights", "shown", "spans_nodes", "state_dict",
        "statistics", "suspend", "transfer", "world_size",
    }  # fmt: skip


def test_the_arguments_of_the_front_door_are_the_designs():
    found = dict(inspect.signature(autoloader.AutoLoader).parameters)
    assert found.pop("unknown").annotation == "NoReturn", "anything else is refused in our words"
    assert list(found) == [
        "spec", "batch_size", "profile", "ram_floor", "disk_floor", "split", "knobs", "isolation",
        "controller", "rank", "world_size", "device_mesh", "output", "reproducible",
        "replay_one_batch", "helpers",
    ]  # fmt: skip
    defaults = {name: p.default for name, p in found.items() if p.default is not p.empty}
    assert defaults == {
        "batch_size": None, "profile": None, "ram_floor": None, "disk_floor": None,
        "split": "train", "knobs": None, "isolation": "process", "controller": True, "rank": None,
        "world_size": None, "device_mesh": None, "output": "torch", "reproducible": False,
        "replay_one_batch": False, "helpers": None,
    }  # fmt: skip
    for method in ("__iter__", "__len__", "close", "locate", "load_state_dict", "retune",
                   "state_dict", "statistics"):  # fmt: skip
        assert callable(getattr(autoloader.AutoLoader, method))
    assert isinstance(autoloader.AutoLoader.knobs, property)
    assert isinstance(autoloader.AutoLoader.dataset_names, property)


PLAIN_MODULES = (
    "autoloader", "autoloader.spec", "autoloader.controller", "autoloader.spec.knobs",
    "autoloader.controller.profile", "autoloader.formats", "autoloader.recipes",
    "autoloader.samples", "autoloader.sampling", "autoloader.pipeline", "autoloader.telemetry",
    "autoloader.loader", "autoloader.cli.app",
)  # fmt: skip


def test_importing_brings_no_framework():
    """Of all in one process: what any of them brought would be there."""
    code = (
        f"import json, sys; import {', '.join(PLAIN_MODULES)}\n"
        "from autoloader import *\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    assert not set(FRAMEWORKS) & set(json.loads(python("-c", code, cwd=ROOT).stdout))


STARTS = """
import contextlib, io, json, sys

def modules():
    return sorted(name for name, module in sys.modules.items() if module is not None)

found = {}
from autoloader.cli.app import main
with contextlib.redirect_stdout(io.StringIO()):
    main(["--help"])
    found["help"] = modules()
    from autoloader import AutoLoader, PipelineSpec
    found["import"] = modules()
    code = main(["plan", "--spec", sys.argv[1], "--ram-floor", "100MB"])
    found["plan"] = modules()
print(json.dumps([code, found]))
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Modules after ``--help``, after importing the front door, and after ``plan``, one process."""
    folder = tmp_path_factory.mktemp("starts")
    written = write_steps(folder, [[30] * 4])
    images = "{primary: observation/image}"
    (folder / "mix.yaml").write_text(
        f"datasets: [{{name: robot, path: {written.path}, images: {images}, action: action}}]\n"
        "cameras: {primary: {size: [8, 8]}}\n"
    )
    done = python("-c", STARTS, folder / "mix.yaml", cwd=ROOT)
    code, found = json.loads(done.stdout)
    assert code == 0, done.stderr
    return {start: set(names) for start, names in found.items()}


def test_help_imports_no_more_than_the_command_line(imported: dict[str, set[str]]):
    own = {name for name in imported["help"] if name.startswith("autoloader.")}
    assert {"typer", "rich"} <= imported["help"]
    assert not {"numpy", "pydantic", "cv2", "psutil", "ruamel.yaml"} & imported["help"]
    below = {name.split(".", 1)[1] for name in own}
    below = {name for name in below if name.split(".")[0] != "cli"}
    assert below <= {"errors", "host", "host.extras", "host.units"}


def test_the_front_door_imports_nothing_that_only_the_child_runs(imported: dict[str, set[str]]):
    assert "autoloader.loader" in imported["import"]
    for module in ("cv2", "simplejpeg", "autoloader.controller.policy", "autoloader.decode.jobs",
                   "autoloader.process.control"):  # fmt: skip
        assert module not in imported["import"], module


def test_a_plan_is_made_without_a_framework(imported: dict[str, set[str]]):
    assert "autoloader.process.planning" in imported["plan"]
    assert not {*FRAMEWORKS, "sqlalchemy", "matplotlib"} & imported["plan"]


def every_error() -> list[type[AutoloaderError]]:
    """All error classes of the module of errors."""
    found, queue = [], [AutoloaderError]
    while queue:
        queue += queue[0].__subclasses__()
        found.append(queue.pop(0))
    return found


def test_every_error_needs_a_remedy_and_shows_it():
    classes = every_error()
    assert len(classes) >= 10
    for kind in classes:
        error = kind("it broke", remedy="mend it")
        assert "it broke" in str(error)
        assert "mend it" in str(error)
        assert (error.what, error.remedy) == ("it broke", "mend it")
        with pytest.raises(TypeError, match="remedy"):
            kind("it broke")  # type: ignore[call-arg]
        with pytest.raises(AssertionError):
            kind("it broke", remedy="")


def test_every_error_has_one_of_the_documented_exit_codes():
    codes = {kind.__name__: kind.exit_code for kind in every_error()}
    assert set(codes.values()) == {2, 3, 4, 70}
    for name in (
        "SpecError", "UnsupportedError", "ProfileError", "KnobError", "UsageError",
        "MissingExtraError",
    ):  # fmt: skip
        assert codes[name] == 2
    assert (codes["BudgetInfeasibleError"], codes["SourceError"]) == (3, 4)
    assert (codes["PipelineError"], codes["WorkerError"]) == (70, 70)


@pytest.mark.parametrize(
    ("what", "dataset"),
    [("dataset arm: no file", "arm"), ("dataset 'arm' gives no sample", "arm"), ("no file", ""),
     ("dataset 'arm', file x, record 3: it is cut off", "arm"), ("dataset is empty", ""),
     ("dataset arm:1.0.0: no file", "arm:1.0.0")],
)  # fmt: skip
def test_a_source_error_has_the_dataset_that_its_message_begins_with(what, dataset):
    assert errors.SourceError(what, remedy="mend it").dataset == dataset


def test_every_public_error_is_in_the_tree_of_the_errors_module():
    names = {kind.__name__ for kind in every_error()}
    for name in names:
        assert name in (errors.__doc__ or "")
    for path, module in parsed_modules():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef) and path != Path("errors.py"):
                bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                assert not bases & names, f"{path}: {node.name}"


@pytest.mark.parametrize(
    ("word", "known", "answer"),
    [("wieght", ["weight", "name"], "did you mean 'weight'?"),
     ("zzz", ["b", "a"], "choose one of: a, b"), ("x", [], "nothing is allowed here")],
)  # fmt: skip
def test_a_wrong_word_is_answered_with_the_nearest_or_all_known(
    word: str, known: list[str], answer: str
):
    assert nearest(word, known) == answer


@functools.cache
def parsed_modules() -> list[tuple[Path, ast.Module]]:
    """Each module of the package, by its path within it."""
    package = ROOT / "autoloader"
    return [
        (path.relative_to(package), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(package.rglob("*.py"))
    ]


def test_every_module_says_what_it_is_for_and_what_is_not_here():
    without = []
    for path, module in parsed_modules():
        said = ast.get_docstring(module) or ""
        whole = (path.parent == Path() and path.stem in ("__init__", "__main__")) or not any(
            isinstance(node, ast.ClassDef | ast.FunctionDef) for node in module.body
        )
        if not said or not (whole or re.search(r"\bNot here\b", said)):
            without.append(str(path))
    assert without == []


def test_no_call_is_another_one_in_python_3_10():
    """``from_bytes`` needs the order of bytes there; ``get_type_hints`` hides hints of ``None``."""
    found = []
    for path, module in parsed_modules():
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                given, name = len(node.args) + len(node.keywords), node.func.attr
                if name == "get_type_hints" or (name in ("from_bytes", "to_bytes") and given < 2):
                    found.append(f"{path}:{node.lineno}: {name}")
    assert found == []


def test_whoever_catches_everything_says_why():
    found = []
    for path in sorted(
        p for top in ("autoloader", "training", "bench") for p in (ROOT / top).rglob("*.py")
    ):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if re.match(r"\s*except( \(?(Base)?Exception\b|:)", line):
                reason = line.partition("#")[2].replace("noqa: BLE001", "").strip(" ()")
                again = any(then.strip() == "raise" for then in lines[number + 1 : number + 6])
                if not reason and not again:
                    found.append(f"{path.relative_to(ROOT)}:{number + 1}")
    assert found == []
