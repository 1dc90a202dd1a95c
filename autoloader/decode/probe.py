"""Measures what decoding a sample costs: a few samples of each dataset, in the calling thread.

Reads the first readable records of every dataset without TensorFlow, and decodes eight samples of
each in turn or more, dataset after dataset, or fewer when the time is up. The first round warms up
and is not counted unless it is the only one. The cost of a dataset is the median of its samples, in
processor seconds: other processes take the processor away, and change the cost little.

Where records do not hold the frames, the first ones of an episode are read, and no index is asked
or built (``DatasetFormat.first_frames``).

Not here: the pool that decodes in a run (``decode.jobs``), the plan that shows the costs
(``cli.plan``).
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from queue import SimpleQueue
from typing import TypeGuard

import cv2
import numpy as np

from autoloader.decode.decoders import decoders_of
from autoloader.decode.frames import UndecodableFrameError
from autoloader.decode.jobs import Decoder, Worker
from autoloader.formats.frames import Encoded, VideoFrame
from autoloader.formats.records import MalformedRecordError
from autoloader.host.clock import Clock
from autoloader.host.frozen import frozen
from autoloader.host.threads import here, work_of
from autoloader.index.records import RecordSamples
from autoloader.samples.block import Place, SampleBlock
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.samples.transforms import transform
from autoloader.samples.transforms.rlds import FunctionFailedError
from autoloader.samples.windows import frame_rows
from autoloader.spec.knobs import PIXEL_THREADS

_TRIES = 4
_ROUNDS, _SAMPLES = 8, 128
"""Least samples of each dataset, and samples of all datasets, where there is time."""
FRAMES = 96
"""Frames of the first episode that are read."""
VIDEO_FRAMES = 512
"""The same of a video, whose keyframes may lie 250 frames apart."""
_EPISODE_TRIES = 4
"""Episodes that may be damaged before the probe gives up."""
_SAMPLE_STEP = -37
"""Distance of probed samples: back, as a decoder could go on from a sample before."""


_Seen = Mapping[str, list[tuple[list[list[float]], int, int]]]
"""Of each dataset's samples: processor seconds of each stage, number of frames, encoded bytes."""
MANY_DECODES = 3
"""Decodes for a frame above which keyframes lie too far apart."""
_ENCODE = (
    "about 1.5 decodes a frame with a keyframe every 2 frames: lerobot-edit-dataset --repo_id REPO "
    "--operation.type reencode_videos --operation.rgb_encoder.vcodec h264 "
    "--operation.rgb_encoder.g 2"
)


@frozen
class VideoCost:
    """Decodes that the windows of a dataset with videos take.

    Attributes:
        codec: format of the video by FFmpeg's name.
        keyframe_frames: frames from a keyframe to the next, at most.
        decodes: frames decoded for a frame that a sample shows, each sample alone.
    """

    codec: str
    keyframe_frames: int
    decodes: float

    @property
    def told(self) -> str:
        """Codec, keyframes and decodes in words."""
        return (
            f"{self.codec}, a keyframe every {self.keyframe_frames} frames: {self.decodes:.1f} "
            "decodes for each frame of a sample"
        )

    @property
    def advice(self) -> str | None:
        """Command that makes videos of fewer decodes; ``None``: these take few."""
        return _ENCODE if self.decodes > MANY_DECODES else None


@frozen
class DecodeCost:
    """Cost of decoding a sample of one dataset.

    Attributes:
        work: stage → processor seconds for a sample's frames.
        frames: frames decoded for a sample (a frame used twice counts once).
        encoded_bytes: mean bytes of an encoded frame.
        samples: samples this was measured on.
        video: decodes of its videos; ``None`` where it has none.
    """

    work: Mapping[str, float]
    frames: float
    encoded_bytes: int
    samples: int
    video: VideoCost | None = None

    @property
    def decode_s(self) -> float:
        """Processor seconds of all stages for a sample's frames."""
        return sum(self.work.values())


def probe_decode(
    mixture: ResolvedMixture, clock: Clock, *, budget_s: float = 1.0
) -> dict[str, DecodeCost]:
    """Decode a few samples of each dataset.

    Args:
        mixture: mixture whose datasets are read.
        clock: clock of the budget.
        budget_s: seconds to spend; the round under way is broken off, reading included.

    Returns:
        Costs by dataset name; a dataset without cameras, without a readable first record, without
        any frame in it, or not reached in time, is absent.
    """
    cv2.setNumThreads(1)
    for framework in {d.transform.framework for d in mixture.datasets if d.transform}:
        with contextlib.suppress(FunctionFailedError):  # its records then give no samples
            transform.prepare(framework)
    deadline = clock.now_s() + budget_s
    episodes: dict[str, SampleBlock] = {}
    for dataset in mixture.datasets:
        if clock.now_s() < deadline and dataset.cameras:
            found = _first_episode(dataset, mixture)
            if found is not None:
                episodes[dataset.name] = found
    by_name = {dataset.name: dataset for dataset in mixture.datasets}
    videos = {name: _video_cost(by_name[name], one) for name, one in episodes.items()}
    decoders = dict(zip(mixture.names, decoders_of(mixture), strict=True))
    scratch = {
        name: np.empty(camera.shape, camera.dtype) for name, camera in mixture.spec.cameras.items()
    }
    seat: SimpleQueue[None] = SimpleQueue()
    seat.put(None)
    seen: _Seen = {name: [] for name in episodes}
    for round_ in range(max(_ROUNDS, _SAMPLES // max(1, len(episodes)))):
        for name, episode in episodes.items():
            if clock.now_s() >= deadline:
                return _summary(seen, videos)
            meter = Worker(dict.fromkeys(PIXEL_THREADS, seat), 1, time.thread_time)
            here.move = meter.move
            with contextlib.suppress(UndecodableFrameError):
                count, size = _decode(episode, round_ % len(episode), decoders[name], scratch)
                seen[name].append((list(meter.seconds.values()), count, size))
            del here.move
    return _summary(seen, videos)


def _first_episode(dataset: ResolvedDataset, mixture: ResolvedMixture) -> SampleBlock | None:
    """Samples of a readable episode of a dataset; ``None``: none of the first is."""
    if not dataset.streamable:
        return _first_samples(dataset)
    records = RecordSamples(dataset, mixture.layout)
    for shard, piece in enumerate(dataset.slices[:_TRIES]):
        with contextlib.suppress(OSError):
            few = replace(piece, stop=min(piece.stop, piece.start + _TRIES))
            for number, (_, payload) in enumerate(dataset.directory.records([few])):
                with contextlib.suppress(MalformedRecordError):
                    samples = records.of(Place(dataset.index, 0, shard, number), payload)
                    if samples is not None:
                        return samples
    return None


@work_of("decode")
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


def probe_video(dataset: ResolvedDataset) -> VideoCost | None:
    """Decodes of a dataset's windows, by its first episode; ``None``: its frames are no videos."""
    if dataset.streamable or not dataset.cameras:
        return None
    episode = _first_samples(dataset)
    return None if episode is None else _video_cost(dataset, episode)


def _video_cost(dataset: ResolvedDataset, episode: SampleBlock) -> VideoCost | None:
    """Decodes of a dataset's windows, by an episode's frames; ``None``: they lie in no video."""
    of_cameras = ([*filter(_is_video, stored)] for stored in episode.frames.values())
    frames: list[VideoFrame] = max(of_cameras, key=len, default=[])
    if not frames:
        return None
    steps = len(episode)
    window = frame_rows(np.arange(steps), steps, dataset.sample, np.zeros(steps, np.uint64))
    packets = asked = 0
    for shown in map(set, (window.index * dataset.stride).tolist()):
        last: dict[object, int] = {}
        for one in (frames[row] for row in shown):
            last[one.origin] = max(last.get(one.origin, 0), len(one.packets))
        packets, asked = packets + sum(last.values()), asked + len(shown)
    distances = Counter(one.origin for one in frames)
    return VideoCost(frames[0].codec.name, max(distances.values()), packets / asked)


def _is_video(frame: Encoded | None) -> TypeGuard[VideoFrame]:
    return isinstance(frame, VideoFrame)


def _summary(seen: _Seen, videos: Mapping[str, VideoCost | None]) -> dict[str, DecodeCost]:
    """Costs of decoding, by dataset, without each one's first measurement."""
    costs = {}
    for name, measured in seen.items():
        counted = measured[1:] or measured
        frames = sum(count for _, count, _ in counted)
        if not frames:
            continue
        median_s = np.median([seconds for seconds, _, _ in counted], axis=0)
        costs[name] = DecodeCost(
            work=dict(zip(PIXEL_THREADS, median_s.ravel().tolist(), strict=True)),
            frames=frames / len(counted),
            encoded_bytes=sum(size for _, _, size in counted) // frames,
            samples=len(counted),
            video=videos[name],
        )
    return costs


def _first_samples(dataset: ResolvedDataset) -> SampleBlock | None:
    """Samples of the first episode, with their frames alone; ``None`` where they cannot be had."""
    if dataset.transform is not None and dataset.transform.spec is not None:
        return None  # only the function knows which camera it shows
    places = ((piece.path, k) for piece in dataset.slices for k in range(piece.start, piece.stop))
    for path, record in islice(places, _EPISODE_TRIES):
        frames: dict[str, list[Encoded | None]] = {}
        with contextlib.suppress(ValueError, LookupError, OSError):
            for camera, features in dataset.cameras.items():
                key = features[0].key
                found = dataset.directory.first_frames(path, record, key, FRAMES)
                if found and isinstance(found[0], VideoFrame):
                    found = dataset.directory.first_frames(path, record, key, VIDEO_FRAMES)
                frames[camera] = [*found]
            break
    else:
        return None
    steps = -(-min(map(len, frames.values())) // dataset.stride)
    t = np.arange(steps) * _SAMPLE_STEP % steps
    window = frame_rows(t, steps, dataset.sample, np.zeros(steps, np.uint64))
    return SampleBlock(
        columns={},
        texts=[b""] * steps,
        frames=frames,
        frame_row=window.index * dataset.stride,
        frame_zeroed=window.zeroed,
        datasets=[dataset.index] * steps,
    )
