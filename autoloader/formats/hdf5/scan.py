"""Looks into an HDF5 file: its episodes, their features, its splits. Read by h5py, once a file.

Links are not followed out of a file: a soft or external link is listed as such, and not opened.
Nothing is read but names, shapes, small attributes and the first bytes of a picture.

Not here: values and places of pictures (``episodes``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from autoloader.formats import files
from autoloader.formats.files import UnreadableError
from autoloader.formats.hdf5.schemas import (
    LANGUAGE,
    MOST_TEXT_BYTES,
    Schema,
    said_outside,
    schemas,
    told,
)
from autoloader.host.extras import needs

FAULTS = (
    OSError,
    LookupError,
    ValueError,
    RuntimeError,
    TypeError,
    AttributeError,
    ArithmeticError,
    MemoryError,
)
"""Errors that h5py raises of damaged files."""
MOST_EPISODES = 10**6
_MOST_FEATURES = 1024
_DEEPEST = 6
_LEAST_SIDE = 16
"""Of an array of numbers that is an image."""
_DEPTHS = ("uint16", "int16", "float16", "float32")
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG")
_EXTERNAL = "an external link"


@contextmanager
def damaged(what: str) -> Iterator[None]:
    """Turn what h5py raises of a damaged file into an ``UnreadableError`` that names the thing."""
    try:
        yield
    except UnreadableError:
        raise
    except FAULTS as error:
        raise UnreadableError(f"{what}: {type(error).__name__}: {error}"[:200]) from error


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """An ``h5py.File``, without locks.

    Raises:
        UnreadableError: the file is no HDF5 file, or is cut off.
        OSError: the file is not there, or cannot be read.
        MissingExtraError: h5py is not installed.
    """
    with files.opened_regular(path):
        pass
    with needs("an HDF5 file", extra="hdf5"):
        import h5py
    try:
        file = h5py.File(path, "r", locking=False)
    except FAULTS as error:
        raise UnreadableError(files.told_stand_in(path) or _why(error)) from error
    with file:
        yield file


def _why(error: BaseException) -> str:
    """The fault of a file that h5py does not open."""
    said = str(error)
    cut = re.search(r"eof = (\d+).*stored_eof = (\d+)", said)
    if cut:
        return f"it is cut off: it has {int(cut[1]):,} of {int(cut[2]):,} bytes"
    return f"it is not an HDF5 file, or is damaged: {said}"[:200]


def natural(name: str) -> tuple[Any, ...]:
    """Sort key by which demo_10 follows demo_9."""
    return tuple(int(one) if one.isdigit() else one for one in re.split(r"(\d+)", name))


def scan(path: str, schema: Schema | None) -> dict[str, Any]:
    """The contents of a file, as JSON can hold them.

    Args:
        path: path of the file.
        schema: schema of the dataset; ``None``: the known one that fits.

    Returns:
        "fault": reason why the file cannot be used, or "". "foreign": whether it has no known
        layout, as files of other programs. "schema": name of the known schema.
        "episodes": of each its group, its steps, its fault. "features": path → (kind, dtype,
        shape). "masks": name → numbers of episodes. "lost": name → names in the mask that no
        episode has. "fps": frames a second or ``None``.
    """
    found: dict[str, Any] = {
        "fault": "", "foreign": False, "schema": "", "episodes": [], "features": {}, "masks": {},
        "lost": {}, "fps": None,
    }  # fmt: skip
    try:
        with damaged("it is damaged"), opened(path) as file:
            if schema is None:
                fits = (name for name, one in schemas().items() if all(p in file for p in one.has))
                found["schema"] = next(fits, "")
                schema = schemas().get(found["schema"])
            if schema is None:
                found["foreign"] = True
                found["fault"] = f"it has no known layout: its top level has {few(file)}"
                return found
            found["episodes"] = list(_episodes(file, schema))
            _read_masks(file, found)
            found["fps"] = _fps(file, schema)
            whole = next((one for one in found["episodes"] if not one[2]), None)
            if whole is not None:
                found["features"] = _features(file, path, whole[0], whole[1], schema)
    except UnreadableError as error:
        found["fault"] = str(error)
    return found


def few(group: Any) -> str:
    """Names in a group, for a message."""
    names = sorted(group)[:8]
    return ", ".join(names) + (", …" if len(group) > len(names) else "")


def linked(group: Any, name: str) -> str:
    """The kind of link on the way to a member of a group; "" where there is none."""
    import h5py

    for part in name.split("/"):
        link = group.get(part, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            return _EXTERNAL
        if isinstance(link, h5py.SoftLink):
            return "a soft link"
        group = group.get(part)
        if not isinstance(group, h5py.Group):
            break
    return ""


def unfollowed(whole: str, kind: str) -> UnreadableError:
    """Make the error for a path with a link on it; it is returned."""
    remedy = "name its target in the spec instead"
    if kind == _EXTERNAL:
        remedy = "copy the data into the file"
    return UnreadableError(f"{whole} is {kind}, which is not followed", remedy)


def _episodes(file: Any, schema: Schema) -> Iterator[tuple[str, int, str]]:
    """(group, steps, fault) of each episode, in the order of the numbers in their names."""
    names = [""]
    if schema.episodes:
        if schema.episodes not in file:
            raise UnreadableError(f"it has no group {schema.episodes!r}; it has {few(file)}")
        if kind := linked(file, schema.episodes):
            raise unfollowed(schema.episodes, kind)
        group = file[schema.episodes]
        if len(group) > MOST_EPISODES:
            raise UnreadableError(f"it has more than {MOST_EPISODES} episodes")
        names = [f"{schema.episodes}/{name}" for name in sorted(group, key=natural)]
    for name in names:
        steps, fault = 0, ""
        try:
            if name and (kind := linked(file, name)):
                fault = str(unfollowed(name, kind))
            else:
                steps = _steps(file[name or "/"], schema)
        except FAULTS as error:
            fault = f"{name or 'the file'}: {error}"[:200]
        yield name, steps, fault


def _steps(episode: Any, schema: Schema) -> int:
    """Number of an episode's steps, by its attribute, else by its actions."""
    if "num_samples" in episode.attrs:
        steps = attribute(episode, "num_samples")
    else:
        path = next((one for choice in schema.action for one in choice if one in episode), "")
        if not path:
            raise ValueError("it has neither the attribute num_samples nor an action array")
        if kind := linked(episode, path):
            raise unfollowed(path, kind)
        steps = episode[path].shape[0]
    if not 0 < int(steps) < 2**31:
        raise ValueError(f"it has {steps} steps")
    return int(steps)


def attribute(owner: Any, name: str) -> Any:
    """The value of a small attribute. Raises ValueError of a large one, and as h5py does."""
    of = owner.attrs.get_id(name)
    if of.get_storage_size() > MOST_TEXT_BYTES or np.prod(of.shape, dtype=float) > 1:
        raise ValueError(f"its attribute {name} is too large")
    return _single(owner.attrs[name])


def _single(value: Any) -> Any:
    """The one value of an attribute or a dataset, which may lie in an array of one."""
    return value.reshape(-1)[0] if isinstance(value, np.ndarray) else value


def _read_masks(file: Any, found: dict[str, Any]) -> None:
    """Fill in "masks" and "lost" of what ``scan`` has found; the numbers of episodes ascend."""
    import h5py

    names = [one[0].rpartition("/")[2] for one in found["episodes"]]
    if "mask" not in file or linked(file, "mask") or not isinstance(file["mask"], h5py.Group):
        return
    for split in file["mask"]:
        listed = None if linked(file, f"mask/{split}") else file[f"mask/{split}"]
        if not isinstance(listed, h5py.Dataset) or listed.dtype.kind not in "SO":
            continue
        if listed.nbytes <= 64 * MOST_TEXT_BYTES:
            own = {_text(one) for one in listed[()].reshape(-1)}
            found["masks"][split] = [number for number, name in enumerate(names) if name in own]
            if lost := sorted(own.difference(names), key=natural):
                found["lost"][split] = lost


def _fps(file: Any, schema: Schema) -> float | None:
    if not isinstance(schema.fps, str):
        return schema.fps
    if schema.fps not in file or linked(file, schema.fps) or file[schema.fps].shape:
        return None
    found = float(file[schema.fps][()])
    return found if found > 0 else None


def _features(
    file: Any, path: str, name: str, steps: int, schema: Schema
) -> dict[str, tuple[str, str, list[int | None]]]:
    """Features of an episode: path → (kind, dtype, shape of a step)."""
    found: dict[str, tuple[str, str, list[int | None]]] = {}
    for place, one in _walk(file[name or "/"]):
        if len(found) >= _MOST_FEATURES:
            raise UnreadableError(
                f"an episode ({name or '/'}) has more than {_MOST_FEATURES} arrays, "
                "or its groups link back to themselves"
            )
        found[place] = ("other", one, []) if isinstance(one, str) else kind_of(one, steps)
        if found[place][0] == "image" and _is_cut(one):
            found[place] = ("slab", *found[place][1:])
    if language(file, path, name, schema) is not None:
        found[LANGUAGE] = ("text", "string", [])
    return found


def _walk(group: Any, above: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Datasets below a group, and links, which are told by their kind."""
    import h5py

    for name in sorted(group):
        place = f"{above}{name}"
        if kind := linked(group, name):
            yield place, kind.partition(" ")[2]
            continue
        one = group[name]
        if isinstance(one, h5py.Dataset):
            yield place, one
        elif isinstance(one, h5py.Group) and depth < _DEEPEST:
            yield from _walk(one, f"{place}/", depth + 1)


def kind_of(array: Any, steps: int) -> tuple[str, str, list[int | None]]:
    """(kind, dtype, shape of a step) of a dataset of an episode."""
    shape, kind = array.shape or (), array.dtype.kind
    inner: list[int | None] = list(shape[1:])
    if not shape or shape[0] != steps:
        return "other", str(array.dtype), list(shape)
    if array.dtype == np.uint8 and len(shape) == 4 and shape[-1] in (1, 3):
        return "image", "uint8", inner
    if is_encoded(array):
        return "image", "uint8", [None, None, 3]
    if kind in "fiu" and len(shape) in (3, 4) and min(shape[1:3]) >= _LEAST_SIDE:
        depth = shape[3:] in ((), (1,)) and str(array.dtype) in _DEPTHS
        return "depth" if depth else "other", str(array.dtype), inner
    if kind in "fiub" and array.dtype.itemsize <= 8:
        return "tensor", str(array.dtype.newbyteorder("=")), inner
    return "other", str(array.dtype), inner


def _is_cut(array: Any) -> bool:
    """True if pictures lie in chunks that are cut or filtered."""
    cut = bool(array.chunks) and array.chunks[1:] != array.shape[1:]
    return cut or bool(array.id.get_create_plist().get_nfilters())


def is_encoded(array: Any) -> bool:
    """True if a dataset's rows are JPEG or PNG: byte strings, rows of bytes or of any length."""
    import h5py

    of_bytes = array.dtype == np.uint8 and array.ndim == 2
    fixed = array.dtype.kind == "S" and array.ndim == 1 and array.dtype.itemsize > len(_MAGIC[0])
    if of_bytes or fixed:
        if array.dtype.itemsize * int(np.prod(array.shape[1:])) > 64 * MOST_TEXT_BYTES:
            return False
        return np.asarray(array[0]).tobytes().startswith(_MAGIC)
    listed = h5py.check_vlen_dtype(array.dtype)
    return array.ndim == 1 and listed is not None and np.dtype(listed) in (np.uint8, np.int8)


def language(file: Any, path: str, name: str, schema: Schema) -> str | None:
    """The language of an episode by the first source that it has; ``None``: it has none."""
    for source in schema.language:
        if source.startswith(("name:", "file:")):
            found = said_outside(source, path)
        else:
            place, _, key = source.partition(":")
            owner, at, attr = place.partition("@")
            inside = owner.startswith("/") or not name
            try:
                found = _said(file if inside else file[name], owner.strip("/"), at and attr, key)
            except FAULTS:
                found = None
        if found is not None:
            return found
    return None


def _said(owner: Any, place: str, attr: str, key: str) -> str | None:
    """The text of an attribute, or of a dataset of one text, below a group of the file."""
    if place and (place not in owner or linked(owner, place)):
        return None
    one = owner[place] if place else owner
    if attr:
        return told(_text(attribute(one, attr)), key) if attr in one.attrs else None
    small = one.size == 1 and one.nbytes <= MOST_TEXT_BYTES
    return told(_text(_single(one[()])), key) if small else None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
