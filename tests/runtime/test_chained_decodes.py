"""Rows of a chain decode each frame once, and show the same pixels as rows decoded alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_views import open_in
from rlds_files import episode, jpeg, write_dataset, write_steps
from streams import Playing, dataset_of, mixture_of

from autoloader.decode.frames import FrameDecoder, UndecodableFrameError
from autoloader.decode.jobs import PendingBatch, RowDecoding
from autoloader.decode.message import BatchMessage
from autoloader.index import DatasetIndex
from autoloader.index.planned import RunPlanner
from autoloader.pipeline.read.planned import PlannedSource
from autoloader.samples.block import SampleBlock
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sampling.plan import PlannedSamples
from autoloader.telemetry.statistics import DatasetStatistics

STEPS = 18
"""With offsets 0 and 2 and edges: drop this gives two classes of eight samples: whole runs of 4."""
CHAINED: dict[str, Any] = {
    "weights": "natural",
    "sample": {"frame_offsets": [0, 2], "edges": {"end": "drop"}},
    "mixing": {"chain": True, "block_length": 4},
    "batch": {"size": 12},
}


def drained(mixture: ResolvedMixture, batches: int) -> tuple[Playing, list[DatasetStatistics]]:
    """So many batches of a mixture; all jobs are done when they are counted."""
    with Playing(mixture, decode_threads=3) as came:
        came.batches(batches)
        came.pipeline.close()
        return came, [*came.pipeline.activity().datasets.values()]


def places(came: Playing) -> list[tuple[int, ...]]:
    """The samples that the rows stand for."""
    return [tuple(row) for row in came.joined("ledger")[:, :5].tolist()]


def test_only_datasets_whose_offsets_allow_it_are_chained(tmp_path: Path):
    written = [write_steps(tmp_path, [[STEPS] * 3], name=name) for name in ("chained", "drawn")]
    drawn = dataset_of(written[1], sample={"per_episode": 8})
    came, counted = drained(mixture_of(written[0], drawn, **CHAINED), 6)
    t = [place[4] for place in places(came) if place[0] == 0]
    assert len(t) == 48
    assert (np.diff(np.asarray(t).reshape(-1, 4), axis=1) == 2).all()
    assert 1.25 < sum(one.frames for one in counted) / sum(one.decoded for one in counted) < 2


def test_every_row_that_needs_an_undecodable_frame_is_replaced(tmp_path: Path):
    frames = [jpeg(0, step) for step in range(STEPS)]
    frames[7] = b"no picture"
    records = [episode(0, STEPS, **{"observation/image": frames}), episode(1, STEPS)]
    written = write_dataset(tmp_path, [records])
    for mixing in (CHAINED["mixing"], {}):
        came, counted = drained(mixture_of(written, **{**CHAINED, "mixing": mixing}), 3)
        ledger = places(came)
        needed = {(place[3], place[4]) for place in ledger if place[:2] == (0, 0)}
        assert needed == {(record, t) for record in range(2) for t in range(16)}
        bad = [row for row, place in enumerate(ledger) if place[3:] in ((0, 5), (0, 7))]
        assert len(bad) >= 2
        for row, (meant, told) in enumerate(zip(ledger, came.samples, strict=True)):
            assert (meant == told) is (row not in bad)
        assert sum(one.quarantined for one in counted) == 1


def test_a_run_without_videos_is_not_looked_through_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    looked: list[int] = []
    taken: list[SampleBlock] = []
    real = PlannedSource.take

    class Frames(list[Any]):
        """Frames of a run that count who looks through them."""

        def __iter__(self) -> Iterator[Any]:
            looked.append(len(self))
            return super().__iter__()

    def take(source: PlannedSource, count: int) -> tuple[SampleBlock, int, int] | None:
        found = real(source, count)
        if found is not None:
            block = found[0]
            for camera, frames in block.frames.items():
                block.frames[camera] = Frames(frames[:])
            taken.append(block)
        return found

    monkeypatch.setattr(PlannedSource, "take", take)
    drained(mixture_of(write_steps(tmp_path, [[STEPS] * 3]), batch={"size": 12}), 2)
    assert taken
    assert not looked


# --- rows gathered into jobs, without threads


class CountingDecoder:
    """Decodes, and counts."""

    def __init__(self, mixture: ResolvedMixture) -> None:
        self._decoder = FrameDecoder(mixture.spec.cameras["primary"])
        self.decoded = 0

    def decode_into(self, encoded: bytes, out: np.ndarray) -> None:
        self.decoded += 1
        self._decoder.decode_into(encoded, out)


Indexed = tuple[ResolvedMixture, DatasetIndex]


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    folder = tmp_path_factory.mktemp("chains")
    written = write_steps(folder, [[9] * 3])
    sample = {"frame_offsets": [0, 2, 4], "edges": {"start": "zero", "end": "repeat"}}
    mixture = mixture_of(written, sample=sample, batch={"size": 8})
    return mixture, open_in(folder, mixture.datasets[0])[0]


def group_of(indexed: Indexed, rows: Sequence[tuple[int, int]], *, chained: bool) -> SampleBlock:
    """The samples at (episode, t), with their bytes."""
    mixture, index = indexed
    count, episodes = len(rows), np.asarray([e for e, _ in rows], np.int64)
    planner = RunPlanner(mixture.datasets, mixture.layout, [index], [chained])
    t = np.asarray([t for _, t in rows], np.int64)
    run, reads = planner.run(
        PlannedSamples(np.zeros(count, np.int32), t, np.zeros(count, np.int64), episodes, t)
    )
    data = [Path(path).read_bytes() for path in reads.files]
    for camera, ranges in reads.ranges.items():
        lists = (each.tolist() for each in (ranges.file, ranges.offset, ranges.length))
        run.frames[camera] = [
            data[file][offset : offset + length]
            for file, offset, length in zip(*lists, strict=True)
        ]
    return run


def test_a_frame_of_a_chain_that_cannot_be_decoded_fails_for_each_row_that_shows_it(
    indexed: Indexed,
):
    mixture, _ = indexed
    group = group_of(indexed, [(0, 0), (0, 2), (0, 4)], chained=True)
    group.frames["primary"] = [
        b"nothing" if at == 1 else frame for at, frame in enumerate(group.frames["primary"])
    ]
    images = np.zeros((3, 3, 12, 16, 3), np.uint8)
    pending = PendingBatch(BatchMessage(0, 3, 0), {"images/primary": images})
    decoder = CountingDecoder(mixture)
    seen: dict[str, dict[int, np.ndarray]] = {"primary": {}}
    decoding = RowDecoding(pending, group, 0, {"primary": decoder}, "robot", seen)
    decoding.run(range(3))
    assert [row for row, _, _ in pending.bad] == [0, 1]
    assert pending.done.is_set()
    with pytest.raises(UndecodableFrameError):
        decoder.decode_into(b"nothing", images[0, 0])
