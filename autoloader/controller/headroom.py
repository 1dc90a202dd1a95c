"""Reads how much memory this machine can still give to this process.

Theory of operation. Headroom is the least of

- the host's ``MemAvailable``, and
- for the process's cgroup and every ancestor of it, v1 and v2:
  ``limit - (usage - inactive file - active file - reclaimable slab)``.

File pages are taken off usage although re-read ones are *active*: the kernel reclaims them before
it kills, and a second epoch over cached shards would otherwise look like an emergency. v1 reports
no reclaimable slab, so none is taken off there. Shared memory sits on the anonymous lists and is
never taken off.

What a container cannot see is bounded where possible: v1 reports the least limit of all ancestors,
visible or not (``hierarchical_memory_limit``), v2 ancestors outside the namespace stay unknown.
A cgroup path that leaves the namespace ("/../..") stands for the mount point itself.

A source whose files are missing is unknown: it is left out, and logged once. When no source at all
can be read there is no number to give, and ``read`` raises, because unknown is not free.

Cost: a few ``pread`` of open descriptors, about 0.05 ms; limits are read anew each time, since
they may shrink. Any thread may call ``read``; a process that moves to another cgroup is followed.

Not here: what processes hold (``process_memory``), what to do about it (policy and admission).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

import psutil

from autoloader.errors import PipelineError

_LOG = logging.getLogger(__name__)

_READ_BYTES = 16384
_V1_NO_LIMIT_BYTES = 2**60
_STANDARD_ROOT = PurePosixPath("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Headroom:
    """One reading.

    Attributes:
        headroom_bytes: memory that can still be taken before something must give; never negative.
        source: which limit binds: "host", or the cgroup, such as "cgroup v2 /job_7".
        host_available_bytes: the host's ``MemAvailable``; ``None`` when unknown.
        limit_bytes: the least cgroup limit in force; ``None`` when there is none.
    """

    headroom_bytes: int
    source: str
    host_available_bytes: int | None
    limit_bytes: int | None


class HeadroomSource(Protocol):
    """What admission, reflex and study ask about the machine's memory."""

    def read(self) -> Headroom:
        """A fresh reading.

        Raises:
            PipelineError: nothing can be read.
        """
        ...

    def total_bytes(self) -> int:
        """Memory this process may ever use: the least of main memory and cgroup limits."""
        ...


class FakeHeadroom:
    """Headroom that is told, for tests: set ``headroom_bytes``, or let ``take`` lower it."""

    def __init__(self, headroom_bytes: int, *, total_bytes: int | None = None) -> None:
        self.headroom_bytes = headroom_bytes
        self.reads = 0
        self._total_bytes = headroom_bytes if total_bytes is None else total_bytes

    def take(self, count: int) -> None:
        """Some process took ``count`` bytes (negative: gave back)."""
        self.headroom_bytes -= count

    def read(self) -> Headroom:
        self.reads += 1
        free = max(0, self.headroom_bytes)
        return Headroom(free, "fake", host_available_bytes=free, limit_bytes=None)

    def total_bytes(self) -> int:
        return self._total_bytes


class HeadroomProbe:
    """The real thing, from ``/proc`` and the cgroup file systems.

    Args:
        proc: where procfs is mounted.
        cgroup_root: stands for ``/sys/fs/cgroup`` in what mountinfo says.
        pid: whose cgroup counts; "self" for this process.
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        pid: int | str = "self",
    ) -> None:
        self._proc = proc
        self._root = cgroup_root
        self._meminfo = _OpenFile(proc / "meminfo")
        self._membership = _OpenFile(proc / str(pid) / "cgroup")
        self._lock = threading.Lock()
        self._levels: list[_Level] = []
        self._levels_for: bytes | None = None
        self._told: set[str] = set()

    def read(self) -> Headroom:
        with self._lock:
            available = self._host_bytes(b"MemAvailable")
            best, source = available, "host"
            least_limit: int | None = None
            for level in self._current_levels():
                limit = self._limit(level)
                if limit is None:
                    continue
                least_limit = limit if least_limit is None else min(least_limit, limit)
                room = self._room(level, limit)
                if room is not None and (best is None or room < best):
                    best, source = room, level.label
        if best is None:
            raise PipelineError(
                f"free memory cannot be read: neither {self._proc}/meminfo nor a cgroup answers",
                remedy="mount /proc, or run on Linux",
                stage="headroom",
            )
        return Headroom(max(0, best), source, available, least_limit)

    def cgroup_limit_bytes(self) -> int | None:
        """The least limit of the process's cgroup and its ancestors; ``None``: there is none."""
        with self._lock:
            known = [self._limit(level) for level in self._current_levels()]
        return min((limit for limit in known if limit is not None), default=None)

    def total_bytes(self) -> int:
        known = (self.cgroup_limit_bytes(), self._host_bytes(b"MemTotal"))
        limits = [limit for limit in known if limit is not None]
        if not limits:
            raise PipelineError(
                f"main memory cannot be read from {self._proc}/meminfo",
                remedy="mount /proc, or run on Linux",
                stage="headroom",
            )
        return min(limits)

    def _host_bytes(self, key: bytes) -> int | None:
        content = self._meminfo.read()
        kib = _number_after(content, key + b":") if content is not None else None
        if kib is not None:
            return kib * 1024
        self._tell(f"{self._proc}/meminfo has no {key.decode()}")
        if self._proc != Path("/proc"):
            return None
        memory = psutil.virtual_memory()
        return int(memory.available if key == b"MemAvailable" else memory.total)

    def _limit(self, level: _Level) -> int | None:
        """The cgroup's own limit, or ``None`` when it sets none (or is gone)."""
        content = level.limit.read()
        if content is None:
            self._tell(f"{level.label}: its limit cannot be read any more")
            self._levels_for = None
            return None
        own = _limit_of(content)
        if level.has_unseen_ancestors:
            stat = level.stat.read()
            inherited = _number_after(stat or b"", b"hierarchical_memory_limit")
            if inherited is not None and inherited < _V1_NO_LIMIT_BYTES:
                own = inherited if own is None else min(own, inherited)
        return own

    def _room(self, level: _Level, limit: int) -> int | None:
        usage = _number(level.usage.read())
        if usage is None:
            self._tell(f"{level.label}: its usage cannot be read")
            return None
        stat = level.stat.read()
        if stat is None:
            self._tell(f"{level.label}: no memory.stat, so its page cache counts as taken")
            stat = b""
        reclaimable = sum(_number_after(stat, key) or 0 for key in level.reclaimable)
        return limit - max(0, usage - reclaimable)

    def _current_levels(self) -> list[_Level]:
        membership = self._membership.read()
        if membership is None:
            self._tell(f"{self._membership.path} cannot be read: cgroup limits are unknown")
            return []
        if membership != self._levels_for:
            mounts = _cgroup_mounts(self._proc / "self" / "mountinfo", self._root)
            self._levels = _levels(membership.decode(errors="replace"), mounts)
            self._levels_for = membership
        return self._levels

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _LOG.warning("headroom: %s", what)


class _OpenFile:
    """A small kernel file that stays open and is read from its start each time."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def read(self) -> bytes | None:
        """The content, or ``None`` when there is none to be had (now)."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._descriptor, _READ_BYTES, 0)
        except OSError:
            self._close()
            return None

    def _close(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self._close()


@dataclass(frozen=True, slots=True)
class _Level:
    """One cgroup on the way from the process's own up to the mount point."""

    label: str
    limit: _OpenFile
    usage: _OpenFile
    stat: _OpenFile
    reclaimable: tuple[bytes, ...]
    has_unseen_ancestors: bool


@dataclass(frozen=True, slots=True)
class _Mount:
    """A cgroup hierarchy: its version, the cgroup its mount point shows, and where that is."""

    version: int
    shown: PurePosixPath
    point: Path


def _cgroup_mounts(mountinfo: Path, root: Path) -> list[_Mount]:
    """Mounts that may hold memory controller files; conventional places without mountinfo."""
    try:
        lines = mountinfo.read_text(errors="replace").splitlines()
    except OSError:
        guesses = [_Mount(1, PurePosixPath("/"), root / "memory")]
        guesses += [_Mount(2, PurePosixPath("/"), place) for place in (root, root / "unified")]
        return [mount for mount in guesses if mount.point.is_dir()]
    mounts = []
    for line in lines:
        before, _, after = line.partition(" - ")
        places, kind = before.split(), after.split()
        if len(places) < 5 or len(kind) < 3:
            continue
        shown, point = (_unescaped(text) for text in places[3:5])
        if kind[0] == "cgroup2":
            version = 2
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            version = 1
        else:
            continue
        pure = PurePosixPath(point)
        inside = pure.is_relative_to(_STANDARD_ROOT)
        place = root / pure.relative_to(_STANDARD_ROOT) if inside else Path(point)
        mounts.append(_Mount(version, PurePosixPath(shown), place))
    return mounts


def _levels(membership: str, mounts: list[_Mount]) -> list[_Level]:
    """Every cgroup that may bind the process, its own first, for each hierarchy with memory."""
    levels: list[_Level] = []
    for line in membership.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            version = 2
        elif "memory" in controllers.split(","):
            version = 1
        else:
            continue
        candidates = [mount for mount in mounts if mount.version == version]
        if not candidates:
            continue
        mount = next((m for m in candidates if _below(m, path) is not None), candidates[0])
        below = _below(mount, path) or PurePosixPath()
        levels += _climb(mount, below, path)
    return levels


def _below(mount: _Mount, path: str) -> PurePosixPath | None:
    """``path`` relative to what the mount shows; ``None`` when it lies elsewhere."""
    pure = PurePosixPath(path)
    if ".." in pure.parts or not pure.is_relative_to(mount.shown):
        return None
    return pure.relative_to(mount.shown)


def _climb(mount: _Mount, below: PurePosixPath, path: str) -> list[_Level]:
    levels = []
    own = below
    for step in (below, *below.parents) if below.parts else (below,):
        directory = mount.point / step
        label = f"cgroup v{mount.version} /{step}" if step.parts else f"cgroup v{mount.version} /"
        if mount.version == 2:
            level = _Level(
                label,
                limit=_OpenFile(directory / "memory.max"),
                usage=_OpenFile(directory / "memory.current"),
                stat=_OpenFile(directory / "memory.stat"),
                reclaimable=(b"inactive_file", b"active_file", b"slab_reclaimable"),
                has_unseen_ancestors=False,
            )
        else:
            apart = _OpenFile(directory / "memory.use_hierarchy")
            if step != own and _number(apart.read()) == 0:
                continue  # an old kernel's cgroup that does not count its children
            level = _Level(
                label,
                limit=_OpenFile(directory / "memory.limit_in_bytes"),
                usage=_OpenFile(directory / "memory.usage_in_bytes"),
                stat=_OpenFile(directory / "memory.stat"),
                reclaimable=(b"total_inactive_file", b"total_active_file"),
                has_unseen_ancestors=not step.parts,
            )
        if level.limit.read() is not None:  # no such file: the controller is off at this level
            levels.append(level)
    if not levels and mount.version == 1:
        _LOG.info("headroom: no memory controller files for cgroup %s at %s", path, mount.point)
    return levels


def _limit_of(content: bytes) -> int | None:
    """A limit file's number; ``None`` for "max" and v1's huge number."""
    limit = _number(content)
    return None if limit is None or limit >= _V1_NO_LIMIT_BYTES else limit


def _number(content: bytes | None) -> int | None:
    stripped = (content or b"").strip()
    return int(stripped) if stripped.isdigit() else None


def _number_after(content: bytes, key: bytes) -> int | None:
    """The number behind ``key`` at the start of a line."""
    start = 0 if content.startswith(key + b" ") else content.find(b"\n" + key + b" ") + 1
    if start == 0 and not content.startswith(key + b" "):
        return None
    words = content[start + len(key) :].split(None, 1)
    return _number(words[0]) if words else None


def _unescaped(text: str) -> str:
    """Undo mountinfo's octal escapes, which hide spaces in paths."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
