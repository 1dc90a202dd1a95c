"""The first frames of a LeRobot dataset, for a probe of what decoding them costs.

No index is asked or built: of one video the first packets are read, of one Parquet file the first
pages.

Not here: measuring (``decode.probe``), the index's places of frames (``formats.lerobot.tables``).
"""

from __future__ import annotations

import mmap
from itertools import islice

import numpy as np

from autoloader.formats import files
from autoloader.formats.features import VIDEO
from autoloader.formats.lerobot import metadata_of
from autoloader.formats.lerobot.metadata import Episode, LeRobotMetadata
from autoloader.formats.lerobot.parquet import UnreadableParquetError, read_pictures
from autoloader.formats.lerobot.videos import UnreadableVideoError, read_packets
from autoloader.samples.block import Encoded, PackedPicture, SampleBlock, VideoCodec, VideoFrame
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.windows import frame_rows

MOST_FRAMES = 96
"""Of the first episode that are looked at: a few times a keyframe's distance."""
_REORDERED = 32
"""Packets that may lie behind a frame that is shown before theirs."""
_TRIES = 4
"""Episodes that may be damaged before none is looked for."""
_STEP = 37
"""Samples are taken so far from each other, so that they seldom go on from one another's."""


def first_samples(dataset: ResolvedDataset) -> SampleBlock | None:
    """Samples of the first episode, with their frames alone; ``None`` where they cannot be had."""
    if dataset.transform is not None and dataset.transform.spec is not None:
        return None  # only the function knows which camera it shows
    known = metadata_of(dataset.directory)
    places = ((piece.path, k) for piece in dataset.slices for k in range(piece.start, piece.stop))
    frames: dict[str, list[Encoded | None]] = {}
    for path, record in islice(places, _TRIES):
        one = known.episodes.at(path, record)
        count = min(one.length, MOST_FRAMES)
        try:
            for camera, features in dataset.cameras.items():
                frames[camera] = list(_frames(known, features[0].key, one, record, count))
            break
        except (UnreadableVideoError, UnreadableParquetError, OSError, LookupError):
            frames = {}
    if not frames:
        return None
    steps = -(-count // dataset.stride)
    t = np.arange(steps) * _STEP % steps
    window = frame_rows(t, steps, dataset.sample, np.zeros(steps, np.uint64))
    return SampleBlock(
        columns={},
        texts=[b""],
        frames=frames,
        frame_row=window.index * dataset.stride,
        frame_zeroed=window.zeroed,
        datasets=[dataset.index] * steps,
    )


def _frames(
    known: LeRobotMetadata, camera: str, one: Episode, record: int, count: int
) -> list[Encoded]:
    """The first frames of an episode."""
    if known.features[camera].encoding != VIDEO:
        return _pictures(known, camera, one.path, record, count)
    place = one.videos[camera]
    first = round(place.from_s * known.fps)
    table = read_packets(place.path, most=first + count + _REORDERED)
    data = _mapped(place.path)
    codec = VideoCodec(table.codec, table.setup)
    found: list[Encoded] = []
    for frame in range(first, first + count):
        own = slice(int(table.key_of[frame]), int(table.packet_of[frame]) + 1)
        offsets, sizes = table.offset[own], table.size[own]
        begin = int(offsets[0])
        packets = list(
            zip((offsets - begin).tolist(), sizes.tolist(), table.number[own].tolist(), strict=True)
        )
        stretch = data[begin : int((offsets + sizes).max())]
        found.append(VideoFrame(stretch, packets, frame, codec, (place.path, begin)))
    return found


def _pictures(
    known: LeRobotMetadata, camera: str, path: str, record: int, count: int
) -> list[Encoded]:
    lengths = known.episodes.length[known.episodes.data.rows_in(path)]
    first = int(lengths[:record].sum())
    table = read_pictures(path, camera, int(lengths.sum()), most=first + count)
    data = _mapped(path)
    found: list[Encoded] = []
    for row in range(first, first + count):
        stretch = data[int(table.offset[row]) :][: int(table.length[row])]
        places = (int(column[row]) for column in (table.unpacked, table.start, table.size))
        found.append(PackedPicture(stretch, table.codec, *places))
    return found


def _mapped(path: str) -> memoryview:
    """A file's bytes, of which only those that are looked at are read."""
    with files.opened_regular(path) as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
