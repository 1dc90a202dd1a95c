"""Who waits for data is told which dataset it is, and which of its shard files."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rlds_files import Written, episode, write_dataset, write_steps
from streams import Running, mixture_of, stream_reader, until

from autoloader.decode.activity import DatasetActivity
from autoloader.errors import SourceError
from autoloader.index import opening
from autoloader.index.opening import open_indexes
from autoloader.pipeline.read import frame_reads
from autoloader.pipeline.read.frame_reads import NowRead, Stretches, read_all
from autoloader.process.control.moments import waited_for
from autoloader.samples.block import EmptyEpisode, EpisodeStream, Place, SampleBlock
from autoloader.samples.draws import PURPOSE_SHARDS, fold, order
from autoloader.samples.resolve import ResolvedDataset
from autoloader.sampling.cursor import DatasetCursor

SHARDS = 3


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_steps(tmp_path_factory.mktemp("late"), [[4, 4]] * SHARDS, name="late")


class Gated:
    """A stream whose every episode waits for a gate."""

    def __init__(self, stream: EpisodeStream, gate: threading.Semaphore) -> None:
        self._stream, self._gate = stream, gate

    def open(self, *place: object) -> Iterator[SampleBlock | EmptyEpisode]:
        for item in self._stream.open(*place):  # type: ignore[arg-type]
            self._gate.acquire()
            yield item


def test_a_stream_that_is_late_is_told_with_the_shard_that_is_opened(
    late: Written, tmp_path: Path
) -> None:
    prompt = write_dataset(tmp_path, [[episode(0, 4)]], name="prompt")
    mixture = mixture_of(late, prompt)
    gate, real = threading.Semaphore(0), stream_reader(mixture)

    def source(dataset: ResolvedDataset) -> EpisodeStream:
        return Gated(real(dataset), gate) if dataset.name == "late" else real(dataset)

    dataset = mixture.datasets[0]
    turns = order(fold(dataset.key, PURPOSE_SHARDS, 0), 0, SHARDS).tolist()
    knobs = {"cycle_length": 1, "num_parallel_calls": 1, "min_ready_datasets": 2}
    with Running(mixture, knobs, source=source) as running:

        def now() -> str:
            return waited_for("stream", running.pipeline.activity().datasets)

        first = f"waiting for late (opening shard {turns[0]}/{SHARDS})"
        until(lambda: now() == f"1/2 ready, {first}")
        gate.release()
        until(lambda: running.pipeline.activity().datasets["late"].episodes == 1)
        gate.release(1000)  # with one it may be waited for again already
        until(lambda: "late" not in now())
        running.batches(2)


def test_a_shard_of_which_something_came_is_read_and_the_next_one_opened() -> None:
    cursor = DatasetCursor([0, 0, 0], [2, 2, 2], key=7)
    turns = order(fold(7, PURPOSE_SHARDS, 0), 0, 3).tolist()
    assert cursor.comes_next(1) == (turns[0], False)
    cursor.close(Place(0, 0, turns[0], 0))
    assert cursor.comes_next(1) == (turns[0], True)
    assert cursor.comes_next(2) == (turns[1], False)
    cursor.close(Place(0, 0, turns[0], 1))
    assert cursor.comes_next(1) == (turns[1], False)
    for shard in turns[1:]:
        for record in range(2):
            cursor.close(Place(0, 0, shard, record))
    nxt = order(fold(7, PURPOSE_SHARDS, 1), 0, 3).tolist()
    assert cursor.comes_next(1) == (nxt[0], False)


def test_who_asks_in_the_moment_in_which_a_pass_ends_is_told_of_the_next_one() -> None:
    told = []

    class Passes(dict):  # type: ignore[type-arg]
        def __delitem__(self, pass_: int) -> None:
            told.append(cursor.comes_next(1))
            super().__delitem__(pass_)

    cursor = DatasetCursor([0, 0, 0], [1, 1, 1], key=7)
    cursor._passes = Passes()
    for shard in range(3):
        cursor.close(Place(0, 0, shard, 0))
    nxt = order(fold(7, PURPOSE_SHARDS, 1), 0, 3).tolist()
    assert told == [(nxt[0], False)] == [cursor.comes_next(1)]


@pytest.mark.parametrize(
    ("reader", "datasets", "words"),
    [
        ("stream", {"a": DatasetActivity(), "b": DatasetActivity(queue=3)}, "1/2 ready, "
         "waiting for a"),
        ("stream", {"a": DatasetActivity(taken=9, awaits="reading shard 3/1024"),
                    "b": DatasetActivity(queue=3)}, "waiting for a (reading shard 3/1024)"),
        ("stream", {"a": DatasetActivity(taken=9), "b": DatasetActivity(taken=3)}, ""),
        ("indexed", {"a": DatasetActivity(), "b": DatasetActivity(awaits="reading shard 0/8")},
         "waiting for b (reading shard 0/8)"),
        ("indexed", {"a": DatasetActivity(), "b": DatasetActivity(queue=3)}, ""),
    ],
)  # fmt: skip
def test_what_is_waited_for_is_one_sentence(
    reader: str, datasets: dict[str, DatasetActivity], words: str
) -> None:
    assert waited_for(reader, datasets) == words


def test_a_file_that_does_not_answer_is_told_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write_dataset(tmp_path, [[episode(0, 4)], [episode(1, 4)]], name="slow")
    datasets = mixture_of(written).datasets
    path = datasets[0].slices[1].path
    answers = threading.Event()

    def late(*_: object) -> None:
        answers.wait()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(frame_reads, "read_whole", late)
    now, failed = NowRead(), []
    one = np.ones(1, np.int64)
    reads = Stretches.of(0 * one, 0 * one, 4 * one, 0).reads()

    def read() -> None:
        with pytest.raises(SourceError) as told:
            read_all(datasets, [path], reads, memoryview(bytearray(4)), lambda: True, now)
        failed.append(told.value)

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: now.told(datasets) == ("slow", "reading shard 1/2"))
    answers.set()
    thread.join()
    assert "dataset slow" in str(failed[0])
    assert now.told(datasets) == ("", "")


def test_indexing_says_which_shard_it_is_at(
    late: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(opening, "doing", said.append)
    datasets = mixture_of(late).datasets
    open_indexes(datasets, cache_dir=tmp_path, threads=1)
    for shard in range(SHARDS):
        assert f"opening the index of late, shard {shard}/{SHARDS}" in said
    built = [text for text in said if text.startswith("indexing late, shard ")]
    assert built[0].endswith(f"/{SHARDS} (0 of {SHARDS} shard files are done)")
    assert len(built) == SHARDS
    said.clear()
    open_indexes(datasets, cache_dir=tmp_path, threads=1)
    assert not [text for text in said if text.startswith("indexing")]
