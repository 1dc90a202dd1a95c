"""Measures what decoding a sample costs: a few samples of each dataset, in the calling thread.

Reads the first readable records of every dataset without TensorFlow (of LeRobot data the first
frames), and decodes a few samples of each in turn, dataset after dataset: eight of few datasets,
four of many, or fewer when the time is up. The first round warms up and is not counted unless it is
the only one. The cost of a dataset is the median of its samples, so that one interruption does not
decide.

Not here: the pool that decodes in a run (``decode.pool``), what is made of the costs
(``cli.plan_report``).
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

import cv2
import numpy as np

from autoloader.decode.decoders import decoders_of
from autoloader.decode.frames import UndecodableFrameError
from autoloader.decode.jobs import Decoder
from autoloader.errors import WorkerError
from autoloader.formats.lerobot import LeRobotDirectory
from autoloader.formats.records import MalformedRecordError, read_records
from autoloader.host.clock import Clock
from autoloader.host.supervision.start import start
from autoloader.index.records import RecordSamples
from autoloader.samples.block import Place, SampleBlock
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.samples.transforms import transform

_TRIES = 4
_LEAST_ROUNDS, _MOST_ROUNDS = 4, 8
_SAMPLES = 128
"""Decoded in all, where that many rounds allow it."""


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """What decoding a sample of one dataset costs.

    Attributes:
        decode_s: seconds of one thread for a sample's frames, resized.
        frames: frames decoded for a sample (a frame used twice counts once).
        encoded_bytes: mean bytes of an encoded frame.
        samples: samples this was measured on.
    """

    decode_s: float
    frames: float
    encoded_bytes: int
    samples: int

    @property
    def frame_s(self) -> float:
        """Seconds of one thread for a frame; 0 where none was decoded."""
        return self.decode_s / self.frames if self.frames else 0.0


def probe_decode(
    mixture: ResolvedMixture, clock: Clock, *, budget_s: float = 1.0
) -> dict[str, DecodeCost]:
    """Decode a few samples of each dataset.

    Args:
        mixture: what to read.
        clock: measures.
        budget_s: when to stop; the round under way is broken off, reading included.

    Returns:
        Costs by dataset name; a dataset without cameras, without a readable first record, or not
        reached in time, is absent.
    """
    cv2.setNumThreads(1)
    for framework in {d.transform.framework for d in mixture.datasets if d.transform}:
        with contextlib.suppress(transform.FunctionFailedError):  # its records then give no samples
            transform.prepare(framework)
    deadline = clock.now_s() + budget_s
    episodes: dict[str, SampleBlock] = {}
    for dataset in mixture.datasets:
        if clock.now_s() < deadline and dataset.cameras:
            found = _first_episode(dataset, mixture)
            if found is not None:
                episodes[dataset.name] = found
    decoders = dict(zip(mixture.names, decoders_of(mixture), strict=True))
    scratch = {
        name: np.empty(camera.shape, camera.dtype) for name, camera in mixture.spec.cameras.items()
    }
    seen: dict[str, list[tuple[float, int, int]]] = {name: [] for name in episodes}
    rounds = min(max(_SAMPLES // max(1, len(episodes)), _LEAST_ROUNDS), _MOST_ROUNDS)
    for round_ in range(rounds):
        for name, episode in episodes.items():
            began = clock.now_s()
            if began >= deadline:
                return _summary(seen)
            try:
                count, size = _decode(episode, round_ % len(episode), decoders[name], scratch)
            except UndecodableFrameError:
                continue
            seen[name].append((clock.now_s() - began, count, size))
    return _summary(seen)


def probe_copy() -> float:
    """Bytes a second at which one thread of a loader's child copies decoded frames.

    Raises:
        WorkerError: the process that copies them ended without saying so.
    """
    copying = start("autoloader.host.copying", stdout=subprocess.PIPE)
    told, _ = copying.communicate()
    try:
        return float(told)
    except ValueError as error:
        raise WorkerError(
            f"the process that times a copy ended with {copying.returncode}",
            remedy="look into the kernel's log (dmesg): it may have been killed",
        ) from error


def _first_episode(dataset: ResolvedDataset, mixture: ResolvedMixture) -> SampleBlock | None:
    if isinstance(dataset.directory, LeRobotDirectory):
        from autoloader.decode.probe_lerobot import first_samples  # others start without it

        return first_samples(dataset)
    records = RecordSamples(dataset, mixture.layout)
    for shard, piece in enumerate(dataset.slices[:_TRIES]):
        with contextlib.suppress(OSError):
            for one in read_records(piece.path, piece.start, piece.start + _TRIES):
                if one.number is None or one.payload is None:
                    continue
                place = Place(dataset.index, 0, shard, one.number)
                with contextlib.suppress(MalformedRecordError):
                    samples = records.of(place, one.payload)
                    if samples is not None:
                        return samples
    return None


def _decode(
    episode: SampleBlock,
    number: int,
    decoders: Mapping[str, Decoder],
    scratch: Mapping[str, np.ndarray],
) -> tuple[int, int]:
    """Decode one sample's frames; how many, and their encoded bytes."""
    rows = episode.frame_row[number][~episode.frame_zeroed[number]]
    count = size = 0
    for camera, frames in episode.frames.items():
        for row in dict.fromkeys(rows.tolist()):
            encoded = frames[row]
            if encoded is None:
                continue  # the camera is not there
            decoders[camera].decode_into(encoded, scratch[camera])
            count += 1
            size += len(encoded)
    return count, size


def _summary(seen: Mapping[str, list[tuple[float, int, int]]]) -> dict[str, DecodeCost]:
    costs = {}
    for name, measured in seen.items():
        counted = measured[1:] or measured
        if not counted:
            continue
        frames = sum(count for _, count, _ in counted)
        costs[name] = DecodeCost(
            decode_s=statistics.median(seconds for seconds, _, _ in counted),
            frames=frames / len(counted),
            encoded_bytes=sum(size for _, _, size in counted) // max(1, frames),
            samples=len(counted),
        )
    return costs
