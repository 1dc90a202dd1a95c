"""Where data lies, and whether that is slow: the kind of file system, and a short probe of it.

Not here: the probe (``host.probes.storage``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from autoloader.cli.host_checks.findings import Fact, Finding, Machine, Seen
from autoloader.host.clock import Clock, SystemClock
from autoloader.host.probes.storage import (
    FRAME_BYTES,
    Rates,
    by_file_system,
    is_far,
    probe_reads,
    propose_locality,
)

SLOW_READ_S = 4e-3
"""A random read that takes longer is a finding: a seek of a disk, or a network."""


def storage(machine: Machine, files: Sequence[str], clock: Clock | None = None) -> Iterator[Seen]:
    """Kind and speed of each file system that holds some of ``files``."""
    for kind, here in sorted(by_file_system(files, machine.proc).items()):
        place = str(Path(here[0]).parent)
        rates = probe_reads(here, (clock or SystemClock()).now_s)
        if rates is None:
            yield Fact("storage", f"{place} lies on {kind}; its files are too small to measure")
            continue
        shown = (
            f"{place} lies on {kind}: 20 KiB at random take {1e3 * rates.random_s:.2f} ms, "
            f"in order come {rates.in_order / 1e6:.0f} MB/s"
            + (" (the page cache may have answered)" if rates.cached else "")
        )
        if rates.random_s > SLOW_READ_S:
            yield Finding(
                "storage",
                "warning",
                f"{shown}; reading by index takes frames from random places, and waits",
                "copy the data to a local disk, or have it read by blocks "
                f"({_locality(rates)}; `autoloader plan` proposes a window), or let memory above "
                "the floor hold frames (cache_bytes), or read it in order (reader: stream)",
            )
        elif is_far(kind):
            yield Finding(
                "storage",
                "warning",
                f"{shown}; others share it, and it may be slower when they use it",
                "copy the data to a local disk where there is one",
            )
        else:
            yield Fact("storage", shown)


def _locality(rates: Rates) -> str:
    """The block that suits; whoever has no mixture at hand sets the window by their memory."""
    found = propose_locality(
        rates,
        reads=1,
        sample_bytes=FRAME_BYTES,
        dataset_bytes=(),
        left_bytes=0,
    )
    return f"mixing: {found.text}" if found else "mixing: {locality: {}}"
