"""Bad input, by the command and from Python: what is told, and that nothing is left behind.

Every message names the place, the value found and what is allowed, and says what to do. It fits one
screen, and in Python it is one exception with no other behind it. A refusal writes nothing and
leaves nothing running. Most cases are a spec with one value changed, or the text of a spec file:
``plan`` and ``AutoLoader`` refuse it alike.
"""

import copy
import json
import os
import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import rlds_files
from huggingface_hub import constants
from leftovers import no_thread_left_behind
from warm_child import keepers

from autoloader import AutoLoader, AutoloaderError, PipelineSpec, join_states, layouts, recipes
from autoloader.cli.app import main
from autoloader.host import extras

SPEC: dict[str, Any] = {
    "datasets": [{"name": "arm", "path": "data/robot/1.0.0", "action": "action",
                  "images": {"primary": "observation/image"}, "state": "observation/state",
                  "language": "language_instruction"}],
    "cameras": {"primary": {"size": [8, 8]}},
    "batch": {"size": 2},
}  # fmt: skip


class Case(NamedTuple):
    """One bad input.

    Attributes:
        what: of a spec the field that is changed and its value; else a command line, or a call.
        code: of the command's end, or of the error.
        told: the place, the value found and what is allowed; all are in the message.
    """

    what: Any
    code: int
    told: tuple[str, ...]


def spec(place: str, value: Any, *told: str, code: int = 2) -> Case:
    """A field's value, of which ``place`` is told, too, where no other place is."""
    if not told[0].startswith(("dataset", "cameras", "sample")):
        told = (place.replace("arm.", "datasets[arm]."), *told)
    return Case((place.replace("arm.", "datasets.0."), value), code, told)


def command(words: str, *told: str, code: int = 2) -> Case:
    return Case(words, code, told)


AT_LEAST_1, AT_LEAST_0 = "at least 1", "at least 0"
FEATURES = "action, language_instruction, observation/image, observation/state"
SPECS = [
    spec("batchs", 1, "'batchs'", "'batch'"),
    spec("arm.strde", 2, "datasets[arm]", "'strde'", "'stride'"),
    spec("arm.stride", 0, "0 is", AT_LEAST_1),
    spec("arm.weight", -1, "-1 is", AT_LEAST_0),
    spec("arm.weight", "much", "'much'", "a number"),
    spec("arm.name", ..., "datasets[0].name", "missing", "add"),
    spec("arm.name", "", "datasets[0].name", "''", "a name of letters"),
    spec("datasets", [], "[]", "at least one"),
    spec("datasets", SPEC["datasets"] * 2, "datasets[1].name", "'arm'", "its own name"),
    spec("arm.path", "data/robt/1.0.0", "dataset arm", "data/robt/1.0.0", "'robot'", code=4),
    spec("arm.path", "mix.yaml", "dataset arm", "mix.yaml is a file", "directory", code=4),
    spec("arm.path", "empty", "dataset arm", "empty", "dataset_info.json", code=4),
    spec("arm.tfds", "arm:1.0.0", "datasets[arm]", "path and tfds", "give either"),
    spec("arm.images", {"wrist": "action"}, "'wrist'", "choose one of: primary"),
    spec("arm.images.primary", "observation/imag", "'observation/imag'", FEATURES),
    spec("arm.images.primary", "action", "'action'", "an image"),
    spec("arm.action", "actoin", "'actoin'", "'action'", FEATURES),
    spec("arm.action", "action[5:900]", "action[5:900]", "[0:2]"),
    spec("arm.action", "action[", "'action['", "[:3]"),
    spec("arm.action", "observation/image", "observation/image", "numeric"),
    spec("arm.action", [{"path": "action", "ops": ["flip"]}], "'flip'", "'clip'"),
    spec("arm.action", [{"path": "action", "ops": [{"clip": [1, 0]}]}], "[1, 0]", "smaller"),
    spec("arm.language", "action", "'action'", "text"),
    spec("arm.features", {"reward": "rewrd"}, "datasets[arm].features.reward", "rewrd", FEATURES),
    spec("arm.split", {"train": "train[:1%]"}, "datasets[arm].split.train", "[:1%]", "of 4"),
    spec("arm.split", {"train": "trian"}, "datasets[arm].split.train", "'trian'", "'train'"),
    spec("arm.keep.match", {"language_instruction": "("}, "'('", "look-around"),
    spec("arm.keep", {"language": "maybe"}, "datasets[arm].keep.language", "'maybe'", "'required'"),
    spec("arm.transform.call", "my_lab:f", "'my_lab:f'", "PYTHONPATH"),
    spec("arm.transform", {"call": "json:nothing"}, "json:nothing", "correct the name"),
    spec("arm.transform", "f", "'f'", "keys and values"),
    spec("cameras.primary.size", [0, 8], "cameras.primary.size[0]", "0 is", AT_LEAST_1),
    spec("cameras.primary.size", 8, "8 is", "a list"),
    spec("cameras.primary.resize", "cubic", "'cubic'", "'lanczos3'"),
    spec("cameras.primary.fit", "stretched", "'stretched'", "'pad'"),
    spec("cameras.wrist", {"size": [8, 8]}, "no dataset", "remove"),
    spec("batch.size", 0, "0 is", AT_LEAST_1),
    spec("batch.size", 2.5, "2.5", "an integer"),
    spec("batch.size", True, "True is", "a number"),
    spec("batch", {"call": "my_lab:f"}, "call needs gives", "what the function returns"),
    spec("metadata", "some", "'some'", "'dataset_only'"),
    spec("reader", "fast", "'fast'", "'indexed'"),
    spec("schema_version", 2, "2 is", "be 1"),
    spec("seed", -1, "-1 is", AT_LEAST_0),
    spec("seed", "x", "'x'", "an integer"),
    spec("mixing.strategy", "random", "'random'", "'choose'"),
    spec("mixing.block_length", 0, "0 is", AT_LEAST_1),
    spec("mixing.epoch", "half", "'half'", "'forever', or an integer"),
    spec("mixing.epoch", True, "True is", "a number"),
    spec("sample.frame_offsets", [], "[]", "a list with 1 or more"),
    spec("sample.frame_offsets", ["x"], "sample.frame_offsets[0]", "'x'", "an integer"),
    spec("sample.edges", {"start": "wrap"}, "sample.edges.start", "'wrap'", "'repeat'"),
    spec("sample.action_horizon", 0, "0 is", AT_LEAST_1),
    spec("normalize", {"action": {"method": "z"}}, "normalize.action.method", "'z'", "'min_max'"),
    spec("pad_to.action", 1, "1 is too small", "2 or more"),
    spec("augment", {"primary": {"blur": 1}}, "augment.primary", "'blur'", "brightness"),
    spec("augment", {"primary": {"hue": 0.6}}, "augment.primary", "0.6", "a strength such as 0.1"),
    spec("augment", {"wrist": {"hue": 0.1}}, "'wrist'", "choose one of: primary"),
    spec("errors.max_corrupt_ratio", 2, "2 is", "at most 1"),
    spec("errors.dead_dataset", "ignore", "'ignore'", "'drop'"),
    spec("validation.samples", 0, "0 is", AT_LEAST_1),
    spec("weights", "equal", "'equal'", "'natural'"),
    spec("weights", {"arm": 2, "hand": 1}, "'arm'", "weight: N in the entry"),
    spec("weights", [0.5, 0.5], "[0.5, 0.5]", "weight: N in the entry"),
    spec("weights", {"from": {"arm": 1}, "to": {"hand": 1}, "over": 9}, "'hand'", "one of: arm"),
    spec("defaults", {"data_dri": "x"}, "defaults.data_dri", "'data_dri'", "'data_dir'"),
]
TEXT = """\
datasets:
  - name: arm
    path: data/robot/1.0.0
    images: {primary: observation/image}
    action: action
cameras:
  primary: {size: [8, 8]}
batch: {size: 2}
"""
TEXTS: dict[str, Case] = {
    "nothing": Case("", 2, ("bad.yaml: it is empty", "autoloader init DATA_DIR")),
    "half of a file": Case(TEXT[: TEXT.index(" observation/image}")], 2,
                           ("bad.yaml: it ends in the middle", "line 4", "write the rest")),
    "an indentation": Case(TEXT.replace("    path", "   path"), 2,
                           ("line 3: 'path: data/robot/1.0.0' is indented differently", "fix")),
    "a tab": Case(TEXT.replace("  primary", "\tprimary"), 2, ("line 7", "has a tab", "spaces")),
    "an open bracket": Case(TEXT.replace("[8, 8]", "[8, 8"), 2, ("line 7", "bracket", "close it")),
    "no space behind a colon": Case(TEXT.replace("action: a", "action:a"), 2,
                                    ("line 6", "no space after its colon", "the lines above it")),
    "a key twice": Case(TEXT + "batch: {size: 4}\n", 2,
                        ("line 9: 'batch:", "repeats a key")),
    "a list": Case("- a\n- b\n", 2, ("['a', 'b']", "not keys with values", "datasets:")),
    "datasets by name": Case(
        "datasets:\n  arm: {path: data/robot/1.0.0}\ncameras: {primary: {size: [8, 8]}}\n", 2,
        ("datasets", "{'arm':", "a list: [{name: bridge", "'- …'")),
    "no cameras": Case(TEXT.replace("cameras", "camera"), 2, ("'camera'", "write cameras:")),
    "a name of another loader": Case(TEXT + "batch_size: 4\n", 2, ("'batch_size'", "batch")),
    "a knob": Case(TEXT + "decode_threads: 4\n", 2, ("'decode_threads'", "a knob", "--set")),
    "workers": Case(TEXT + "num_workers: 4\n", 2,
                    ("bad.yaml, line 9: at the top", "'num_workers'", "--set decode_threads=4")),
    "a floor": Case(TEXT + "ram_floor: 5GB\n", 2, ("'ram_floor'", "--ram-floor")),
    "a split of all": Case(TEXT + "split: train\n", 2, ("'split'", "entry of each dataset")),
    "a camera's size alone": Case(TEXT.replace("{size: [8, 8]}", "[8, 8]"), 2,
                                  ("cameras.primary", "[8, 8]", "keys and values")),
    "images without camera": Case(TEXT.replace("{primary: observation/image}", "observation/image"),
                                  2, ("datasets[arm].images", "'observation/image'", "keys")),
    "a field of the wrong block": Case(TEXT + "weight: 2\n", 2, ("'weight'", "'weights'")),
}  # fmt: skip
"""Texts of a spec file that people have by mistake."""
COMMANDS = [
    command("plan", "SPEC", "missing", "YAML file"),
    command("plan --spec no.yaml", "no.yaml", "No such file", "autoloader init DATA -o mix.yaml"),
    command("plan --spec empty", "empty: it is a directory, not a", "init empty -o mix.yaml"),
    command("plan --spec text", "text", "not keys with values", "datasets"),
    command("plan --spec mix.yaml --sepc x", "--sepc", "No such option"),
    command("plan --spec mix.yaml --ram-floor lots", "--ram-floor", "'lots'", '"5GB"'),
    command("plan --spec mix.yaml --ram-floor 100TB", "93132", "GiB", "ram_floor", code=3),
    command("plan --spec mix.yaml --set decode_threads=0", "decode_threads", "'0'", AT_LEAST_1),
    command("plan --spec mix.yaml --set ring_slots=many", "ring_slots", "'many'", "an integer"),
    command("plan --spec mix.yaml --set decode_thread=2", "'decode_thread'", "'decode_threads'"),
    command("plan --spec mix.yaml --set decode_threads", "--set", "'decode_threads'", "knob=value"),
    command("plan --spec mix.yaml --set hand.cycle_length=2", "'hand'", "choose one of: arm"),
    command(
        "plan --spec mix.yaml --set cycle_length=2 --set num_parallel_calls=8",
        "num_parallel_calls=8 is more than cycle_length=2, the files that are open at a time",
        "set num_parallel_calls=2 or cycle_length=8",
    ),
    command("plan --spec mix.yaml --profile nobody", "'nobody'", "local_dev"),
    command("plan --spec mix.yaml --profile p.yaml", "p.yaml: schema_version", "add schema_v"),
    command("plan --spec mix.yaml --profile no.yaml", "no.yaml", "No such file", "readable file"),
    command("plan --spec mix.yaml --split tset", "datasets[arm].split", "'tset'", "of: train"),
    command("plan --spec mix.yaml --ranks 0", "--ranks", "'0'", AT_LEAST_1),
    command("plan --spec mix.yaml --ranks 3 --nodes 2", "--ranks 3 --nodes 2", "multiple"),
    command("plan --spec mix.yaml --ranks 100", "100 ranks", "20 samples", "fewer ranks"),
    command("measure --spec mix.yaml --batches many", "--batches", "'many'", "an integer"),
    command("measure --spec mix.yaml --batches 0", "--batches", "at least 1"),
    command("measure --spec large.yaml", "batch.size", "fewer samples", "drop_last"),
    command("measure --spec mix.yaml --warmup -1", "warmup=-1", "0 or more"),
    command("measure --spec mix.yaml --step-time soon", "--step-time", "'soon'", '"250ms"'),
    command("peek --spec mix.yaml --out sheet.txt", "--out", "sheet.txt", "sheet.html"),
    command("verify --spec mix.yaml -n 0", "-n", "'0'", AT_LEAST_1),
    command("stats --spec mix.yaml --format csv", "--format", "csv", "openpi"),
    command("tune --spec mix.yaml --trials 0", "--trials 0", "at least one trial"),
    command("tune --spec mix.yaml --budget soon", "--budget", "'soon'", '"10m"'),
    command("tune --spec mix.yaml --storage here", "--storage", "'here'", "sqlite:///"),
    command("tune --spec mix.yaml --seed -1", "--seed", "'-1'", AT_LEAST_0),
    command("tune --spec mix.yaml --out text", "text", "cannot be saved", "--out"),
    command("doctor --spec no.yaml", "no.yaml", "No such file", "init DATA -o mix.yaml"),
    command("replay no.jsonl", "no.jsonl", "No such file", "decisions.jsonl"),
    command("replay text", "line 1 of text", "not a JSON object", "decisions.jsonl"),
    command("replay empty", "empty", "*.jsonl", "decisions.jsonl"),
    command("--schema knobs", "--schema", "'knobs'", "'profile'"),
    command("demo full", "full", "not empty", "new folder"),
    command("demo new --datasets 30", "datasets", "30", "1 to 29"),
    command("demo new --scale 0", "scale", "0.0", "above 0"),
    command("demo new --seed -1", "seed", "-1", "0 or a positive"),
    command("init no", "no does not exist", "datasets", code=4),
    command("init empty", "empty", "holds no readable dataset", "1.0.0", code=4),
    command("init data --style rlds", "--style", "'rlds'", "openvla"),
    command("init data --mix magic", "--mix", "magic", "oxe_magic_soup"),
    command("init data --style octo --mix rtz", "--mix rtz", "--style octo", "'rtx'"),
    command("inspect empty", "empty", "dataset_info.json", code=4),
    command("inspect data/robot/1.0.0 --split val", "--split", "val", "choose one of: train"),
    command("inspect data/robot/1.0.0 --episodes 0", "--episodes", "'0'", AT_LEAST_1),
    command("profile show nobody", "'nobody'", "local_dev"),
    command("profile diff local_dev nobody", "'nobody'", "local_dev"),
    command("profile diff no.yaml", "no.yaml", "No such file", "readable file"),
    command("top nobody --once", "'nobody'", "running: none", "start your run"),
    command("report nobody", "nobody", "keeps no run", "AUTOLOADER_RUN_DIR"),
    command("fly", "'fly'", "choose one of: ", "measure"),
    command("plan data/robot/1.0.0", "not a spec file", "autoloader init data/robot/1.0.0 -o mix"),
    command("plan lab/arm", "lab/arm: No such file", "autoloader init lab/arm -o mix.yaml"),
    command("plan data", "data: it is a directory", "autoloader init data -o mix.yaml"),
    command("init data -o mix.yaml", "mix.yaml exists already", "another file name"),
    command("plan mix.yaml --set decode_threads 4", "--set 'decode_threads'", "knob=value"),
    command("plans mix.yaml", "No such command 'plans'\n", "'plan'"),
    command("tune mix.yaml --budget 10 min", "takes (min)", "quote a value"),
    command("init data --style lerobto", "'lerobto'", "did you mean 'lerobot'?"),
    command("init data --stile octo", "--stile", "No such option", "--style"),
    command("plan --set num_workers=4 mix.yaml", "'num_workers'", "decode_threads"),
    command("plan mix.yaml --set reader=x", "both a knob and a field", "knobs.reader"),
    command("plan mix.yaml --set batch.size=0", "batch.size", "0 is", AT_LEAST_1),
    command("plan mix.yaml --set batch.size=two", "batch.size", "'two'", "integer"),
    command("plan mix.yaml --set batch.sizes=2", "batch: unknown key 'sizes'", "'size'"),
    command("plan mix.yaml --set batch.size=[2", "batch.size", "ends in the middle"),
    command("plan mix.yaml --set datasets.am.weight=2", "'am'", "'arm'"),
    command("plan mix.yaml --set decode_threads=4,ring_slots=8", "'4,ring_slots=8'", "an integer"),
    command("plan mix.yaml other.yaml", "other.yaml", "takes"),
    command("measure", "SPEC", "missing", "YAML file"),
    command("init", "DATA", "missing", "lerobot/pusht"),
    command("init nobody/nothing", "nobody/nothing: no folder", "HF_HUB_OFFLINE", code=4),
    command("init hf://buckets/nobody/nothing", "Storage Buckets", "hf buckets sync"),
    command("init s3//bucket/oxe", "s3/bucket/oxe does not exist", "address s3://buck", code=4),
]


def python(call: Callable[[], object], *told: str, code: int = 2) -> Case:
    return Case(call, code, told)


def opens(*told: str, code: int = 2, **arguments: Any) -> Case:
    """A loader of the good spec, with some arguments."""

    def call() -> object:
        with AutoLoader("mix.yaml", **{"output": "numpy", "ram_floor": "64MiB", **arguments}):
            raise AssertionError("it opened")

    return Case(call, code, told)


def asked(do: Callable[[AutoLoader], object], *told: str) -> Case:
    """What an open loader refuses."""

    def call() -> object:
        with AutoLoader(
            "mix.yaml", isolation="thread", output="numpy", ram_floor="64MiB"
        ) as loader:
            return do(loader)

    return Case(call, 2, told)


def harmed(harm: Callable[[Path], object], *told: str) -> Case:
    """A loader of a copy of the data that something has happened to; the dataset is named."""

    def call() -> object:
        folder = Path("damaged")
        shutil.copytree("data/robot/1.0.0", folder)
        try:
            harm(folder)
            raw = copy.deepcopy(SPEC)
            raw["datasets"][0]["path"] = str(folder)
            return AutoLoader(raw, output="numpy", ram_floor="64MiB")
        finally:
            shutil.rmtree(folder)

    return Case(call, 4, told if "'arm'" in told[0] else ("dataset arm", *told))


def second_shard(folder: Path) -> Path:
    return sorted(folder.glob("*.tfrecord*"))[1]


def without_splits(folder: Path) -> None:
    document = json.loads((folder / "dataset_info.json").read_text())
    del document["splits"]
    (folder / "dataset_info.json").write_text(json.dumps(document))


def changed_state(loader: AutoLoader) -> None:
    loader.load_state_dict({**loader.state_dict(), "seed": 5})


def wrapped(**options: Any) -> Callable[[AutoLoader], object]:
    """A loader as the dataset of a torch ``DataLoader``."""

    def call(loader: AutoLoader) -> object:
        from torch.utils.data import DataLoader

        return next(iter(DataLoader(loader, **options)))  # type: ignore[arg-type]

    return call


def without(module: str) -> Callable[[], object]:
    """A loader where a package is not installed."""

    def call() -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(extras, "find_spec", lambda name: None if name == module else object())
            return AutoLoader("mix.yaml")

    return call


CALLS: dict[str, Case] = {
    "workers": opens("leave it out", "knobs={'decode_threads': 4}", num_workers=4),
    "a field as an argument": opens("a field of the spec", "seed: there", seed=4),
    "a torch word": opens("'device'", "loader.transfer(device)", device="cuda"),
    "a knob as an argument": opens("a knob", "knobs={'ring_slots': 4}", ring_slots=4),
    "an argument's name": opens("'bach_size'", "'batch_size'", bach_size=4),
    "a batch of none": opens("batch_size=0", "whole number from 1", batch_size=0),
    "a batch of a text": opens("batch_size='32'", "whole number", batch_size="32"),
    "a floor without unit": opens("ram_floor", "5 bytes", "5GB?", ram_floor=5),
    "another loader's knob": opens("'num_workers'", "decode_threads", knobs={"num_workers": 4}),
    "a folder without data": python(lambda: AutoLoader("empty"), "empty", "1.0.0", code=4),
    "a path without spec": python(
        lambda: AutoLoader("specs/mix.yaml"), "specs/mix.yaml", "No such"
    ),
    "an id of nobody's": python(
        lambda: AutoLoader("nobody/nothing"),
        "nobody/nothing: no folder",
        "unset HF_HUB_OFFLINE",
        code=4,
    ),
    "a DataLoader around it": asked(wrapped(), "DataLoader", "as_torch_dataloader()"),
    "no torch": python(without("torch"), "torch, which is not", "autoloader-rlds[torch]", "numpy"),
    "a closed loader": asked(lambda one: (one.close(), next(iter(one))), "is closed", "with block"),
    "spec 3": python(lambda: AutoLoader(3), "spec=3", "a dict"),  # type: ignore[arg-type]
    "spec of 3": python(lambda: PipelineSpec.of(3), "3 is not a spec", "a dict"),  # type: ignore[arg-type]
    "a list": python(lambda: PipelineSpec.from_mapping([1]), "[1]", "mapping"),  # type: ignore[arg-type]
    "no file": python(lambda: AutoLoader("no.yaml"), "no.yaml", "No such file", "init DATA -o"),
    "no such rank": opens("rank=3, world_size=2", "from 0 to 1", rank=3, world_size=2),
    "a rank alone": opens("rank=1, world_size=None", "both", rank=1),
    "a rank of text": opens("rank='a'", "whole number", rank="a", world_size=2),
    "a rank and a mesh": opens("rank=0", "device_mesh", "alone", rank=0, device_mesh=3),
    "output": opens("output='jax'", "'torch' or 'numpy'", output="jax"),
    "isolation": opens("isolation='fork'", "'process' or 'thread'", isolation="fork"),
    "split": opens("datasets[arm].split", "'tset'", "choose one of: train", split="tset"),
    "knob": opens("'ring_slot'", "'ring_slots'", knobs={"ring_slot": 4}),
    "knobs": opens("knobs=3", "mapping", knobs=3),
    "knob's value": opens("ring_slots", "'x'", "integer", knobs={"ring_slots": "x"}),
    "floor": opens("ram_floor", "'lots'", '"5GB"', ram_floor="lots"),
    "floor below 0": opens("ram_floor", "-5", '"5GB"', ram_floor=-5),
    "floor too high": opens(
        "ram_floor='100TB': the RAM floor of 93132", "lower ram_floor", code=3, ram_floor="100TB"
    ),
    "profile": opens("'nobody'", "local_dev", profile="nobody"),
    "profile 3": opens("profile=3", "name or path", profile=3),
    "controller": opens("controller='yes'", "True or False", controller="yes"),
    "dataset": python(
        lambda: PipelineSpec.from_yaml("mix.yaml").dataset("hand"), "'hand'", "choose one of: arm"
    ),
    "recipe": python(
        lambda: recipes.recipe("bridge_datset", "octo"), "'bridge_datset'", "'bridge_dataset'"
    ),
    "style": python(lambda: recipes.recipe("bridge_dataset", "okto"), "style", "'okto'", "'octo'"),
    "layout": python(lambda: layouts.octo({}, ["arm"]), "Octo layout", "place", "metadata: full"),  # type: ignore[typeddict-item]
    "no states": python(lambda: join_states([]), "a list of states", "[]", "state of rank 0"),
    "missing shard": harmed(lambda of: second_shard(of).unlink(), "00001-of-00002"),
    "missing features": harmed(
        lambda of: (of / "features.json").unlink(), "features.json", "copy the file there"
    ),
    "cut metadata": harmed(
        lambda of: (of / "dataset_info.json").write_text("{"),
        "dataset_info.json is broken",
        "copy the file again",
    ),
    "metadata without splits": harmed(without_splits, "lists no splits", "copy the file again"),
    "empty shards": harmed(
        lambda of: [os.truncate(file, 0) for file in of.glob("*.tfrecord*")],
        "dataset 'arm'",
        "no episode can be read",
        "remove the dataset from the spec",
    ),
    "retune": asked(lambda one: one.retune(cycle_lenght=3), "'cycle_lenght'", "'cycle_length'"),
    "retune to 0": asked(lambda one: one.retune(ring_slots=0), "ring_slots", "0 is", "at least"),
    "weights": asked(
        lambda one: one.set_weights({"hand": 1}), "set_weights", "'hand'", "one of: arm"
    ),
    "weight": asked(lambda one: one.set_weights({"arm": -1}), "set_weights", "-1", "pass 0"),
    "no state": asked(lambda one: one.load_state_dict({}), "schema_version", "[]", "state_dict()"),
    "a changed state": asked(changed_state, "checksum", "changed", "earlier"),
    "provenance": asked(lambda one: one.locate([9, 0, 0, 0, 0]), "[9, 0, 0, 0, 0]", "one row"),
    "a batch as provenance": asked(
        lambda one: one.locate(next(iter(one))), "a whole batch", "one row"
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a good spec, and what is none."""
    folder = tmp_path_factory.mktemp("bad")
    records = [[rlds_files.episode(2 * file + one, 5) for one in range(2)] for file in range(2)]
    rlds_files.write_dataset(folder / "data", records)
    for name in ("empty", "full"):
        (folder / name).mkdir()
    (folder / "full/file").write_text("mine")
    (folder / "text").write_text("hello\nworld\n")
    (folder / "p.yaml").write_text("knobs: {decode_threads: 2}\n")
    (folder / "mix.yaml").write_text(json.dumps(SPEC))
    (folder / "large.yaml").write_text(json.dumps({**SPEC, "batch": {"size": 64}}))
    return folder


@pytest.fixture
def folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a case runs: afterwards all is as it was, and nothing runs that did not."""
    monkeypatch.chdir(made)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(made / "hf"))
    for name in ("CACHE", "CONFIG", "RUNTIME"):
        monkeypatch.setenv(f"AUTOLOADER_{name}_DIR", str(made / name.lower()))
    before, running = files(made), set(psutil.Process().children(recursive=True))
    yield from (made for _ in no_thread_left_behind())
    assert files(made) == before
    left = set(psutil.Process().children(recursive=True)) - running
    assert {process.pid for process in left} <= keepers()


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file, without indexes, which are whole, and records of runs."""
    return {
        str(path): ((seen := path.lstat()).st_size, seen.st_mtime_ns)
        for path in folder.rglob("*")
        if not path.is_dir() and path.name != "bad.yaml" and path.suffix not in (".index", ".jsonl")
    }


def names(case: Case) -> str:
    return f"{case.what[0]} {case.what[1]!r:.40}" if isinstance(case.what, tuple) else case.what


def bad_spec(change: tuple[str, Any]) -> dict[str, Any]:
    """The good spec with one value changed, added or (``...``) taken out."""
    raw = copy.deepcopy(SPEC)
    (*above, key), value = change[0].split("."), change[1]
    holder: Any = raw
    for step in above:
        holder = holder[int(step)] if isinstance(holder, list) else holder.setdefault(step, {})
    if value is ...:
        del holder[key]
    else:
        holder[key] = value
    return raw


def refused_by_command(words: list[str], case: Case, said: pytest.CaptureFixture[str]) -> None:
    code = main([*words, "--json"])
    told = said.readouterr()
    error = json.loads(told.out)["error"]
    assert (code, error["exit_code"]) == (case.code, case.code)
    shown = f"error: {error['what']}\n  → {error['remedy']}\n"
    assert shown in told.err
    check_screen(shown)
    check(error["what"], error["remedy"], case)


def check(what: str, remedy: str, case: Case) -> None:
    for word in case.told:
        assert word in f"{what}\n{remedy}"
    assert what
    assert remedy
    assert "Traceback" not in what


def check_screen(text: str) -> None:
    """See that a text of an error fits a small terminal."""
    assert sum(-(-len(line) // 80) for line in text.splitlines()) <= 12


def check_one(error: AutoloaderError, case: Case) -> None:
    """See that an error is what the case says, and that no other one is shown behind it."""
    assert error.exit_code == case.code
    check(error.what, error.remedy, case)
    check_screen(str(error))
    shown = "".join(traceback.format_exception(error))
    assert shown.count("Traceback (most recent call last)") == 1, shown


@pytest.mark.parametrize("case", [*SPECS, *TEXTS.values()], ids=[*map(names, SPECS), *TEXTS])
def test_plan_and_a_loader_refuse_a_bad_spec(
    folder: Path, case: Case, capsys: pytest.CaptureFixture[str]
):
    spec: Any = "bad.yaml" if isinstance(case.what, str) else bad_spec(case.what)
    (folder / "bad.yaml").write_text(case.what if spec == "bad.yaml" else json.dumps(spec))
    refused_by_command(["plan", "bad.yaml"], case, capsys)
    with pytest.raises(AutoloaderError) as refusal:
        AutoLoader(spec, output="numpy", ram_floor="64MiB")
    check_one(refusal.value, case)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("case", COMMANDS, ids=names)
def test_a_command_refuses_bad_arguments(case: Case, capsys: pytest.CaptureFixture[str]):
    refused_by_command(case.what.split(), case, capsys)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_refuses_bad_arguments(name: str):
    case = CALLS[name]
    with pytest.raises(AutoloaderError) as refusal:
        case.what()
    check_one(refusal.value, case)
