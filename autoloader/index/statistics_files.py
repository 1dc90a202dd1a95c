"""Statistics files as other tools lay them out: which one a document is, and how to write one.

| format | layout |
| --- | --- |
| autoloader | by dataset; every key, with masks of action and proprio |
| octo | by dataset, of one dataset itself; ``p01`` and ``p99``; ``action`` has a mask |
| openvla | by dataset; ``q01`` and ``q99``; ``action`` has a mask; proprio is zeros if missing |
| openpi | one robot's ``norm_stats.json``: ``{"norm_stats": {"state", "actions"}}``, no extremes |
| lerobot | one dataset's ``meta/stats.json``: by feature, with counts and five quantiles |

A document of one dataset holds for every dataset that it is used for. Octo's and OpenVLA's cache
files, of one dataset each, are read too, and OpenVLA's ``norm_stats`` within a ``config.json``.

Not here: computing statistics (``statistics``), what the numbers mean (``samples.statistics``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from autoloader.errors import SpecError
from autoloader.formats import files
from autoloader.samples.statistics import NormalizationStatistics
from autoloader.spec import PipelineSpec
from autoloader.spec.mixture import NormalizeSpec
from autoloader.spec.recipes import other_names

Format = Literal["autoloader", "octo", "openvla", "openpi", "lerobot"]
FORMATS: tuple[Format, ...] = get_args(Format)
EVERY = "*"
"""The name of statistics that hold for every dataset."""
FILE_OF: Mapping[str, str] = {"openpi": "norm_stats.json", "lerobot": "meta/stats.json"}
"""Formats of one dataset: the file's place in the dataset's (or robot's) own folder."""

_MOMENTS = ("mean", "std")
_OURS = {"action": "action", "proprio": "proprio"}
_RANGE = {name: name for name in ("mean", "std", "max", "min")}
_QUANTILES = {name: name for name in ("q01", "q99")}
_LAYOUTS: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "octo": (_OURS, {**_RANGE, "p99": "q99", "p01": "q01"}),
    "openvla": (_OURS, {**_RANGE, **_QUANTILES}),
    "openpi": (
        {"state": "proprio", "actions": "action"},
        {"mean": "mean", "std": "std", **_QUANTILES},
    ),
    "lerobot": (
        {"action": "action", "observation.state": "proprio"},
        {**_RANGE, **_QUANTILES, "q10": "q10", "q50": "q50", "q90": "q90"},
    ),
}
"""Format → (its name of a field → ours, its name of a number → ours)."""


def read_document(document: Mapping[str, Any]) -> dict[str, NormalizationStatistics]:
    """The statistics in a parsed file of any of the formats, by dataset or for ``EVERY``.

    Raises:
        ValueError: an entry is none; says which and why.
    """
    inner = document.get("norm_stats")
    if isinstance(inner, Mapping):
        if any(_has_moments(inner.get(name)) for name in ("actions", "state")):
            entry = {"action": inner.get("actions"), "proprio": inner.get("state")}
            return {EVERY: NormalizationStatistics.from_plain(entry, padded=True)}
        document = inner
    if "observation.state" in document or _has_moments(document.get("action")):
        return {EVERY: NormalizationStatistics.from_plain(_one_dataset(document))}
    found = {}
    for name, entry in document.items():
        try:
            found[str(name)] = NormalizationStatistics.from_plain(entry)
        except ValueError as error:
            raise ValueError(f"dataset {name!r}: {error}") from error
    return found


def _has_moments(entry: Any) -> bool:
    return isinstance(entry, Mapping) and all(key in entry for key in _MOMENTS)


def _one_dataset(document: Mapping[str, Any]) -> dict[str, Any]:
    """Of LeRobot's features, or of a cache file of Octo's or OpenVLA's."""
    action, state = document.get("action"), document.get("observation.state")
    count = next((one["count"][0] for one in (action, state) if one and "count" in one), None)
    return {
        "action": action,
        "proprio": state if state is not None else document.get("proprio"),
        "num_transitions": document.get("num_transitions") if count is None else count,
        "num_trajectories": document.get("num_trajectories"),
    }


def written(document: Mapping[str, Any], how: Format) -> dict[str, Any]:
    """Files of a format: one of all datasets by the name "", or one by dataset.

    Args:
        document: the document of ``mixture.statistics_document``.
        how: name of the format, such as "octo".
    """
    if how == "autoloader":
        return {"": dict(document)}
    found = {name: _entry(one, how) for name, one in document.items()}
    if how in FILE_OF:
        return found
    # What Octo's loader takes for one dataset names none.
    return {"": next(iter(found.values())) if how == "octo" and len(found) == 1 else found}


def _entry(entry: Mapping[str, Any], how: Format) -> dict[str, Any]:
    """A dataset's entry in another tool's layout."""
    fields, numbers = _LAYOUTS[how]
    found: dict[str, Any] = {
        theirs: {key: entry[ours][own] for key, own in numbers.items() if own in entry[ours]}
        for theirs, ours in fields.items()
        if ours in entry
    }
    if how == "openpi":
        return {"norm_stats": found}
    if how == "lerobot":
        return {field: {**one, "count": [entry["num_transitions"]]} for field, one in found.items()}
    if "action" in found:
        if how == "openvla":
            width = len(found["action"]["mean"])
            found.setdefault("proprio", dict.fromkeys(numbers, [0.0] * width))
        found["action"]["mask"] = entry["action"]["mask"]
    return found | {key: entry[key] for key in ("num_transitions", "num_trajectories")}


def normalize_of(spec: PipelineSpec) -> NormalizeSpec:
    """``normalize``, or its defaults where nothing is normalised."""
    return spec.normalize or NormalizeSpec.model_construct()


def read_statistics(path: str | Path, spec: PipelineSpec) -> dict[str, NormalizationStatistics]:
    """The statistics that a file, or a folder of them, has for the datasets of a spec, by name.

    A dataset has those under its own name, else under another name of the same dataset
    (``bridge_orig`` and ``bridge_dataset``), else its group's (``normalize.group``), else those of
    a file that names none. What the file says of other datasets is left out.

    Args:
        path: a file of one of the ``formats``; or a folder with one for each dataset, below its
            name, as openpi and LeRobot keep them.
        spec: the pipeline spec whose datasets count.

    Raises:
        SpecError: a file cannot be read, or is no statistics file.
    """
    folder = Path(path)
    by_file = None if os.path.isdir(folder) else _read_file(path)
    found = {}
    for dataset in spec.datasets:
        group = normalize_of(spec).group_of(dataset.name)
        names = [dataset.name, *other_names(dataset.name), *([] if group is None else [group])]
        own = by_file
        if own is None:
            files = (_in_folder(folder, name) for name in names)
            file = next((one for one in files if one is not None), None)
            own = {} if file is None else _read_file(file)
        entry = next((own[name] for name in (*names, EVERY) if name in own), None)
        if entry is not None:
            found[dataset.name] = entry
    return found


def _read_file(path: str | Path) -> dict[str, NormalizationStatistics]:
    """Statistics in a file, by dataset; ``SpecError`` where it has none."""
    where = "normalize.statistics"
    try:
        document = json.loads(files.read_local(path, "document_bytes"))
    except OSError as error:
        raise _unreadable(error, path) from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{where}: {path} is not JSON: {error}", remedy=_REMEDY) from error
    if not isinstance(document, Mapping):
        raise SpecError(f"{where}: {path} does not hold a JSON object", remedy=_REMEDY)
    try:
        return read_document(document)
    except ValueError as error:
        raise SpecError(f"{where}: {path}: {error}", remedy=_REMEDY) from error


_REMEDY = "write a file of statistics with: autoloader stats SPEC -o FILE"


def _unreadable(error: OSError, path: str | Path) -> SpecError:
    return SpecError(f"normalize.statistics: {path}: {error.strerror or error}", remedy=_REMEDY)


def _in_folder(folder: Path, name: str) -> Path | None:
    """The file of a dataset, or of a robot, in a folder of its own."""
    asked = (folder / name / place for place in ("stats.json", *FILE_OF.values()))
    try:
        return next((path for path in asked if path.is_file()), None)
    except OSError as error:
        raise _unreadable(error, folder) from error


def statistics_document(
    spec: PipelineSpec, statistics: Mapping[str, NormalizationStatistics], names: Iterable[str]
) -> dict[str, Any]:
    """The plain form of the statistics of ``names``, where there are any.

    ``mask`` says which columns the spec normalises.
    """
    document = {}
    for name in (name for name in names if name in statistics):
        entry = statistics[name].plain()
        for key, own in (("action", "action"), ("proprio", "state")):
            if key not in entry:
                continue
            how = spec.normalize_of(name, own)
            width = len(entry[key]["mean"])
            given = entry[key].get("mask") or [True] * width
            entry[key]["mask"] = list((how.mask(width) if how else None) or given)
        document[name] = entry
    return document
