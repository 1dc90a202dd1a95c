"""What is decided of remote data before a start: reader, sizes, statistics, or a refusal."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rlds_files import episode, write_dataset
from streams import mixture_of, spec_of

from autoloader.errors import AutoloaderError, SourceError, SpecError
from autoloader.formats import files
from autoloader.formats.cache import JsonCache
from autoloader.index import open_dataset_index
from autoloader.index.counting import mean_frames
from autoloader.index.statistics import statistics_key, statistics_of
from autoloader.process.planning import LoaderPlan, plan_loader
from autoloader.samples.resolve import resolve
from autoloader.storage import places, store

NORMALIZE = {"action": {"method": "mean_std"}}


def planned(*datasets: Any, knobs: dict[str, Any] | None = None, **top: Any) -> LoaderPlan:
    return plan_loader(spec_of(*datasets, **top), ram_floor="64MiB", knobs=knobs)


def test_auto_takes_the_stream_reader_and_names_the_dataset_that_asks_for_it(here: Any):
    plan = planned(here.small, here.dataset(here.large))
    assert plan.knobs.reader == "stream"
    assert plan.reader_reason.startswith("large lies at gs://lab/large/1.0.0")
    assert planned(here.small).knobs.reader == "indexed"


def test_sizes_are_estimates_that_say_so_and_local_ones_are_counted(here: Any):
    plan = planned(here.small, here.dataset(here.large, name="far"))
    far = plan.counts["far"]
    assert (far.episodes, far.frames, far.samples) == (18, 72, 72)
    assert far.estimated
    assert far.frames_estimated
    assert not plan.counts["robot"].estimated
    assert any("sizes of far are estimated" in note for note in plan.notes)
    assert any("num_samples" in note and "forever" in note for note in plan.notes)


def test_statistics_are_required_from_a_file_that_stats_writes(here: Any, tmp_path: Path):
    spec = spec_of(here.dataset(here.small), normalize=NORMALIZE)
    with pytest.raises(SpecError, match="is remote") as caught:
        plan_loader(spec, ram_floor="64MiB")
    assert caught.value.path == "normalize.statistics"
    assert caught.value.exit_code == 2
    assert "autoloader stats SPEC -o statistics.json" in caught.value.remedy
    found = statistics_of(spec, read_remote=True)
    local = statistics_of(spec_of(here.small, normalize=NORMALIZE))
    assert found is not None
    assert local is not None
    assert found == local
    file = tmp_path / "statistics.json"
    file.write_text(json.dumps({name: one.plain() for name, one in found.items()}))
    given = {**NORMALIZE, "statistics": str(file)}
    plan = planned(here.dataset(here.small), normalize=given)
    assert plan.mixture.datasets[0].scaling
    # Kept, too: a second look reads nothing, and a start needs no file any more.
    before = len(here.storage.of("media", ".tfrecord"))
    assert statistics_of(spec) == found
    assert len(here.storage.of("media", ".tfrecord")) == before


def test_what_is_kept_of_remote_data_is_not_that_of_data_written_over_it(
    here: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store, "LISTED_FOR_S", 0.0)
    bucket = here.small.path.parents[1]
    keys, frames = [], []
    for steps in (5, 9):
        written = write_dataset(bucket, [[episode(e, steps) for e in range(4)]], name="again")
        spec = spec_of(here.dataset(written), normalize=NORMALIZE)
        (dataset,) = resolve(spec).datasets
        keys.append(statistics_key(dataset, spec.datasets[0], "steps"))
        frames.append(mean_frames(dataset.slices, dataset.directory.features))
        shutil.rmtree(written.path)
    assert keys[0] != keys[1]
    assert frames == [5, 9]


def test_a_remote_file_that_another_one_of_its_size_replaced_is_looked_at_again(
    here: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store, "LISTED_FOR_S", 0.0)
    file = here.small.path.parents[1] / "findings" / "file"
    file.parent.mkdir()
    cache = JsonCache("things", version=1)
    found = []
    for content in ("left ", "right"):
        file.write_text(content)
        address = "gs://lab/findings/file"
        found.append(
            cache.of_file(address, (), lambda: files.read_text(address), dataset="arm")  # noqa: B023
        )
    assert found == ["left ", "right"]


def refused(*datasets: Any, **top: Any) -> AutoloaderError:
    with pytest.raises(AutoloaderError) as caught:
        planned(*datasets, **top)
    return caught.value


def test_without_a_client_an_index_of_remote_data_is_refused_wherever_it_is_asked_for(
    here: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(places, "CLIENTS", {})
    far = here.dataset(here.large)
    error = refused(far, reader="indexed")
    assert isinstance(error, SpecError)
    assert error.path == "reader"
    assert "gs://lab/large/1.0.0" in error.what
    assert "copy the data to a local disk" in error.remedy
    assert "stream" in refused(far, knobs={"reader": "indexed"}).remedy
    with pytest.raises(SpecError, match="nothing is installed that can fetch parts"):
        open_dataset_index(mixture_of(far).datasets[0])


@pytest.mark.parametrize("pinned", [True, False])
def test_rules_over_data_that_is_streamed_are_refused(
    here: Any, monkeypatch: pytest.MonkeyPatch, pinned: bool
):
    if not pinned:
        monkeypatch.setattr(places, "CLIENTS", {})
    own = {"reader": "stream"} if pinned else {}
    error = refused(here.dataset(here.large, keep={"language": "required"}), **own)
    assert isinstance(error, SpecError)
    assert error.path == "datasets[large].keep"
    assert "transform" in error.remedy


@pytest.mark.parametrize(
    ("path", "what", "remedy"),
    [
        ("gs://lab/nothing/1.0.0", "there is nothing at gs://lab/nothing/1.0.0", "spelling"),
        ("gs://nobucket/arm/1.0.0", "there is nothing at", "bucket"),
        ("gs://lab/large", "not a TFDS version directory", "gs://lab/large/1.0.0"),
        ("nofs://lab/large/1.0.0", "no file system for nofs://", "tensorflow-io"),
    ],
)
def test_a_path_that_leads_nowhere_says_where_to_look(path: str, what: str, remedy: str, here: Any):
    error = refused(here.dataset(here.large, path=path))
    assert isinstance(error, SourceError)
    assert what in error.what
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("status", "what", "remedy"),
    [(403, "access is refused", "gcloud auth"), (503, "cannot be reached", "network")],
)
def test_metadata_that_cannot_be_had_is_a_source_error_with_a_remedy(
    status: int, what: str, remedy: str, here: Any
):
    spec = spec_of(here.dataset(here.large))
    here.storage.fault = lambda _: status
    with pytest.raises(SourceError, match=what) as caught:
        resolve(spec)
    assert remedy in caught.value.remedy


def test_a_shard_that_the_bucket_lacks_is_named_before_anything_starts(here: Any):
    from rlds_files import episode, write_dataset

    written = write_dataset(
        here.storage.folder / "scratch", [[episode(e, 3)] for e in range(3)], name="holey"
    )
    written.files[1].unlink()
    holey = here.dataset(written, path="gs://scratch/holey/1.0.0")
    error = refused(holey)
    assert "gs://scratch/holey/1.0.0/holey-train.tfrecord-00001-of-00003 is missing" in error.what
    assert "choose a split" in error.remedy
    assert len(mixture_of({**holey, "split": "train[:1shard]"}).datasets[0].slices) == 1


def test_a_transform_is_tried_on_a_remote_episode_and_its_steps_are_estimated(here: Any):
    far = here.dataset(here.large, transform={"call": "remote_hooks:halved"})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        plan = planned(far)
    assert plan.counts["large"].samples == 36
    assert plan.counts["large"].estimated
