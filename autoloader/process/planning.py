"""Decisions before a loader starts: files, reader, knobs, order, whether memory suffices.

Opens no pipeline and imports no framework; ``autoloader plan`` shows the result.

Not here: running a plan (``loader``, ``process.control``), the readers (``pipeline.read``), where
indexes come from (``index.opening``).
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from autoloader.controller.admission import StartPrice, admit_start, price_start
from autoloader.controller.limits import MARGIN_BYTES
from autoloader.controller.profile import MixtureKind, host_facts
from autoloader.controller.profiles import ResolvedProfile, load_profile
from autoloader.errors import BudgetInfeasibleError, SpecError, UsageError, many
from autoloader.formats.sources import same_files
from autoloader.host.extras import require
from autoloader.host.headroom import HeadroomProbe
from autoloader.host.machine import CgroupProcessors
from autoloader.host.units import format_bytes, parse_floor
from autoloader.index.counting import count_mixture
from autoloader.index.opening import digest_of_sizes, find_indexes
from autoloader.index.statistics import statistics_of, with_recorded_sizes
from autoloader.pipeline.batch_call import call_identity
from autoloader.process.child import ChildPipeline, preempt
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture, normalised, resolve
from autoloader.samples.transforms.keep import DatasetCount
from autoloader.sampling.chains import why_unchained
from autoloader.sampling.dealing import Ranks, Steps, check_parts
from autoloader.sampling.mixture import MixtureOrder, mixture_order
from autoloader.spec import CurriculumSpec, PipelineSpec
from autoloader.spec.knobs import KNOBS, STREAM_KNOBS, KnobLimits, Knobs
from autoloader.storage.places import CLIENTS, disk_floor_of_environment, scheme_of
from autoloader.telemetry.progress import told

logger = logging.getLogger(__name__)


def choose_reader(mixture: ResolvedMixture, knob: str) -> tuple[Literal["stream", "indexed"], str]:
    """(reader, reason): the spec's reader, else the knob's, else by where the data lies.

    Raises:
        SpecError: a reader is asked for that cannot read the data, or none can read all of it.
    """
    pinned, field, who = mixture.spec.reader, "reader", "the spec pins it"
    if pinned == "auto":
        pinned, field, who = cast("Any", knob), "knobs.reader", "the knob says so"
    away = [dataset for dataset in mixture.datasets if dataset.remote]
    why, found = _reader_of(away, pinned)
    if found == "stream":
        if (needed := _index_needed(mixture)) is not None:
            what, way_out = needed
            told = who if pinned == "stream" else why
            raise SpecError(
                f"{what}, but the mixture would be streamed: {told}",
                remedy="use reader: auto with pip install 'autoloader-rlds[remote]', copy remote "
                f"data to a local disk, or {way_out}",
            )
        if pinned == "indexed":
            raise SpecError(
                f"{field}: indexed is not possible: {why}",
                remedy="pip install 'autoloader-rlds[remote]', use reader: stream (or auto), "
                "or copy the data to a local disk",
            )
    return found, why if pinned == "auto" else who


def _reader_of(
    away: Sequence[ResolvedDataset], pinned: str
) -> tuple[str, Literal["stream", "indexed"]]:
    """Why a mixture with such remote datasets is read as it is, and which reader suits it."""
    if not away:
        return "all files are local", "stream" if pinned == "stream" else "indexed"
    where = f"{_and_others([one.name for one in away])} lies at {away[0].directory.path}"
    if pinned == "stream":
        return where, "stream"
    if not all(one.indexable for one in away):
        return f"{where}, and no package is installed that reads parts of files there", "stream"
    if pinned == "indexed" or None not in find_indexes(away):
        return f"{where}, with index files: shards arrive in the order of the plan", "indexed"
    rules = any(one.keep is not None for one in away)
    schemes = (scheme_of(one.directory.path) for one in away)
    if not rules and all(one in CLIENTS and CLIENTS[one].streamed for one in schemes):
        return f"{where}, without index files: TensorFlow streams it until it has some", "stream"
    return f"{where}, which is fetched and indexed first: it has no index files", "indexed"


def _index_needed(mixture: ResolvedMixture) -> tuple[str, str] | None:
    """(what of a spec needs an index, how to do without); ``None``: the mixture may be streamed."""
    for one in mixture.datasets:
        if one.drawn_by_weight:
            drawn = f"datasets[{one.name}].sample_weight.use: draw"
            return f"{drawn} needs an index", "set use: batch"
        if one.remote and one.keep is not None:  # its rules need every record's texts
            kept = f"datasets[{one.name}].keep: rules need an index"
            way_out = "write a transform that drops episodes (return None) and steps (array valid)"
            return kept, way_out
    if mixture.spec.mixing.unit == "batch":
        return "mixing.unit: batch needs an index", "leave mixing.unit out"
    if indexed := [one for one in mixture.datasets if not one.streamable]:
        names, title = _and_others([one.name for one in indexed]), indexed[0].directory.title
        told = f"datasets: {names} holds {title} data, which is read by index only"
        return told, "train on local and remote data in separate runs"
    return None


def reader_of_profile(mixture: ResolvedMixture, reader: str, notes: list[str]) -> str:
    """The profile's reader, or auto: what a profile says gives way to the spec, with a note.

    Args:
        mixture: the resolved mixture that is read.
        reader: reader that the profile asks for; "auto" chooses.
        notes: list that remarks for people are added to.
    """
    spec = mixture.spec
    if reader != "auto" and spec.reader not in ("auto", reader):
        why = f"reader: {spec.reader}"
    elif reader == "indexed" and not all(one.indexable for one in mixture.datasets):
        why = "remote data, of which nothing here fetches ranges"
    elif reader == "stream" and spec.mixing.chain and not any(d.remote for d in mixture.datasets):
        why = "mixing.chain, which needs an index"
    elif reader == "stream" and (needed := _index_needed(mixture)) is not None:
        why, _ = needed
    else:
        return reader
    notes.append(f"reader: {reader} of the profile gives way to the spec: {why}")
    return "auto"


def _and_others(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (as {len(names) - 1} more)"


_ALONE = Ranks()
_MINIMUM_SLOTS = 4
_LEAST = {name: about.low for name, about in KNOBS.items() if about.low is not None}
"""Knob → least value that it may have."""


def html_of(one: object) -> str:
    """``repr`` as notebooks show it."""
    from html import escape  # its tables of characters are for notebooks alone

    return f"<pre>{escape(repr(one))}</pre>"


@dataclass(frozen=True, slots=True, repr=False)
class LoaderPlan:
    """Everything decided before a pipeline starts: what ``autoloader plan`` shows.

    Attributes:
        mixture: datasets, fields and layout, resolved.
        counts: dataset → numbers of its episodes and samples.
        order: shares, phases and epoch of the mixture.
        profile: host profile that the knobs come from.
        ram_floor_bytes: bytes of memory that must stay free.
        knobs: values of all knobs to begin with.
        changes: remarks for people, such as values of the profile that were clamped or left out.
        limits: limits that the knobs were compared with.
        reader_reason: reason for the reader, for people.
        world_size: number of trainers that share the order.
        most_cache_bytes: most bytes of decoded frames that the controller may hold; ``None``
            (``cache_bytes: auto``): all that the floor leaves.
        helpers: address of the cluster whose hosts help; "": none do.
        disk_floor_bytes: bytes that must stay free on the disk of the cache of shards; ``None``:
            as the environment says.
    """

    mixture: ResolvedMixture
    counts: Mapping[str, DatasetCount]
    order: MixtureOrder
    profile: ResolvedProfile
    ram_floor_bytes: int
    knobs: Knobs
    changes: tuple[str, ...]
    limits: KnobLimits
    reader_reason: str
    world_size: int = 1
    most_cache_bytes: int | None = None
    helpers: str = ""
    disk_floor_bytes: int | None = None

    def __repr__(self) -> str:
        return "\n".join(
            (
                f"LoaderPlan of {self.mixture.spec!r}",
                f"  reader       {self.knobs.reader}: {self.reader_reason}",
                f"  floor        {format_bytes(self.ram_floor_bytes)}",
                f"  knobs        of profile {self.profile.profile.name}",
                f"  trainers     {self.world_size}",
                f"  notes        {len(self.notes)}; see notes",
            )
        )

    _repr_html_ = html_of

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for people that should be read before the start."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        mixture, counts = self.mixture, self.counts
        yield from self.changes
        for one in mixture.datasets:
            yield from (f"{one.name}: {told}" for told in one.directory.notes)
        for name, count in counts.items():
            yield from (f"{name}: {told}" for told in count.notes)
        yield from self.blanks
        if mixture.spec.normalize is not None and mixture.statistics is None:
            yield "normalisation statistics are computed, and kept, at the first start"
        for name, count in counts.items():
            yield from (f"{name}: damaged: {reason}" for reason in count.damaged)
        yield from self._transform_notes()
        for one in mixture.datasets:
            if one.files_are:
                colours = "colours stay as they are"
                if one.reversed:
                    colours = f"red and blue of {', '.join(sorted(one.reversed))} change places"
                yield f"{one.name}: taken for {one.files_are}: {colours}"
        yield from self._order_notes()
        yield from self._size_notes()

    def _transform_notes(self) -> Iterator[str]:
        """Cost of transforms."""
        by_index = self.knobs.reader == "indexed"
        when = "once, when its index is built" if by_index else "in every pass"
        found = [(d.name, d.transform) for d in self.mixture.datasets if d.transform is not None]
        for name, own in found:
            if own.derivation is not None:
                yield f"{name}: {own.derivation}; worked out over whole episodes {when}"
            if own.spec is not None:
                yield (
                    f"{name}: transform {own.spec.call} ({own.spec.framework}) took "
                    f"{own.cost_s * 1e3:.1f} ms for an episode and left {own.kept_ratio:.0%} of "
                    f"its steps; it runs {when}"
                )

    def _order_notes(self) -> Iterator[str]:
        """Limits of ``mixing.chain`` and ``mixing.locality``."""
        chain, near = self.mixture.spec.mixing.chain, self.order.locality
        if self.knobs.reader == "stream":
            for name in ["chain"] * chain + ["locality"] * (near is not None):
                why = f"the stream reader reads whole files ({self.reader_reason})"
                yield f"mixing.{name} has no effect: {why}"
            return
        reasons = {
            why_unchained(one.sample, keeps=one.keep is not None) for one in self.mixture.datasets
        }
        if chain and None not in reasons:
            yield f"mixing.chain has no effect: {'; '.join(sorted(map(str, reasons)))}"
        if near is None:
            return
        if near.lanes > 1 and near.lanes % self.world_size:
            yield (
                f"mixing.locality.lanes: {near.lanes} is no multiple of {self.world_size} ranks: "
                "batches are exact, but ranks read blocks of each other's lanes"
            )
        small = [
            name
            for name, block in zip(self.mixture.names, near.blocks, strict=True)
            if near.lanes > 1 and self.counts[name].samples < block * near.lanes
        ]
        if small:
            yield (
                f"mixing.locality.lanes: {near.lanes} are more than the blocks of "
                f"{', '.join(small[:5])}{' and others' * (len(small) > 5)}: each lane reads a part "
                "of a block"
            )

    def _size_notes(self) -> Iterator[str]:
        """Sizes that will stay estimates."""
        spec = self.mixture.spec
        guessed = [d.name for d in self.mixture.datasets if d.remote]
        guessed = [name for name in guessed if self.counts[name].estimated]
        uses = []
        kind = spec.weights.kind if isinstance(spec.weights, CurriculumSpec) else spec.weights
        if kind != "explicit":
            uses.append(f"weights: {kind}")
        if self.order.epoch_samples is not None and not isinstance(spec.mixing.epoch, int):
            uses.append("the length of an epoch")
        if guessed and uses:
            yield (
                f"the sizes of {', '.join(guessed)} are estimated from a few episodes, and "
                f"{' and '.join(uses)} {'hangs' if len(uses) == 1 else 'hang'} on them: set "
                "num_samples, or weights: explicit with mixing: {epoch: forever} or a number"
            )

    @property
    def blanks(self) -> tuple[str, ...]:
        """The texts and cameras that every sample of a dataset lacks, for people."""
        return tuple(
            f"{name}: {clause} → {remedy}"
            for name, count in self.counts.items()
            for clause, remedy in count.blanks
        )

    @property
    def why_no_batch(self) -> str | None:
        """Why the first epoch gives no batch, for people; ``None`` where it gives some."""
        batch, samples = self.mixture.spec.batch, self.order.epoch_samples
        if samples is None or Steps(batch.size, self.world_size, batch.drop_last).left(samples):
            return None
        ranks = f" for each of {self.world_size} ranks" if self.world_size > 1 else ""
        return (
            f"the first epoch gives no batch: it has {many(samples, 'sample')}, and a batch "
            f"takes {batch.size}{ranks}; lower batch.size, set batch.drop_last: false, or make "
            "mixing.epoch longer"
        )


@told("planning the run")
def plan_loader(
    spec: PipelineSpec,
    *,
    profile: str | Path | None = None,
    ram_floor: str | int | None = None,
    disk_floor: str | int | None = None,
    split: str = "train",
    knobs: Mapping[str, Any] | None = None,
    headroom: HeadroomProbe | None = None,
    probe_only: bool = False,
    ranks: Ranks = _ALONE,
    ranks_here: int = 1,
    joining: bool = False,
    open_loaders: Sequence[ChildPipeline] = (),
    once_found: Callable[[], object] | None = None,
) -> LoaderPlan:
    """Decide everything that a loader needs before its pipeline opens.

    Where memory is short, ``open_loaders`` shrink first, which takes up to two seconds. Without
    ``probe_only`` missing indexes are fetched and built.

    Args:
        spec: the pipeline spec of the mixture.
        profile: a host profile's name or path; ``None``: the one that fits this host.
        ram_floor: memory that must stay free, as "5GB" or bytes; ``None``: the profile's.
        disk_floor: space that must stay free on the disk of the cache of shards, as "50GB" or
            bytes; ``None``: as the environment says.
        split: name of the split that the datasets read.
        knobs: knob → value, over the profile's; ``None``: none.
        headroom: source of headroom readings; ``None``: this host.
        probe_only: whether to read no more than a small part of each dataset.
        ranks: this trainer's rank, and the number of trainers that share the order.
        ranks_here: number of ranks on this machine, which share its memory and cores.
        joining: whether another rank has started the child that this one will share; it was
            admitted for all of them.
        open_loaders: loaders that are open in this process.
        once_found: called when the datasets are known to be there, before any is opened.

    Raises:
        SpecError: the spec is wrong, or asks for a reader that cannot read the data.
        SourceError: a dataset is not there, or cannot be read.
        ProfileError: the profile is not there, or is wrong.
        KnobError: a knob is unknown, or its value illegal.
        UsageError: a floor is no size.
        MissingExtraError: the stream reader is asked for where there is no TensorFlow.
        BudgetInfeasibleError: the RAM floor cannot be met even at minimum knobs.
    """
    probe = headroom or HeadroomProbe()
    call = call_identity(spec.batch)
    mixture = replace(resolve(spec, split, once_found=once_found), call=call)
    disk_floor_bytes = admit_disk_floor(disk_floor, mixture)
    found = load_profile(profile, host=host_facts(), mixture=kind_of(mixture))
    names, directories = mixture.names, [one.directory for one in mixture.datasets]
    changes = list(found.notes)
    changes += [
        f"{names[later]}: reads the same data as {names[first]}"
        for first, later in same_files(directories)
    ]
    floor = found.profile.limits.ram_floor
    if ram_floor is not None:
        floor = parse_floor(ram_floor, name="ram_floor")
    if floor == 0:
        logger.warning("ram_floor is 0: the loader keeps no memory free for anything else")
    base = _profile_knobs(found, mixture, changes)
    cpus = cores_of_rank(ranks_here)
    if profile is None and found.origin == "shipped":
        base = base.for_processors(cpus)
    given = dict(knobs or {})
    if given.get("cache_bytes") == "auto":
        del given["cache_bytes"]
    if "reader" in given:
        asked: str = Knobs.build({"reader": given["reader"]}).reader
    else:
        asked = reader_of_profile(mixture, base.reader, changes)
    reader, why = choose_reader(mixture, asked)
    if reader == "stream":
        require("tensorflow", f"the stream reader ({why})")
    held = mixture.sizes
    price = price_start(
        minimum_knobs(spec.mixing.block_length, reader),
        replace(held, block_bytes=0, request_bytes=0) if joining else held,  # the node's
        ranks=1 if joining else ranks_here,
        joining=joining or any(reader in ("indexed", one.knobs.reader) for one in open_loaders),
    )
    asked_floor = "" if ram_floor is None else f"ram_floor={ram_floor!r}: "
    left = _admitted(price, probe, floor, asked_floor, open_loaders)
    limits = KnobLimits(
        cpus=cpus,
        shards=mixture.shards,
        block_length=spec.mixing.block_length,
        batch_bytes=mixture.layout.slot_bytes,
        budget_bytes=max(0, left - MARGIN_BYTES) // (2 * ranks_here)
        + _MINIMUM_SLOTS * mixture.layout.slot_bytes,
        cache_bytes=max(0, left - MARGIN_BYTES) // ranks_here,
        one_process=spec.mixing.locality is not None,
    )
    legal, clamps = base.clamp(limits)
    changes += [f"{c.knob} {c.value} → {c.legal}: {c.rule}" for c in clamps]
    chosen = Knobs.build({**given, "reader": reader}, base=legal)
    chosen.check(limits)
    world_size = ranks.world_size
    with mixture.disk_kept_free(disk_floor_bytes):
        counts = count_mixture(
            mixture,
            probe_only=probe_only,
            by_index=chosen.reader == "indexed",
            fetch=chosen.reader == "indexed",
        )
    content = {name: one.files[1] for name, one in counts.items()}
    if chosen.reader == "stream":
        content = {one.name: digest_of_sizes(one) for one in mixture.datasets}
    mixture = replace(mixture, content=content)
    samples = {name: count.samples for name, count in counts.items()}
    if chosen.reader == "stream" and world_size > 1:
        check_parts(mixture, samples, Ranks(0, world_size))
    if spec.normalize is not None:
        with mixture.disk_kept_free(disk_floor_bytes):
            statistics = statistics_of(spec, split, cached_only=probe_only)
        counts = with_recorded_sizes(counts, spec, statistics)
        mixture = mixture if statistics is None else normalised(mixture, statistics)
    sizes = {name: one.size for name, one in counts.items()}
    order = mixture_order(mixture, samples, sizes, world_size)
    if order.epoch_samples is not None and order.epoch_samples < world_size:
        raise SpecError(
            f"an epoch has {many(order.epoch_samples, 'sample')}, too few for {world_size} ranks",
            remedy="use fewer ranks, or a longer epoch (mixing.epoch: NUMBER of samples)",
            path="mixing.epoch",
        )
    return LoaderPlan(
        mixture,
        counts,
        order,
        found,
        floor,
        chosen,
        tuple(changes),
        limits,
        why,
        world_size,
        most_cache_bytes=chosen.cache_bytes if "cache_bytes" in given else None,
        disk_floor_bytes=disk_floor_bytes,
    )


def cores_of_rank(ranks_here: int) -> int:
    """Cores that each of ``ranks_here`` ranks may count on; a launcher may have bound them."""
    return CgroupProcessors().read().shared_by(ranks_here)


def minimum_knobs(block_length: int, reader: str = "auto") -> Knobs:
    """The smallest knobs a pipeline runs with."""
    wanted = {"ring_slots": _MINIMUM_SLOTS, "queue_samples": block_length, "reader": reader}
    return Knobs.build(_LEAST).model_copy(update=wanted)


def _admitted(
    price: StartPrice, probe: HeadroomProbe, floor: int, asked: str,
    open_loaders: Sequence[ChildPipeline],
) -> int:  # fmt: skip
    """Bytes left above the floor after a start at minimum knobs; may preempt open loaders."""

    def available() -> int:
        return probe.read().headroom_bytes - sum(one.reserved_bytes() for one in open_loaders)

    if (missing := floor + MARGIN_BYTES + price.total_bytes - available()) > 0:
        preempt(open_loaders, missing)
    try:
        return admit_start(price, headroom_bytes=available(), ram_floor_bytes=floor)
    except BudgetInfeasibleError as error:
        raise BudgetInfeasibleError(asked + error.what, remedy=error.remedy) from None


def _profile_knobs(found: ResolvedProfile, mixture: ResolvedMixture, notes: list[str]) -> Knobs:
    """Knobs of a profile, without those of datasets that the mixture lacks."""
    values = found.profile.knobs.flat()
    for key in list(values):
        dataset = key.rpartition(".")[0]
        if dataset and dataset not in mixture.names:
            notes.append(f"{key} of the profile is for another mixture and left out")
            del values[key]
    return Knobs.build(values)


def retuned(
    knobs: Knobs, values: Mapping[str, Any], named: Mapping[str, Any], limits: KnobLimits
) -> Knobs:
    """The knobs that ``AutoLoader.retune`` asks for.

    Args:
        knobs: values of all knobs in force.
        values: as ``--set`` names them.
        named: keyword arguments, in which ``bridge__cycle_length`` is ``bridge.cycle_length``.
        limits: limits that the knobs are compared with.

    Raises:
        KnobError: an unknown knob or an illegal combination.
        UsageError: the reader would change.
    """
    wanted = dict(values)
    for key, value in named.items():
        dataset, _, knob = key.rpartition("__")
        wanted[f"{dataset}.{knob}" if dataset and knob in STREAM_KNOBS else key] = value
    found = Knobs.build(wanted, base=knobs)
    if "reader" in found.changed(knobs):
        raise UsageError("reader cannot change during a run", remedy="make a new AutoLoader for it")
    found.check(limits)
    return found


def kind_of(mixture: ResolvedMixture) -> MixtureKind:
    """The mixture's kind; what its metadata does not say is left out."""
    layout = mixture.layout
    frames = len(layout.cameras) * layout.frames
    shown = [height * width for height, width in layout.cameras.values()]
    features = [of[0] for one in mixture.datasets for of in one.cameras.values()]
    sides = ([side for side in one.shape[:2] if side] for one in features)
    stored = [math.prod(both) for both in sides if len(both) == 2]
    known = (one.encoding for one in features if one.encoding != "unknown")
    encodings = Counter(filter(None, known))
    return MixtureKind(
        datasets=len(mixture.datasets),
        batch=layout.batch_size,
        frames=frames,
        pixels=_mean(shown),
        source_pixels=_mean(stored),
        encoding=max(sorted(encodings), key=encodings.__getitem__, default=None),
    )


def _mean(pixels: list[int]) -> int | None:
    return round(sum(pixels) / len(pixels)) if pixels else None


def admit_disk_floor(disk_floor: str | int | None, mixture: ResolvedMixture) -> int | None:
    """Bytes of ``disk_floor``; ``None`` where it is ``None``.

    Args:
        disk_floor: "50GB", or bytes; 0 keeps nothing free; ``None``: as the environment says.
        mixture: the resolved mixture that will be read.

    Raises:
        UsageError: ``disk_floor``, or the environment's, is no floor, or is more than the disk of
            the cache has.
    """
    own = None if disk_floor is None else parse_floor(disk_floor, name="disk_floor")
    floor_bytes = disk_floor_of_environment() if own is None else own
    if floor_bytes == 0:
        logger.warning("disk_floor is 0: the cache of shards may fill its disk")
    if own is None:
        return None
    if not any(one.remote and one.indexable for one in mixture.datasets):
        return floor_bytes
    from autoloader.storage.shards import FOLDER_VARIABLE, shards_folder

    folder = shards_folder()
    found = os.statvfs(folder)
    whole = found.f_blocks * found.f_frsize
    if floor_bytes >= whole:
        raise UsageError(
            f"disk_floor: {format_bytes(floor_bytes)} cannot stay free: the disk of the cache of "
            f"shards ({folder}) has {format_bytes(whole)} in all",
            remedy=f"lower disk_floor, or set {FOLDER_VARIABLE} to a folder on a larger disk",
        )
    return floor_bytes
