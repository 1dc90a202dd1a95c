"""Files over other files, for this process and its children alone.

Not here: what stands in them (``bench.control.stage``).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

_NEW_MOUNT_NAMESPACE = 0x00020000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000


def cover(binds: Sequence[Sequence[str]]) -> None:
    """Mount each first file over the second, in a mount namespace of this process's own.

    Raises:
        OSError: that needs root.
    """
    if not binds:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.unshare(_NEW_MOUNT_NAMESPACE), "a mount namespace")
    _checked(libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "/ made private")
    for source, target in binds:
        _checked(libc.mount(source.encode(), target.encode(), None, _BIND, None), target)


def _checked(answer: int, what: str) -> None:
    if answer != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
