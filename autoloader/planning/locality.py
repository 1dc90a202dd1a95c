"""Which ``mixing.locality`` suits a file system, by what reading from it takes: pure.

A read at a random place takes a seek, or a round trip; in order come so many bytes a second. A
block is so large that its seek is a fifth of its time at most. As many blocks make a window as the
memory above the floor has room for, twice, in half of it.

Not here: the measuring (``probes.storage``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoloader.units import MIB

SEEK_RATIO = 4
"""A block takes so many times its seek to read, at least."""
GAIN = 2.0
"""Locality is worth while where it reads so many times faster, at least."""
_LEAST_BLOCK, _MOST_BLOCK = MIB, 64 * MIB
_LEAST_WINDOW, _MOST_WINDOW = 4, 64


@dataclass(frozen=True, slots=True)
class StorageRates:
    """What reading takes.

    Attributes:
        random_s: of a frame at a random place.
        bytes_per_s: in order.
    """

    random_s: float
    bytes_per_s: float

    def singly_per_s(self, reads: float) -> float:
        """Samples a second, where each takes ``reads`` reads at random places, one by one."""
        return 1 / max(1e-9, self.random_s * reads)

    def by_blocks_per_s(self, block_bytes: int, sample_bytes: float) -> float:
        """Samples a second that lie in blocks; each has ``sample_bytes`` of them."""
        block_s = self.random_s + block_bytes / self.bytes_per_s
        return block_bytes / max(1.0, sample_bytes) / block_s


@dataclass(frozen=True, slots=True)
class LocalityProposal:
    """What to write below ``mixing``.

    Attributes:
        block_bytes: of a block.
        window: blocks of a window.
        memory_bytes: that two windows of every dataset take.
    """

    block_bytes: int
    window: int
    memory_bytes: int

    @property
    def text(self) -> str:
        """As a spec says it."""
        return f"{{locality: {{block: {self.block_bytes // MIB}MiB, window: {self.window}}}}}"


def propose_locality(
    rates: StorageRates,
    *,
    reads: float,
    sample_bytes: float,
    dataset_bytes: Sequence[int],
    left_bytes: int,
) -> LocalityProposal | None:
    """A block and a window; ``None`` where they gain little, or the memory has no room for them.

    Args:
        rates: of the storage.
        reads: at random places, of a sample.
        sample_bytes: of the files, over the samples of a pass.
        dataset_bytes: of the files of each dataset.
        left_bytes: of memory, above the floor.
    """
    block = _LEAST_BLOCK
    while block < _MOST_BLOCK and block < SEEK_RATIO * rates.random_s * rates.bytes_per_s:
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
