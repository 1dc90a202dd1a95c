"""A run as a person sees it: in 80 × 24, what limits it first, what is worst first."""

import pytest
from moments import GIB, a_moment

from autoloader.cli.top import Frame, draw_list, draw_run
from autoloader.telemetry.statistics import CacheStatistics, DatasetStatistics, Move, Statistics
from autoloader.telemetry.verdict import cost_words, limit_words

NOW = 1_700_000_101.0
FRAME = Frame(80, 24, NOW)


def lines_of(*group: Statistics, frame: Frame = FRAME) -> list[str]:
    return [line.plain for line in draw_run(group, frame)]


def a_crowd() -> Statistics:
    """29 datasets, one of which is in trouble."""
    datasets = {f"set_{n:02}": DatasetStatistics(1 / 29, 1 / 29, 100, queue=5) for n in range(29)}
    datasets["set_17"] = DatasetStatistics(1 / 29, 0.01, 30, stalls=2, quarantined=4)
    moves = tuple(
        Move(NOW - n, "policy", "decode is short", {"io_threads": (n, 1)}) for n in (9, 8)
    )
    knobs = {"reader": "indexed", **{f"set_{n:02}.queue_samples": 16 for n in range(29)}}
    moves *= 6
    return a_moment(datasets=datasets, moves=moves, knobs=knobs, most_headroom_bytes=3 * GIB)


@pytest.mark.parametrize("width", [80, 40, 200])
def test_a_frame_fits_and_fills_its_room(width: int):
    lines = lines_of(a_crowd(), frame=Frame(width, 24, NOW))
    assert len(lines) == 24
    assert max(map(len, lines)) <= width


def test_ranks_are_shown_worst_wait_first():
    group = [
        a_moment(rank=n, world_size=4, wait_ratio=wait, batches=7)
        for n, wait in enumerate((0.1, 0.4, 0.2, 0.3))
    ]
    lines = lines_of(*group, frame=Frame(80, 40, NOW))
    assert [line[0] for line in lines if " of 4 " in line] == ["1", "3", "2", "0"]


def test_a_loader_whose_process_stands_still_is_called_silent():
    frame = Frame(80, 24, NOW + 60)
    assert "silent for 60 s: its process does not run" in lines_of(a_moment(), frame=frame)


@pytest.mark.parametrize(
    ("changed", "words"),
    [({}, "decode limits this run: 4 workers, 90 % busy"),
     ({"idle_cpus": 0.0}, "decode limits this run: 4 workers, 90 % busy; no processor is idle"),
     ({"limited_by": "memory"}, "memory limits this run: headroom is 2.00 GiB below the floor"),
     ({"limited_by": "memory", "wait_ratio": 0.012},
      "mostly training limits this run, a little memory: 2.00 GiB below the floor"),
     ({"wait_ratio": 0.03, "idle_cpus": 0.0},
      "mostly training limits this run, a little decode; no processor is idle"),
     ({"limited_by": "training"},
      "training limits this run: it does not wait for data; memory is short"),
     ({"limited_by": "training", "headroom_bytes": 6 * GIB, "floor_bytes": 5 * GIB},
      "training limits this run: it does not wait for data"),
     ({"limited_by": "gpu"}, "the GPU limits this run: training does not wait for data"),
     ({"limited_by": ""}, "what limits this run is not known yet"),
     ({"phase": "parked"}, "paused: training takes no batches of this loader"),
     ({"phase": "opening", "doing": "indexing 3/9 files"}, "indexing 3/9 files"),
     ({"phase": "filling"}, "no batch has been taken yet"),
     ({"waiting_s": 42.0, "doing": "waiting for bridge"},
      "training has waited 42 s for a batch: waiting for bridge")],
)  # fmt: skip
def test_what_limits_a_run_is_one_sentence(changed: dict[str, object], words: str):
    assert limit_words(a_moment(**changed)) == words


@pytest.mark.parametrize(
    ("waits", "words"),
    [
        (None, "what the loader costs is not known yet"),
        (0.004, "the loader costs you 0.4 % of the time"),
        (0.25, "the loader costs you 25.0 % of the time; with a perfect one: 1.33× as fast"),
        (1.0, "the loader costs you nearly all of the time: training only waits"),
    ],
)
def test_what_the_loader_costs_is_one_sentence(waits: float | None, words: str):
    assert cost_words(a_moment(wait_ratio=waits)) == words


def test_held_frames_have_a_line_that_is_whole_at_80_characters():
    cache = CacheStatistics(256 * 2**20, 40 * 2**20, hits=15, misses=85)
    lines = lines_of(a_moment(cache=cache, idle_cpus=0.0))
    told = "cache   40.0 MiB of 256.0 MiB, 15.0 % of the frames come from it"
    assert told in lines
    assert not any("come from it" in line for line in lines_of(a_moment()))


def test_training_that_takes_nothing_is_told_as_such():
    words = cost_words(a_moment(wait_ratio=None, silent_s=7.2))
    assert words == "training has taken no batch for 7 s: what the loader costs is not measured"


def test_memory_that_is_not_measured_is_not_called_empty():
    lines = lines_of(a_moment(headroom_bytes=None))
    assert any("? free, floor 5.00 GiB" in line for line in lines)


@pytest.mark.parametrize(
    ("free", "told"),
    [
        (3, "memory  [#######-----|-----------] 3.00 GiB free, floor 5.00 GiB"),
        (10, "memory  [############|###########] 10.00 GiB free, floor 5.00 GiB"),
    ],
)
def test_free_memory_is_a_gauge_with_a_line_at_the_floor(free: int, told: str):
    assert told in lines_of(a_moment(headroom_bytes=free * GIB, floor_bytes=5 * GIB))


def test_a_run_without_a_known_limit_is_not_said_to_be_limited_by_running():
    groups = [[a_moment(run=f"run {phase}", phase=phase, limited_by="")]
              for phase in ("running", "opening")]  # fmt: skip
    lines = [line.plain for line in draw_list(groups, FRAME)]
    assert [line.split("%")[1].strip() for line in lines[1:3]] == ["not known yet", "opening"]


def test_a_run_that_waits_little_is_limited_by_training_as_its_report_says():
    groups = [[a_moment(run=f"run {waits}", wait_ratio=waits, limited_by="decode")]
              for waits in (0.25, 0.04)]  # fmt: skip
    lines = [line.plain for line in draw_list(groups, FRAME)]
    assert [line.split("%")[1].strip() for line in lines[1:3]] == ["decode", "training"]
