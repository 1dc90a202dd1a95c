"""Host profiles: what a machine is, how far it may be used, and the knobs that suit it.

A profile is a small YAML file that a teammate can read, diff and commit. ``load_profile`` finds
one (a path, a name, or the saved one that matches this host), and ``Profile.fit`` holds it against
the host that is about to use it: what the host cannot give is clamped, and every clamp is said.

Where profiles are looked for, in this order: the user's directory (``AUTOLOADER_CONFIG_DIR``, else
the platform's config directory for "autoloader"; below it ``profiles/NAME.yaml``), then those that
ship with the library.

Not here: finding better knobs (``tune``), which combinations are legal (``knobs``), reading memory
while a loader runs (``controller.probes.headroom``).
"""

from __future__ import annotations

import io
import logging
import os
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
)
from ruamel.yaml import YAML

from autoloader.errors import AutoloaderError, KnobError, ProfileError, UsageError, nearest
from autoloader.host.processors import usable_processors
from autoloader.knobs import KnobLimits, Knobs
from autoloader.spec.documents import parse_yaml, read_yaml_file
from autoloader.spec.regular_files import DocumentError
from autoloader.units import GIB, Bytes, expanded, format_bytes, parse_bytes

_LOG = logging.getLogger(__name__)

DEFAULT_PROFILE = "local_dev"
CONFIG_DIR_VARIABLE = "AUTOLOADER_CONFIG_DIR"
MEMORY_TOLERANCE_RATIO = 0.1
"""How far usable memory may differ for a saved profile to count as made for this host."""

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
_SIZE_FIELDS = {"memory_bytes", "cgroup_limit_bytes", "ram_floor"}
_MOST_SHARDS = 64

Size = Annotated[
    Bytes,
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
    Field(ge=0),
]
Number = (
    Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True, allow_inf_nan=False)]
)


def _as_text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HostFacts(_Part):
    """What a machine is, as far as a loader cares."""

    cpus: int = Field(ge=1, description="processors a process may use: affinity and CPU quota")
    memory_bytes: Size = Field(description="main memory, such as 62.5GiB")
    cgroup_limit_bytes: Size | None = Field(
        None, description="memory limit of the job or container; absent when there is none"
    )
    gpus: tuple[str, ...] = Field((), description="GPU names as NVML gives them, one per device")
    storage: str = Field("unknown", description="what the data lies on: nvme, nfs, lustre, gcs …")
    scheduler: str = Field("none", description="who starts jobs here: none, slurm …")
    ranks_per_node: int = Field(1, ge=1, description="training processes that share this host")

    @property
    def usable_bytes(self) -> int:
        """Memory a process may ever use here: the smaller of RAM and cgroup limit."""
        limit = self.cgroup_limit_bytes
        return self.memory_bytes if limit is None else min(self.memory_bytes, limit)

    def matches(self, host: HostFacts) -> bool:
        """Whether both have the same cpus and GPUs, and usable memory within 10 %."""
        apart = abs(self.usable_bytes - host.usable_bytes)
        return (
            self.cpus == host.cpus
            and sorted(self.gpus) == sorted(host.gpus)
            and apart <= MEMORY_TOLERANCE_RATIO * host.usable_bytes
        )

    def describe(self) -> str:
        """One line for people: cpus, usable memory, GPUs."""
        counts = Counter(self.gpus).items()
        gpus = ", ".join(f"{n} × {name}" if n > 1 else name for name, n in counts)
        return f"{self.cpus} cpus, {format_bytes(self.usable_bytes)}, {gpus or 'no GPU'}"


class Limits(_Part):
    """How far the loader may go on the host."""

    ram_floor: Size = Field(description="memory that must stay free; more is safer, less is faster")
    cpu_budget: int | None = Field(
        None, ge=1, description="processors the loader may keep busy; absent: all of them"
    )


class Provenance(_Part):
    """Where the knobs of a profile come from."""

    source: Literal["measured", "field-record", "reasoned"] = Field(
        description="measured by a study, taken from the field record, or derived by reasoning"
    )
    detail: str = Field(min_length=1, description="which study, which rows, or which reasoning")
    measured_on: Annotated[str, BeforeValidator(_as_text)] | None = Field(
        None, description="date of the measurement, and host if it helps"
    )
    command: str | None = Field(None, description="the command that measured it")


class Profile(_Part):
    """A host, its limits, and the knobs that suit it; immutable."""

    schema_version: Literal[1] = Field(description="version of this format")
    name: str = Field(pattern=_NAME, description="what --profile finds it by")
    description: str = Field("", description="one or two sentences for people")
    host: HostFacts = Field(description="the host the knobs were chosen for")
    limits: Limits = Field(description="how far the loader may go")
    knobs: Knobs = Field(
        default_factory=Knobs, description="knob values; what is left out has its default"
    )
    measurements: Mapping[str, Number] = Field(
        default_factory=dict,
        description="what was measured with these knobs (samples_per_s, batch, datasets, …); "
        "what was not measured is absent",
    )
    provenance: Provenance = Field(description="where the numbers come from")

    @field_validator("knobs", mode="before")
    @classmethod
    def _legal_knobs(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, Mapping):
            return value
        knobs = dict(value or {})
        if (decode := knobs.pop("decode", "pool")) != "pool":  # a knob of earlier versions
            raise KnobError(
                f"decode: {decode!r}: frames are decoded by the pool, and nowhere else",
                remedy="leave decode out; autoloader.tfdata decodes in TensorFlow's graph",
            )
        return Knobs.build(knobs)

    @classmethod
    def from_yaml(cls, path: Path | str) -> Profile:
        """Read a profile.

        Raises:
            ProfileError: the file is missing, no YAML, or says something that cannot be; the
                message names file, field, value and what is allowed.
        """
        try:
            return cls._from_document(read_yaml_file(path), origin=str(path))
        except DocumentError as error:
            raise _unread(error, str(path)) from error

    @classmethod
    def from_yaml_text(cls, text: str, *, origin: str = "profile") -> Profile:
        """Like ``from_yaml``, from text; ``origin`` names it in errors."""
        try:
            return cls._from_document(parse_yaml(text), origin=origin)
        except DocumentError as error:
            raise _unread(error, origin) from error

    @classmethod
    def _from_document(cls, raw: Any, *, origin: str) -> Profile:
        if not isinstance(raw, Mapping):
            raise ProfileError(
                f"{origin}: a profile is a mapping, this is {type(raw).__name__}",
                remedy="`autoloader profile show local_dev` prints a valid profile to start from",
            )
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            raise _as_profile_error(error, origin) from error

    def as_dict(self) -> dict[str, Any]:
        """Plain data in a stable order; sizes as ints of bytes, what is unset left out."""
        plain = self.model_dump(mode="json", exclude_none=True)
        if not plain["knobs"]["datasets"]:
            del plain["knobs"]["datasets"]
        return plain

    def to_yaml(self) -> str:
        """The profile as a file: stable order, one field per line, ``from_yaml`` gives it back."""
        head = (
            f"# Host profile {self.name!r} of autoloader. Sizes are exact: GiB is 2^30 bytes, "
            "GB is 10^9.\n"
            "# Every field is explained by `autoloader schema profile`.\n"
        )
        plain = self.as_dict()
        for section in plain.values():
            if isinstance(section, dict):
                for key in _SIZE_FIELDS & section.keys():
                    section[key] = _size_text(section[key])
        scalars = {k: v for k, v in plain.items() if not isinstance(v, dict)}
        sections = [{k: v} for k, v in plain.items() if isinstance(v, dict) and v]
        return "\n".join([head + _dump(scalars), *map(_dump, sections)])

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
        knobs, clamps = self.knobs.clamp(KnobLimits(cpus=cpus, shards=self._assumed_shards()))
        moved = [f"{c.knob}: {c.value} → {c.legal} ({c.rule})" for c in clamps]
        floor, budget = self.limits.ram_floor, self.limits.cpu_budget
        if floor >= host.usable_bytes:
            floor = host.usable_bytes // 2
            moved.append(
                f"ram_floor: {format_bytes(self.limits.ram_floor)} → {format_bytes(floor)} "
                f"(this host has {format_bytes(host.usable_bytes)} in all)"
            )
        if budget is not None and budget > host.cpus:
            moved.append(f"cpu_budget: {budget} → {host.cpus} (this host has {host.cpus} cpus)")
            budget = host.cpus
        if moved and strict:
            raise ProfileError(
                f"profile {self.name!r} is for {self.host.describe()}; this host is "
                f"{host.describe()}: {'; '.join(moved)}",
                remedy="leave --strict out to clamp it, or tune a profile on this host with "
                "`autoloader.tune`",
            )
        if not moved:
            return self, []
        limits = Limits(ram_floor=floor, cpu_budget=budget)
        return self.model_copy(update={"knobs": knobs, "limits": limits}), [
            f"profile {self.name} clamped to this host: {line}" for line in moved
        ]

    def _assumed_shards(self) -> dict[str, int]:
        """A mixture no rule about shards objects to, of the size the profile was measured with."""
        shards = dict.fromkeys(self.knobs.datasets, _MOST_SHARDS)
        count = max(int(self.measurements.get("datasets", 1)), self.knobs.min_ready_datasets)
        for index in range(count - len(shards)):
            shards[f"\0{index}"] = _MOST_SHARDS
        return shards


@dataclass(frozen=True, slots=True)
class ResolvedProfile:
    """A profile that was found.

    Attributes:
        profile: the profile, fitted to the host where ``load_profile`` gave it.
        origin: path of its file, or "shipped".
        notes: which was taken and why, and every clamp; sentences for people.
    """

    profile: Profile
    origin: str
    notes: list[str] = field(default_factory=list)


def load_profile(
    which: str | Path | None = None, *, strict: bool = False, host: HostFacts | None = None
) -> ResolvedProfile:
    """Find a profile and fit it to this host.

    Args:
        which: a path to a YAML file; a name (the user's directory before the shipped ones); or
            ``None`` for the user's latest saved profile that matches the host, else the shipped
            default.
        strict: refuse a profile that would have to be clamped.
        host: the host to fit to; by default ``host_facts()``.

    Raises:
        ProfileError: nothing of that name, a broken file, or ``strict`` and a clamp.
    """
    host = host or host_facts()
    found = find_profile(which) if which is not None else _default_for(host)
    fitted, notes = found.profile.fit(host, strict=strict)
    return ResolvedProfile(fitted, found.origin, [*found.notes, *notes])


def find_profile(which: str | Path) -> ResolvedProfile:
    """The profile at a path or of a name, as its file says it (nothing clamped).

    Raises:
        ProfileError: nothing there, or a broken file.
    """
    if isinstance(which, Path) or "/" in which or which.endswith((".yaml", ".yml")):
        path = expanded(which)
        return ResolvedProfile(Profile.from_yaml(path), str(path), [f"profile from {path}"])
    known = profile_paths()
    if which not in known:
        raise ProfileError(
            f"there is no profile {which!r} in {user_profiles_dir()} nor among the shipped ones",
            remedy=nearest(which, known) + " (a path to a YAML file is fine too)",
        )
    path = known[which]
    profile = Profile.from_yaml(path)
    if path.parent == shipped_profiles_dir():
        return ResolvedProfile(profile, "shipped", [f"profile {which}: shipped"])
    return ResolvedProfile(profile, str(path), [f"profile {which} from {path}"])


def profile_paths() -> dict[str, Path]:
    """Every profile that has a name here, the user's hiding shipped ones; sorted by name."""
    found: dict[str, Path] = {}
    for directory in (shipped_profiles_dir(), user_profiles_dir()):
        found.update((path.stem, path) for path in _profiles_in(directory))
    return dict(sorted(found.items()))


def shipped_profiles_dir() -> Path:
    """Where the profiles lie that come with the library: in the package, or in the checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "_profiles"
    return installed if installed.is_dir() else package.parent / "profiles"


def user_profiles_dir() -> Path:
    """Where profiles are saved; need not exist."""
    configured = os.environ.get(CONFIG_DIR_VARIABLE)
    base = (
        expanded(configured)
        if configured
        else platformdirs.user_config_path("autoloader", appauthor=False)
    )
    return base / "profiles"


def save_profile(profile: Profile, out: Path | None = None) -> Path:
    """Write ``profile`` in one step (a reader sees the old file or the new one) and say where.

    Args:
        profile: what to write.
        out: a ``.yaml`` file, or a directory that gets ``NAME.yaml``; ``None`` is the user's
            directory, where ``--profile NAME`` finds it first.

    Raises:
        ProfileError: the place cannot be written.
    """
    target = user_profiles_dir() if out is None else expanded(out)
    if target.suffix not in {".yaml", ".yml"}:
        target = target / f"{profile.name}.yaml"
    temporary: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(profile.to_yaml())
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise ProfileError(
            f"{target}: the profile cannot be written: {error}",
            remedy=f"name a writable place with --out, or set {CONFIG_DIR_VARIABLE}",
        ) from error
    return target


def diff(a: Profile, b: Profile) -> list[tuple[str, Any, Any]]:
    """Fields that differ, as ``(field, in a, in b)`` in the file's order; ``None``: not there."""
    left, right = _flat(a.as_dict()), _flat(b.as_dict())
    keys = [*left, *(key for key in right if key not in left)]
    return [(k, left.get(k), right.get(k)) for k in keys if left.get(k) != right.get(k)]


def host_facts(cgroup_limit_bytes: int | None = None) -> HostFacts:
    """The machine this process runs on; memory rounded to 0.01 GiB so that diffs stay quiet.

    Args:
        cgroup_limit_bytes: memory limit of the job, from who reads cgroups
            (``controller.probes.headroom``); ``None`` when there is none.
    """
    environment = os.environ
    ranks = environment.get("SLURM_NTASKS_PER_NODE") or environment.get("LOCAL_WORLD_SIZE") or "1"
    leading = re.match(r"[1-9]\d*", ranks)
    return HostFacts(
        cpus=usable_processors(),
        memory_bytes=_rounded(_memory_total_bytes()),
        cgroup_limit_bytes=None if cgroup_limit_bytes is None else _rounded(cgroup_limit_bytes),
        gpus=_gpu_names(),
        scheduler="slurm" if "SLURM_JOB_ID" in environment else "none",
        ranks_per_node=int(leading[0]) if leading else 1,
    )


def _memory_total_bytes() -> int:
    try:
        found = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gpu_names() -> tuple[str, ...]:
    """GPU names by NVML; none where it does not load or fails, for that must never stop a run."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:  # noqa: BLE001  (drivers fail in many ways, and none matters here)
        _LOG.info("NVML does not answer, going on without GPU names: %s", error)
        return ()
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _profiles_in(directory: Path) -> list[Path]:
    """Its profiles; none where it is not there, or cannot be entered."""
    try:
        return list(directory.glob("*.yaml")) if directory.is_dir() else []
    except OSError as error:
        _LOG.info("no profiles from %s: %s", directory, error.strerror or error)
        return []


def _default_for(host: HostFacts) -> ResolvedProfile:
    """The user's latest saved profile that matches ``host``, else the shipped default."""
    notes: list[str] = []
    directory = user_profiles_dir()
    for path in sorted(
        _profiles_in(directory), key=lambda path: (-path.lstat().st_mtime_ns, path.name)
    ):
        try:
            profile = Profile.from_yaml(path)
        except ProfileError as error:
            notes.append(f"skipped a broken saved profile: {error.what}")
            continue
        if profile.host.matches(host):
            notes.append(f"profile {profile.name}: saved in {path}, made for a host like this one")
            return ResolvedProfile(profile, str(path), notes)
    path = shipped_profiles_dir() / f"{DEFAULT_PROFILE}.yaml"
    notes.append(
        f"no saved profile matches this host ({host.describe()}): "
        f"using the shipped default {DEFAULT_PROFILE}"
    )
    return ResolvedProfile(Profile.from_yaml(path), "shipped", notes)


def _rounded(count: int) -> int:
    return parse_bytes(f"{count / GIB:.2f}GiB")


def _size_text(count: int) -> str | int:
    """``count`` bytes exactly, as short as it goes: "62.5GiB", "5GB", else more digits of GiB."""
    for digits in (0, 1, 2):
        if _exact(text := f"{count / GIB:.{digits}f}GiB", count):
            return text
    for unit, factor in (("GB", 10**9), ("MB", 10**6)):
        if count % factor == 0:
            return f"{count // factor}{unit}"
    for digits in range(3, 13):
        if _exact(text := f"{count / GIB:.{digits}f}GiB", count):
            return text
    return count


def _exact(text: str, count: int) -> bool:
    try:
        return parse_bytes(text) == count
    except UsageError:
        return False


def _dump(mapping: Mapping[str, Any]) -> str:
    yaml = YAML()
    yaml.width = 100
    yaml.allow_unicode = True
    stream = io.StringIO()
    yaml.dump(dict(mapping), stream)
    return stream.getvalue()


def _flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _unread(error: DocumentError, origin: str) -> ProfileError:
    return ProfileError(
        f"{origin}: the profile cannot be read: {error.what}",
        remedy=f"{error.remedy}, or name a profile of `autoloader profile list`; "
        f"`autoloader profile show {DEFAULT_PROFILE}` prints a valid one to start from",
    )


_PARTS: Mapping[tuple[str, ...], type[BaseModel]] = {
    (): Profile,
    ("host",): HostFacts,
    ("limits",): Limits,
    ("provenance",): Provenance,
}


def _as_profile_error(error: ValidationError, origin: str) -> ProfileError:
    """The most telling complaint of pydantic in this library's words.

    A misspelt field is told before the required one it leaves missing.
    """
    complaints = error.errors()
    first = next((one for one in complaints if one["type"] == "extra_forbidden"), complaints[0])
    place: Sequence[str] = [str(part) for part in first["loc"]]
    where, kind = ".".join(place), first["type"]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, AutoloaderError):
        return ProfileError(f"{origin}: {where}: {cause.what}", remedy=cause.remedy)
    if kind == "extra_forbidden":
        part = _PARTS.get(tuple(place[:-1]), Profile)
        remedy = nearest(place[-1], part.model_fields)
        return ProfileError(f"{origin}: {where}: there is no such field", remedy=remedy)
    if kind == "missing":
        return ProfileError(
            f"{origin}: {where}: this field is required and not there",
            remedy=f"add it; `autoloader profile show {DEFAULT_PROFILE}` is a complete example",
        )
    message = first["msg"].removeprefix("Value error, ")
    return ProfileError(
        f"{origin}: {where}: {first['input']!r} is not allowed: {' '.join(message.split())}",
        remedy=f"`autoloader schema profile` says what {where} may be",
    )
