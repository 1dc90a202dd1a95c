"""A memory cgroup for one scenario: made below this process's own, with two parts, and removed.

``run`` holds the trainer and the loader, ``beside`` the neighbour; the limit lies on their parent,
so the kernel counts both against it and the loader must look at an ancestor to see it.

Not here: who goes in (each process joins by itself, before it allocates anything).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from pathlib import Path

from bench.control.memory import MIB, held_bytes, is_v2, limit_file, oom_kills, usage_file

SLACK_BYTES = 32 * MIB
PRESS_S = 0.1


class NoGroupError(Exception):
    """No memory cgroup can be made here; says why."""


class MemoryGroup:
    """In a ``with`` block: the cgroup is there, and gone afterwards.

    Args:
        limit_bytes: of all its processes together.

    Raises:
        NoGroupError: on entering, where it cannot be made.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.place = Path()
        self._pressed = threading.Event()

    @property
    def run(self) -> str:
        """Where trainer and loader go."""
        return str(self.place / "run")

    @property
    def beside(self) -> str:
        """Where the neighbour goes."""
        return str(self.place / "beside")

    @property
    def oom_kills(self) -> int:
        """Processes of the whole group that the kernel killed for memory."""
        parts = (self.place, Path(self.run), Path(self.beside))
        return max(sum(map(oom_kills, parts[1:])), oom_kills(self.place))

    def __enter__(self) -> MemoryGroup:
        above = own_group()
        self.place = above / f"autoloader-bench-{uuid.uuid4().hex[:8]}"
        try:
            self.place.mkdir()
            if is_v2(above):
                for place in (above, self.place):
                    (place / "cgroup.subtree_control").write_text("+memory")
            Path(self.run).mkdir()
            Path(self.beside).mkdir()
            self.limit(self._limit_bytes)
        except OSError as error:
            self._remove()
            raise NoGroupError(f"no memory cgroup can be made below {above}: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._pressed.set()
        self._remove()

    def limit(self, size: int) -> None:
        """Set the limit.

        Raises:
            OSError: v1 refuses a limit below what is in use and cannot be taken back.
        """
        limit_file(self.place).write_text(str(size))

    def press(self, size: int) -> None:
        """Lower the limit to ``size``, or follow what is in use down to it from close above.

        v1 refuses a limit below what cannot be taken back, v2 kills at once. So a group that holds
        more than ``size`` gets no more than ``SLACK_BYTES`` on top, until it holds less.
        """
        threading.Thread(target=self._press, args=(size,), daemon=True).start()
        time.sleep(PRESS_S)

    def _press(self, size: int) -> None:
        while not self._pressed.is_set():
            now = max(size, held_bytes(self.place) + SLACK_BYTES)
            with contextlib.suppress(OSError):
                self.limit(size if now <= size + SLACK_BYTES else now)
                if now <= size + SLACK_BYTES:
                    return
            self._pressed.wait(PRESS_S)

    def _remove(self) -> None:
        """Its processes have ended; the kernel may need a moment to see it."""
        deadline = time.monotonic() + 5.0
        for place in (Path(self.run), Path(self.beside), self.place):
            while place.exists():
                try:
                    place.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)


def join(group: str) -> None:
    """Put this process into a group; "" is none."""
    if group:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))


def own_group() -> Path:
    """Directory of this process's memory cgroup; v2 groups are made at the root of the mount.

    Raises:
        NoGroupError: there is none to be seen.
    """
    v1 = v2 = None
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            v1 = path
        elif number == "0":
            v2 = path
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, mount = left.split(" ")[3:5]
        if kind == "cgroup" and v1 is not None and "memory" in options.split(" ")[-1].split(","):
            below = v1.removeprefix(root if root != "/" else "").lstrip("/")
            for place in (Path(mount) / below, Path(mount)):
                with contextlib.suppress(OSError):
                    if usage_file(place).exists():
                        return place
        # A v2 group with processes in it cannot have children with controllers; the root can.
        if kind == "cgroup2" and v1 is None and v2 is not None:
            place = Path(mount)
            if "memory" in (place / "cgroup.controllers").read_text().split():
                return place
    raise NoGroupError("no memory controller is mounted here")
