"""Processors of a machine that this process may really use, its control groups, memory, versions.

The scheduler lets a process run on the processors of its affinity (set by taskset, SLURM, a
cpuset). A CPU quota bounds how much of them its cgroup may use: v1 ``cpu.cfs_quota_us`` /
``cpu.cfs_period_us``, v2 ``cpu.max``. The least of the process's own group and of every ancestor
binds. Under a quota of 2, a machine of 64 processors gives two; further threads only make each
other stand still at the end of each period. A part of a processor counts as one: 1.5 is two
threads, of which one is throttled now and then. Where no quota can be read, affinity alone counts.

Control groups, v1 and v2. ``/proc/PID/cgroup`` names the process's group in each hierarchy.
mountinfo says where a hierarchy is mounted and which group its mount point shows: in a container
that is not the root. A group's files are read at every level from the process's own up to the mount
point, since a limit set anywhere above binds as well. A path that leaves the namespace ("/../..")
stands for the mount point itself.

Files are read anew each time, about 0.1 ms: quotas may change and a process may be moved.

Not here: idle processors (``processes``), memory limits (``headroom``).
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import field
from pathlib import Path, PurePosixPath

from autoloader.host.frozen import frozen

_READ_BYTES = 16384
_STANDARD_ROOT = PurePosixPath("/sys/fs/cgroup")
ROOT = Path(_STANDARD_ROOT)


class KernelFile:
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


@frozen
class Cgroup:
    """One group on the way from the process's own up to the mount point.

    Attributes:
        version: version of the hierarchy, 1 or 2.
        directory: folder of its files.
        below: path of the group below the mount point; empty for the one that is mounted.
        own: whether it is the process's own, and no ancestor.
    """

    version: int
    directory: Path
    below: PurePosixPath
    own: bool
    _files: dict[str, KernelFile] = field(default_factory=dict, repr=False, compare=False)

    def read(self, name: str) -> bytes | None:
        """The content of one of its files, such as "memory.max"; ``None`` when it has none now."""
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = KernelFile(self.directory / name)
        return file.read()

    @property
    def at_mount_point(self) -> bool:
        """True if groups above it, if there are any, cannot be seen."""
        return not self.below.parts

    @property
    def label(self) -> str:
        """For people, such as "cgroup v2 /job_7"."""
        return f"cgroup v{self.version} /{self.below if self.below.parts else ''}"


@frozen
class Mount:
    """One mounted file system.

    Attributes:
        device: device of the file system, as "major:minor".
        shown: folder of it that the mount point shows.
        point: folder where it is mounted.
        kind: kind of file system, such as "ext4" or "cgroup2".
        options: options of the file system; of cgroup v1 the controllers are among them.
    """

    device: str
    shown: PurePosixPath
    point: PurePosixPath
    kind: str
    options: tuple[str, ...]


def mounts(proc: Path = Path("/proc")) -> tuple[Mount, ...]:
    """Mounted file systems that this process sees; none where mountinfo cannot be read."""
    with suppress(OSError):
        return _mounts_in((proc / "self" / "mountinfo").read_text(errors="replace"))
    return ()


@functools.lru_cache(maxsize=4)
def _mounts_in(mountinfo: str) -> tuple[Mount, ...]:
    """Mounts by the text of mountinfo, which a process reads often and seldom finds changed."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        places, about = before.split(), after.split()
        if len(places) > 4 and len(about) > 2:
            shown, point = (PurePosixPath(_unescaped(text)) for text in places[3:5])
            options = tuple(about[2].split(","))
            found.append(Mount(places[2], shown, point, about[0], options))
    return tuple(found)


class ProcessGroups:
    """Groups that bind this process by one controller; looked for anew where it has moved.

    Args:
        controller: name of the controller in v1, such as "memory"; v2 has one hierarchy for all.
        proc: folder where procfs is mounted.
        root: folder that stands for ``/sys/fs/cgroup`` in what mountinfo says.
    """

    def __init__(self, controller: str, proc: Path = Path("/proc"), root: Path = ROOT) -> None:
        self._membership = KernelFile(proc / "self" / "cgroup")
        self._proc, self._root = proc, root
        self._controller = controller
        self._read_for: bytes | None = None
        self._groups: tuple[Cgroup, ...] = ()

    def read(self) -> tuple[Cgroup, ...] | None:
        """Its own group and every ancestor, of each hierarchy; ``None`` where nobody can say.

        The same tuple is given again while the process has not moved.
        """
        membership = self._membership.read()
        if membership is None:
            return None
        if membership != self._read_for:
            self._groups = tuple(self._ancestry(membership.decode(errors="replace")))
            self._read_for = membership
        return self._groups

    def forget(self) -> None:
        """Look for the groups anew with the next reading."""
        self._read_for = None

    def _ancestry(self, membership: str) -> Iterator[Cgroup]:
        """Every group that may bind a process, by what ``/proc/PID/cgroup`` says of it."""
        every = mounts(self._proc)
        unified = [one for one in every if one.kind == "cgroup2"]
        own = [one for one in every if one.kind == "cgroup" and self._controller in one.options]
        for line in membership.splitlines():
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            if number == "0" and not controllers:
                version, candidates = 2, unified
            elif self._controller in controllers.split(","):
                version, candidates = 1, own
            else:
                continue
            if not candidates:
                continue
            fitting = (one for one in candidates if _below(one, path) is not None)
            mount = next(fitting, candidates[0])
            below = _below(mount, path) or PurePosixPath()
            point = Path(mount.point)
            if mount.point.is_relative_to(_STANDARD_ROOT):
                point = self._root / mount.point.relative_to(_STANDARD_ROOT)
            for step in (below, *below.parents) if below.parts else (below,):
                yield Cgroup(version, point / step, step, own=step == below)


def number(content: bytes | None) -> int | None:
    """A file's only number; ``None`` where it has none ("max")."""
    stripped = (content or b"").strip()
    return int(stripped) if stripped.isdigit() else None


def number_after(content: bytes, key: bytes) -> int | None:
    """The number behind ``key`` at the start of a line."""
    words = (b"\n" + content).partition(b"\n%b " % key)[2].split(None, 1)
    return number(words[0]) if words else None


def _below(mount: Mount, path: str) -> PurePosixPath | None:
    """``path`` relative to what the mount shows; ``None`` when it lies elsewhere."""
    pure = PurePosixPath(path)
    if ".." in pure.parts or not pure.is_relative_to(mount.shown):
        return None
    return pure.relative_to(mount.shown)


def _unescaped(text: str) -> str:
    """Undo mountinfo's octal escapes, which hide spaces in paths."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


VERSIONS = (
    "autoloader-rlds",
    "numpy",
    "opencv-python-headless",
    "simplejpeg",
    "tensorflow",
    "torch",
)
"""Packages whose version may change a rate."""


def memory_bytes() -> int:
    """Main memory, whatever of it this process may use."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cpu_model() -> str:
    """The processor as the kernel names it; its architecture where it names none."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        if found := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return found[1].strip()
    return os.uname().machine


def versions(packages: Iterable[str] = VERSIONS) -> dict[str, str]:
    """Versions of packages, as far as they are installed."""
    from importlib import metadata  # with the parser of e-mail, which most runs do not need

    found = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@frozen
class Processors:
    """One reading.

    Attributes:
        allowed: processors of the affinity.
        quota: processors' worth of time that the tightest quota gives; ``None``: there is none.
        source: cgroup that sets it, such as "cgroup v2 /job_7"; "" without one.
        used_s: CPU seconds that cgroup has used so far; ``None`` without one, or unknown.
    """

    allowed: int
    quota: float | None = None
    source: str = ""
    used_s: float | None = None

    @property
    def there(self) -> int:
        """Processors of the whole machine."""
        return os.cpu_count() or self.allowed

    @property
    def count(self) -> int:
        """Whole processors worth a thread each; at least one."""
        if self.quota is None:
            return max(1, self.allowed)
        return max(1, min(self.allowed, math.ceil(self.quota)))

    def shared_by(self, processes: int) -> int:
        """Processors that one of so many like this one may count on, at least one.

        A launcher may have bound each to its own, so that its affinity is its share already; a
        quota is all of theirs together.
        """
        whole = self.there
        if self.quota is not None:
            whole = min(whole, math.ceil(self.quota))
        return max(1, min(self.allowed, whole // max(1, processes)))


class CgroupProcessors:
    """The real ones, of this process.

    Args:
        proc: folder where procfs is mounted.
        cgroup_root: stands for ``/sys/fs/cgroup`` in what mountinfo says.
    """

    def __init__(self, proc: Path = Path("/proc"), cgroup_root: Path = ROOT) -> None:
        self._groups = ProcessGroups("cpu", proc, cgroup_root)
        self._accounts = ProcessGroups("cpuacct", proc, cgroup_root)

    def read(self) -> Processors:
        """A reading: processors of the affinity, and the tightest quota."""
        allowed = len(os.sched_getaffinity(0))
        least: tuple[float, Cgroup] | None = None
        for group in self._groups.read() or ():
            quota = _quota(group)
            if quota is not None and (least is None or quota < least[0]):
                least = quota, group
        if least is None:
            return Processors(allowed)
        return Processors(allowed, least[0], least[1].label, self._used_s(least[1]))

    def _used_s(self, group: Cgroup) -> float | None:
        if group.version == 2:
            used = number_after(group.read("cpu.stat") or b"", b"usage_usec")
            return None if used is None else used / 1e6
        # v1 counts in a controller of its own, which may be mounted elsewhere.
        for other in self._accounts.read() or ():
            if other.version == 1 and other.below == group.below:
                used = number(other.read("cpuacct.usage"))
                return None if used is None else used / 1e9
        return None


def _quota(group: Cgroup) -> float | None:
    """Processors' worth of time a period; ``None`` where the group sets none."""
    if group.version == 2:
        words = [*(group.read("cpu.max") or b"").split(), b"", b""]
        quota, period = number(words[0]), number(words[1])
    else:
        quota = number(group.read("cpu.cfs_quota_us"))  # -1: none
        period = number(group.read("cpu.cfs_period_us"))
    return quota / period if quota and period else None


def usable_processors() -> int:
    """Processors that this process may use now; at least one."""
    return _of_this_process().read().count


_of_this_process = functools.cache(CgroupProcessors)
