"""Decoders of cameras: colours, colours with channels turned, or depth; and frames from a disk.

A ``DecodeRequest`` has all settings of a decoder: the pixels follow from the request and the
frame's encoded bytes, and from nothing else. So a decoder is made of a request alone, and every
cache of decoded frames has the request's digest in its keys:

- frames in memory (``cache.table``): file, place in it, request;
- frames on a disk (``cache.disk``): hash of the request and the frame's encoded bytes;
- frames of one batch (``decode.jobs``): dataset, camera, number of the frame in its run;
- frames of a video (``decode.frames``): codec, file, keyframe, number; not resized yet.

A decoder of colours looks on the disk first, if there is one and decoding is slower than reading a
decoded frame. The processor seconds that decoding took for a byte of such files tell whether it is:
a PNG of 480×640 takes some milliseconds, a JPEG of the camera's size half a millisecond.

Not here: decoding (``decode.frames``, ``decode.depth``), which cameras are turned
(``samples.transforms.binding``).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from autoloader.cache.disk import KEY_BYTES, FramesOnDisk
from autoloader.decode.frames import FrameDecoder
from autoloader.decode.jobs import Decoder
from autoloader.decode.resize import Pixels
from autoloader.formats import Feature
from autoloader.formats.frames import Encoded
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.spec import CameraSpec

DECODER_VERSION = 3
"""One more when ``decode.frames`` gives other pixels for the same bytes."""
_LIBRARIES = ("numpy", "opencv-python-headless", "pillow", "simplejpeg")
_HASH_BYTES_PER_S = 1e9
_LOAD_BYTES_PER_S = 400e6
"""Bytes a second of reading a slot, its checksum and a copy."""
_WORTH = 2.0
"""A decode must take so many times as long as a look on the disk."""
_LATELY = 0.05
_MAGIC_BYTES = 3


@cache
def _versions() -> tuple[str, ...]:
    """Versions of the decoder and of its libraries."""
    from importlib.metadata import version  # takes milliseconds; for frames on a disk alone

    return (f"decoder {DECODER_VERSION}", *(f"{name} {version(name)}" for name in _LIBRARIES))


@dataclass(frozen=True)
class DecodeRequest:
    """All settings of a decoder for the frames of one camera of one dataset.

    A field that is added here is part of every key of a decoded frame.

    Attributes:
        camera: size, resize, fit, and a depth frame's type.
        reversed: true if first and last channels change places.
        stored: feature of stored depth frames; ``None``: frames have colours.
        white: true if pictures are white where they are transparent (image–text data).
    """

    camera: CameraSpec
    reversed: bool = False
    stored: Feature | None = None
    white: bool = False

    @classmethod
    def of(cls, dataset: ResolvedDataset, camera: str, spec: CameraSpec) -> DecodeRequest:
        """The request of a dataset's frames of a camera."""
        choices = dataset.cameras.get(camera)
        stored = choices[0] if choices and spec.depth else None
        return cls(spec, camera in dataset.reversed, stored, dataset.directory.still)

    @property
    def digest(self) -> bytes:
        """SHA-256 of every field, and of the versions of the decoder and its libraries."""
        return hashlib.sha256(f"{self!r}{_versions()}".encode(errors="surrogateescape")).digest()


class StoredDecoder:
    """Decoder that takes decoded frames from the disk, and stores others there; thread-safe.

    Args:
        decoder: decodes frames that are not on the disk.
        digest: digest of the decoder's request.
        disk: files of decoded frames.
    """

    def __init__(self, decoder: Decoder, digest: bytes, disk: FramesOnDisk) -> None:
        self._decoder, self._disk = decoder, disk
        self.decode_together = decoder.decode_together
        self._hash = hashlib.sha256(digest)
        self._seconds: dict[bytes, float] = {}

    def decode_into(self, encoded: Encoded, out: Pixels) -> None:
        """See ``FrameDecoder.decode_into``; videos and packed pixels are never on the disk."""
        if not isinstance(encoded, bytes | memoryview):
            self._decoder.decode_into(encoded, out)
            return
        kind = bytes(encoded[:_MAGIC_BYTES])
        looking_s = len(encoded) / _HASH_BYTES_PER_S + out.nbytes / _LOAD_BYTES_PER_S
        pays = self._seconds.get(kind, 0.0) * len(encoded) > _WORTH * looking_s
        key = self._key(encoded) if pays else None
        if key is not None and self._disk.load(key, out):
            return
        began = time.thread_time()
        self._decoder.decode_into(encoded, out)
        seconds = (time.thread_time() - began) / max(1, len(encoded))
        known = self._seconds.get(kind, seconds)
        self._seconds[kind] = known + (seconds - known) * _LATELY
        if key is not None:
            self._disk.store(key, out)

    def _key(self, encoded: bytes | memoryview) -> bytes:
        found = self._hash.copy()
        found.update(encoded)
        return found.digest()[:KEY_BYTES]


def requests_of(mixture: ResolvedMixture) -> Sequence[Mapping[str, DecodeRequest]]:
    """Requests by dataset: camera → request."""
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
        mixture: mixture with the datasets and cameras.
        disk: files of decoded frames; ``None``: there are none.
    """

    @cache
    def made(camera: str, request: DecodeRequest) -> Decoder:  # a camera's videos have their own
        if request.stored is not None:
            from autoloader.decode.depth import DepthDecoder  # few datasets have depth

            return DepthDecoder(request.camera, request.stored)
        decoder = FrameDecoder(request.camera, white=request.white, turned=request.reversed)
        return decoder if disk is None else StoredDecoder(decoder, request.digest, disk)

    every = requests_of(mixture)
    return [{camera: made(camera, one) for camera, one in requests.items()} for requests in every]
