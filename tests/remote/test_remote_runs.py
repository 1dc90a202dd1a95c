"""Loaders and commands over remote data, in processes of their own as users have them."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_lines import Cli
from ended import python
from streams import every_sample, mixture_of, spec_file, spec_of

from autoloader import AutoLoader


@pytest.fixture(scope="module", autouse=True)
def warm(_served: Any) -> Iterator[None]:
    """One child for all loaders of this module: TensorFlow is imported once in it."""
    served, environment = _served
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        spec = spec_of(served.small, reader="stream", mixing={"epoch": "forever"})
        with AutoLoader(spec, ram_floor="64MiB"):
            yield


def written(folder: Path, *datasets: Any, **top: Any) -> str:
    """A spec file, small frames and batches of four."""
    plain = {
        "datasets": list(datasets),
        "cameras": {"primary": {"size": [12, 16]}},
        "batch": {"size": 4},
        **top,
    }
    return str(spec_file(folder, plain))


def on_google_cloud() -> bool:
    """Whether this machine has a metadata server that is rightly asked."""
    product = Path("/sys/class/dmi/id/product_name")
    return product.exists() and "Google" in product.read_text()


def test_plan_asks_a_process_of_its_own_and_nobody_waits_for_credentials(lab: Any, tmp_path: Path):
    mix = written(tmp_path, lab.dataset(lab.small, name="near", path=str(lab.small.path)),
                  lab.dataset(lab.large))  # fmt: skip
    code = (
        "import sys; from autoloader.cli.app import main; "
        "code = main(sys.argv[1:]); assert 'tensorflow' not in sys.modules; sys.exit(code)"
    )
    words = ("plan", "--spec", mix, "--ram-floor", "64MiB", "--json")
    found = json.loads(python("-c", code, *words, timeout=230).stdout)["datasets"]
    assert {one["reader"] for one in found.values()} == {"stream"}
    assert "large lies at gs://lab/large/1.0.0" in found["near"]["reader_why"]
    assert (found["large"]["samples"], found["large"]["estimated"]) == (72, True)
    assert not found["near"]["estimated"]
    assert found["large"]["decode_s"] > 0
    assert lab.storage.of("media", "features.json")
    if not on_google_cloud():
        assert not lab.storage.of("other"), "a metadata server was asked"
    assert not any(asked.authorised for asked in lab.storage.asked)


def test_a_killed_child_goes_on_behind_what_was_delivered(here: Any):
    away = here.dataset(here.large, num_samples=72)
    spec = spec_of(away, reader="stream", mixing={"epoch": "pass"})
    came: Counter[tuple[int, ...]] = Counter()
    with AutoLoader(spec, ram_floor="64MiB", controller=False) as loader:
        assert loader.knobs.reader == "stream"
        for number, batch in enumerate(loader):
            came.update(map(tuple, batch["provenance"].tolist()))
            if number == 4:
                state = loader.state_dict()
                os.kill(loader.statistics().worker_pids[0], signal.SIGKILL)
            if number == 8:
                break
        assert loader.statistics().restarts == 1
        loader.load_state_dict(state)
        for batch in loader:
            came.update(map(tuple, batch["provenance"].tolist()))
        location = loader.locate(batch["provenance"][0])
    assert set(came) == every_sample(mixture_of(here.large), 0, 0)
    assert sum(came.values()) == 72 + 4 * 4
    assert location.path.startswith("gs://lab/large/1.0.0/large-train.tfrecord-")


def test_verify_compares_remote_samples_with_plain_tfds(here: Any, tmp_path: Path, cli: Cli):
    mix = written(tmp_path, here.dataset(here.small), reader="stream")
    found = cli.json("verify", "--spec", mix, "-n", "12", "--ram-floor", "64MiB")
    assert found["differences"] == []
    assert found["samples"] == {"robot": 12}


def test_init_finds_datasets_in_a_bucket_and_what_it_writes_is_a_spec(
    here: Any, tmp_path: Path, cli: Cli
):
    found = cli.json("init", "gs://lab")
    paths = {one["path"] for one in found["datasets"].values()}
    assert {"gs://lab/robot/1.0.0", "gs://lab/large/1.0.0"} <= paths
    mix = tmp_path / "mix.yaml"
    mix.write_text(found["spec"])
    cli("plan", "--spec", mix, "--ram-floor", "64MiB")


def test_init_takes_a_dataset_of_a_bucket_once_however_often_it_is_named(here: Any, cli: Cli):
    url = here.url(here.small)
    for places in (["gs://lab", url], [url, f"{url}/"]):
        paths = [one["path"] for one in cli.json("init", *places)["datasets"].values()]
        assert paths.count("gs://lab/robot/1.0.0") == 1
        assert len(set(paths)) == len(paths)
