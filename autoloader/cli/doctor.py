"""``autoloader doctor``: what on this machine will hurt a run.

A check looks, reports facts and findings, and changes nothing. Checks take where to look from a
``Machine``, so that tests can plant faults. ``examine`` runs them all; a check that fails itself is
a finding too, and the others go on.

A loader's child ends with its trainer. A child that is stopped (SIGSTOP, a debugger) cannot end,
and keeps its memory.

Not here: reading limits (``host.headroom``), the probe of storage (``host.storage``),
mending anything.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any, Literal

import psutil
import typer

from autoloader.cli.output import answered, emit, wants_json
from autoloader.controller.profiles import Untuned, load_profile
from autoloader.decode.probe import probe_video
from autoloader.errors import AutoloaderError, PipelineError, ProfileError
from autoloader.host.clock import Clock
from autoloader.host.frozen import frozen
from autoloader.host.gpu import gpu_name, open_nvml
from autoloader.host.headroom import HeadroomProbe, kernel_records
from autoloader.host.machine import ROOT, CgroupProcessors, memory_bytes
from autoloader.host.storage import by_file_system, is_far, probe_reads
from autoloader.host.units import GIB, MIB, format_bytes, format_seconds
from autoloader.index import find_indexes
from autoloader.index.counting import count_mixture
from autoloader.index.shard import any_index
from autoloader.index.valid import blanks
from autoloader.samples.resolve import ResolvedDataset, resolve
from autoloader.spec import PipelineSpec

FOUND_SOMETHING = 1
"""Exit code where a check found something."""
SLOW_READ_S = 4e-3
"""A random read that takes longer is a finding: a seek of a disk, or a network."""
_KILLED = re.compile(
    r"(?:^\d+,\d+,(?P<us>\d+),[^;\n]*;)?"
    r"(?P<where>Memory cgroup out of memory|Out of memory)[^\n]*?Kill(?:ed)? process (?P<pid>\d+) "
    r"\((?P<name>[^)\n]*)\)(?:[^\n]*?anon-rss:(?P<kib>\d+)kB)?",
    re.MULTILINE,
)
_MOST_KILLS = 5
_LIBRARY_MISSING = (
    "NVMLError_LibraryNotFound",
    "NVMLError_DriverNotLoaded",
    "ImportError",
    "OSError",
)
"""What a machine without an NVIDIA driver says."""
_FEW_DESCRIPTORS = 512
_FULL = 0.8
_FEW_PROCESSORS = 2
_MANY_TIMES = 4
_FAR_KEYFRAMES = 8
"""Decodes for a frame that a run feels."""
_CHILD = "autoloader.process.worker"
_SEEN = ("pid", "ppid", "uids", "status", "cmdline", "num_threads", "memory_info")


@frozen
class Fact:
    """Something that was looked at and hurts no run.

    Attributes:
        text: one sentence that says what was found.
        check: name of the check, such as "memory"; ``examine`` fills it in.
    """

    text: str
    check: str = ""


@frozen
class Finding:
    """Something that will hurt a run.

    Attributes:
        evidence: observation of the check, with its numbers.
        remedy: one sentence that says what to do about it.
        severity: "error" ends a run or makes its data wrong; "warning" makes it slow or fragile.
        check: name of the check; ``examine`` fills it in.
    """

    evidence: str
    remedy: str
    severity: Literal["error", "warning"] = "warning"
    check: str = ""


@dataclass(frozen=True)
class Machine:
    """Places where the checks look.

    Attributes:
        proc: folder where procfs is mounted.
        cgroup_root: stands for ``/sys/fs/cgroup`` in what mountinfo says.
        kernel_log: the kernel's log.
        nvml: stands for ``pynvml``; ``None``: the real one.
        stdout: descriptor of the standard output of the examination; ``None``: it is not examined.
        environment: variables of the environment, by name.
    """

    proc: Path = Path("/proc")
    cgroup_root: Path = ROOT
    kernel_log: Path = Path("/dev/kmsg")
    nvml: ModuleType | Any | None = None
    stdout: int | None = 1
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def processes(self) -> Iterator[dict[str, Any]]:
        """Facts of each process that can be seen, by psutil's names."""
        for entry in self.proc.iterdir():
            with contextlib.suppress(psutil.NoSuchProcess, ValueError):
                seen = psutil.Process(int(entry.name)).as_dict(_SEEN)
                if seen["uids"]:  # else the kernel hides it
                    yield seen


Seen = Fact | Finding
Check = Callable[[Machine], Iterable[Seen]]


def memory(machine: Machine, floor_bytes: int) -> Iterator[Seen]:
    """The limits of host, cgroups and SLURM, and the headroom against the floor."""
    probe = HeadroomProbe(machine.proc, machine.cgroup_root)
    try:
        room, limits = probe.read(), probe.limits()
    except PipelineError as error:
        yield Finding(error.what, error.remedy, severity="error")
        return
    total = min([memory_bytes(), *(limit for _, limit in limits)])
    for label, limit in limits:
        yield Fact(f"{label} is limited to {format_bytes(limit)}")
    yield Fact(
        f"{format_bytes(room.headroom_bytes)} of {format_bytes(total)} can still be taken; "
        f"{room.source} binds"
    )
    if room.headroom_bytes < floor_bytes:
        yield Finding(
            f"{format_bytes(room.headroom_bytes)} can still be taken ({room.source} binds), less "
            f"than the floor of {format_bytes(floor_bytes)}: a loader will not start",
            "end other programs that use memory, ask for more, or lower --ram-floor",
            severity="error",
        )
    yield from _slurm(machine, probe.cgroup_limit_bytes())


def _slurm(machine: Machine, cgroup_bytes: int | None) -> Iterator[Seen]:
    """Memory that SLURM gives the job; it may kill by its own accounts, which no cgroup shows."""
    mib = machine.environment.get("SLURM_MEM_PER_NODE", "")
    if not mib.isdigit() or int(mib) == 0:  # 0: all of the node
        return
    given = int(mib) * MIB
    yield Fact(f"SLURM gives the job {format_bytes(given)} on each node")
    if cgroup_bytes is None or cgroup_bytes > given:
        bound = "none" if cgroup_bytes is None else format_bytes(cgroup_bytes)
        yield Finding(
            f"SLURM gives the job {format_bytes(given)}, and the cgroup's limit is {bound}: SLURM "
            "may kill by its own accounts, which the loader cannot see",
            "raise --ram-floor by the node's memory that is not the job's, or have the cluster "
            "enforce memory by cgroups (ConstrainRAMSpace=yes)",
        )


def kills(machine: Machine) -> Iterator[Seen]:
    """Processes that the kernel killed for memory, by its log; those of other cgroups are facts."""
    try:
        log = b"".join(kernel_records(machine.kernel_log)).decode(errors="replace")
    except OSError as error:
        yield Fact(f"{machine.kernel_log} cannot be read ({error.strerror})")
        return
    every = list(_KILLED.finditer(log))
    if not every:
        yield Fact("the kernel's log names no process that was killed for memory")
        return
    own = _own_cgroups(machine)
    found = [kill for kill in every if _binds_us(kill, log, own)]
    if away := len(every) - len(found):
        yield Fact(f"the kernel killed {_processes(away)} in other cgroups, at limits of their own")
    if not found:
        return
    last = [
        f"{kill['name']} (pid {kill['pid']}"
        + (f", {format_bytes(int(kill['kib']) * 1024)}" if kill["kib"] else "")
        + (", in its cgroup)" if kill["where"].startswith("Memory") else ")")
        for kill in found[-_MOST_KILLS:]
    ]
    ago = ""
    with contextlib.suppress(OSError, ValueError, TypeError):  # a record without a time
        up_s = float((machine.proc / "uptime").read_text().split()[0])
        since_s = up_s - int(found[-1]["us"]) / 1e6
        ago = f", the last {format_seconds(since_s)} ago" if since_s >= 0 else ""
    yield Finding(
        f"the kernel killed {_processes(len(found))} for memory since the log began{ago}; "
        f"the last: {', '.join(reversed(last))}",
        "give the run a --ram-floor that the others on this machine need, and see what each "
        "process holds",
    )


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _own_cgroups(machine: Machine) -> list[str]:
    """Paths of this process's memory cgroups; none where they cannot be told from others."""
    try:
        lines = (machine.proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = [line.split(":", 2) for line in lines]
    paths = [path for _, of, path in groups if not of or "memory" in of.split(",")]
    inner = [path for path in paths if path != "/"]
    # A container may see its own group as the root, and the log names the host's path.
    limited = HeadroomProbe(machine.proc, machine.cgroup_root).cgroup_limit_bytes() is not None
    return inner or ([] if limited else paths)


def _binds_us(kill: re.Match[str], log: str, own: Sequence[str]) -> bool:
    """Tell whether the limit that a process was killed at binds this process too, or may."""
    before = log.rfind("oom_memcg=", 0, kill.start("where"))
    if not own or before < 0 or not kill["where"].startswith("Memory"):
        return True
    group = Path(re.split(r"[,\n]", log[before + len("oom_memcg=") :], maxsplit=1)[0])
    return any(Path(path).is_relative_to(group) for path in own)


def gpus(machine: Machine) -> Iterator[Seen]:
    """Each device's health, and who holds its memory."""
    try:
        with open_nvml(machine.nvml) as module:
            for number in range(module.nvmlDeviceGetCount()):
                yield from _device(machine, module, number)
    except Exception as error:  # noqa: BLE001  (drivers fail in many ways)
        if (kind := type(error).__name__) in _LIBRARY_MISSING:
            yield Fact("no NVIDIA driver here")
            return
        yield Finding(
            f"NVML does not answer ({kind}: {error}): the controller cannot see whether the GPU "
            "waits",
            "run nvidia-smi; after a driver update the machine must be started anew",
        )


def _device(machine: Machine, module: Any, number: int) -> Iterator[Seen]:
    """Facts and findings about one GPU, by NVML."""
    device = module.nvmlDeviceGetHandleByIndex(number)
    called = f"GPU {number} ({gpu_name(module, device)})"
    memory = module.nvmlDeviceGetMemoryInfo(device)
    yield Fact(f"{called}: {format_bytes(memory.used)} of {format_bytes(memory.total)} in use")
    errors = 0
    with contextlib.suppress(Exception):  # not every device has ECC
        errors = module.nvmlDeviceGetTotalEccErrors(
            device, module.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, module.NVML_VOLATILE_ECC
        )
    if errors:
        yield Finding(
            f"{called} counts {errors} memory errors that could not be corrected",
            "take another GPU, and have this one reset or replaced",
            severity="error",
        )
    held = 0
    for process in module.nvmlDeviceGetComputeRunningProcesses(device):
        taken = process.usedGpuMemory or 0
        held += taken
        if not (machine.proc / str(process.pid)).exists():
            yield Finding(
                f"{called}: {format_bytes(taken)} are held by pid {process.pid}, which cannot be "
                "seen from here: it has ended, or runs in another container",
                f"fuser -v /dev/nvidia{number} on the host names who keeps the device open",
            )
        else:
            yield Fact(f"{called}: {format_bytes(taken)} are held by pid {process.pid}")
    if memory.used - held > memory.total // 10 + GIB:
        yield Finding(
            f"{called}: {format_bytes(memory.used - held)} are in use and no process is named",
            f"fuser -v /dev/nvidia{number} on the host names who keeps the device open",
        )


def limits(machine: Machine) -> Iterator[Seen]:
    """Limits of the shell (``ulimit``)."""
    kinds = (getattr(resource, f"RLIMIT_{one}") for one in ("NOFILE", "NPROC", "AS", "MEMLOCK"))
    soft = (resource.getrlimit(kind)[0] for kind in kinds)
    descriptors, most, space, locked = (
        math.inf if n == resource.RLIM_INFINITY else n for n in soft
    )
    yield Fact(f"{_shown(descriptors)} open files (ulimit -n)")
    if descriptors < _FEW_DESCRIPTORS:
        yield Finding(
            f"a process may open {descriptors} files (ulimit -n): shard files are opened and "
            "closed again and again",
            "ulimit -n 4096",
        )
    own = [one for one in machine.processes() if one["uids"].real == os.getuid()]
    threads = sum(one["num_threads"] for one in own)
    yield Fact(f"{_shown(most)} threads of this user (ulimit -u), {threads} in use")
    if threads > _FULL * most:
        yield Finding(
            f"{threads} of the {most} threads that this user may have are in use (ulimit -u)",
            "end processes of this user, or raise ulimit -u",
            severity="error",
        )
    if space < math.inf:
        yield Finding(
            f"the address space is limited to {format_bytes(space)} (ulimit -v): maps of files "
            "and rings count in full, though they hold no memory",
            "ulimit -v unlimited; a cgroup or --ram-floor bounds memory itself",
        )
    shown = format_bytes(locked) if locked < math.inf else "unlimited"
    yield Fact(f"{shown} of locked memory (ulimit -l)")


def processors(machine: Machine) -> Iterator[Seen]:
    """Affinity and quota against the processors there are."""
    found = CgroupProcessors(machine.proc, machine.cgroup_root).read()
    there = found.there
    quota = "" if found.quota is None else f", a quota of {found.quota:g} ({found.source})"
    yield Fact(f"{found.allowed} of {there} by affinity{quota}")
    if found.count <= _FEW_PROCESSORS and there >= _MANY_TIMES * found.count:
        yield Finding(
            f"this process may use {found.count} of {there} processors "
            f"(affinity {found.allowed}{quota})",
            "ask the scheduler for more (SLURM: --cpus-per-task), or lift the quota",
        )


def output(machine: Machine) -> Iterator[Seen]:
    """Buffering of a training's output by Python."""
    if machine.stdout is None:
        return
    mode = os.fstat(machine.stdout).st_mode
    into = "a file" if stat.S_ISREG(mode) else "a pipe" if stat.S_ISFIFO(mode) else ""
    if not into:
        yield Fact("stdout is not buffered by blocks")
    elif machine.environment.get("PYTHONUNBUFFERED"):
        yield Fact(f"stdout is {into}, and PYTHONUNBUFFERED is set")
    else:
        yield Finding(
            f"stdout is {into}, and Python writes to it 8 KiB at a time: the last lines before a "
            "kill are lost, and a run that waits looks hung",
            "export PYTHONUNBUFFERED=1",
        )


def _shown(limit: float) -> str:
    return str(limit) if limit < math.inf else "any number of"


def leftovers(machine: Machine) -> Iterator[Seen]:
    """Children without a trainer."""
    orphans = 0
    for one in machine.processes():
        told = re.search(r"\0--parent=(\d+)", "\0".join(one["cmdline"] or ()))
        if told and _CHILD in one["cmdline"] and one["ppid"] != int(told[1]):
            orphans += 1
            yield Finding(
                f"pid {one['pid']} is the child of a loader whose trainer (pid {told[1]}) is gone; "
                f"it is {one['status']} and holds {format_bytes(one['memory_info'].rss)}",
                f"kill -9 {one['pid']}",
            )
    if not orphans:
        yield Fact("no child or ring of a run that is gone")


def readable(spec: PipelineSpec, split: str, into: list[ResolvedDataset]) -> Iterator[Seen]:
    """Find datasets that cannot be read; add readable datasets to ``into``."""
    for declared in spec.datasets:
        alone = spec.model_copy(update={"datasets": (declared,), "weights": "explicit"})
        try:
            mixture = resolve(alone, split)
            (dataset,) = mixture.datasets
            if not dataset.streamable:
                count_mixture(mixture, probe_only=True)
        except AutoloaderError as error:
            yield Finding(error.what, error.remedy, severity="error")
        else:
            into.append(dataset)


def mirrors(dataset: ResolvedDataset, max_corrupt_ratio: float) -> Iterator[Seen]:
    """Videos of a dataset that the spec reads and that are not there.

    Args:
        dataset: dataset of any format.
        max_corrupt_ratio: the part of its episodes without which a run still goes on.
    """
    shown = {feature.key for of in dataset.cameras.values() for feature in of}
    cameras = None if dataset.transform else shown  # a user's function may show others
    videos = dataset.directory.missing_videos(cameras, dataset.slices)
    if videos is None:
        return
    stops = len(videos.without) > max_corrupt_ratio * videos.episodes
    yield Finding(
        f"dataset {dataset.name!r}: {videos.told('the spec reads')}"
        + (f", more than errors.max_corrupt_ratio={max_corrupt_ratio}" if stops else ""),
        "fetch the rest of the dataset, or list the episodes that are whole in the field episodes "
        "(autoloader init does)",
        severity="error" if stops else "warning",
    )


def videos(dataset: ResolvedDataset) -> Iterator[Seen]:
    """Frames to be decoded for each frame that a sample of a dataset shows."""
    found = probe_video(dataset)
    if found is None:
        return
    told = f"dataset {dataset.name!r}: {found.told}"
    if found.decodes > _FAR_KEYFRAMES:
        yield Finding(told, found.advice or "")
    else:
        yield Fact(f"{told}; {found.advice}" if found.advice else told)


def indexes(datasets: list[ResolvedDataset], spec: Path) -> Iterator[Seen]:
    """Indexes of local datasets: missing, stale, and texts and cameras that all episodes lack."""
    local = [dataset for dataset in datasets if not dataset.remote]
    without: list[str] = []
    stale: list[str] = []
    unread = 0
    for dataset, found in zip(local, find_indexes(local), strict=True):
        if found is not None:
            for clause, remedy in blanks(found):
                yield Finding(f"dataset {dataset.name!r}: {clause}", remedy, check="data")
            continue
        paths = {piece.path for piece in dataset.slices}
        unread += sum(Path(path).stat().st_size for path in paths if Path(path).exists())
        (stale if any(map(any_index, paths)) else without).append(dataset.name)
    if stale:
        yield Finding(
            f"the index of {', '.join(stale)} is of other files, other features or another "
            f"version: the next start reads {format_bytes(unread)} to build it",
            f"autoloader index {quote(str(spec))}",
        )
    if without:
        yield Fact(
            f"{len(without)} of {len(local)} datasets have no index yet; the first start by index "
            f"reads {format_bytes(unread)} to build it"
        )
    if not stale and not without:
        yield Fact("every local dataset is indexed")


def storage(machine: Machine, files: Sequence[str]) -> Iterator[Seen]:
    """Kind and speed of each file system that holds some of ``files``."""
    for kind, here in sorted(by_file_system(files, machine.proc).items()):
        place = str(Path(here[0]).parent)
        rates = probe_reads(here, Clock().now_s)
        if rates is None:
            yield Fact(f"{place} lies on {kind}; its files are too small to measure")
            continue
        shown = (
            f"{place} lies on {kind}: 20 KiB at random take {1e3 * rates.random_s:.2f} ms, "
            f"in order come {rates.in_order / 1e6:.0f} MB/s"
            + (" (the page cache may have answered)" if rates.cached else "")
        )
        if rates.random_s > SLOW_READ_S:
            yield Finding(
                f"{shown}; reading by index takes frames from random places, and waits",
                "copy the data to a local disk, or have it read by blocks (mixing.locality, which "
                "`autoloader plan` proposes), or let memory above the floor hold frames "
                "(cache_bytes), or read it in order (reader: stream)",
            )
        elif is_far(kind):
            yield Finding(
                f"{shown}; others share it, and it may be slower when they use it",
                "copy the data to a local disk where there is one",
            )
        else:
            yield Fact(shown)


def examine(
    machine: Machine,
    *,
    spec: Path | None = None,
    split: str = "train",
    profile: str | None = None,
    floor_bytes: int | None = None,
) -> list[Seen]:
    """Run every check.

    Args:
        machine: places where the checks look.
        spec: a mixture's spec file, whose data is examined as well.
        split: split of the spec that is examined.
        profile: a host profile's name or file; by default the one that a run would take.
        floor_bytes: memory that must stay free; by default the profile's.

    Raises:
        SpecError: the spec is wrong.
        ProfileError: there is no such profile.
    """
    found = load_profile(profile)
    floor = found.profile.limits.ram_floor if floor_bytes is None else floor_bytes
    every: dict[str, Check] = {
        "memory": lambda one: memory(one, floor),
        "kills": kills,
        "gpu": gpus,
        "limits": limits,
        "processors": processors,
        "output": output,
        "profile": lambda _: _profile(profile),
        "leftovers": leftovers,
    }
    seen = [one for name, check in every.items() for one in _run(name, partial(check, machine))]
    return seen if spec is None else seen + _of_data(machine, spec, split)


def _of_data(machine: Machine, place: Path, split: str) -> list[Seen]:
    """Facts and findings about the data of a spec."""
    spec = PipelineSpec.from_yaml(place)
    datasets: list[ResolvedDataset] = []
    seen = _run("data", lambda: readable(spec, split, datasets))
    for dataset in datasets:
        seen += _run("data", partial(mirrors, dataset, spec.errors.max_corrupt_ratio))
    if not seen:
        seen.append(Fact("every file that the spec reads is there", "data"))
    for dataset in datasets:
        seen += _run("video", partial(videos, dataset))
    seen += _run("index", lambda: indexes(datasets, place))
    files = sorted({piece.path for one in datasets if not one.remote for piece in one.slices})
    return seen + _run("storage", lambda: storage(machine, files))


def _profile(which: str | None) -> Iterator[Seen]:
    """Facts and findings about a host profile; ``None``: the one that fits this host."""
    try:
        found = load_profile(which, strict=True)
    except ProfileError as error:
        yield Finding(error.what, error.remedy)
    else:
        notes = ("default knobs" if isinstance(one, Untuned) else one for one in found.notes)
        yield Fact("; ".join(notes))


def _run(name: str, check: Callable[[], Iterable[Seen]]) -> list[Seen]:
    """Findings and facts of one check, and its failure, if it failed."""
    seen: list[Seen] = []
    try:
        seen += (replace(one, check=one.check or name) for one in check())
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        text = f"a check could not be finished{place} ({error.strerror or error})"
        seen.append(Finding(text, "run it as the user who trains", check="doctor"))
    return seen


def show_findings(
    spec: Path | None, split: str, profile: str | None, floor_bytes: int | None
) -> None:
    """Show what the checks found; exit code 1 where that is anything.

    Args:
        spec: spec file of a mixture whose data is examined as well; ``None``: the machine alone.
        split: split of the spec that is examined.
        profile: host profile, by name or file; ``None``: the one that a run would take.
        floor_bytes: memory that must stay free; ``None``: the profile's floor.
    """
    # With --json stdout is a pipe to a program; the stdout of a training may be another.
    machine = Machine(stdout=None if wants_json() else 1)
    seen = examine(machine, spec=spec, split=split, profile=profile, floor_bytes=floor_bytes)
    findings = [one for one in seen if isinstance(one, Finding)]
    facts = [one for one in seen if isinstance(one, Fact)]
    document = {"findings": list(map(asdict, findings)), "facts": list(map(asdict, facts))}
    if not answered(document):
        for one in findings:
            emit(f"{one.severity}: {one.check}: {one.evidence}\n  → {one.remedy}")
        if not findings:
            emit("nothing found that will hurt a run")
        emit("\nlooked at")
        for fact in facts:
            emit(f"  {fact.check}: {fact.text}")
    if findings:
        raise typer.Exit(FOUND_SOMETHING)
