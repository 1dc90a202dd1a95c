"""Remote shards through the stream reader: the same samples, exactly once, whatever the network."""

import gc
import threading
from collections import Counter
from collections.abc import Callable

import cloud_storage
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlds_files import Written, episode, write_dataset
from streams import Running, episodes_of_pass, every_sample, mixture_of, stream_knobs, stream_reader

from autoloader.errors import SourceError
from autoloader.formats import files
from autoloader.pipeline.read import streams
from autoloader.samples.block import EmptyEpisode, ReaderStart, SampleBlock

Asked = cloud_storage.Asked
KNOBS = {"cycle_length": 2, "decode_threads": 1}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between tries."""
    monkeypatch.setattr(streams, "PAUSES_S", (0.0,) * 12)


def media_of(written: Written, then: Callable[[int], int | str | None]) -> object:
    """A fault for the n-th request for the dataset's shards, by number."""
    count = 0

    def fault(asked: Asked) -> int | str | None:
        nonlocal count
        if asked.target != "media" or f"lab/{written.name}/" not in asked.name:
            return None
        if ".tfrecord" not in asked.name:
            return None
        count += 1
        return then(count)

    return fault


def by_key(items: object) -> dict[tuple[int, ...], tuple[object, ...]]:
    found = {}
    for item in items:  # type: ignore[attr-defined]
        assert isinstance(item, SampleBlock)
        for k in range(len(item)):
            frames = [item.frames["primary"][row] for row in item.frame_row[k].tolist()]
            key = (item.place.pass_, item.place.shard, item.place.record, int(item.t[k]))
            found[key] = (
                frames,
                item.columns["action"][k].tobytes(),
                item.columns["state"][k].tobytes(),
            )
    return found


def test_a_remote_dataset_gives_the_samples_of_the_local_one(here):
    here.storage.latency_s = 0.01
    local = mixture_of(here.large)
    remote = mixture_of(here.dataset(here.large))
    assert remote.datasets[0].directory.path == "gs://lab/large/1.0.0"
    for pass_ in (0, 1):
        wanted = by_key(episodes_of_pass(local, pass_=pass_, cycle_length=2))
        assert by_key(episodes_of_pass(remote, pass_=pass_, cycle_length=2)) == wanted
        assert len(wanted) == 2 * 9 * 4
    ranges = {asked.start for asked in here.storage.of("media", "large-train")}
    assert len(ranges) > 1, "the shards were read in one piece, so nothing can break off midway"


@given(
    faults=st.lists(st.sampled_from([None, None, 503, 500, 429, "cut"]), max_size=24),
    seed=st.integers(0, 3),
)
@settings(
    max_examples=3,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_sample_comes_exactly_once_whatever_the_network_does(
    faults: list[int | str | None], seed: int, here, impatient: None
):
    here.storage.fault = lambda _: None
    mixture = mixture_of(here.dataset(here.large, num_samples=72), seed=seed)
    # Never so many in a row that patience ends.
    here.storage.fault = media_of(
        here.large, lambda n: faults[n - 1] if n <= len(faults) and n % 6 else None
    )
    with Running(mixture, KNOBS) as running:
        got = running.until_pass(1)
        assert not running.pipeline.quarantined()
    here.storage.fault = lambda _: None
    assert got.of_pass(0, 0) == Counter(every_sample(mixture, 0, 0))


def test_a_shard_that_breaks_off_midway_goes_on_at_the_record_where_it_stopped(
    here, impatient: None
):
    mixture = mixture_of(here.dataset(here.large))
    # The second piece of each shard is refused three times, more than the client repeats.
    left = Counter({f"lab/large/1.0.0/{file.name}": 3 for file in here.large.files})

    def fault(asked: Asked) -> int | None:
        if asked.target == "media" and asked.start > 0 and left[asked.name]:
            left[asked.name] -= 1
            return 503
        return None

    here.storage.fault = fault
    with Running(mixture, {**KNOBS, "cycle_length": 1}) as running:
        got = running.until_pass(1)
        activity = running.pipeline.activity().datasets["large"]
        assert not running.pipeline.quarantined()
    assert not +left
    assert activity.interruptions >= 2
    assert got.of_pass(0, 0) == Counter(every_sample(mixture, 0, 0))
    assert max(got.of_pass(0, 0).values()) == 1


def test_a_read_is_given_up_once_the_stream_that_asked_for_it_was_left(
    here, monkeypatch: pytest.MonkeyPatch
):
    refused = threading.Event()

    def fault(asked: Asked) -> int | None:
        if asked.target != "media":
            return None
        refused.set()
        return 503

    items = episodes_of_pass(mixture_of(here.dataset(here.large)), cycle_length=2)
    next(items)
    # From here on this package's client reads, which repeats for minutes what it is refused.
    monkeypatch.setattr(files, "_here", None)
    here.storage.fault = fault
    here.storage.asked.clear()
    assert refused.wait(60)
    items.close()
    del items
    gc.collect()  # waits for the read
    assert 0 < len(here.storage.of("media", "large-train")) < 10


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("length", [2**62, 2**40, 2**63 + 5, 2**64 - 1])
def test_a_remote_length_beyond_the_file_names_its_records_and_ends_no_process(
    length: int, calls: int, here
):
    folder = here.storage.folder / "scratch"
    shards = [[episode(5 * s + e, 3) for e in range(5)] for s in range(2)]
    written = write_dataset(folder, shards, name=f"claims_{length}_{calls}")
    written.claim_length(0, 2, length=length)
    mixture = mixture_of(here.dataset(written, path=f"gs://scratch/{written.name}/1.0.0"))
    knobs = {"cycle_length": 2, "num_parallel_calls": calls}
    for pass_ in (0, 1):
        items = list(episodes_of_pass(mixture, pass_=pass_, **knobs))
        bad = [item for item in items if isinstance(item, EmptyEpisode)]
        assert sorted((one.place.shard, one.place.record) for one in bad) == [
            (0, 2),
            (0, 3),
            (0, 4),
        ]
        assert all("truncated" in str(one.reason) for one in bad)
        assert len({item.place for item in items}) == len(items) == 10


@pytest.mark.parametrize(
    ("status", "words", "remedy"),
    [
        (404, "no such file", "check the path"),
        (403, "access is refused", "gcloud auth"),
        (401, "access is refused", "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_what_will_not_pass_ends_the_stream_with_path_and_remedy(
    status: int, words: str, remedy: str, here, impatient: None
):
    mixture = mixture_of(here.dataset(here.large))
    here.storage.fault = media_of(here.large, lambda _: status)
    with pytest.raises(SourceError) as caught, Running(mixture, KNOBS) as running:
        running.until_pass(1)
    assert caught.value.dataset == "large"
    assert "gs://lab/large/1.0.0" in caught.value.what
    assert words in caught.value.what
    assert remedy in caught.value.remedy


def test_an_error_names_the_shard_of_its_own_stream_however_many_are_open(here):
    mixture = mixture_of(here.dataset(here.large))
    reader = stream_reader(mixture)(mixture.datasets[0])
    first, second = (
        reader.open(ReaderStart(0, (0, 0)), stream_knobs(stream_prefetch=0)) for _ in range(2)
    )
    next(first)
    next(second)
    here.storage.fault = media_of(here.large, lambda _: 404)
    with pytest.raises(SourceError) as caught:
        list(first)
    _, path, *_ = caught.value.what.split(": ")
    assert path.startswith("gs://lab/large/1.0.0/large-train.tfrecord-")
    second.close()
