"""Which control groups bind a process, v1 and v2: its own and every ancestor that can be seen.

Theory of operation. ``/proc/PID/cgroup`` names the process's group in each hierarchy; mountinfo
says where a hierarchy is mounted and which group its mount point shows, for in a container that is
not the root. A group's files are read at every level from the process's own up to the mount point:
a limit set anywhere above binds as well. A path that leaves the namespace ("/../..") stands for the
mount point itself.

Not here: what the files say of memory (``host.probes.headroom``) and of processors
(``host.machine``).
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

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


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One group on the way from the process's own up to the mount point.

    Attributes:
        version: version of the hierarchy, 1 or 2.
        directory: folder of its files.
        below: its path below the mount point; empty for what the mount point shows.
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


@dataclass(frozen=True, slots=True)
class _Mount:
    """A hierarchy: its version, the group its mount point shows, and where that is."""

    version: int
    shown: PurePosixPath
    point: Path


class ProcessGroups:
    """Groups that bind a process by one controller; looked for anew where the process has moved.

    Args:
        controller: name of the controller in v1, such as "memory"; v2 has one hierarchy for all.
        proc: folder where procfs is mounted.
        root: folder that stands for ``/sys/fs/cgroup`` in what mountinfo says.
        pid: id of the process; "self" for this process.
    """

    def __init__(
        self,
        controller: str,
        proc: Path = Path("/proc"),
        root: Path = ROOT,
        pid: int | str = "self",
    ) -> None:
        self._membership = KernelFile(proc / str(pid) / "cgroup")
        self._mounts = functools.partial(_mounts, controller, proc / "self" / "mountinfo", root)
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
            text = membership.decode(errors="replace")
            self._groups = tuple(_ancestry(text, self._controller, self._mounts()))
            self._read_for = membership
        return self._groups

    def forget(self) -> None:
        """Look for the groups anew with the next reading."""
        self._read_for = None


def _ancestry(membership: str, controller: str, mounts: list[_Mount]) -> list[Cgroup]:
    """Every group that may bind a process, by what ``/proc/PID/cgroup`` says of it."""
    found: list[Cgroup] = []
    for line in membership.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            version = 2
        elif controller in controllers.split(","):
            version = 1
        else:
            continue
        candidates = [mount for mount in mounts if mount.version == version]
        if not candidates:
            continue
        mount = next((m for m in candidates if _below(m, path) is not None), candidates[0])
        below = _below(mount, path) or PurePosixPath()
        found += [
            Cgroup(version, mount.point / step, step, own=step == below)
            for step in ((below, *below.parents) if below.parts else (below,))
        ]
    return found


def number(content: bytes | None) -> int | None:
    """A file's only number; ``None`` where it has none ("max")."""
    stripped = (content or b"").strip()
    return int(stripped) if stripped.isdigit() else None


def number_after(content: bytes, key: bytes) -> int | None:
    """The number behind ``key`` at the start of a line."""
    start = 0 if content.startswith(key + b" ") else content.find(b"\n" + key + b" ") + 1
    if start == 0 and not content.startswith(key + b" "):
        return None
    words = content[start + len(key) :].split(None, 1)
    return number(words[0]) if words else None


def _mounts(controller: str, mountinfo: Path, root: Path) -> list[_Mount]:
    """Mounts that may hold the controller's files."""
    try:
        lines = mountinfo.read_text(errors="replace").splitlines()
    except OSError:
        guesses = [_Mount(1, PurePosixPath("/"), root / controller)]
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
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            version = 1
        else:
            continue
        pure = PurePosixPath(point)
        inside = pure.is_relative_to(_STANDARD_ROOT)
        place = root / pure.relative_to(_STANDARD_ROOT) if inside else Path(point)
        mounts.append(_Mount(version, PurePosixPath(shown), place))
    return mounts


def _below(mount: _Mount, path: str) -> PurePosixPath | None:
    """``path`` relative to what the mount shows; ``None`` when it lies elsewhere."""
    pure = PurePosixPath(path)
    if ".." in pure.parts or not pure.is_relative_to(mount.shown):
        return None
    return pure.relative_to(mount.shown)


def _unescaped(text: str) -> str:
    """Undo mountinfo's octal escapes, which hide spaces in paths."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
