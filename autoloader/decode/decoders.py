"""Which decoder a camera of a dataset has: colours, colours with channels turned, or depth.

Where there is room on a disk, a decoder of colours asks there first, if decoding is dearer than
reading what was decoded. A frame's key is a hash of its encoded bytes, the camera's size and fit,
and what decodes: so it is the same for both readers, wherever a file lies, and another one once
any of these changes. Whether asking pays is told by the processor seconds that decoding took for a
byte of such files: a PNG of 480×640 takes some milliseconds, a JPEG that has the camera's size half
a millisecond.

Not here: decoding (``decode.frames``, ``decode.depth``), which cameras are turned
(``transforms.cameras``).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from autoloader.cache.disk import KEY_BYTES, FramesOnDisk
from autoloader.decode.frames import FrameDecoder, Pixels
from autoloader.decode.row_jobs import Decoder
from autoloader.samples.block import Encoded
from autoloader.samples.resolve import ResolvedMixture
from autoloader.spec import CameraSpec

DECODER_VERSION = 1
"""Raised where ``decode.frames`` gives other pixels for the same bytes."""
_LIBRARIES = ("numpy", "opencv-python-headless", "pillow", "simplejpeg")
_HASH_BYTES_PER_S = 1e9
_LOAD_BYTES_PER_S = 400e6
"""Reading a slot, its checksum and a copy."""
_WORTH = 2.0
"""A decode must take so many times what asking takes."""
_LATELY = 0.05
_MAGIC_BYTES = 3


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
        camera: what it makes of a frame.
        disk: where frames are.
    """

    def __init__(self, decoder: FrameDecoder, camera: CameraSpec, disk: FramesOnDisk) -> None:
        self._decoder, self._disk = decoder, disk
        what = f"{DECODER_VERSION} {camera.model_dump_json()} "
        what += " ".join(f"{name} {version(name)}" for name in _LIBRARIES)
        self._hash = hashlib.sha256(what.encode())
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


def decoders_of(
    mixture: ResolvedMixture, disk: FramesOnDisk | None = None
) -> Sequence[Mapping[str, Decoder]]:
    """A decoder for each camera of each dataset; datasets share them where they can.

    Args:
        mixture: whose.
        disk: where decoded frames may lie.
    """
    plain: dict[str, Decoder] = {}
    for camera, spec in mixture.spec.cameras.items():
        decoder = FrameDecoder(spec)
        plain[camera] = decoder if disk is None else StoredDecoder(decoder, spec, disk)
    turned = {camera: ReversedDecoder(decoder) for camera, decoder in plain.items()}
    found = []
    for dataset in mixture.datasets:
        own: dict[str, Decoder] = {
            camera: turned[camera] if camera in dataset.reversed else plain[camera]
            for camera in plain
        }
        for camera, choices in dataset.cameras.items():
            spec = mixture.spec.cameras[camera]
            if spec.depth:
                from autoloader.decode.depth import DepthDecoder  # few datasets have depth

                own[camera] = DepthDecoder(spec, choices[0])
        found.append(own)
    return found
