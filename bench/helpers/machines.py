"""Machines of a small network on this one: each has an address, processes and a name of its own.

A machine is a set of Linux namespaces (network, process ids, host name, mounts) whose first process
sleeps; machines are joined by a bridge, and know each other by name. They share the files of this
machine but for ``/tmp/ray`` and ``/etc/hosts``. What runs on one ends with it.

Not here: what runs on them (``bench.helpers.recipes``).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_OWN_FOLDER = Path("/tmp/ray")


@dataclass(frozen=True, slots=True)
class Machine:
    """One of them.

    Attributes:
        name: host name.
        address: in the network.
        pid: of its first process, as it is seen from here.
    """

    name: str
    address: str
    pid: int

    def inside(self, command: str, folder: Path) -> list[str]:
        """A shell's line that runs there, in a folder."""
        spaces = ["--mount", "--uts", "--net", "--pid"]
        line = f"cd {shlex.quote(str(folder))} && {command}"
        return ["nsenter", f"--target={self.pid}", *spaces, "--", "bash", "-c", line]

    def run(
        self,
        command: str,
        folder: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
        *,
        timeout_s: float = 120.0,
    ) -> str:
        """What a line prints that must not fail.

        Raises:
            SystemExit: it does.
        """
        done = subprocess.run(
            self.inside(command, folder),
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        if done.returncode:
            raise SystemExit(f"{self.name}$ {command}\nfailed ({done.returncode}):\n{done.stdout}")
        return done.stdout

    def processes(self, named: str) -> int:
        """How many processes there have a word in their command line."""
        listed = self.run("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' || true", Path("/"))
        return listed.count(named)


@contextlib.contextmanager
def machines(names: Sequence[str]) -> Iterator[list[Machine]]:
    """Machines 10.0.0.1, 10.0.0.2, … of these names; needs root."""
    mark = uuid.uuid4().hex[:6]
    bridge = f"b{mark}"
    _OWN_FOLDER.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="machines")))
        hosts = folder / "hosts"
        addresses = [f"10.0.0.{k + 1}" for k in range(len(names))]
        rows = [f"{address} {name}" for address, name in zip(addresses, names, strict=True)]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *rows, ""]))
        _ip(f"link add {bridge} type bridge")
        stack.callback(_ip, f"link del {bridge}")
        _ip(f"link set {bridge} up")
        found = []
        for k, (name, address) in enumerate(zip(names, addresses, strict=True)):
            network = f"m{mark}{k}"
            _ip(f"netns add {network}")
            stack.callback(_ip, f"netns del {network}")
            _ip(f"link add v{mark}{k} type veth peer name eth0 netns {network}")
            _ip(f"link set v{mark}{k} master {bridge} up")
            _ip(f"-n {network} addr add {address}/24 dev eth0")
            _ip(f"-n {network} link set eth0 up")
            _ip(f"-n {network} link set lo up")
            _ip(f"-n {network} route add default via {address}")
            found.append(Machine(name, address, stack.enter_context(_first(name, network, hosts))))
        yield found


@contextlib.contextmanager
def _first(name: str, network: str, hosts: Path) -> Iterator[int]:
    """The first process of a machine; all others end with it."""
    begin = f"hostname {name} && mount -t tmpfs tmpfs {_OWN_FOLDER} && "
    begin += f"mount --bind {hosts} /etc/hosts && echo ready && exec sleep infinity"
    # Not ip netns exec, which hides /sys/fs/cgroup.
    command = ["nsenter", f"--net=/run/netns/{network}", "unshare", "--pid", "--fork"]
    process = subprocess.Popen(
        [*command, "--kill-child", "--mount-proc", "--uts", "sh", "-c", begin],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"the machine {name} does not start")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        yield int(children.read_text().split()[0])
    finally:
        process.kill()
        process.wait()


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)
