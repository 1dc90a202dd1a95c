"""The spec that a command is given: its file, ``--set`` over it, its transforms, its remote data.

A transform is a function that a spec names. It is found on the import path, in the working
directory or in the spec's folder; ``--no-transforms`` refuses it.

``--set`` takes a knob (``ring_slots=8``, ``bridge.cycle_length=2``) or a path in the spec
(``batch.size=32``, ``datasets.bridge.weight=2``). ``knobs.`` before a name says that it is a knob,
``spec.`` that it is not.

Not here: reading a spec (``spec``), finding and calling transforms (``samples.transforms``).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoloader.errors import UsageError, nearest

if TYPE_CHECKING:
    from autoloader.spec import PipelineSpec

SETTING = re.compile(r"[A-Za-z_][\w.-]*=.*", re.DOTALL)
"""A word that ``--set`` takes."""


def permit_transforms(place: Path | None, *, allowed: bool) -> None:
    """Let the transforms of a spec be imported, or refuse them, before the spec is read."""
    from autoloader.samples.transforms import transform

    if not allowed:
        transform.refuse()
    elif place is not None:
        with contextlib.suppress(OSError):  # the working directory is gone
            transform.permit(str(Path.cwd()), str(place.absolute().parent))


def read_spec(
    place: Path, words: Sequence[str] | None = None, *, knobs_first: bool = False
) -> tuple[PipelineSpec, dict[str, str]]:
    """Give the spec in a file with ``--set`` over it, and the knobs that ``--set`` names.

    Args:
        place: path of the spec file.
        words: words such as "ring_slots=8"; of two for one name the later wins.
        knobs_first: whether a bare name of a knob is the knob where the spec has that name too.

    Raises:
        UsageError: a word is no setting, or names both a knob and a field.
        SpecError: the spec, with the settings over it, is wrong.
    """
    from autoloader.spec import PipelineSpec
    from autoloader.spec.reading import read_document

    knobs: dict[str, str] = {}
    document = read_document(place)
    for name, text in parse_settings(words).items():
        if (knob := _knob_of(name, document, knobs_first)) is None:
            _put(document, name.removeprefix("spec."), text)
        else:
            knobs[knob] = text
    return PipelineSpec.from_mapping(document, folder=place.parent), knobs


def parse_settings(words: Sequence[str] | None) -> dict[str, str]:
    """Give ``{"decode_threads": "4"}`` for "decode_threads=4"; later words win.

    Raises:
        UsageError: a word has no "=".
    """
    values = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UsageError(
                f"--set {word!r} names no knob or field and value",
                remedy="write knob=value or field=value, such as --set decode_threads=4 "
                "bridge.cycle_length=2 batch.size=32",
            )
        values[name.strip()] = value.strip()
    return values


def _knob_of(name: str, document: dict[str, Any], knobs_first: bool) -> str | None:
    """The knob that a name means; ``None``: it is a path in the spec."""
    from autoloader.spec import PipelineSpec
    from autoloader.spec.knobs import Knobs

    if name.startswith("knobs."):
        return name.removeprefix("knobs.")
    head, _, rest = name.partition(".")
    if head not in {*PipelineSpec.model_fields, "defaults", "spec"}:
        return name
    bare = not rest and head in Knobs.model_fields
    if bare and knobs_first:
        return name
    datasets = [one.get("name") for one in _datasets(document)]
    if bare or (rest in Knobs.model_fields and head in datasets):
        raise UsageError(
            f"--set {name}: this is a knob, and a field of the spec",
            remedy=f"write knobs.{name}=… for the knob, or spec.{name}=… for the field",
        )
    return None


def _datasets(document: dict[str, Any]) -> list[dict[str, Any]]:
    found = document.get("datasets")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _put(document: dict[str, Any], path: str, text: str) -> None:
    """Put a value, written as in YAML, at a path such as ``datasets.bridge.weight``."""
    from autoloader.spec.reading import parse_yaml
    from autoloader.spec.regular_files import DocumentError

    *above, leaf = path.split(".")
    holder: Any = document
    if above[:1] == ["datasets"]:
        named = {one.get("name"): one for one in _datasets(document)}
        name, above = above[1] if above[1:] else leaf, above[2:]
        if name not in named:
            raise UsageError(
                f"--set {path}: the spec has no dataset {name!r}",
                remedy=nearest(name, [str(one) for one in named]),
            )
        holder = named[name]
    for part in above:
        inner = holder.get(part)
        holder[part] = dict(inner) if isinstance(inner, dict) else {}  # an alias may share it
        holder = holder[part]
    try:
        holder[leaf] = parse_yaml(text)
    except DocumentError as error:
        raise UsageError(f"--set {path}={text}: {error.what}", remedy=error.remedy) from error


def read_remote_here(spec: Any) -> bool:
    """Let this process read remote data of ``spec`` with TensorFlow.

    Returns:
        Whether any dataset is remote.
    """
    from autoloader.formats.files import is_remote

    if not any(is_remote(one.path or one.data_dir or "") for one in spec.datasets):
        return False
    read_with_tensorflow_here()
    return True


def read_with_tensorflow_here() -> None:
    """Let this process read remote files with TensorFlow."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # TensorFlow would take the whole of a GPU's memory
    from autoloader.pipeline.graph import files

    files.enter()
