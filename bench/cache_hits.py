"""Frame caches on the sample plan, use by use: what they hit, beside what was foretold.

    python -m bench.cache_hits [--samples 20000] [--datasets 5] [--real]

The plan is the real one, over episodes that are made up: datasets that differ tenfold in size. No
frame is read. Three caches see the same uses: one that evicts what it needs last for its bytes and
costs, the loader's own, and one that holds a part drawn once. The first two of the longest passes
warm them; the next six count. With ``--real`` a running loader reads the same plan from files
(``bench.loader_hits``), and its hits stand beside what was foretold.

Not here: seconds of any kind.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autoloader.cache.flow import Ahead
from autoloader.cache.forecast import Forecast, FrameSet, Rule, forecast
from autoloader.cache.lease import CameraFrames
from autoloader.cache.shown import frames_by_uses, of_blocks
from autoloader.cache.table import FrameTable
from autoloader.knobs import Knobs
from autoloader.order.dealing import NodePart
from autoloader.order.episodes import DatasetTable
from autoloader.order.mixture import MixtureOrder
from autoloader.order.next_use import LOOKS, NextUse
from autoloader.order.plan import SamplePlan
from autoloader.order.reuse import foretell_reuse
from autoloader.order.schedule import NEVER
from autoloader.pipeline.indexed import RUN_SAMPLES, planned_ahead, run_samples
from autoloader.samples.draws import PURPOSE_PHASE, dataset_key, fold, unit
from autoloader.samples.windows import rows
from autoloader.spec import SampleSpec
from bench.loader_hits import KNOBS, hits_of_loader, write_files

Ints = NDArray[np.int64]
PARTS = (0.05, 0.10, 0.25, 0.5, 0.75, 1.0)
WEIGHTS = ("equal", "hand-set", "natural")
NAME = "dataset-{}"
CAMERAS = {"small": (20, 20), "large": (40, 20)}
_CHUNK = 2048


@dataclass(frozen=True, slots=True)
class Case:
    """A mixture whose cache is looked at.

    Attributes:
        order: the mixture's.
        tables: its datasets.
        sets: the frames of each, as one node uses them.
        nodes: that the samples are dealt to; one of them is looked at.
    """

    order: MixtureOrder
    tables: list[DatasetTable]
    sets: list[FrameSet]
    nodes: int = 1

    @property
    def longest_pass(self) -> int:
        """Positions of the longest pass of a dataset."""
        return int(max(one.pass_positions for one in self.sets))

    @property
    def node(self) -> NodePart | None:
        """The one that is looked at, of one rank; ``None``: there is no other."""
        return None if self.nodes == 1 else NodePart(0, 16, 0, 1, self.nodes)


@dataclass(frozen=True, slots=True)
class Uses:
    """Every use of a frame over a run of positions, in order.

    Attributes:
        position: [u].
        dataset: [u].
        frame: [u] a number of its own for each frame of the mixture.
        next: [u] the position at which it is used next, as foretold.
    """

    position: Ints
    dataset: Ints
    frame: Ints
    next: Ints


def made_up(
    weights: str,
    frame_offsets: Sequence[int],
    *,
    samples: int,
    datasets: int,
    alike: bool = False,
    per_episode: int | str = "all",
    chain: bool = False,
    nodes: int = 1,
    name: str = "dataset {}",
) -> Case:
    """A mixture of about so many samples a pass, in datasets that differ tenfold in size.

    Args:
        weights: one of ``WEIGHTS``.
        frame_offsets: of all samples.
        samples: of a pass of each, about.
        datasets: how many.
        alike: whether their frames are of one size and cost.
        per_episode: as in a spec.
        chain: as in a spec, in blocks of 4.
        nodes: as of ``Case``.
        name: of the datasets, by number; what is drawn hangs on it.
    """
    rng = np.random.default_rng(len(frame_offsets))
    sample = SampleSpec.model_validate(
        {"frame_offsets": list(frame_offsets), "per_episode": per_episode}
    )
    sizes = np.geomspace(1, 10, datasets)
    tables = []
    for number, size in enumerate((sizes / sizes.sum() * samples / 40).tolist()):
        episodes = max(2, round(size))
        tables.append(
            DatasetTable(
                key=dataset_key(0, name.format(number)),
                sample=sample,
                stride=1,
                steps=rng.integers(20, 60, episodes, dtype=np.int32),
                slice_of=np.zeros(episodes, dtype=np.int32),
                record_of=np.arange(episodes, dtype=np.int64),
            )
        )
    by_pass = weights == "natural"
    counts = [table.samples for table in tables]
    own = {
        "equal": [1.0] * datasets,
        "hand-set": np.geomspace(1, 5, datasets)[np.arange(datasets) * 3 % datasets].tolist(),
        "natural": [float(count) for count in counts],
    }[weights]
    order = MixtureOrder(
        shares=tuple(weight / sum(own) for weight in own),
        phases=tuple(unit(fold(table.key, PURPOSE_PHASE)) for table in tables),
        block_length=4 if chain else 1,
        pass_samples=tuple(counts) if by_pass else None,
        epoch_samples=sum(counts) if by_pass else None,
        chain=chain,
    )
    reuse = foretell_reuse(order, tables, 64)
    sets = []
    for number, table in enumerate(tables):
        shown, every = frames_by_uses(table), table
        if per_episode != "all":
            whole = sample.model_copy(update={"per_episode": "all"})
            every = DatasetTable(table.key, whole, 1, table.steps, table.slice_of, table.record_of)
        if reuse.chained[number]:
            shown = of_blocks(shown, reuse.decodes[number] * table.samples)
        camera = "small" if alike or number % 2 == 0 else "large"
        sets.append(
            FrameSet(
                dataset=str(number),
                camera=camera,
                share=order.shares[number],
                samples=table.samples,
                shown=shown,
                frame_bytes=_frame_bytes(camera),
                decode_s=1e-3 * (1 if alike else 1 + number % 3),
                chance=table.samples / every.samples / nodes,
            )
        )
    return Case(order, tables, sets, nodes)


def compare_loader(
    case: Case,
    place: Path,
    parts: Sequence[float] = PARTS,
    *,
    isolation: Literal["process", "thread"] = "process",
    read_ahead: int = 1,
) -> Iterator[dict[str, float]]:
    """The same of a running loader, over frames that are alike.

    Args:
        case: ``made_up`` with ``alike`` and ``NAME``.
        place: a folder for its files, which are written where it has none.
        parts: of the mixture that the cache may hold.
        isolation: see ``AutoLoader``.
        read_ahead: the knob.
    """
    knobs = {**KNOBS, "read_ahead": read_ahead}
    sample = case.tables[0].sample
    frames_bytes = len(sample.frame_offsets) * _frame_bytes("small")
    ahead = planned_ahead(Knobs.build(knobs), frames_bytes)
    tables = {NAME.format(number): one for number, one in enumerate(case.tables)}
    if not any(place.iterdir()):
        write_files(place, {name: one.steps.tolist() for name, one in tables.items()})
    for part in parts:
        cache_bytes = part * sum(one.frames_bytes for one in case.sets)
        measured = hits_of_loader(
            place,
            dict(zip(tables, case.order.shares, strict=True)),
            sample={"frame_offsets": list(sample.frame_offsets)},
            natural=case.order.pass_samples is not None,
            knobs={**knobs, "cache_bytes": int(cache_bytes)},
            longest_pass=case.longest_pass,
            isolation=isolation,
        )
        told = foretold(case, cache_bytes, ahead)["next use"].hit_ratio
        points = 100 * (measured - told)
        yield {"part": part, "foretold": told, "measured": measured, "points": points}


def _frame_bytes(camera: str) -> int:
    height, width = CAMERAS[camera]
    return 3 * height * width


def uses_of(case: Case, positions: int) -> Uses:
    """The uses of the first ``positions`` positions."""
    plan = SamplePlan(case.order, case.tables, chain=case.order.chain)
    next_use = NextUse(plan, case.tables)
    steps = [table.steps.astype(np.int64) for table in case.tables]
    first = np.cumsum([0, *(int(own.sum()) for own in steps)])
    before = [np.cumsum(own) - own + at for own, at in zip(steps, first.tolist(), strict=False)]
    parts = []
    for start in range(0, positions, _CHUNK):
        position = np.arange(start, min(start + _CHUNK, positions))
        planned = plan.samples(start, start + len(position))
        offsets = np.asarray(sorted(set(case.tables[0].sample.frame_offsets)), dtype=np.int64)
        index = np.empty((len(position), len(offsets)), dtype=np.int64)
        length = np.empty_like(position)
        frame = np.empty_like(index)
        for number, table in enumerate(case.tables):
            at = np.flatnonzero(planned.dataset == number)
            own = planned.episode[at]
            window = rows(planned.t[at], offsets, steps[number][own, None], table.sample)
            index[at], length[at] = window.index, steps[number][own]
            frame[at] = window.index + before[number][own, None]
        dataset = planned.dataset.astype(np.int64)
        after = next_use.after(planned, length, index, position, case.node)
        # A frame that an edge repeats within a sample is used once.
        once = np.ones(frame.shape, dtype=np.bool_)
        once[:, 1:] = frame[:, 1:] != frame[:, :-1]
        many = np.repeat(np.stack([position, dataset], axis=1), len(offsets), axis=0)
        if case.node is not None:
            once &= case.node.shows(position)[:, None]
        keep = once.ravel()
        parts.append((many[keep, 0], many[keep, 1], frame.ravel()[keep], after.ravel()[keep]))
    position, dataset, frame, after = (np.concatenate(each) for each in zip(*parts, strict=True))
    if case.order.chain:
        # The samples of a block use a frame together: what counts is the last of them.
        key = position // case.order.block_length * (int(frame.max()) + 1) + frame
        last = len(key) - 1 - np.unique(key[::-1], return_index=True)[1]
        last.sort()
        position, dataset, frame, after = (each[last] for each in (position, dataset, frame, after))
    return Uses(position, dataset, frame, after)


def hits_by_next_use(case: Case, uses: Uses, cache_bytes: float, count_from: int) -> Ints:
    """[D, 2] hits and uses of each dataset, where the frames needed last for their worth go."""
    sizes = [one.frame_bytes for one in case.sets]
    burden = [one.frame_bytes / one.decode_s for one in case.sets]
    heaps: list[list[tuple[int, int]]] = [[] for _ in case.sets]
    held: dict[int, int] = {}
    left = cache_bytes
    counted = np.zeros((len(case.sets), 2), dtype=np.int64)
    columns = (uses.position, uses.dataset, uses.frame, uses.next)
    for now, dataset, frame, after in zip(*(c.tolist() for c in columns), strict=True):
        hit = held.pop(frame, None) is not None
        if hit:
            left += sizes[dataset]
        if now >= count_from:
            counted[dataset] += hit, 1
        if after >= NEVER:
            continue
        held[frame] = after
        left -= sizes[dataset]
        heappush(heaps[dataset], (-after, frame))
        while left < 0:
            worst, most = -1, -1.0
            for number, heap in enumerate(heaps):
                while heap and held.get(heap[0][1]) != -heap[0][0]:
                    heappop(heap)
                if heap and (-heap[0][0] - now) * burden[number] > most:
                    worst, most = number, (-heap[0][0] - now) * burden[number]
            held.pop(heappop(heaps[worst])[1])
            left += sizes[worst]
    return counted


def hits_of_table(case: Case, uses: Uses, cache_bytes: float, count_from: int) -> Ints:
    """[D, 2] the same of the loader's own cache, which is asked in runs of positions."""
    frame_bytes = {name: _frame_bytes(name) for name in CAMERAS}
    table = FrameTable(frame_bytes, len(case.sets), room_bytes=2**30)
    table.claim(case, int(cache_bytes), lambda: np.asarray([one.decode_s for one in case.sets]))
    large = np.asarray([one.camera == "large" for one in case.sets])[uses.dataset]
    counted = np.zeros((len(case.sets), 2), dtype=np.int64)
    a_frame = sum(one.frames_bytes for one in case.sets) / sum(one.frames for one in case.sets)
    a_sample = a_frame * sum(one.uses_per_position for one in case.sets)
    # As long as where half of the frames are held, of which many are pinned and want room.
    length = run_samples(RUN_SAMPLES, 1, 1.0, 0.5, cache_bytes / a_sample)
    last = int(uses.position[-1]) + 1
    edges = np.searchsorted(uses.position, np.arange(0, last + length, length))
    for run, (begin, end) in enumerate(pairwise(edges.tolist())):
        asked = {}
        for camera in CAMERAS:
            own = begin + np.flatnonzero(large[begin:end] == (camera == "large"))
            # The last use of a frame in the run says when it is used after it.
            frame, at, times = np.unique(
                uses.frame[own][::-1], return_index=True, return_counts=True
            )
            of = own[::-1][at]
            asked[camera] = CameraFrames(frame, uses.next[of], uses.dataset[of], times)
        lease = table.ask(["file"], asked, run * length, 1)
        for camera, one in asked.items() if run * length >= count_from else ():
            slots, held = lease.slots[camera], lease.held[camera]
            hits = one.uses - np.where(slots >= 0, ~held, one.uses)
            for column, times in enumerate((hits, one.uses)):
                own = np.bincount(one.dataset, times, len(case.sets))
                counted[:, column] += own.astype(np.int64)
        for camera, slots in lease.slots.items():
            lease.written[camera][slots[slots >= 0]] = True
        lease.filled(1)
    table.close()
    return counted


def hits_of_fixed_part(case: Case, uses: Uses, part: float, count_from: int) -> Ints:
    """[D, 2] the same where a drawn ``part`` of all frames is held for good."""
    drawn = np.random.default_rng(0).random(int(uses.frame.max()) + 1) < part
    counting = uses.position >= count_from
    dataset, hit = uses.dataset[counting], drawn[uses.frame[counting]]
    every = np.bincount(dataset, minlength=len(case.sets))
    hits = np.bincount(dataset[hit], minlength=len(case.sets))
    return np.stack([hits, every], axis=1).astype(np.int64)


def ratio(counted: Ints) -> float:
    """Hits over uses."""
    hits, every = counted.sum(axis=0).tolist()
    return float(hits / every)


def foretold(case: Case, cache_bytes: float, ahead: Ahead | None = None) -> dict[Rule, Forecast]:
    """What either rule will do."""
    known = math.inf if case.nodes == 1 else LOOKS
    told = forecast(case.sets, int(cache_bytes), known_uses=known, ahead=ahead)
    return {one.rule: one for one in told}


def compare(case: Case, parts: Sequence[float] = PARTS) -> Iterator[dict[str, float | str]]:
    """A row for each part of the mixture that the cache may hold."""
    warm = 2 * case.longest_pass
    uses = uses_of(case, 4 * warm)
    for part in parts:
        cache_bytes = part * sum(one.frames_bytes for one in case.sets)
        told = foretold(case, cache_bytes)
        better = next(iter(told.values()))
        counted = hits_by_next_use(case, uses, cache_bytes, warm)
        own = counted[:, 0] / np.maximum(counted[:, 1], 1)
        told_own = np.asarray([one.hit_ratio for one in told["next use"].sets])
        yield {
            "part": part,
            "next_use": ratio(counted),
            "table": ratio(hits_of_table(case, uses, cache_bytes, warm)),
            "next_use_foretold": told["next use"].hit_ratio,
            "largest_error_of_a_dataset": float(abs(own - told_own).max()),
            "drawn_part": ratio(hits_of_fixed_part(case, uses, part, warm)),
            "best_part_foretold": told["never evict"].hit_ratio,
            "better": better.rule,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--datasets", type=int, default=5)
    parser.add_argument("--real", action="store_true", help="a running loader, frames all alike")
    options = parser.parse_args()
    for weights in WEIGHTS:
        for offsets in ((0,), (0, 5)):
            for alike in (True,) if options.real else (True, False):
                case = made_up(
                    weights,
                    offsets,
                    samples=options.samples,
                    datasets=options.datasets,
                    alike=alike,
                    name=NAME,
                )
                about = {"weights": weights, "frames": len(offsets), "alike": alike}
                with tempfile.TemporaryDirectory() as place:
                    rows = compare_loader(case, Path(place)) if options.real else compare(case)
                    for row in rows:
                        sys.stdout.write(json.dumps({**about, **row}) + "\n")
                        sys.stdout.flush()


if __name__ == "__main__":
    main()
