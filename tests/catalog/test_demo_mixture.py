"""The demo mixture: what it declares, what it draws, and who builds it."""

import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
from ended import python

from autoloader.cli.demo import ensure_demo, spec_text
from autoloader.cli.demo_writer import DATASETS, encode_frame
from autoloader.errors import UsageError
from autoloader.spec import PipelineSpec

TINY = {"datasets": 1, "scale": 0.02, "seed": 3}


# --- what is declared ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 6, 29])
def test_the_spec_file_is_legal_and_names_every_dataset(count: int, tmp_path: Path):
    (tmp_path / "mix.yaml").write_text(spec_text(DATASETS[:count], 1.0, 5), encoding="utf-8")
    spec = PipelineSpec.from_yaml(tmp_path / "mix.yaml")
    assert [one.name for one in spec.datasets] == [one.name for one in DATASETS[:count]]
    assert spec.seed == 5
    assert spec.batch.size == 48
    assert spec.sample.frame_offsets == (0, 5)
    assert dict(spec.cameras["primary"])["size"] == (256, 256)
    for one, declared in zip(spec.datasets, DATASETS, strict=False):
        assert one.weight == declared.weight
        assert one.images["primary"].paths == (declared.primary,)
        assert one.action.paths() == declared.action_paths
        assert (one.state.paths() if one.state else ()) == tuple(declared.state)
        assert (one.language.paths if one.language else ()) == declared.language
        assert Path(str(one.path)).parts[-2] == one.name


# --- what is drawn ---------------------------------------------------------------------------


# --- places and refusals ---------------------------------------------------------------------


def test_importing_the_builder_brings_no_framework():
    code = (
        "import sys, autoloader.cli.demo; "
        "print([m for m in ('tensorflow', 'tensorflow_datasets') if m in sys.modules])"
    )
    assert python("-c", code).stdout.strip() == "[]"


# --- what is built ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path], set[int]]:
    """Where three callers at once asked for one mixture, their answers, and which of them built."""
    place = tmp_path_factory.mktemp("mixture") / "demo"
    answers: list[Path] = []
    builders: set[int] = set()

    def call(number: int) -> None:
        answers.append(ensure_demo(place, progress=lambda *_: builders.add(number), **TINY))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return place, answers, builders


def test_callers_at_once_get_one_mixture_built_by_one_of_them(
    callers: tuple[Path, list[Path], set[int]],
):
    place, answers, builders = callers
    assert len(builders) == 1
    assert answers == [place / "mix.yaml"] * 3


def test_tfds_reads_every_dataset_as_it_is_declared(demo_mix: Path):
    import tensorflow_datasets as tfds

    for one in DATASETS[:6]:
        builder = tfds.builder_from_directory(demo_mix.parent / one.name / "1.0.0")
        for split, of in builder.info.splits.items():
            found = list(tfds.as_numpy(builder.as_dataset(split=split)))
            assert len(found) == of.num_examples == getattr(one, f"{split}_episodes")(0.02)
        steps = list(found[0]["steps"])
        assert one.lengths[0] <= len(steps) <= one.lengths[1]
        assert (steps[0]["is_first"], steps[-1]["is_last"]) == (True, True)
        for path, size in one.cameras:
            picture = steps[-1]
            for part in path.split("/"):
                picture = picture[part]
            assert picture.shape == (*size, 3)


def test_a_mixture_that_is_there_is_taken_and_another_one_is_never_overwritten(
    callers: tuple[Path, list[Path], set[int]],
):
    place, _, _ = callers
    before = (place / "demo.json").stat()

    def never(done: int, total: int) -> None:
        raise AssertionError("built again")

    assert ensure_demo(place, progress=never, **TINY) == place / "mix.yaml"
    with pytest.raises(UsageError, match="another demo mixture"):
        ensure_demo(place, progress=never, **{**TINY, "seed": 4})
    after = (place / "demo.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("name", ["demo_kitchen_sink", "demo_sim_blocks"])
def test_frames_come_back_from_their_files_in_the_right_colours(name: str):
    look = next(one.look for one in DATASETS if one.name == name)
    picture = np.full((32, 48, 3), (200, 90, 30), np.uint8)
    data = np.frombuffer(encode_frame(picture, look), np.uint8)
    back = cv2.cvtColor(cv2.imdecode(data, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    assert np.abs(back.astype(int) - picture).max() < 10
