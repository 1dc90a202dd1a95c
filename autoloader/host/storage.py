"""Storage under files: kind of file system, and a short probe of reads at random and in order.

Theory of operation. The probe reads large files that lie on one file system, for two seconds by
default: first 20 KiB (about a JPEG frame of 256×256) at random places, then 8 MiB after 8 MiB in
order. Reads go past the page cache (O_DIRECT) where the file system allows it. Elsewhere the pages
of each range are dropped first, so that the storage answers and not the memory. What others had
cached of those ranges is read again later; nothing is written.

Which ``mixing.locality`` suits follows from what reading takes (``propose_locality``). A read at a
random place takes a seek, or a round trip; in order come so many bytes a second. A block is so
large that its seek is a fifth of its time at most. As many blocks make a window as the memory above
the floor has room for, twice, in half of it.

Not here: what follows from it for a run (``cli.doctor``), reading data
(``pipeline.read``).
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from autoloader.host.frozen import frozen
from autoloader.host.machine import mounts
from autoloader.host.units import MIB

FRAME_BYTES = 20 * 1024
RUN_BYTES = 8 * 2**20
PROBE_S = 1.0
"""For each of the two ways to read."""
UNKNOWN = "an unknown file system"
_FAR = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "9p", "afs")
_MOST_FILES = 16
_PAGE = 4096


@frozen
class Rates:
    """Rates that a probe measured.

    Attributes:
        random_s: median seconds of a read of 20 KiB at random.
        in_order: bytes a second of reads of 8 MiB, one after the other.
        cached: the page cache may have answered: it could not be passed by.
    """

    random_s: float
    in_order: float
    cached: bool = False

    def singly_per_s(self, reads: float) -> float:
        """Samples a second, where each takes ``reads`` reads at random places, one by one."""
        return 1 / max(1e-9, self.random_s * reads)

    def by_blocks_per_s(self, block_bytes: int, sample_bytes: float) -> float:
        """Samples a second that lie in blocks; each has ``sample_bytes`` of them."""
        block_s = self.random_s + block_bytes / self.in_order
        return block_bytes / max(1.0, sample_bytes) / block_s


def is_far(kind: str) -> bool:
    """True if a kind of file system is one of the network, or may be (FUSE)."""
    return kind in _FAR or kind.startswith("fuse")


def by_file_system(files: Sequence[str], proc: Path = Path("/proc")) -> dict[str, list[str]]:
    """Kind of file system ("ext4", "nfs4" …) → those of ``files`` that lie on one of it."""
    kinds = {mount.device: mount.kind for mount in mounts(proc)}
    found: dict[str, list[str]] = {}
    for path in files:
        with contextlib.suppress(OSError):
            device = Path(path).stat().st_dev
            kind = kinds.get(f"{os.major(device)}:{os.minor(device)}", UNKNOWN)
            found.setdefault(kind, []).append(path)
    return found


def probe_reads(
    files: Sequence[str], now_s: Callable[[], float], *, each_s: float = PROBE_S
) -> Rates | None:
    """Read ``files`` of one file system; ``None`` where none holds a read of a frame.

    Args:
        files: paths of the files.
        now_s: seconds on a clock that never goes backwards.
        each_s: seconds of reads at random, and then of reads in order.
    """
    large = sorted(files, key=os.path.getsize, reverse=True)[:_MOST_FILES]
    with contextlib.ExitStack() as opened:
        sources = [opened.enter_context(_Source(path)) for path in large]
        sources = [source for source in sources if source.bytes >= FRAME_BYTES]
        if not sources:
            return None
        draw = random.Random(0)  # noqa: S311  (places to read at)
        took: list[float] = []
        end = now_s() + each_s
        while (began := now_s()) < end or not took:
            source = draw.choice(sources)
            source.read(FRAME_BYTES, draw.randrange(source.bytes - FRAME_BYTES + 1))
            took.append(now_s() - began)
        runs = [(one, at) for one in sources for at in range(0, one.bytes, RUN_BYTES)]
        read, began = 0, now_s()
        for source, at in itertools.cycle(runs):
            read += source.read(RUN_BYTES, at)
            if now_s() >= began + each_s:
                break
        in_order = read / max(now_s() - began, 1e-9)
        return Rates(sorted(took)[len(took) // 2], in_order, not all(one.direct for one in sources))


class _Source:
    """A file that is read past the page cache where the file system allows it."""

    def __init__(self, path: str) -> None:
        self._into = mmap.mmap(-1, RUN_BYTES)  # of whole pages, as O_DIRECT wants it
        flags = os.O_RDONLY | os.O_CLOEXEC
        self.direct = True
        try:
            self._descriptor = os.open(path, flags | os.O_DIRECT)
        except OSError:
            self.direct = False
            self._descriptor = os.open(path, flags)
        self.bytes = os.fstat(self._descriptor).st_size

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        self._into.close()

    def read(self, count: int, at: int) -> int:
        """Read ``count`` bytes from about ``at``; how many came."""
        at -= at % _PAGE
        with memoryview(self._into) as whole, whole[:count] as into:
            if self.direct:
                try:
                    return os.preadv(self._descriptor, [into], at)
                except OSError:  # it opens so, and does not read so
                    self.direct = False
                    fcntl.fcntl(self._descriptor, fcntl.F_SETFL, 0)
            os.posix_fadvise(self._descriptor, at, count, os.POSIX_FADV_DONTNEED)
            return os.preadv(self._descriptor, [into], at)


SEEK_RATIO = 4
"""A block takes so many times its seek to read, at least."""
GAIN = 2.0
"""Locality is worth while where it reads so many times faster, at least."""
_LEAST_BLOCK, _MOST_BLOCK = MIB, 64 * MIB
_LEAST_WINDOW, _MOST_WINDOW = 4, 64


@frozen
class LocalityProposal:
    """Setting to write below ``mixing``.

    Attributes:
        block_bytes: bytes of a block.
        window: blocks of a window.
        memory_bytes: bytes that two windows of every dataset take.
    """

    block_bytes: int
    window: int
    memory_bytes: int

    @property
    def text(self) -> str:
        """The proposal as a spec writes it."""
        return f"{{locality: {{block: {self.block_bytes // MIB}MiB, window: {self.window}}}}}"


def propose_locality(
    rates: Rates,
    *,
    reads: float,
    sample_bytes: float,
    dataset_bytes: Sequence[int],
    left_bytes: int,
) -> LocalityProposal | None:
    """A block and a window; ``None`` where they gain little, or the memory has no room for them.

    Args:
        rates: measured rates of the storage.
        reads: at random places, of a sample.
        sample_bytes: bytes of the files, over the samples of a pass.
        dataset_bytes: bytes of the files of each dataset.
        left_bytes: bytes of memory above the floor.
    """
    block = _LEAST_BLOCK
    while block < _MOST_BLOCK and block < SEEK_RATIO * rates.random_s * rates.in_order:
        block *= 2
    if rates.by_blocks_per_s(block, sample_bytes) < GAIN * rates.singly_per_s(reads):
        return None
    window = _MOST_WINDOW
    while window >= _LEAST_WINDOW:
        memory = sum(2 * min(window * block, whole + block) for whole in dataset_bytes)
        if memory <= left_bytes // 2:
            return LocalityProposal(block, window, memory)
        window //= 2
    return None
