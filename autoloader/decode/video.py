"""Decodes frames of videos by PyAV (FFmpeg), one decoder a thread, codec and setup.

A decoder begins at a frame's keyframe and is fed until the frame comes out. It stays where it is:
a later frame of the same keyframe goes on from there, so that neighbours are decoded once. Where
samples of a run show several frames of a keyframe, the first one that is decoded brings the others
along, and they wait for their samples. Each decoder runs in the thread that calls it; the decode
pool's threads run side by side.

Not here: pictures that are files of their own (``decode.frames``).
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.host.extras import needs
from autoloader.samples.block import SharedFrames, VideoCodec, VideoFrame

Pixels = NDArray[np.uint8]

MOST_DECODERS = 8
"""Decoders that a thread keeps; each holds a few pictures."""
_DECODERS = {"av1": "libdav1d"}
"""Which of several decoders of a format; FFmpeg's own for AV1 needs a GPU."""


class UndecodableVideoError(ValueError):
    """The packets give no such frame; the message says why. Internal: it becomes a quarantine."""


class VideoDecoder:
    """Decodes frames of any video; may be used by many threads at a time."""

    def __init__(self) -> None:
        self._threads = threading.local()

    def picture(self, frame: VideoFrame) -> Pixels:
        """[H, W, 3] uint8 RGB; not to be written to, and valid until the thread's next call.

        Raises:
            UndecodableVideoError: the packets are damaged.
            MissingExtraError: PyAV is not installed.
        """
        known: OrderedDict[VideoCodec, _Stream] | None = getattr(self._threads, "known", None)
        if known is None:
            known = self._threads.known = OrderedDict()
        stream = known.pop(frame.codec, None) or _Stream(frame.codec)
        known[frame.codec] = stream
        if len(known) > MOST_DECODERS:
            known.popitem(last=False)
        return stream.picture(frame)


class _Stream:
    """One decoder, and where it is."""

    def __init__(self, codec: VideoCodec) -> None:
        with needs("a video", extra="lerobot"):
            import av
            from av.video.reformatter import VideoReformatter
        self._av: Any = av
        self._codec = codec
        self._reformatter = VideoReformatter()
        self._context: Any = None
        self._origin: tuple[str, int] | None = None
        self._fed = 0
        self._last: tuple[int, Pixels] | None = None

    def picture(self, frame: VideoFrame) -> Pixels:
        """See ``VideoDecoder.picture``."""
        shared = frame.shared
        if shared is None:
            return self._picture(frame, None)
        with shared.lock:
            if (kept := shared.take(frame.number)) is not None:
                return kept
            if not shared.begun:
                shared.begun = True
                # Where another frame's packets are damaged this one may still be decoded alone.
                with contextlib.suppress(UndecodableVideoError):
                    return self._picture(frame, shared)
            return self._picture(frame, None)

    def _picture(self, frame: VideoFrame, shared: SharedFrames | None) -> Pixels:
        if self._origin == frame.origin and self._last and self._last[0] == frame.number:
            return self._last[1]
        try:
            found = self._decoded(frame, shared)
            if found is None:
                raise UndecodableVideoError(f"{len(frame.packets)} packets give no frame")
            picture = self._pixels(found)
        except (self._av.error.FFmpegError, ValueError) as error:
            self._origin, self._last, self._context = None, None, None
            if isinstance(error, UndecodableVideoError):
                raise
            raise UndecodableVideoError(f"the video is damaged: {error}"[:120]) from error
        self._last = frame.number, picture
        return picture

    def _pixels(self, found: Any) -> Pixels:
        picture: Pixels = np.asarray(
            self._reformatter.reformat(found, format="rgb24").to_ndarray(), np.uint8
        )
        return picture

    def _decoded(self, frame: VideoFrame, shared: SharedFrames | None) -> Any:
        """The decoded frame; ``None`` where the packets do not give it.

        With ``shared``, all of its frames are decoded, and kept for who shows them.
        """
        wanted = [number for _, _, number in frame.packets].index(frame.number)
        if self._origin != frame.origin or self._fed > wanted:
            self._begin(frame)
        mine = None
        for found in self._coming(frame if shared is None else shared.last):
            if found.pts == frame.number:
                mine = found
                if shared is None:
                    break
            if shared is not None and shared.wants(found.pts):
                shared.keep(found.pts, self._pixels(found))
        return mine

    def _coming(self, frame: VideoFrame) -> Iterator[Any]:
        """The frames that come out until ``frame`` has, or the decoder holds none back."""
        for start, size, number in frame.packets[self._fed :]:
            packet = self._av.Packet(frame.data[start : start + size])
            packet.pts = packet.dts = number
            self._fed += 1
            for found in self._context.decode(packet):
                yield found
                if found.pts == frame.number:
                    return
        yield from self._drained()

    def _begin(self, frame: VideoFrame) -> None:
        if self._context is None:
            name = _DECODERS.get(self._codec.name, self._codec.name)
            self._context = self._av.CodecContext.create(name, "r")
            self._context.extradata = self._codec.setup or None
            self._context.thread_count = 1
        else:
            self._context.flush_buffers()
        self._origin, self._fed, self._last = frame.origin, 0, None

    def _drained(self) -> list[Any]:
        """What the decoder still holds back; it begins anew then."""
        left = list(self._context.decode(None))
        self._origin = None
        return left
