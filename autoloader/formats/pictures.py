"""Sizes of encoded pictures, from their headers.

Not here: decoding (``decode.frames``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from autoloader.formats.files import UnreadableError

MOST_PIXELS = 64_000_000
FRONT_BYTES = 2048
_STARTS = (*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0))
_MOST_SEGMENTS = 1000


def check_picture(read: Callable[[int, int], bytes]) -> None:
    """Refuse what is no JPEG, PNG, GIF or WebP picture, or a picture that is too large.

    Args:
        read: gives (count, offset) bytes of it, fewer at its end.

    Raises:
        UnreadableError: it is none, or larger than ``MOST_PIXELS``.
    """
    front = read(FRONT_BYTES, 0)
    try:
        height, width = _size(front, read)
    except (struct.error, IndexError) as error:
        raise UnreadableError("its header is cut off") from error
    if not 0 < height * width <= MOST_PIXELS:
        raise UnreadableError(
            f"it has {height}×{width} pixels; the limit is {MOST_PIXELS:,} in all"
        )


def _size(front: bytes, read: Callable[[int, int], bytes]) -> tuple[int, int]:
    """(height, width) that the header of a picture tells."""
    if front[:3] == b"\xff\xd8\xff":
        return _jpeg(front, read)
    if front[:8] == b"\x89PNG\r\n\x1a\n" and front[12:16] == b"IHDR":
        width, height = struct.unpack_from(">II", front, 16)
        return height, width
    if front[:6] in (b"GIF87a", b"GIF89a"):
        width, height = struct.unpack_from("<HH", front, 6)
        return height, width
    if front[:4] == b"RIFF" and front[8:12] == b"WEBP":
        return _webp(front)
    raise UnreadableError("it is not a JPEG, PNG, GIF or WebP")


def _webp(front: bytes) -> tuple[int, int]:
    kind = front[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(front[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L":
        bits = struct.unpack_from("<I", front, 21)[0]
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (one & 0x3FFF for one in struct.unpack_from("<HH", front, 26))
    else:
        raise UnreadableError("this kind of WebP is not supported; save it as JPEG or PNG")
    return height, width


def _jpeg(front: bytes, read: Callable[[int, int], bytes]) -> tuple[int, int]:
    base, at = 0, 2
    for _ in range(_MOST_SEGMENTS):
        if at - base + 10 > len(front):
            front, base = read(FRONT_BYTES, at), at
        marker = front[at - base + 1]
        if front[at - base] != 0xFF:
            break
        if marker in _STARTS:
            height, width, colours = struct.unpack_from(">HHB", front, at - base + 5)
            if colours not in (1, 3):
                raise UnreadableError(
                    f"its JPEG has {colours} colours, which is not supported; save it as RGB"
                )
            return height, width
        size = int.from_bytes(front[at - base + 2 : at - base + 4], "big")
        at += 1 if marker == 0xFF else 2 + size
    raise UnreadableError("its JPEG header is damaged")
