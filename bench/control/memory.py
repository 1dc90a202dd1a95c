"""Reads memory by the kernel's own files, and by nothing of the loader's: a second opinion.

Headroom is the least of the host's ``MemAvailable`` and, for a cgroup and its ancestors, limit −
(usage − file pages); v2 also takes reclaimable slab off. What the loader holds is counted page by
page: anonymous memory of every process of its tree (resident − shared), the blocks of its ring and
of its frame cache. Frames that are the child's own lie in its only anonymous mapping that is as
large as the machine's memory; the kernel says which of its pages are there (``PAGEMAP_SCAN``, Linux
6.7; before, ``smaps``, which takes longer).

Only the standard library, so that a sampler starts at once and stays small.

Not here: when it is read (``bench.control.sampler``).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
NO_LIMIT = 2**60
MIB = 2**20


def headroom_bytes(group: str) -> int:
    """What can still be had in a cgroup (its directory; "": no cgroup, the host alone)."""
    best = available_bytes()
    for level in levels(group):
        room = room_bytes(level)
        if room is not None:
            best = min(best, room)
    return best


def available_bytes() -> int:
    """The host's ``MemAvailable``."""
    return number_after(Path("/proc/meminfo").read_text(), "MemAvailable:") * 1024


def levels(group: str) -> list[Path]:
    """A cgroup directory and its ancestors that have a memory controller."""
    found = []
    place = Path(group) if group else None
    while place is not None and (usage_file(place)).exists():
        found.append(place)
        place = place.parent
    return found


def is_v2(level: Path) -> bool:
    """Whether a directory is of cgroup v2."""
    return (level / "cgroup.controllers").exists()


def usage_file(level: Path) -> Path:
    """The file with the bytes in use."""
    return level / ("memory.current" if is_v2(level) else "memory.usage_in_bytes")


def limit_file(level: Path) -> Path:
    """The file with the limit."""
    return level / ("memory.max" if is_v2(level) else "memory.limit_in_bytes")


def held_bytes(level: Path) -> int:
    """Usage that the kernel cannot take back: without file pages."""
    usage = int(usage_file(level).read_text())
    stat = (level / "memory.stat").read_text()
    keys: tuple[str, ...] = ("inactive_file", "active_file", "slab_reclaimable")
    if not is_v2(level):
        keys = ("total_inactive_file", "total_active_file")
    return max(0, usage - sum(number_after(stat, key) for key in keys))


def room_bytes(level: Path) -> int | None:
    """Limit − what is held; ``None`` where there is no limit."""
    try:
        text = limit_file(level).read_text().strip()
    except OSError:
        return None
    if text == "max" or int(text) >= NO_LIMIT:
        return None
    return int(text) - held_bytes(level)


def oom_kills(level: Path) -> int:
    """Processes killed for memory in a cgroup so far."""
    name = "memory.events" if is_v2(level) else "memory.oom_control"
    return number_after((level / name).read_text(), "oom_kill")


def number_after(text: str, key: str) -> int:
    """The number behind ``key`` at the start of a line; 0 without it."""
    for line in text.splitlines():
        if line.startswith(key) and (words := line.removeprefix(key).split()):
            with contextlib.suppress(ValueError):
                if line[len(key)] in " \t" or key.endswith(":"):
                    return int(words[0])
    return 0


def anonymous_bytes(pid: int) -> int:
    """Resident pages of a process that are neither a file's nor shared; 0 when it is gone."""
    try:
        resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return max(0, int(resident) - int(shared)) * PAGE


RING_FILE, FRAMES_FILE = "/memfd:autoloader", "/memfd:autoloader-frames"
"""Files in memory of the loader: the ring, and the slots of the frame cache."""


def memory_files(pid: int, name: str) -> list[str]:
    """The memfds of that name that a process has open, as paths that ``os.stat`` follows."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()).split(" ")[0] == name:
                    found[entry.stat().st_ino] = str(entry)
    return list(found.values())


def blocks_bytes(path: str) -> int:
    """Pages the kernel holds for a file, in bytes; 0 when it is gone."""
    try:
        return Path(path).stat().st_blocks * 512
    except OSError:
        return 0


_PAGEMAP_SCAN = 0xC0606610
_PRESENT = 1 << 3
_REGIONS = 4096


def sparse_mapping(pid: int) -> tuple[int, int]:
    """Where a process's anonymous mapping that is as large as main memory begins and ends."""
    least = os.sysconf("SC_PHYS_PAGES") * PAGE
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, _, end = line.split()[0].partition("-")
            if line.split()[4] == "0" and int(end, 16) - int(begin, 16) >= least:
                return int(begin, 16), int(end, 16)
    return 0, 0


def present_bytes(pid: int, begin: int, end: int) -> int:
    """Pages of a process that are there between two addresses, in bytes; 0 when it is gone."""
    try:
        pages = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)
    except OSError:
        return 0
    found, at = 0, begin
    regions = bytearray(24 * _REGIONS)
    vector = (ctypes.c_char * len(regions)).from_buffer(regions)
    try:
        while at < end:
            # size, flags, start, end, walk_end, vec, vec_len, max_pages, and the four masks.
            where = (96, 0, at, end, 0, ctypes.addressof(vector), _REGIONS, 0)
            asked = bytearray(struct.pack("12Q", *where, 0, _PRESENT, 0, _PRESENT))
            try:
                count = fcntl.ioctl(pages, _PAGEMAP_SCAN, asked)
            except OSError:
                return _mapped_bytes(pid, begin)
            spans = [struct.unpack_from("2Q", regions, 24 * number) for number in range(count)]
            found += sum(last - first for first, last in spans)
            # ``walk_end`` may lie before regions that were told.
            at = spans[-1][1] if count == _REGIONS else end
    finally:
        os.close(pages)
    return found


def _mapped_bytes(pid: int, begin: int) -> int:
    """Resident bytes of the mapping that begins there; 0 when the process is gone."""
    with contextlib.suppress(OSError):
        _, _, there = Path(f"/proc/{pid}/smaps").read_text().partition(f"\n{begin:x}-")
        return number_after(there, "Rss:") * 1024
    return 0


def threads_cpu_s(pid: int, names: tuple[str, ...]) -> dict[str, float]:
    """Processor seconds of the threads of a process that have these names."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError):
                name = (task / "comm").read_text().strip()
                if name in names:
                    spent = int((task / "schedstat").read_text().split()[0]) / 1e9
                    found[name] = found.get(name, 0.0) + spent
    return found
