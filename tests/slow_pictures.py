"""A JPEG that a decoder works on for as long as one likes: grey, progressive, with many scans.

Each scan says of one bit of one coefficient that it is zero in all blocks (T.81, annex G): some
bytes, for which libjpeg goes over the whole picture once.
"""

import struct

SCANS_MOST = 1 + 63 * 14


def slow_jpeg(height: int, width: int, scans: int, grey: int = 128) -> bytes:
    """A picture of one shade with so many scans, 1 to ``SCANS_MOST``."""
    blocks = -(-height // 8) * -(-width // 8)
    difference = 8 * (grey - 128)  # the mean of a block of eight by eight is an eighth of its DC
    size = abs(difference).bit_length()
    parts = [
        b"\xff\xd8",
        _segment(0xDB, b"\0" + b"\x01" * 64),
        _segment(0xC2, struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\0"),
        # DC: no difference is "0", one of ``size`` bits "10"; AC: a run of 2^14 blocks or more "0".
        _segment(0xC4, b"\0" + bytes([1, 1]) + bytes(14) + bytes([0, size or 1])),
        _segment(0xC4, b"\x10" + bytes([1]) + bytes(15) + b"\xe0"),
        _scan(0, 0, 0, ("10" + _signed(difference, size) if size else "0") + "0" * (blocks - 1)),
    ]
    zeros = _zeros(blocks)
    left = scans - 1
    for coefficient in range(1, 64):
        for low in range(13, -1, -1):
            if left <= 0:
                break
            high = 0 if low == 13 else low + 1
            parts.append(_scan(coefficient, high, low, zeros))
            left -= 1
    return b"".join([*parts, b"\xff\xd9"])


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def _scan(coefficient: int, high: int, low: int, bits: str) -> bytes:
    head = _segment(0xDA, b"\x01\x01\x00" + bytes([coefficient, coefficient, high << 4 | low]))
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big") if bits else b""
    return head + data.replace(b"\xff", b"\xff\0")


def _signed(value: int, size: int) -> str:
    return format(value if value > 0 else value + (1 << size) - 1, f"0{size}b")


def _zeros(blocks: int) -> str:
    """Runs of blocks without a coefficient; the last may say more than there are."""
    bits = ""
    while blocks > 0:
        run = min(blocks, 32767)
        bits += "0" + format(max(run, 16384) - 16384, "014b")
        blocks -= run
    return bits
