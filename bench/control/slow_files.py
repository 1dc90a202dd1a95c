"""A file system that shows a folder as it is, and answers reads as slowly as it is told.

``SlowFiles`` mounts it from a process of its own and unmounts it; ``python -m
bench.control.slow_files SOURCE TARGET`` is that process, told on stdin, one JSON line each:
``{"storage_ms": M}`` (every read request takes at least so long) and ``{"stalls": true}`` (the
first dataset's files do not answer until it says false).

Theory of operation. The server speaks the kernel's FUSE protocol (``include/uapi/linux/fuse.h``,
version 7.31) on ``/dev/fuse`` itself, since there is nothing to it for files that are only read:
look up, attributes, open, read, list. Reads bypass the page cache (FOPEN_DIRECT_IO), so that every
one of the loader's reads is a request, in the second pass as in the first. Requests are served by
threads, each waiting out its own delay. Mounting needs root.

Not here: anything that writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

THREADS = 16
_DEVICE = "/dev/fuse"
_ASK_BYTES = 256 * 1024
_MOST_READ = 128 * 1024
_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("<QQQQII")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS = 1, 2, 3, 14, 15, 17
_RELEASE, _FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR = 18, 25, 26, 27, 28, 29
_INTERRUPT, _DESTROY, _BATCH_FORGET = 36, 38, 42
_DIRECT_IO = 1
_READ_ONLY = 1
_DETACH = 2


class SlowFiles:
    """In a ``with`` block: ``target`` shows ``source``.

    Raises:
        PermissionError: on entering, where nothing may be mounted.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self._source = source
        self._target = target
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> SlowFiles:
        self._target.mkdir()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench.control.slow_files",
                str(self._source),
                str(self._target),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "mounted":
            self._process.communicate()
            raise PermissionError(f"no file system can be mounted at {self._target} (FUSE)")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.umount2(str(self._target).encode(), _DETACH)
        assert self._process is not None
        self._process.kill()  # what still waits for an answer gets an error
        self._process.communicate()

    def tell(self, command: dict[str, Any]) -> None:
        """One JSON line to the server."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()


class _Server:
    """Answers the kernel's requests about ``source``."""

    def __init__(self, source: Path, device: int) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._paths = {1: str(source)}
        self._nodes = {str(source): 1}
        self._files: dict[int, int] = {}
        self._stalled_folder = ""
        self.delay_s = 0.0
        self._flowing = threading.Event()
        self._flowing.set()
        folders = sorted(one.name for one in source.iterdir() if one.is_dir())
        self._stalled_folder = f"{source}/{folders[0]}/" if folders else ""

    def stall(self, stalls: bool) -> None:
        """Whether the first dataset's files wait."""
        if stalls:
            self._flowing.clear()
        else:
            self._flowing.set()

    def serve(self) -> None:
        """Answer until the file system is unmounted."""
        while True:
            try:
                asked = os.read(self._device, _ASK_BYTES)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                return
            _, opcode, unique, node, *_ = _IN.unpack_from(asked)
            if opcode in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            code, answer = 0, b""
            try:
                answer = self._answer(opcode, node, asked[_IN.size :])
            except OSError as error:
                code = -(error.errno or errno.EIO)
            with contextlib.suppress(OSError):  # whoever asked may be gone
                os.write(self._device, _OUT.pack(_OUT.size + len(answer), code, unique) + answer)
            if opcode == _DESTROY:
                return

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:
        if opcode == _INIT:
            major, minor, ahead, flags = struct.unpack_from("<IIII", body)
            del major, ahead, flags
            return struct.pack(
                "<IIIIHHIIHHI28x", 7, min(31, minor), _MOST_READ, 0, 64, 48, 4096, 1, 0, 0, 0
            )
        path = self._paths[node]
        if opcode == _LOOKUP:
            child = f"{path}/{body.rstrip(bytes(1)).decode()}"
            found = os.stat(child)  # noqa: PTH116 paths are text here
            number = self._node(child)
            return _ENTRY.pack(number, 0, 3600, 3600, 0, 0) + _attributes(number, found)
        if opcode == _GETATTR:
            found = os.stat(path)  # noqa: PTH116
            return struct.pack("<QII", 3600, 0, 0) + _attributes(node, found)
        if opcode == _OPEN:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return struct.pack("<QII", handle, _DIRECT_IO, 0)
        if opcode == _READ:
            handle, offset, size = struct.unpack_from("<QQI", body)
            return self._read(path, handle, offset, size)
        if opcode == _OPENDIR:
            return struct.pack("<QII", 0, 0, 0)
        if opcode == _READDIR:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self._list(path, offset, size)
        if opcode == _RELEASE:
            (handle,) = struct.unpack_from("<Q", body)
            os.close(handle)
            return b""
        if opcode == _STATFS:
            return struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
        if opcode in (_FLUSH, _RELEASEDIR, _DESTROY):
            return b""
        raise OSError(errno.ENOSYS, "not served")

    def _read(self, path: str, handle: int, offset: int, size: int) -> bytes:
        due = time.monotonic() + self.delay_s
        data = os.pread(handle, size, offset)
        if self._stalled_folder and path.startswith(self._stalled_folder):
            self._flowing.wait()
        left = due - time.monotonic()
        if left > 0:
            time.sleep(left)
        return data

    def _list(self, path: str, offset: int, size: int) -> bytes:
        names = [".", "..", *sorted(os.listdir(path))]  # noqa: PTH208
        answer = b""
        for number, name in enumerate(names[offset:], start=offset + 1):
            encoded = name.encode()
            entry = struct.pack("<QQII", 1, number, len(encoded), 0) + encoded
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer

    def _node(self, path: str) -> int:
        with self._lock:
            number = self._nodes.setdefault(path, len(self._nodes) + 1)
            self._paths[number] = path
            return number


def _attributes(node: int, found: os.stat_result) -> bytes:
    mode = found.st_mode if stat.S_ISDIR(found.st_mode) else stat.S_IFREG | 0o444
    times = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime))
    nanoseconds = (0, found.st_mtime_ns % 10**9, 0)
    sizes = (found.st_size, -(-found.st_size // 512))
    return _ATTR.pack(node, *sizes, *times, *nanoseconds, mode, found.st_nlink, 0, 0, 0, 4096, 0)


def main() -> None:
    source, target = Path(sys.argv[1]).resolve(), sys.argv[2]
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        print(f"not mounted: {error}", flush=True)
        return
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    flags = ctypes.c_ulong(_READ_ONLY)
    if libc.mount(b"bench", target.encode(), b"fuse", flags, options.encode()) != 0:
        print(f"not mounted: {os.strerror(ctypes.get_errno())}", flush=True)
        return
    server = _Server(source, device)
    for _ in range(THREADS):
        threading.Thread(target=server.serve, daemon=True).start()
    print("mounted", flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        server.delay_s = told.get("storage_ms", server.delay_s * 1e3) / 1e3
        if "stalls" in told:
            server.stall(bool(told["stalls"]))
    server.stall(False)
    libc.umount2(target.encode(), _DETACH)


if __name__ == "__main__":
    main()
