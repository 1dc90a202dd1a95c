"""HDF5 datasets: robomimic, LIBERO, ALOHA, RoboTwin, RoboMIND, or what a folder declares.

An HDF5 file is a shard; its records are its episodes, in the order of their numbers. h5py builds
the index, and nothing else: frames are read by ranges of the file.

Theory of operation. What a file holds is found once and kept in the user's cache, so a start asks
for sizes and times of files alone. The index of a file has its numbers, texts, and the places of
its pictures (``places``). Splits are those of ``mask`` where files have them.

Not here: the words for layouts (``schemas``), looking into a file (``scan``).
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError, many
from autoloader.formats import episodes, files
from autoloader.formats.cache import JsonCache
from autoloader.formats.dataset import PlainReader, ShardSlice
from autoloader.formats.features import ARRAY, SLAB, Feature
from autoloader.formats.files import UnreadableError, naming
from autoloader.formats.frames import ArrayPicture, Encoded, SlabRead
from autoloader.formats.hdf5.places import ArrayFrames, frames_of, refuse
from autoloader.formats.hdf5.scan import (
    damaged,
    few,
    kind_of,
    language,
    linked,
    natural,
    opened,
    scan,
    unfollowed,
)
from autoloader.formats.hdf5.schemas import LANGUAGE, SCHEMA_FILE, Schema, declared_in, schemas
from autoloader.formats.plain import LazyPicture, Step, pixels_of
from autoloader.formats.records import write_example
from autoloader.formats.registry import KnownDataset
from autoloader.formats.tables import SourceIdentity, Wanted
from autoloader.formats.videos import mapped
from autoloader.host.extras import needs
from autoloader.host.units import MIB
from autoloader.spec.model import Timestamps

MOST_NUMBER_BYTES = 256 * MIB
"""Of one feature in one episode."""
_ENCODINGS = {"image": ARRAY, "slab": SLAB, "depth": "bytes"}
"""Kind of a feature as ``scan`` tells it → its encoding; depth has that of a depth camera."""
_scans = JsonCache("hdf5", version=5)
_read = JsonCache("hdf5-layouts", version=1)
"""Layouts that are read: a later start does without h5py, and so without its 9 MB."""


@dataclass(frozen=True)
class Hdf5Directory(episodes.StoredFormat):
    """A folder of HDF5 files, or one of them; see ``DatasetFormat``.

    Attributes:
        schema: layout of the files.
        scans: path → what the file holds, see ``scan.scan``.
    """

    title: ClassVar[str] = "HDF5"
    marker: ClassVar[str] = "*.h*5*"

    schema: Schema = field(default_factory=Schema)
    scans: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def check(cls, path: str | Path, *, dataset: str) -> str:
        """See ``DatasetFormat``; the path may be one file."""
        text = files.normal(path)
        if Path(text).is_file() and fnmatch.fnmatch(Path(text).name, "*.h*5"):
            return text
        return super().check(path, dataset=dataset)

    @classmethod
    def open(cls, path: str, *, dataset: str) -> Hdf5Directory:
        """See ``DatasetFormat``."""
        single = Path(path).is_file()
        declared = declared_in(str(Path(path).parent) if single else path, dataset=dataset)
        pattern = declared.files if declared else "*.h*5"
        names = [path] if single else map(str, Path(path).glob(pattern))
        paths = sorted(map(os.path.normpath, names), key=natural)
        if not paths:
            raise SourceError(
                f"dataset {dataset}: no file in {path} matches {pattern!r}",
                remedy=f"give the folder with the HDF5 files, or write the pattern of their names "
                f"in {Path(path) / SCHEMA_FILE}, such as files: 'data/*.hdf5'",
            )
        about = "" if declared is None else declared.model_dump_json()
        likely = schemas().values() if declared is None else [declared]
        scans = {}
        for one in paths:
            beside = (str(place) for schema in likely for place in schema.files_beside(one))
            more = [files.version_of(place) if os.path.exists(place) else None for place in beside]
            find = partial(scan, one, declared)
            scans[one] = _scans.of_file(one, (one, about, *more), find, dataset=dataset)
        first = next((one for one in scans.values() if one["schema"]), None)
        schema = declared or schemas().get(first["schema"] if first else "", Schema())
        _refuse_broken(scans, schema, dataset=dataset)
        features, notes = _merged(scans)
        return cls(
            name=Path(path).stem if single else Path(path).name,
            version="1",
            path=path,
            features=features,
            splits=_splits(scans),
            dataset=dataset,
            steps={one: tuple(e[1] for e in _episodes(told)) for one, told in scans.items()},
            notes=tuple(notes),
            schema=schema,
            scans=scans,
        )

    @property
    def known(self) -> KnownDataset | None:
        """See ``DatasetFormat``."""
        return self.schema.known(self.features)

    @property
    def fps(self) -> float | None:
        """See ``DatasetFormat``."""
        told = {one["fps"] for one in self.scans.values()}
        found = told.pop() if len(told) == 1 else None
        return None if found is None else float(found)

    def episodes_of(self, path: str) -> Sequence[tuple[str, int, str]]:
        """(group, steps, fault) of each episode of a file."""
        return _episodes(self.scans[path])

    def language_of(self, path: str, record: int) -> str | None:
        """The language of an episode; ``None``: it has none. Raises as h5py does."""
        with opened(path) as file:
            return language(file, path, self.episodes_of(path)[record][0], self.schema)

    def identity(self, path: str, wanted: Wanted) -> SourceIdentity:
        """See ``DatasetFormat``; of the file, files beside it with its language, and the schema."""
        os.stat(path)  # noqa: PTH116  (raises where it is not there)
        more = [str(one) for one in self.schema.files_beside(path)]
        root = os.path.dirname(path) if path == self.path else self.path  # noqa: PTH120
        return episodes.identity_of([path, *more], root, self.schema.model_dump_json().encode())

    def stored(
        self, path: str, only: slice, wanted: Wanted | None, notes: dict[str, None]
    ) -> Iterator[episodes.GiveEpisode]:
        """See ``StoredFormat``."""
        records = range(len(self.episodes_of(path)))[only]
        stored = None if wanted is None else wanted.stored
        try:
            with opened(path) as file:
                for record in records:
                    yield partial(self._stored, file, path, record, stored)
        except UnreadableError as error:
            yield from [partial(_refuse, error)] * len(records)

    def first_frames(self, path: str, record: int, camera: str, count: int) -> Sequence[Encoded]:
        """See ``DatasetFormat``."""
        with opened(path) as file:
            frames = self._frames(file, path, record, camera)
        data, found = mapped(path), list[Encoded]()
        for t in range(min(count, len(frames.offset))):
            begin, key = int(frames.offset[t]), int(frames.key[t])
            stretch = data[begin : begin + int(frames.length[t])]
            if not frames.codec.text:
                found.append(stretch)
                continue
            own = frames.chunks[key : key + frames.codec.slab_chunks] - np.array([begin, 0, 0])
            chunks = tuple((int(a), int(b), int(c)) for a, b, c in own)
            slab = SlabRead((path, begin), chunks)
            found.append(ArrayPicture(stretch, frames.codec, int(frames.number[t]), slab))
        return found

    def check_first(
        self, slices: Sequence[ShardSlice], cameras: Collection[str], texts: Iterable[Feature]
    ) -> None:
        """See ``DatasetFormat``: the layout of the first episode's pictures."""
        path, record = slices[0].path, slices[0].start
        for camera in () if self.episodes_of(path)[record][2] else cameras:
            about = (path, record, camera, self.features[camera], self.schema.model_dump_json())
            check = partial(self._check_layout, path, record, camera)
            _read.of_file(path, about, check, dataset=self.dataset)

    def _check_layout(self, path: str, record: int, camera: str) -> bool:
        """Refuse pictures whose layout is not read. Raises SourceError."""
        try:
            with opened(path) as file:
                self._frames(file, path, record, camera)
        except UnreadableError as error:
            group = self.episodes_of(path)[record][0]
            raise SourceError(
                f"dataset {self.dataset}: {path}: {group}{': ' if group else ''}{error.what}",
                remedy=error.remedy
                or "write the file again, move it out of the folder, or leave this camera out",
            ) from error
        return True

    def plain_reader(self, timestamps: Timestamps = "check") -> Hdf5Reader:
        """See ``DatasetFormat``."""
        return Hdf5Reader(self, timestamps)

    def _stored(
        self, file: Any, path: str, record: int, only: Collection[str] | None
    ) -> episodes.StoredEpisode:
        """An episode as the index takes it. Raises UnreadableError."""
        group, steps, fault = self.episodes_of(path)[record]
        values: dict[str, Any] = {}
        if fault:
            raise UnreadableError(fault)
        with damaged(group):
            for name, feature in self.features.items():
                if only is not None and name not in only:
                    continue
                if feature.kind == "image":
                    values[name] = episodes.marks_of(self.cameras.index(name), steps)
                elif name == LANGUAGE:
                    said = language(file, path, group, self.schema)
                    values[name] = [(said or "").encode(errors="replace")]
                elif feature.kind == "tensor" and feature.encoding is None:
                    values[name] = _numbers(_array(file, group, name, steps), name, feature)
        return episodes.StoredEpisode(
            write_example(values), steps, partial(self._frames, file, path, record)
        )

    def _frames(self, file: Any, path: str, record: int, camera: str) -> ArrayFrames:
        """Places of an episode's pictures; raises UnreadableError of a layout that is not read."""
        group, steps, _ = self.episodes_of(path)[record]
        schema = self.schema
        with damaged(camera):
            array = _array(file, group, camera, steps)
            wanted = self.features[camera].dtype
            what = "image" if wanted == "uint8" else "depth"
            if kind_of(array, steps)[:2] != (what, wanted):
                own = f"{camera} is {array.dtype} of shape {array.shape[1:]} here"
                raise UnreadableError(f"{own}, but {what} of {wanted} in other episodes")
            encoded = array.ndim < 3  # a folder may have both
            order = (schema.encoded_order if encoded else "") or schema.channel_order
            with naming(camera):
                return frames_of(array, path, bgr=order == "bgr", rotated=schema.rotate > 0)


def _refuse(error: UnreadableError) -> episodes.StoredEpisode:
    raise error


def _episodes(told: Mapping[str, Any]) -> Sequence[tuple[str, int, str]]:
    """(group, steps, fault) of each episode; a file that cannot be opened counts as one."""
    return told["episodes"] or [("", 0, told["fault"] or "the file has no episode")]


def _refuse_broken(scans: Mapping[str, Mapping[str, Any]], schema: Schema, *, dataset: str) -> None:
    """Refuse files whose episodes nobody can count, and mixed layouts. Raises SourceError."""
    faults = {path: one["fault"] for path, one in scans.items() if one["fault"]}
    if faults and (schema.episodes or len(faults) == len(scans)):
        path, why = next(iter(faults.items()))
        remedy = "download or copy the file again, or remove it"
        if scans[path]["foreign"]:
            remedy = (
                f"declare its layout in {SCHEMA_FILE} (docs/tutorials/hdf5.md), or remove the file"
            )
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        error = SourceError(f"dataset {dataset}: {path}: {why}{more}", remedy=remedy)
        error.foreign = scans[path]["foreign"]
        raise error
    kinds = {one["schema"]: path for path, one in scans.items() if not one["fault"]}
    if len(kinds) > 1:
        (a, first), (b, second), *_ = kinds.items()
        raise SourceError(
            f"dataset {dataset}: {first} is {a}, and {second} is {b}",
            remedy="put each kind in a folder of its own, or give one file as the path",
        )


def _merged(scans: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Feature], list[str]]:
    """(features of all files, what a person should know)."""
    found: dict[str, Feature] = {}
    differ: dict[str, None] = {}
    for told in scans.values():
        for path, (kind, dtype, shape) in told["features"].items():
            encoding = _ENCODINGS.get(kind)
            of: Any = {"depth": "tensor", "slab": "image"}.get(kind, kind)
            one = Feature(path, path, of, dtype, tuple(shape), encoding, path != LANGUAGE)
            known = found.setdefault(path, one)
            if known != one and known.kind == one.kind == "tensor":
                joint = np.result_type(known.dtype, one.dtype)  # float64 of int64 and uint64
                found[path] = replace(known, dtype=str(joint))
                as_one = replace(one, dtype=str(joint)) == found[path] and encoding is None
                if not as_one or joint.kind not in (np.dtype(a.dtype).kind for a in (known, one)):
                    differ[path] = None
    for path in differ:
        several = "of several types or shapes"
        found[path] = replace(found[path], kind="other", encoding=None, dtype=several)
    notes = [f"of different shape or type in different files: {', '.join(differ)}"] * bool(differ)
    for path, told in scans.items():
        for split, lost in told["lost"].items():
            notes.append(f"{path}: mask/{split} names episodes that are not there: {few(lost)}")
    return found, notes


def _splits(scans: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[ShardSlice, ...]]:
    """Each split's stretches of files: those of masks; all episodes as "train", else as "all"."""
    masks = dict.fromkeys(name for told in scans.values() for name in told["masks"])
    every = {path: range(len(_episodes(told))) for path, told in scans.items()}
    wanted: dict[str, Mapping[str, Sequence[int]]] = {"train": every}
    if masks:
        of = {name: {path: told["masks"].get(name, ()) for path, told in scans.items()}
              for name in masks}  # fmt: skip
        wanted = {"train": every, **of, "all": every}
    splits = {}
    for name, records in wanted.items():
        slices: list[ShardSlice] = []
        for number, (path, listed) in enumerate(records.items()):
            for _, run in groupby(enumerate(listed), key=lambda pair: pair[1] - pair[0]):
                own = [record for _, record in run]
                slices.append(ShardSlice(path, number, own[0], own[-1] + 1, name))
        splits[name] = tuple(slices)
    return splits


def _array(file: Any, group: str, name: str, steps: int) -> Any:
    """A dataset of an episode, with a row for each step. Raises UnreadableError."""
    whole = f"{group}/{name}".lstrip("/")
    if whole not in file:
        raise UnreadableError(f"the file has no {whole}")
    if kind := linked(file, whole):
        raise unfollowed(whole, kind)
    array = file[whole]
    shape = getattr(array, "shape", None)
    if not shape or shape[0] != steps:
        has = many(shape[0], "row") if shape else "no rows"
        raise UnreadableError(f"{whole} has {has}, and the episode has {many(steps, 'step')}")
    return array


def _numbers(array: Any, name: str, feature: Feature) -> Any:
    """A feature's values of an episode, flat. Raises UnreadableError."""
    refuse(array)
    if array.shape[1:] != feature.shape or array.dtype.kind not in "fiub":
        raise UnreadableError(f"a step of {name} has shape {array.shape[1:]}, not {feature.shape}")
    if array.nbytes > MOST_NUMBER_BYTES:
        raise UnreadableError(f"{name} claims {array.nbytes:,} bytes, which is too many")
    dtype = np.float32 if "float" in feature.dtype else np.int64
    return episodes.fitting(array[()], dtype, name).reshape(-1)


class Hdf5Reader(PlainReader[Hdf5Directory]):
    """See ``PlainReader``: h5py slices, Pillow decodes, and no code of ours.

    Only the list of episodes is the loader's.
    """

    reads_by = "h5py"

    def steps(self, piece: ShardSlice, record: int) -> list[Step]:
        """See ``PlainReader``."""
        with needs("an HDF5 dataset", extra="hdf5"):
            import h5py
        group, count, _ = self.directory.episodes_of(piece.path)[record]
        with h5py.File(piece.path, "r", locking=False) as file:
            whole = {
                path: file[group or "/"][path][()]
                for path, one in self.directory.features.items()
                if one.kind == "tensor" and one.encoding is None
            }
        said = self.directory.language_of(piece.path, record)
        steps: list[Step] = []
        for t in range(count):
            step: dict[str, Any] = {path: values[t] for path, values in whole.items()}
            for path, one in self.directory.features.items():
                if one.kind == "image":
                    place = f"{group}/{path}"
                    step[path] = LazyPicture(partial(self._picture, piece.path, place, t))
            steps.append(step | {LANGUAGE: (said or "").encode(errors="replace")})
        return steps

    def _picture(self, path: str, place: str, t: int) -> NDArray[np.uint8]:
        """[H, W, 3] pixels of a row."""
        import h5py

        schema = self.directory.schema
        with h5py.File(path, "r", locking=False) as file:
            row = np.asarray(file[place][t])
        if row.dtype.itemsize > 1 and row.dtype.kind != "S":  # depth
            return row[::-1, ::-1] if schema.rotate else row
        order = schema.channel_order
        if row.ndim < 3:
            order = schema.encoded_order or order
            row = pixels_of(row.tobytes())
        row = row[::-1, ::-1] if schema.rotate else row
        return row[..., ::-1] if order == "bgr" else row
