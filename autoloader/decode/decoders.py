"""Which decoder a camera of a dataset has: colours, colours with channels turned, or depth.

A ``DecodeRequest`` is all that a decoder is told: the pixels that it makes follow from the request
and the frame's encoded bytes, and from nothing else. So a decoder is made of a request alone, and
every cache of decoded frames has the request's digest in its keys:

| cache | key |
| --- | --- |
| frames in memory (``cache.table``) | file, place in it, request |
| frames on a disk (``cache.disk``) | hash of the request and the frame's encoded bytes |
| frames of one batch (``decode.jobs``) | dataset, camera, number of the frame in its run |
| frames of a video (``decode.frames``) | codec, file, keyframe, number; not resized yet |

Where there is room on a disk, a decoder of colours asks there first, if decoding is dearer than
reading what was decoded. Whether asking pays is told by the processor seconds that decoding took
for a byte of such files: a PNG of 480×640 takes some milliseconds, a JPEG that has the camera's
size half a millisecond.

Not here: decoding (``decode.frames``, ``decode.depth``), which cameras are turned
(``samples.transforms.binding``).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version

from autoloader.cache.disk import KEY_BYTES, FramesOnDisk
from autoloader.decode.frames import FrameDecoder
from autoloader.decode.jobs import Decoder
from autoloader.decode.resize import Pixels
from autoloader.formats import Feature
from autoloader.samples.block import Encoded
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.spec import CameraSpec

DECODER_VERSION = 2
"""Raised where ``decode.frames`` gives other pixels for the same bytes."""
_LIBRARIES = ("numpy", "opencv-python-headless", "pillow", "simplejpeg")
_HASH_BYTES_PER_S = 1e9
_LOAD_BYTES_PER_S = 400e6
"""Reading a slot, its checksum and a copy."""
_WORTH = 2.0
"""A decode must take so many times what asking takes."""
_LATELY = 0.05
_MAGIC_BYTES = 3


@cache
def _versions() -> tuple[str, ...]:
    """Of what decodes."""
    return (f"decoder {DECODER_VERSION}", *(f"{name} {version(name)}" for name in _LIBRARIES))


@dataclass(frozen=True)
class DecodeRequest:
    """All that a decoder is told of the frames of one camera of one dataset.

    A field that is added here is part of every key of a decoded frame.

    Attributes:
        camera: size, resize, fit, and a depth frame's type.
        reversed: whether first and last channels change places.
        stored: how depth frames are stored; ``None`` of colours.
        versions: of the decoder, and of the libraries that it calls.
    """

    camera: CameraSpec
    reversed: bool = False
    stored: Feature | None = None
    versions: tuple[str, ...] = field(default_factory=_versions)

    @classmethod
    def of(cls, dataset: ResolvedDataset, camera: str, spec: CameraSpec) -> DecodeRequest:
        """What a dataset's frames of a camera become."""
        choices = dataset.cameras.get(camera)
        stored = choices[0] if choices and spec.depth else None
        return cls(spec, camera in dataset.reversed, stored)

    @property
    def digest(self) -> bytes:
        """SHA-256 of every field."""
        return hashlib.sha256(repr(self).encode(errors="surrogateescape")).digest()


class ReversedDecoder:
    """A decoder of frames whose first and last channels change places.

    Args:
        decoder: decodes and resizes them as they are.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def decode_into(self, encoded: Encoded, out: Pixels) -> None:
        """See ``FrameDecoder.decode_into``."""
        self._decoder.decode_into(encoded, out)
        out[...] = out[..., ::-1].copy()


class StoredDecoder:
    """See ``frames.FrameDecoder``; may be used by many threads at a time.

    Args:
        decoder: decodes what is not on the disk.
        digest: of the request that the decoder was made of.
        disk: where frames are.
    """

    def __init__(self, decoder: Decoder, digest: bytes, disk: FramesOnDisk) -> None:
        self._decoder, self._disk = decoder, disk
        self._hash = hashlib.sha256(digest)
        self._seconds: dict[bytes, float] = {}

    def decode_into(self, encoded: Encoded, out: Pixels) -> None:
        """See ``FrameDecoder.decode_into``; of videos and packed pixels it is all."""
        if not isinstance(encoded, bytes | memoryview):
            self._decoder.decode_into(encoded, out)
            return
        kind = bytes(encoded[:_MAGIC_BYTES])
        key = self._key(encoded) if self._pays(kind, len(encoded), out.nbytes) else None
        if key is not None and self._disk.load(key, out):
            return
        began = time.thread_time()
        self._decoder.decode_into(encoded, out)
        self._note(kind, (time.thread_time() - began) / max(1, len(encoded)))
        if key is not None:
            self._disk.store(key, out)

    def _key(self, encoded: bytes | memoryview) -> bytes:
        found = self._hash.copy()
        found.update(encoded)
        return found.digest()[:KEY_BYTES]

    def _pays(self, kind: bytes, encoded_bytes: int, frame_bytes: int) -> bool:
        known = self._seconds.get(kind)
        if known is None:
            return False
        asking_s = encoded_bytes / _HASH_BYTES_PER_S + frame_bytes / _LOAD_BYTES_PER_S
        return known * encoded_bytes > _WORTH * asking_s

    def _note(self, kind: bytes, seconds: float) -> None:
        known = self._seconds.get(kind, seconds)
        self._seconds[kind] = known + (seconds - known) * _LATELY


def requests_of(mixture: ResolvedMixture) -> Sequence[Mapping[str, DecodeRequest]]:
    """By dataset: camera → what its decoder is told."""
    cameras = mixture.spec.cameras.items()
    return [
        {camera: DecodeRequest.of(dataset, camera, spec) for camera, spec in cameras}
        for dataset in mixture.datasets
    ]


def decoders_of(
    mixture: ResolvedMixture, disk: FramesOnDisk | None = None
) -> Sequence[Mapping[str, Decoder]]:
    """A decoder for each camera of each dataset; datasets whose requests are equal share it.

    Args:
        mixture: whose.
        disk: where decoded frames may lie.
    """
    made: dict[
        tuple[str, DecodeRequest], Decoder
    ] = {}  # a camera's videos have decoders of its own
    found = []
    for requests in requests_of(mixture):
        for one in requests.items():
            if one not in made:
                made[one] = _decoder_of(one[1], disk)
        found.append({camera: made[camera, request] for camera, request in requests.items()})
    return found


def _decoder_of(request: DecodeRequest, disk: FramesOnDisk | None) -> Decoder:
    """A decoder that knows its request, and nothing else."""
    if request.stored is not None:
        from autoloader.decode.depth import DepthDecoder  # few datasets have depth

        return DepthDecoder(request.camera, request.stored)
    decoder: Decoder = FrameDecoder(request.camera)
    if request.reversed:
        decoder = ReversedDecoder(decoder)
    return decoder if disk is None else StoredDecoder(decoder, request.digest, disk)
