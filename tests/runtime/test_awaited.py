"""Who waits for data is told which dataset it is, and which of its shard files."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rlds_files import Written, episode, once, write_dataset, write_steps
from streams import Running, mixture_of, stream_reader, until

from autoloader.errors import SourceError
from autoloader.pipeline.read import frame_reads
from autoloader.pipeline.read.frame_reads import NowRead, Stretches, read_all
from autoloader.process.observer import waited_for
from autoloader.samples.block import EmptyEpisode, EpisodeStream, SampleBlock
from autoloader.samples.draws import PURPOSE_SHARDS, fold, ordered
from autoloader.samples.resolve import ResolvedDataset
from autoloader.telemetry.statistics import DatasetStatistics

SHARDS = 3


late = once(lambda folder: write_steps(folder, [[4, 4]] * SHARDS, name="late"))


class Gated:
    """A stream whose every episode waits for a gate."""

    def __init__(self, stream: EpisodeStream, gate: threading.Semaphore) -> None:
        self._stream, self._gate = stream, gate

    def open(self, *place: object) -> Iterator[SampleBlock | EmptyEpisode]:
        for item in self._stream.open(*place):  # type: ignore[arg-type]
            self._gate.acquire()
            yield item


def test_a_stream_that_is_late_is_told_with_the_shard_that_is_opened(late: Written, tmp_path: Path):
    prompt = write_dataset(tmp_path, [[episode(0, 4)]], name="prompt")
    mixture = mixture_of(late, prompt)
    gate, real = threading.Semaphore(0), stream_reader(mixture)

    def source(dataset: ResolvedDataset) -> EpisodeStream:
        return Gated(real(dataset), gate) if dataset.name == "late" else real(dataset)

    dataset = mixture.datasets[0]
    turns = ordered(fold(dataset.key, PURPOSE_SHARDS, 0), np.arange(SHARDS)).tolist()
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


@pytest.mark.parametrize(
    ("reader", "datasets", "words"),
    [
        ("stream", {"a": DatasetStatistics(), "b": DatasetStatistics(queue=3)}, "1/2 ready, "
         "waiting for a"),
        ("stream", {"a": DatasetStatistics(samples=9, awaits="reading shard 3/1024"),
                    "b": DatasetStatistics(queue=3)}, "waiting for a (reading shard 3/1024)"),
        ("stream", {"a": DatasetStatistics(samples=9), "b": DatasetStatistics(samples=3)}, ""),
        ("indexed", {"a": DatasetStatistics(), "b": DatasetStatistics(awaits="reading shard 0/8")},
         "waiting for b (reading shard 0/8)"),
        ("indexed", {"a": DatasetStatistics(), "b": DatasetStatistics(queue=3)}, ""),
    ],
)  # fmt: skip
def test_what_is_waited_for_is_one_sentence(
    reader: str, datasets: dict[str, DatasetStatistics], words: str
):
    assert waited_for(reader, datasets) == words


def test_a_file_that_does_not_answer_is_told_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
