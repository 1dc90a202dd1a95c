"""How long an index takes is said before it is built, and how far it is while ranks wait for it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from doubles import ManualClock
from rlds_files import Written, episode, write_dataset
from streams import mixture_of

from autoloader.index import open_indexes, opening
from autoloader.index.build import index_beginning
from autoloader.index.build_time import IndexWork, SaidProgress
from autoloader.index.counting import count_mixture
from autoloader.samples.schema import RecordSchema
from autoloader.units import MIB, format_seconds


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Three shards of two episodes."""
    shards = [[episode(2 * s + r, 3 + r) for r in range(2)] for s in range(3)]
    return write_dataset(tmp_path / "data", shards)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Level and text of what was logged about the building since the last call."""
    found = [
        (one.levelno, one.message)
        for one in caplog.records
        if one.name == "autoloader.index.build_time"
    ]
    caplog.clear()
    return found


def test_bytes_and_a_measured_rate_are_foretold_of_what_is_missing(
    written: Written, tmp_path: Path
) -> None:
    datasets, cache = mixture_of(written).datasets, tmp_path / "cache"
    foretold: list[IndexWork] = []
    open_indexes(datasets, cache_dir=cache, foretold=foretold.append)
    (work,) = foretold
    sizes = [path.stat().st_size for path in written.files]
    assert (work.files, work.nbytes) == (3, sum(sizes))
    assert work.bytes_per_s is not None
    assert work.seconds == pytest.approx(sum(sizes) / work.bytes_per_s)
    open_indexes(datasets, cache_dir=cache, foretold=foretold.append)
    assert len(foretold) == 1
    written.files[1].touch()
    open_indexes(datasets, cache_dir=cache, foretold=foretold.append)
    assert (foretold[1].files, foretold[1].nbytes) == (1, sizes[1])


def test_the_rate_is_measured_on_whole_records_and_no_more_than_it_takes(written: Written) -> None:
    schema = RecordSchema.of(mixture_of(written).datasets[0])
    path, (first, second) = str(written.files[0]), written.lengths[0]
    assert index_beginning(path, schema, 1) == 12 + first
    assert index_beginning(path, schema, MIB) == 12 + first + 4 + 12 + second


def test_a_damaged_beginning_is_told_when_it_is_indexed(written: Written, tmp_path: Path) -> None:
    for shard in range(3):
        written.break_length(shard, 0)
    foretold: list[IndexWork] = []
    cache = tmp_path / "cache"
    (index,) = open_indexes(mixture_of(written).datasets, cache_dir=cache, foretold=foretold.append)
    assert foretold[0].bytes_per_s is None
    assert len(index.damaged) == 6


def test_a_small_build_is_not_probed_for_the_log(
    written: Written, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autoloader")
    open_indexes(mixture_of(written).datasets, cache_dir=tmp_path / "cache")
    ((level, text),) = told(caplog)
    assert level == logging.INFO
    assert text.startswith("indexing: 3 shard files of ")
    assert "takes about" not in text


def test_a_rank_says_that_it_waits(
    written: Written, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "autoloader")
    monkeypatch.setattr(opening, "QUICK_BYTES", 0)
    count_mixture(mixture_of(written), who="rank 1 of 4")
    ((_, text),) = told(caplog)
    assert text.startswith("rank 1 of 4 waits for the index: 3 shard files of ")
    assert "/s (measured on the first records) this takes about " in text


def test_a_long_build_is_a_warning_with_what_is_left_every_few_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "autoloader")
    clock = ManualClock()
    work = IndexWork(files=40, nbytes=4000 * MIB, bytes_per_s=20 * MIB)
    said = SaidProgress(work, "rank 0 of 2", clock)
    ((level, text),) = told(caplog)
    assert level == logging.WARNING
    assert "40 shard files of 3.91 GiB; at 20.0 MiB/s (measured on" in text
    assert "this takes about 3 min. " in text
    assert "`autoloader index` builds it ahead" in text
    clock.advance(4)
    said.done(100 * MIB)
    assert told(caplog) == []
    clock.advance(4)
    said.done(300 * MIB)
    # 400 of 4000 MiB took 8 s.
    assert told(caplog) == [
        (
            logging.WARNING,
            "rank 0 of 2 waits for the index: 2 of 40 shard files, about 72 s left",
        )
    ]
    alone = SaidProgress(work, clock=clock)
    told(caplog)
    clock.advance(6)
    alone.done(2000 * MIB)
    assert told(caplog)[0][1] == "building the index: 1 of 40 shard files, about 6 s left"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.01, "1 s"), (99.4, "99 s"), (150, "2 min"), (5999, "100 min"), (7200, "2.0 h")],
)
def test_durations_are_shown_in_one_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
