"""The knobs: every setting that may be tuned, its range, and which combinations may not run.

The fields of ``Knobs`` are the table of knobs. A field's type, default and ``Field`` say its range
and meaning, its ``Knob`` says all else: who uses it, what a change does, how far a study searches
and where it begins, whose threads it counts. Docs, clamps, the study's space, the threads' price,
the controller's shrinking and a dataset's own values follow from there. A ``Knobs`` value is one
full set. ``Knobs`` itself refuses what no pipeline could run (``num_parallel_calls`` above
``cycle_length``); ``check`` and ``clamp`` hold it against one pipeline on one host (``KnobLimits``:
cpus, shards, batch bytes, budget). Policy, study and a person's ``retune`` all come through here,
so none of them can pass an illegal combination.

Not here: choosing values (``tune``, ``controller``), bytes that they take
(``controller.admission``), applying them (``process.control``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from autoloader.errors import KnobError, in_our_words, many, nearest, shown
from autoloader.host.frozen import frozen
from autoloader.host.units import format_bytes, size_of

KnobClass = Literal["free", "order", "fixed"]
"""A free knob never changes which samples come nor their order; an order knob changes the order,
never the set; a fixed one stays for a run."""

BATCHES_OF_A_HELPER = 4
"""At a time, for each of ``helper_slots``: one that it fills, one that it reads for, and two that
are sent or wait to be copied here, which takes long where this host has few processors."""


THREADS_OF_A_PROCESS = 4
"""Decode threads that one interpreter keeps busy. With samples of 2 ms (16 processors, Python 3.12)
1, 4, 8, 12 threads of one process gave 508, 1,854, 3,180 and 2,648 samples/s; 16 threads of four
processes gave 6,202, of two 4,687."""
MOST_THREADS_AT_START = 16


@frozen
class Stage:
    """One stage of the loader's threads, declared with the knob that counts them.

    Attributes:
        name: name of the stage, as functions name it that are its work (``threads.work_of``).
        work: its work in two words, for people.
        remedy: what to do where the stage limits a run.
        waits: whether its threads mostly wait for storage; else they make pixels. Then more of them
            than processors are no fault, and they go first after the kernel killed the loader for
            memory.
    """

    name: str
    work: str
    remedy: str
    waits: bool = False


_DECODE = Stage(
    "decode",
    "decoding images",
    "More processors decode more; smaller images, `mixing.chain` and `cache_bytes` leave less to "
    "decode.",
)
_READ = Stage(
    "read",
    "reading from storage",
    "The storage answers too slowly. A faster disk, more `io_threads` and `read_ahead`, or a "
    "profile with a local `cache` disk help.",
    waits=True,
)


@frozen
class Knob:
    """One knob, beside its meaning and default.

    Attributes:
        low, high: least and most value; ``None``: there is none, or it depends on the mixture.
        used_by: reader that has a use for it; "": both have.
        kind: what a change of it does to the samples.
        own: whether a dataset may have a value of its own (``bridge.cycle_length``).
        reopens: whether a stream opens anew for it, beside its old self.
        light: whether it holds next to no memory, so that taking it away would free nothing.
        stage: stage whose threads it counts; ``None``: it counts none.
        searched: least and most value that a study tries, beyond which only memory grows; ``None``:
            no study moves it.
        guess: value that a study tries first; ``None``: the start's.
        least, most: least and most value that a pipeline on a host allows, with the rule; ``None``:
            there is none.
    """

    low: int | None = None
    high: int | None = None
    used_by: Literal["", "stream", "indexed"] = ""
    kind: KnobClass = "free"
    own: bool = False
    reopens: bool = False
    light: bool = False
    stage: Stage | None = None
    searched: tuple[int, int] | None = None
    guess: Callable[[Workload], int] | None = None
    least: Callable[[KnobLimits], tuple[int, str] | None] = lambda _: None
    most: Callable[[KnobLimits], tuple[int, str] | None] = lambda _: None


_Size = Annotated[
    int, BeforeValidator(lambda value: size_of(value) if isinstance(value, str) else value)
]
"""Bytes, as a number or as "5GB"."""


def _block_fits(limits: KnobLimits) -> tuple[int, str]:
    rule = f"a queue must hold mixing.block_length = {limits.block_length} samples"
    return limits.block_length, rule


def _ring_fits(limits: KnobLimits) -> tuple[int, str] | None:
    if not limits.batch_bytes or limits.budget_bytes is None:
        return None
    batch, free = format_bytes(limits.batch_bytes), format_bytes(limits.budget_bytes)
    rule = f"a slot holds a batch of {batch}, and all slots may take {free} of memory"
    return max(4, int(limits.budget_bytes // limits.batch_bytes)), rule


def _datasets_there(limits: KnobLimits) -> tuple[int, str]:
    return max(1, len(limits.shards)), f"the mixture has {many(len(limits.shards), 'dataset')}"


def _threads_fit(limits: KnobLimits) -> tuple[int, str]:
    return 2 * limits.cpus, f"at most 2 × cpus = {2 * limits.cpus} threads"


def _reads_fit(limits: KnobLimits) -> tuple[int, str]:
    return max(4, 4 * limits.cpus), f"at most 4 × cpus = {4 * limits.cpus}"


def _processes_fit(limits: KnobLimits) -> tuple[int, str]:
    if limits.one_process:
        return 1, "mixing.locality works with one decode process only"
    return limits.cpus, f"at most cpus = {limits.cpus} decode processes"


def _helpers_help(limits: KnobLimits) -> tuple[int, str] | None:
    rule = 'it needs helpers="ray", which is not given'
    return None if limits.helpers is None else (limits.helpers, rule)


def _frames_fit(limits: KnobLimits) -> tuple[int, str] | None:
    most = limits.cache_bytes
    return None if most is None else (most, f"the RAM floor leaves {most} bytes for decoded frames")


def _shards_there(limits: KnobLimits) -> tuple[int, str]:
    most = max(limits.shards.values(), default=1)
    return most, f"no dataset has more than {most} shards"


def _knob(default: int, ge: int, le: int | None, description: str, **about: Any) -> Any:
    """A field of ``Knobs``: its default, least and most value, meaning, and ``Knob``."""
    found: Any = Field(default=default, ge=ge, le=le, description=description)
    found.metadata.append(Knob(ge, le, **about))
    return found


_CALLS = "num_parallel_calls"


class Knobs(BaseModel):
    """One full set of knob values; immutable.

    Raises:
        KnobError: from ``build``, when a value is out of range, unknown, or a combination that
            could not run anywhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    reader: Annotated[Literal["auto", "stream", "indexed"], Knob(kind="fixed")] = Field(
        default="auto", description="how files are read; a spec that pins it wins"
    )
    # fmt: off
    ring_slots: int = _knob(
        8, 2, 64, "batches in the ring (final prefetch)",
        searched=(4, 64), guess=lambda at: 2 * at.limits.cpus, most=_ring_fits,
    )
    min_ready_datasets: int = _knob(
        1, 1, None, "datasets that must have a sample before the first batch is begun",
        used_by="stream", kind="fixed", light=True, most=_datasets_there,
    )
    decode_threads: int = _knob(
        2, 1, 512, "threads of the shared decode pool; spread over the decode processes",
        stage=_DECODE, light=True, searched=(1, 512), guess=lambda at: at.limits.cpus,
        most=_threads_fit,
    )
    decode_processes: int = _knob(
        1, 1, 256, "light processes that fill batches, past one interpreter (indexed)",
        used_by="indexed", searched=(1, 256), most=_processes_fit,
        guess=lambda at: max(1, at.limits.cpus // THREADS_OF_A_PROCESS),
    )
    helper_slots: int = _knob(
        0, 0, 1024, "processors of other hosts that fill batches (indexed; Ray)",
        used_by="indexed", most=_helpers_help,
    )
    cycle_length: int = _knob(
        1, 1, 64, "shards read side by side, per dataset; never a total",
        used_by="stream", kind="order", own=True, reopens=True, searched=(1, 64),
        guess=lambda _: 1, most=_shards_there,
    )
    num_parallel_calls: int = _knob(
        1, 1, 64, "interleave threads per dataset; at most cycle_length",
        used_by="stream", own=True, reopens=True,
    )
    parse_parallel_calls: int = _knob(
        1, 1, 16, "records walked side by side, per dataset",
        used_by="stream", own=True, reopens=True, searched=(1, 8), guess=lambda _: 1,
    )
    stream_prefetch: int = _knob(
        1, 0, 16, "records kept ready behind each queue",
        used_by="stream", own=True, reopens=True, searched=(0, 4), guess=lambda _: 1,
    )
    queue_samples: int = _knob(
        32, 1, 4096, "encoded samples admitted to each dataset's queue",
        used_by="stream", own=True, searched=(1, 256), least=_block_fits,
        guess=lambda at: 2 * max(1, at.limits.block_length, at.dataset_samples),
    )
    shuffle_samples: int = _knob(
        0, 0, 1_000_000, "encoded samples each dataset's draw chooses from",
        used_by="stream", kind="order", own=True,
    )
    io_threads: int = _knob(
        4, 1, 64, "read threads of the indexed reader",
        used_by="indexed", stage=_READ, light=True, searched=(1, 64), most=_reads_fit,
        guess=lambda at: at.limits.cpus * (4 if at.disk_bound else 1),
    )
    read_ahead: int = _knob(
        2, 1, 64, "runs of 96 to 1024 samples read ahead",
        used_by="indexed", searched=(1, 8), guess=lambda _: 3,
    )
    cache_bytes: _Size = _knob(
        0, 0, 2**44, "decoded frames held in memory; 0 is none (indexed)",
        used_by="indexed", most=_frames_fit,
    )
    # fmt: on
    datasets: Mapping[str, DatasetKnobs] = Field(
        default_factory=dict, description="per-dataset values that differ from the ones above"
    )

    @classmethod
    def build(cls, values: Mapping[str, Any] | None = None, *, base: Knobs | None = None) -> Knobs:
        """Knobs from ``values`` over ``base``; ``{"bridge.cycle_length": 4}`` names one dataset.

        A ``num_parallel_calls`` that ``values`` does not name follows a smaller ``cycle_length``
        down.

        Args:
            values: flat knob → value; those of a dataset also in a mapping, below ``datasets``.
            base: values of all other knobs; ``None``: their defaults.

        Raises:
            KnobError: with the rule, the value found and the nearest legal choice.
        """
        raw: dict[str, Any] = (base or cls()).model_dump(exclude_none=True)
        given = flat_knobs(values or {})
        for key, value in given.items():
            dataset, _, knob = key.rpartition(".")
            if isinstance(value, bool):
                raise _not_allowed(key, value)
            if dataset:
                if knob not in STREAM_KNOBS:
                    raise KnobError(
                        f"{key}: a dataset has no knob {knob!r} of its own",
                        remedy=f"set it for all datasets; a dataset may have its own "
                        f"{', '.join(STREAM_KNOBS)}"
                        if knob in cls.model_fields
                        else nearest(knob, STREAM_KNOBS),
                    )
                raw["datasets"].setdefault(dataset, {})[knob] = value
            elif key not in cls.model_fields:
                known = cls.model_fields.keys() - {"datasets"}
                remedy = OTHER_WORDS.get(knob) or nearest(knob, known)
                raise KnobError(f"there is no knob {key!r}", remedy=remedy)
            else:
                raw[key] = value
        try:
            knobs = cls.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise _not_allowed(where, first.get("input"), in_our_words(first["msg"])) from None
        lower = {}
        for name in (None, *knobs.datasets):
            own, key = knobs.for_dataset(name), f"{name}.num_parallel_calls" if name else _CALLS
            if own.num_parallel_calls <= own.cycle_length:
                continue
            if key in given:
                label = f"dataset {name!r}: " if name else ""
                raise KnobError(
                    f"{label}num_parallel_calls={own.num_parallel_calls} is more than "
                    f"cycle_length={own.cycle_length}, the files that are open at a time",
                    remedy=f"set num_parallel_calls={own.cycle_length} or "
                    f"cycle_length={own.num_parallel_calls}",
                )
            lower[key] = own.cycle_length
        return cls.build(lower, base=knobs) if lower else knobs

    def for_dataset(self, name: str | None) -> Knobs:
        """The knobs with those in force for one dataset as the common ones; ``None``: these."""
        own = self.datasets.get(name) if name else None
        return self if own is None else self.model_copy(update=own.model_dump(exclude_none=True))

    def changed(self, other: Knobs) -> dict[str, tuple[Any, Any]]:
        """Knobs whose value differs: ``{name: (here, there)}``; datasets as ``name.knob``."""
        mine, theirs = self.flat(), other.flat()
        return {
            key: (mine.get(key), theirs.get(key))
            for key in sorted({*mine, *theirs})
            if mine.get(key) != theirs.get(key)
        }

    def flat(self) -> dict[str, Any]:
        """``{knob: value}`` with per-dataset values as ``dataset.knob``; feeds ``build``."""
        plain = self.model_dump(exclude={"datasets"})
        for name, own in sorted(self.datasets.items()):
            for knob, value in own.model_dump(exclude_none=True).items():
                plain[f"{name}.{knob}"] = value
        return plain

    def for_processors(self, cpus: int) -> Knobs:
        """The knobs that a host begins with that was never tuned: threads for its processors.

        Batches leave in order, so that each decode process needs two slots of the ring.
        """
        fewest = min(cpus, MOST_THREADS_AT_START)
        values = {
            knob: max(getattr(self, knob), min(fewest, KNOBS[knob].high or fewest))
            for knob in PIXEL_THREADS.values()
        }
        threads = values["decode_threads"]
        processes = max(self.decode_processes, threads // THREADS_OF_A_PROCESS)
        if processes > 1:
            slots = max(self.ring_slots, 2 * processes)
            values |= {"decode_processes": processes, "ring_slots": slots, "io_threads": threads}
        return Knobs.build(values, base=self)

    def shares(self, builders: int) -> list[Knobs]:
        """The knobs of each of several batch builders, which share the threads."""
        if builders == 1:
            return [self]
        return [
            Knobs.build(
                {one: max(1, (getattr(self, one) + k) // builders) for one in THREADS_OF.values()},
                base=self,
            )
            for k in range(builders)
        ]

    @property
    def pixel_threads(self) -> dict[str, int]:
        """Threads of each stage that makes pixels."""
        return {stage: getattr(self, knob) for stage, knob in PIXEL_THREADS.items()}

    def check(self, limits: KnobLimits) -> None:
        """Hold these knobs against one pipeline on one host.

        Raises:
            KnobError: the first rule broken, the values, the nearest legal choice.
        """
        _, clamps = self.clamp(limits)
        if clamps:
            first = clamps[0]
            raise KnobError(
                f"{first.knob}={first.value}: {first.rule}",
                remedy=f"set {first.knob}={first.legal}",
            )

    def clamp(self, limits: KnobLimits) -> tuple[Knobs, list[Clamp]]:
        """The nearest legal knobs for ``limits``, and what had to move and why.

        Raises:
            KnobError: a dataset that the mixture does not have.
        """
        unknown = [name for name in self.datasets if name not in limits.shards]
        if unknown:
            raise KnobError(
                f"knobs: the mixture has no dataset {unknown[0]!r}, for which there are knobs",
                remedy=f"correct the name ({nearest(unknown[0], limits.shards)}), or remove them "
                "from knobs=, --set or the profile",
            )
        moves = _Moves(self.flat())
        shards = limits.shards
        for knob, about in KNOBS.items():
            if (most := about.most(limits)) is not None:
                moves.lower(knob, *most)
        for name in self.datasets:
            rule = f"dataset {name!r} has only {many(shards[name], 'shard')} to read at a time"
            moves.lower(f"{name}.cycle_length", shards[name], rule)
        self._limit_total_cycle(moves, limits)
        for dataset in (None, *self.datasets):
            own = f"{dataset}." if dataset else ""
            for knob, about in KNOBS.items():
                least = about.least(limits) if about.own or dataset is None else None
                if least is not None and moves.of(dataset, knob) < least[0]:
                    moves.set(f"{own}{knob}", *least)
        moved = {key: clamp.legal for key, clamp in moves.clamps.items()}
        return Knobs.build(moved, base=self) if moved else self, list(moves.clamps.values())

    @staticmethod
    def _limit_total_cycle(moves: _Moves, limits: KnobLimits) -> None:
        """Σ cycle_length over datasets ≤ 4×cpus + datasets: lower the largest until it holds."""
        budget = 4 * limits.cpus + len(limits.shards)
        rule = f"the sum of cycle_length of {len(limits.shards)} datasets is at most {budget}"
        owns = {name: f"{name}.cycle_length" for name in limits.shards}
        keys = {name: own if own in moves.values else "cycle_length" for name, own in owns.items()}
        while True:
            used = {name: min(moves.values[keys[name]], n) for name, n in limits.shards.items()}
            if sum(used.values()) <= budget:
                return
            largest = max(used, key=lambda name: used[name])
            moves.lower(keys[largest], used[largest] - 1, rule)


KNOBS: Mapping[str, Knob] = {
    name: about
    for name, field in Knobs.model_fields.items()
    for about in field.metadata
    if isinstance(about, Knob)
}
"""Every knob by name."""


def knobs_that(are: Callable[[Knob], bool]) -> tuple[str, ...]:
    """Names of the knobs for which ``are`` is true."""
    return tuple(name for name, about in KNOBS.items() if are(about))


STREAM_KNOBS = knobs_that(lambda knob: knob.own)
ORDER_KNOBS = knobs_that(lambda knob: knob.kind == "order")
REOPENING_KNOBS = knobs_that(lambda knob: knob.reopens)
LIGHT_KNOBS = knobs_that(lambda knob: knob.light)
STAGES = {about.stage.name: about.stage for about in KNOBS.values() if about.stage}
"""Every stage by name."""
THREADS_OF = {about.stage.name: name for name, about in KNOBS.items() if about.stage}
"""Name of a stage → knob that counts its threads."""
PIXEL_THREADS = {name: knob for name, knob in THREADS_OF.items() if not STAGES[name].waits}
"""The same, of the stages that make pixels (``decode.jobs``)."""
UNTUNED_KNOBS = knobs_that(lambda knob: knob.kind == "fixed")
UNUSED_KNOBS: Mapping[str, tuple[str, ...]] = {
    "auto": (),
    "indexed": knobs_that(lambda knob: knob.used_by == "stream"),
    "stream": knobs_that(lambda knob: knob.used_by == "indexed"),
}
"""What each reader has no use for; of "auto" nothing is known."""


def flat_knobs(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Values of knobs by flat name: those below ``datasets`` as ``dataset.knob``.

    Raises:
        KnobError: ``datasets`` is no mapping of mappings.
    """
    flat = {str(key): value for key, value in values.items() if key != "datasets"}
    if not isinstance(every := values.get("datasets", {}), Mapping):
        raise _not_allowed("datasets", every)
    for name, own in every.items():
        if not isinstance(own, Mapping):
            raise _not_allowed(f"datasets.{name}", own)
        flat |= {f"{name}.{knob}": value for knob, value in own.items()}
    return flat


def used_knobs(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Values of those flat knobs that the reader among them has a use for."""
    unused = UNUSED_KNOBS.get(str(flat.get("reader")), ())
    return {key: value for key, value in flat.items() if key.rpartition(".")[2] not in unused}


if TYPE_CHECKING:
    DatasetKnobs: TypeAlias = BaseModel
else:
    DatasetKnobs = create_model(
        "DatasetKnobs",
        __config__=ConfigDict(frozen=True, extra="forbid", defer_build=True),
        __doc__="Knobs of one dataset's stream; ``None`` where the common value holds.",
        **{
            name: (Annotated[(int, *Knobs.model_fields[name].metadata)] | None, None)
            for name in STREAM_KNOBS
        },
    )


def _given(knob: str, value: int) -> str:
    return f"AutoLoader(…, knobs={{'{knob}': {value}}}), or --set {knob}={value}"


OTHER_WORDS = {
    "num_workers": "the loader starts its own threads; to fix how many: "
    + _given("decode_threads", 4),
    "prefetch_factor": "batches ahead are set by " + _given("ring_slots", 8),
    "shuffle_buffer_size": "an indexed reader needs none; for a stream: "
    + _given("shuffle_samples", 1000),
    "shuffle": "leave it out: samples are shuffled by the spec's seed",
    "device": "leave it out: batches come in memory, and loader.transfer(device) copies them",
    "ram_floor": "give it to AutoLoader(…, ram_floor=…), or by --ram-floor",
    "split": "write it in the entry of each dataset: split: {train: …, val: …}",
    "camera": "write cameras: {NAME: {size: [224, 224]}} at the top, and images: {NAME: FEATURE} "
    "in the entry of each dataset",
    "batch_size": "here this is batch: {size: N} in the spec, or --set batch.size=N",
}
"""What a setting of other loaders is called here."""


def _not_allowed(key: object, value: object, why: str = "") -> KnobError:
    return KnobError(
        f"{key}: {shown(value)} is not allowed{why and ': ' + why}",
        remedy="give a value within the range that `autoloader plan -v SPEC` shows for the knob",
    )


class _Moves:
    """Knob values, by flat name, on their way to legal ones; ``clamps``: those that had to move."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.clamps: dict[str, Clamp] = {}

    def of(self, dataset: str | None, knob: str) -> int:
        """The value in force for a dataset, or the common one."""
        return int(self.values.get(f"{dataset}.{knob}", self.values[knob]))

    def set(self, key: str, to: int, rule: str) -> None:
        """Move a value, because of ``rule``."""
        dataset, _, knob = key.rpartition(".")
        known = self.clamps.get(key)
        self.clamps[key] = Clamp(key, known.value if known else self.of(dataset, knob), to, rule)
        self.values[key] = to

    def lower(self, key: str, to: int, rule: str) -> None:
        """Move a value down to ``to`` where it is above; one that is not set stays so."""
        if key in self.values and self.values[key] > to:
            self.set(key, to, rule)


@frozen
class KnobLimits:
    """Limits of one pipeline on one host.

    Attributes:
        cpus: number of processors that this process may use.
        shards: dataset name → number of shards of its split.
        block_length: number of samples of a block.
        batch_bytes: bytes of a ring slot; 0: not known.
        budget_bytes: bytes the ring may take; ``None`` when there is no limit.
        cache_bytes: bytes that decoded frames may take; ``None`` when there is no limit.
        helpers: number of processors of other hosts; ``None``: not known.
        one_process: whether batches are built in one process, which holds blocks
            (``mixing.locality``).
    """

    cpus: int
    shards: Mapping[str, int]
    block_length: int = 1
    batch_bytes: int = 0
    budget_bytes: int | None = None
    cache_bytes: int | None = None
    helpers: int | None = None
    one_process: bool = False


@frozen
class Workload:
    """Facts that the first guess of a knob goes by.

    Attributes:
        limits: limits of the knobs for the pipeline on the host.
        dataset_samples: samples of a batch from an average dataset.
        disk_bound: whether reads wait for a disk.
    """

    limits: KnobLimits
    dataset_samples: int
    disk_bound: bool = False


@frozen
class Clamp:
    """One knob that had to move: from ``value`` to ``legal``, because of ``rule``."""

    knob: str
    value: int
    legal: int
    rule: str
