"""A file system that reads like one disk head: a seek where a read does not go on from the last.

Whatever is asked for waits for one head: a read that begins where the last one ended takes its
bytes' time, any other a seek more. The file ``.head`` in the mount says what was read so far:
``{"reads", "seeks", "bytes"}``. It runs in a process of its own, and ends when it is unmounted.

Not here: the file system (``bench.shown_files``).
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import shown_files

COUNTS = ".head"


@contextlib.contextmanager
def mounted(source: Path, mount: Path, *, seek_s: float, bytes_per_s: float) -> Iterator[Path]:
    """The folder ``source`` behind a head of its own, at ``mount``; in a process of its own.

    Raises:
        NotMountedError: it cannot be mounted; says why.
    """
    speed = str(seek_s), str(bytes_per_s)
    with shown_files.mounted("tests.runtime.disk_head", source, mount, *speed):
        yield mount


def counts(mount: Path) -> dict[str, int]:
    """Reads, seeks and bytes so far."""
    return json.loads((mount / COUNTS).read_text())


class Head:
    """One disk head; for one thread.

    Attributes:
        reads, seeks, bytes: so far.
    """

    def __init__(self, seek_s: float, bytes_per_s: float) -> None:
        self._seek_s, self._bytes_per_s = seek_s, bytes_per_s
        self._at: tuple[str, int] = "", 0
        self._free_s = 0.0
        self.reads = self.seeks = self.bytes = 0

    def counts(self) -> bytes:
        """All three, as JSON of one size."""
        told = {"reads": self.reads, "seeks": self.seeks, "bytes": self.bytes}
        return json.dumps(told).encode().ljust(128)

    def read(self, path: str, offset: int, size: int) -> None:
        """Wait until so many bytes have passed under it."""
        apart = self._at != (path, offset)
        self._at = path, offset + size
        self.reads, self.seeks, self.bytes = self.reads + 1, self.seeks + apart, self.bytes + size
        now = time.monotonic()
        self._free_s = max(self._free_s, now) + apart * self._seek_s + size / self._bytes_per_s
        if self._free_s - now > 1e-3:  # shorter sleeps take longer than they say
            time.sleep(self._free_s - now)


if __name__ == "__main__":
    source, mount, seek_s, bytes_per_s = sys.argv[1:]
    head = Head(float(seek_s), float(bytes_per_s))
    told = {COUNTS: head.counts}
    shown_files.serve(Path(source), Path(mount), head.read, told=told, one_at_a_time=True)
