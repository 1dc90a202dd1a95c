"""A profile file: the host, its limits, the knobs that suit it, and where they come from.

Knobs that suit 29 datasets of small JPEGs do not suit one of large PNGs. So a profile carries its
kind of mixture, and where none is named a loader takes the one of the nearest kind. Distance is
counted in doublings: twice the datasets, the batch, the frames or the pixels are one doubling each,
another encoding is two. A figure that one of the two kinds does not say is left out.

It is a small YAML file that a teammate can read, diff and commit. ``Profile.fit`` holds it against
the host that is about to use it: what the host cannot give is clamped, and every clamp is said.

``host_facts`` is what a start of a loader asks: a profile is matched and clamped by it.
``described_host`` adds what belongs beside a measurement: the processor's model, the kernel,
versions, the storage of the data and its speed. ``HostFacts.fingerprint`` is one word for "rates
measured here and there may be compared": equal nodes of a cluster have the same.

Not here: finding and keeping profiles (``profiles``), legal combinations of knobs (``spec.knobs``),
the kind of a mixture (``process.planning``), memory during a run (``host.headroom``).
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
    field_validator,
)
from ruamel.yaml import YAML

from autoloader.errors import ProfileError
from autoloader.host import units
from autoloader.host.files import DocumentError
from autoloader.host.gpu import gpu_names
from autoloader.host.headroom import HeadroomProbe
from autoloader.host.machine import (
    CgroupProcessors,
    cpu_model,
    memory_bytes,
    usable_processors,
    versions,
)
from autoloader.host.storage import by_file_system, probe_reads
from autoloader.spec.block import Block
from autoloader.spec.knobs import KnobLimits, Knobs
from autoloader.spec.reading import complaint, read_yaml_file

DEFAULT_PROFILE = "local_dev"
"""The shipped profile for a host that no saved one matches."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
_MOST_SHARDS = 64

ENCODING_DOUBLINGS = 2.0
FAR_DOUBLINGS = 3.0
"""A kind at least so far is another kind of mixture: its knobs are no default."""

_COUNTS = ("datasets", "batch", "frames", "pixels", "source_pixels")

_MEMORY_TOLERANCE_RATIO = 0.1
"""How far usable memory may differ for a saved profile to count as made for this host."""

FILE = "a file"
"""Context in which a profile is written down: sizes are texts."""

Size = Annotated[
    int,
    BeforeValidator(lambda value: units.size_of(value) if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
    PlainSerializer(lambda count, info: _size_text(count) if info.context == FILE else count),
    Field(ge=0),
]
"""Bytes, as a number or as "5GB"."""

Number = (
    Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True, allow_inf_nan=False)]
)


def _as_text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


class HostFacts(Block):
    """Facts of a machine that matter to a loader.

    Attributes:
        cpus: processors a process may use: affinity and CPU quota
        processors: processors of the whole machine
        affinity: processors that the process may run on (taskset, SLURM, cpuset)
        cpu_quota: processors' worth of time that a cgroup gives; absent: no quota
        cpu_model: the processor, as the kernel names it
        memory_bytes: main memory, such as 62.5GiB
        cgroup_limit_bytes: memory limit of the job or container; absent when there is none
        gpus: GPU names as NVML gives them, one per device
        storage: what the data lies on: ext4, nfs4, lustre, gcs …
        storage_read_bytes_per_s: measured: bytes a second of the data read in order, past the page
            cache
        storage_random_read_s: measured: seconds of a read of 20 KiB of the data at random
        scheduler: who starts jobs here: none, slurm …
        ranks_per_node: training processes that share this host
        kernel: release of the kernel
        versions: versions of the packages that read, decode and deliver
    """

    cpus: int = Field(ge=1)
    processors: int | None = Field(None, ge=1)
    affinity: int | None = Field(None, ge=1)
    cpu_quota: float | None = Field(None, gt=0)
    cpu_model: str = "unknown"
    memory_bytes: Size
    cgroup_limit_bytes: Size | None = None
    gpus: tuple[str, ...] = ()
    storage: str = "unknown"
    storage_read_bytes_per_s: Size | None = None
    storage_random_read_s: float | None = Field(None, ge=0)
    scheduler: str = "none"
    ranks_per_node: int = Field(1, ge=1)
    kernel: str = "unknown"
    versions: Mapping[str, str] = Field(default_factory=dict)

    @property
    def usable_bytes(self) -> int:
        """Memory a process may ever use here: the smaller of RAM and cgroup limit."""
        limit = self.cgroup_limit_bytes
        return self.memory_bytes if limit is None else min(self.memory_bytes, limit)

    def is_same(self, host: HostFacts) -> bool:
        """True if both are one machine, or equal ones.

        Both have the same cpus and GPUs, usable memory within 10 %, one processor and one storage.
        What ``host_facts`` leaves out, or one of them does not know, is left out of account.
        """
        pairs = ((self.cpu_model, host.cpu_model), (self.storage, host.storage))
        return (
            self.cpus == host.cpus
            and sorted(self.gpus) == sorted(host.gpus)
            and abs(self.usable_bytes - host.usable_bytes)
            <= _MEMORY_TOLERANCE_RATIO * host.usable_bytes
            and all("unknown" in both or both[0] == both[1] for both in pairs)
        )

    @property
    def fingerprint(self) -> str:
        """Eight characters: the same where rates may be compared.

        Of the processor's model, the processors and the memory that may be used (to 5 %), GPUs and
        the kind of storage. Not of names, kernels and versions: equal nodes have the same.
        """
        memory = f"{self.usable_bytes / units.GIB:.2g}"
        parts = (self.cpu_model, self.cpus, memory, sorted(self.gpus), self.storage)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]

    def describe(self) -> str:
        """One line for people: cpus, usable memory, GPUs."""
        counts = Counter(self.gpus).items()
        gpus = ", ".join(f"{n} × {name}" if n > 1 else name for name, n in counts)
        return f"{self.cpus} cpus, {units.format_bytes(self.usable_bytes)}, {gpus or 'no GPU'}"


class MixtureKind(Block):
    """Properties of a mixture that decide its best knobs; a property left out is not known.

    Attributes:
        datasets: datasets that are mixed
        batch: samples of a batch
        frames: frames of a sample, over all cameras
        pixels: pixels of a frame in the batch, the mean
        source_pixels: pixels of a frame in the files, the mean over datasets
        encoding: how most datasets store frames: jpeg, png, video, raw …
    """

    datasets: int | None = Field(None, ge=1)
    batch: int | None = Field(None, ge=1)
    frames: int | None = Field(None, ge=0)
    pixels: int | None = Field(None, ge=1)
    source_pixels: int | None = Field(None, ge=1)
    encoding: str | None = None

    def doublings_to(self, other: MixtureKind) -> float:
        """Distance to ``other`` in doublings; 0 if all that both say is the same."""
        apart = 0.0
        for name in _COUNTS:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine and theirs:
                apart += abs(math.log2(mine / theirs))
            elif None not in (mine, theirs) and mine != theirs:
                apart += FAR_DOUBLINGS  # one mixture has frames, the other none
        if None not in (self.encoding, other.encoding) and self.encoding != other.encoding:
            apart += ENCODING_DOUBLINGS
        return apart

    def is_like(self, other: MixtureKind) -> bool:
        """True if a measurement of one replaces one of the other: less than a quarter apart."""
        return self.doublings_to(other) < 0.25

    def describe(self) -> str:
        """For people, such as "29 datasets, batch 32, 2 frames of 65536 pixels, jpeg"."""
        words = []
        if self.datasets is not None:
            words.append(f"{self.datasets} dataset{'s' if self.datasets != 1 else ''}")
        if self.batch is not None:
            words.append(f"batch {self.batch}")
        if self.frames is not None:
            of = f" of {self.pixels} pixels" if self.pixels else ""
            words.append(f"{self.frames} frame{'s' if self.frames != 1 else ''}{of}")
        if self.encoding is not None:
            source = f" of {self.source_pixels} pixels" if self.source_pixels else ""
            words.append(f"{self.encoding}{source} in the files")
        return ", ".join(words) or "any mixture"


class Limits(Block):
    """Limits of the loader on the host.

    Attributes:
        ram_floor: memory that must stay free; more is safer, less is faster; 0 switches it off
        cpu_budget: processors the loader may keep busy; absent: all of them
    """

    ram_floor: Annotated[
        Size, BeforeValidator(lambda value: units.parse_floor(value, name="ram_floor"))
    ]
    cpu_budget: int | None = Field(None, ge=1)


class DiskCache(Block):
    """Room on a local disk for decoded frames.

    Attributes:
        disk: folder for decoded frames that are dear to decode (PNG, large JPEG), on a fast local
            disk; made where it is missing, used again by the next run, and by one job at a time
        bytes: what the files there take; all of it is taken at once
    """

    disk: str = Field(min_length=1)
    bytes: Size

    @field_validator("disk")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ProfileError(
                f"{value!r} is not an absolute path", remedy="give a folder, such as /nvme/frames"
            )
        return value


class Provenance(Block):
    """Source of the knobs of a profile.

    Attributes:
        source: measured by a study, taken from the field record, or derived by reasoning
        detail: which study, which rows, or which reasoning
        measured_on: date of the measurement, and host if it helps
        command: the command that measured it
        study: the study that measured it
    """

    source: Literal["measured", "field-record", "reasoned"]
    detail: str = Field(min_length=1)
    measured_on: Annotated[str, BeforeValidator(_as_text)] | None = None
    command: str | None = None
    study: str | None = None

    @property
    def told(self) -> str:
        """Meaning for a user of the knobs, in one clause."""
        return {
            "measured": f"measured here{f' on {self.measured_on}' if self.measured_on else ''}",
            "field-record": "defaults: not measured with this loader",
            "reasoned": "reasoned: nothing was measured with them",
        }[self.source]


class Profile(Block):
    """A host, its limits, and the knobs that suit it; immutable.

    Attributes:
        schema_version: version of this format
        name: what --profile finds it by
        description: one or two sentences for people
        host: the host the knobs were chosen for
        limits: how far the loader may go
        cache: room on a local disk for decoded frames; absent: none
        mixture: the kind of mixture the knobs were found on; absent: any
        knobs: knob values; what is left out has its default
        measurements: what was measured with these knobs (samples_per_s, peak_rss_bytes, …); what
            was not measured is absent
        provenance: where the numbers come from
    """

    schema_version: Literal[2]
    name: str = Field(pattern=NAME_PATTERN)
    description: str = ""
    host: HostFacts
    limits: Limits
    cache: DiskCache | None = None
    mixture: MixtureKind | None = None
    knobs: Knobs = Field(default_factory=Knobs)
    measurements: Mapping[str, Number] = Field(default_factory=dict)
    provenance: Provenance

    @field_validator("knobs", mode="before")
    @classmethod
    def _legal_knobs(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, Mapping):
            return value
        return Knobs.build(value or {})

    @classmethod
    def from_yaml(cls, path: Path | str) -> Profile:
        """Read a profile.

        Raises:
            ProfileError: the file is missing, no YAML, or says something that cannot be; the
                message names file, field, value and what is allowed.
        """
        example = f"`autoloader profile show {DEFAULT_PROFILE}` prints a profile to start from"
        try:
            raw = read_yaml_file(path)
        except DocumentError as error:
            raise ProfileError(
                f"{path}: the profile cannot be read: {error.what}",
                remedy=f"{error.remedy}; or name a profile of `autoloader profile list`; {example}",
            ) from error
        if not isinstance(raw, Mapping):
            holds = "is empty" if raw is None else f"holds {type(raw).__name__}, not a mapping"
            raise ProfileError(f"{path} {holds}", remedy=example)
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            what, remedy, _ = complaint(error, raw)
            raise ProfileError(f"{path}: {what}", remedy=f"{remedy}; {example}") from error

    def as_dict(self, context: str = "") -> dict[str, Any]:
        """Plain data in a stable order; what is unset is left out.

        Args:
            context: ``FILE`` writes sizes as texts; else they are bytes.
        """
        plain = self.model_dump(mode="json", exclude_none=True, context=context)
        if not plain["knobs"]["datasets"]:
            del plain["knobs"]["datasets"]
        if not plain["host"]["versions"]:
            del plain["host"]["versions"]
        return plain

    def to_yaml(self) -> str:
        """The profile as YAML text: a comment for people, scalars, each section after a blank line.

        Stable order, one field a line; ``from_yaml`` reads it.
        """
        head = (
            f"# Host profile {self.name!r} of autoloader. Sizes are exact: GiB is 2^30 bytes, "
            "GB is 10^9.\n"
            "# Every field is explained by `autoloader --schema profile`.\n"
        )
        shown = self.as_dict(FILE)
        scalars = {k: v for k, v in shown.items() if not isinstance(v, (dict, list))}
        sections = [{k: v} for k, v in shown.items() if isinstance(v, (dict, list)) and v]
        return "\n".join([head + _yaml_text(scalars), *map(_yaml_text, sections)])

    def fit(self, host: HostFacts, *, strict: bool = False) -> tuple[Profile, list[str]]:
        """This profile for ``host``, and what had to change for it.

        Thread counts are held against the host's cpus by the rules of ``Knobs.clamp``; the RAM
        floor must lie below the memory there is. Shards and batch bytes are not known here: the
        loader clamps once more when it knows the mixture. ``host`` of the result stays what the
        profile was made for.

        Raises:
            ProfileError: ``strict``, and something would have to change.
        """
        cpus = min(host.cpus, self.limits.cpu_budget or host.cpus)
        knobs, clamps = self.knobs.clamp(KnobLimits(cpus=cpus, shards=_assumed_shards(self)))
        moved = [f"{one.knob}: {one.value} → {one.legal} ({one.rule})" for one in clamps]
        floor, budget = self.limits.ram_floor, self.limits.cpu_budget
        if floor >= host.usable_bytes:
            floor = max(host.usable_bytes // 2, units.LEAST_FLOOR_BYTES)
            moved.append(
                f"ram_floor: {units.format_bytes(self.limits.ram_floor)} → "
                f"{units.format_bytes(floor)} "
                f"(this host has {units.format_bytes(host.usable_bytes)} in all)"
            )
        if budget is not None and budget > host.cpus:
            moved.append(f"cpu_budget: {budget} → {host.cpus} (this host has {host.cpus} cpus)")
            budget = host.cpus
        if moved and strict:
            raise ProfileError(
                f"profile {self.name!r} asks for more than this host has ({host.describe()}), and "
                f"with --strict nothing is lowered: {'; '.join(moved)}",
                remedy="leave --strict out, to have it lowered, or measure a profile here: "
                "`autoloader tune`",
            )
        if not moved:
            return self, []
        limits = Limits(ram_floor=floor, cpu_budget=budget)
        return self.model_copy(update={"knobs": knobs, "limits": limits}), [
            f"profile {self.name} clamped to this host: {line}" for line in moved
        ]


def _assumed_shards(profile: Profile) -> dict[str, int]:
    """A mixture no rule about shards objects to, of the size the knobs were measured with."""
    shards = dict.fromkeys(profile.knobs.datasets, _MOST_SHARDS)
    measured = (profile.mixture and profile.mixture.datasets) or 1
    count = max(measured, profile.knobs.min_ready_datasets)
    for index in range(count - len(shards)):
        shards[f"\0{index}"] = _MOST_SHARDS
    return shards


def diff(a: Profile, b: Profile) -> list[tuple[str, Any, Any]]:
    """Fields that differ, as ``(field, in a, in b)`` in the file's order; ``None``: not there."""
    left, right = dict(_flat(a.as_dict())), dict(_flat(b.as_dict()))
    keys = dict.fromkeys([*left, *right])
    return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]


def _size_text(count: int) -> str | int:
    """``count`` bytes exactly, as short as it goes: "62.5GiB", "5GB", else more digits of GiB."""
    short = [f"{count / units.GIB:.{digits}f}GiB" for digits in range(3)]
    decimal = [f"{count // 10**9}GB", f"{count // 10**6}MB"]
    long = [f"{count / units.GIB:.{digits}f}GiB" for digits in range(3, 13)]
    return next((text for text in (*short, *decimal, *long) if units.size_of(text) == count), count)


def _yaml_text(mapping: Mapping[str, Any]) -> str:
    """One part of a profile's file as YAML, with a newline at its end."""
    yaml = YAML()
    yaml.width = 100
    yaml.allow_unicode = True
    stream = io.StringIO()
    yaml.dump(dict(mapping), stream)
    return stream.getvalue()


def _flat(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of each leaf of nested mappings."""
    for key, value in plain.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def host_facts() -> HostFacts:
    """The machine this process runs on; memory rounded to 0.01 GiB so that diffs stay quiet."""
    environment = os.environ
    limit = HeadroomProbe().cgroup_limit_bytes()
    ranks = environment.get("SLURM_NTASKS_PER_NODE") or environment.get("LOCAL_WORLD_SIZE") or "1"
    leading = re.match(r"[1-9]\d*", ranks)
    return HostFacts(
        cpus=usable_processors(),
        memory_bytes=_rounded(memory_bytes()),
        cgroup_limit_bytes=None if limit is None else _rounded(limit),
        gpus=gpu_names(),
        scheduler="slurm" if "SLURM_JOB_ID" in environment else "none",
        ranks_per_node=int(leading[0]) if leading else 1,
    )


def described_host(*, files: Sequence[str] = (), probe_s: float = 0.5) -> HostFacts:
    """This machine in full, as it belongs beside a measurement.

    Args:
        files: local files of the data; the file system that holds most of them is named, and read
            for twice ``probe_s``.
        probe_s: seconds of reading at random, and of reading in order; 0 reads nothing.
    """
    seen = CgroupProcessors().read()
    found: dict[str, object] = {
        "processors": seen.there,
        "affinity": seen.allowed,
        "cpu_quota": seen.quota and round(seen.quota, 2),
        "cpu_model": cpu_model(),
        "kernel": os.uname().release,
        "versions": versions(),
    }
    systems = by_file_system(files)
    if systems:
        kind = max(systems, key=lambda kind: len(systems[kind]))
        found["storage"] = kind
        rates = None
        if probe_s > 0:
            with suppress(OSError):  # a file that cannot be read is told where it is used
                rates = probe_reads(systems[kind], time.monotonic, each_s=probe_s)
        if rates is not None:
            found["storage_read_bytes_per_s"] = round(rates.in_order / 1e6) * 10**6
            found["storage_random_read_s"] = round(rates.random_s, 6)
    return host_facts().model_copy(update=found)


def _rounded(count: int) -> int:
    return units.parse_bytes(f"{count / units.GIB:.2f}GiB")
