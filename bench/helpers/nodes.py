"""Nodes of a cluster of Ray's on this machine: each in a cgroup, and in a network of its own.

A node's processors are those of its cpu cgroup, and its link is a veth pair shaped by ``tbf``. All
of it is gone afterwards.

Not here: what is measured on them (``rates``, ``faults``, ``strangers``, ``catalogue``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

STORE_BYTES = 256 * 2**20
_GROUPS = Path("/sys/fs/cgroup/cpu")
_PERIOD_US = 100_000
_STARTS_S = 120.0
_TRIES = 3
_RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block"]


class StartError(Exception):
    """A node of Ray's does not start; with what it printed last."""


@contextlib.contextmanager
def cpu_group(cpus: float) -> Iterator[Path]:
    """A cpu cgroup of so many processors; whoever is left in it is killed at the end."""
    place = _GROUPS / f"autoloader-helpers-{uuid.uuid4().hex[:8]}"
    place.mkdir()
    try:
        (place / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (place / "cpu.cfs_quota_us").write_text(str(int(cpus * _PERIOD_US)))
        yield place
    finally:
        kill_all(place)
        place.rmdir()


def kill_all(group: Path) -> None:
    """Kill whoever is in a cgroup, all at once, until nobody is."""
    while pids := (group / "cgroup.procs").read_text().split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)


@contextlib.contextmanager
def two_networks(bits_per_s: float) -> Iterator[tuple[str, str]]:
    """Two network namespaces, 10.77.0.1 and 10.77.0.2, with a shaped link between them."""
    mark = uuid.uuid4().hex[:6]
    names = (f"al{mark}a", f"al{mark}b")
    run = ["ip", "link", "add", f"v{mark}a", "type", "veth", "peer", "name", f"v{mark}b"]
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        subprocess.run(run, check=True)
        for k, name in enumerate(names):
            link = f"v{mark}{'ab'[k]}"
            inside = ["ip", "netns", "exec", name]
            shape = ["tc", "qdisc", "add", "dev", link, "root", "tbf", "rate"]
            shape += [f"{bits_per_s:.0f}bit", "burst", "256kb", "latency", "50ms"]
            subprocess.run(["ip", "link", "set", link, "netns", name], check=True)
            for command in (
                ["ip", "addr", "add", f"10.77.0.{k + 1}/24", "dev", link],
                ["ip", "link", "set", link, "up"],
                ["ip", "link", "set", "lo", "up"],
                shape,
            ):
                subprocess.run([*inside, *command], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def inside(group: Path, network: str, command: list[str]) -> list[str]:
    """A command that runs in a cgroup, and in a network namespace ("": this one)."""
    entered = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
    return [*entered, *(["ip", "netns", "exec", network] if network else []), *command]


@contextlib.contextmanager
def node(
    cpus: int,
    *,
    group: Path,
    network: str = "",
    ip: str = "127.0.0.1",
    head: str = "",
    number: int = 0,
    store_bytes: int = STORE_BYTES,
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """A node of Ray's with so many processors to give; the address of its cluster.

    Args:
        cpus: that Ray may use.
        group: its cpu cgroup.
        network: its network namespace.
        ip: its address there.
        head: the cluster's address; "": it is the head.
        number: of its cluster, where one process has several.
        store_bytes: of its object store.
        prefix: a command that runs it, as ``unshare`` does.
        environment: variables of it, and of what it starts.
    """
    address = head or f"{ip}:{6400 + (os.getpid() + number) % 2000}"
    with contextlib.ExitStack() as stack:
        own = ["--head", f"--port={address.rpartition(':')[2]}", "--include-dashboard=false"]
        if not head:  # sockets have short names, so the folder has one
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="alray"))
            own.append(f"--temp-dir={folder}")
        own = [f"--address={head}"] if head else own
        common = [f"--num-cpus={cpus}", f"--node-ip-address={ip}"]
        common += [f"--object-store-memory={store_bytes}", "--disable-usage-stats"]
        log = stack.enter_context(tempfile.TemporaryFile())
        command = inside(group, network, [*prefix, *_RAY, *own, *common])
        of_it = {**os.environ, **environment}
        for left in reversed(range(_TRIES)):
            process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=of_it
            )
            try:
                _await_start(process, log.fileno())
                break
            except StartError:  # a busy machine: Ray gives up after half a minute
                if not left:
                    raise
        try:
            yield address
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


def _await_start(process: subprocess.Popen[bytes], log: int) -> None:
    deadline = time.monotonic() + _STARTS_S
    while time.monotonic() < deadline and process.poll() is None:
        text = os.pread(log, 1 << 16, 0).decode("utf-8", "replace")
        if "Ray runtime started" in text:
            return
        time.sleep(0.2)
    process.kill()
    raise StartError(
        f"a node of Ray's does not start: {os.pread(log, 1 << 16, 0).decode()[-2000:]}"
    )
