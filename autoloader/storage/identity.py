"""What a file far away is at a moment: enough to notice that it is another one.

Not here: asking for it (``storage.clients``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class RemoteIdentity:
    """One version of one object.

    Attributes:
        size: its bytes.
        number: what is another number for another version: the generation of Cloud Storage, the
            time of the last change in ns where a server says no more, else a hash of its tag.
        tag: what a request may name to get this version alone; "" where there is none.
        crc32c: of its bytes; ``None`` where the store does not say.
    """

    size: int
    number: int
    tag: str = ""
    crc32c: int | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    def key(self, path: str) -> str:
        """A name for this version of the object at ``path``: 40 hexadecimal digits."""
        text = repr((path, self.size, self.number, self.tag))
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:40]


def of_entry(entry: Mapping[str, Any]) -> RemoteIdentity:
    """The identity of what a store says of a file.

    Raises:
        ValueError: the size is not known.
    """
    size = entry.get("size")
    if not isinstance(size, int) or size < 0:
        raise ValueError("the store does not say how large it is")
    tag = str(entry.get("ETag") or entry.get("etag") or entry.get("blob_id") or "")
    if generation := entry.get("generation"):
        return RemoteIdentity(size, int(generation), str(generation), _crc(entry.get("crc32c")))
    if changed := entry.get("Last-Modified"):
        if tag.startswith("W/"):  # a weak tag names no bytes
            tag = ""
        return RemoteIdentity(size, _ns(str(changed)), tag)
    return RemoteIdentity(size, _hashed(tag), tag)


def _hashed(tag: str) -> int:
    return int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "big") >> 1


def _ns(changed: str) -> int:
    try:
        return int(parsedate_to_datetime(changed).timestamp()) * 10**9
    except ValueError:
        return _hashed(changed)


def _crc(text: Any) -> int | None:
    try:
        return int.from_bytes(base64.b64decode(text), "big") if text else None
    except (binascii.Error, TypeError, ValueError):
        return None
