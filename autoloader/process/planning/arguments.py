"""The arguments of the Python interface, held against what each may be before anything starts.

Not here: what they mean together (``process.planning``, ``process.ranks``), knobs (``spec.knobs``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import NoneType
from typing import Any

from autoloader.errors import UsageError, shown
from autoloader.host.extras import require
from autoloader.host.units import parse_floor
from autoloader.spec import PipelineSpec

_PATH = (str, os.PathLike)
_ALLOWED: Mapping[str, tuple[tuple[type, ...], str]] = {
    "spec": (
        (PipelineSpec, Mapping, *_PATH),
        "a PipelineSpec, the path of one, or a dict that says the same",
    ),
    "profile": ((*_PATH, NoneType), "a host profile's name or path, or None"),
    "ram_floor": ((str, int, float, NoneType), 'a size such as "5GB" or "5GiB", bytes, or None'),
    "disk_floor": ((str, int, float, NoneType), 'a size such as "50GB", bytes, or None'),
    "split": ((str,), 'a name of one of the spec\'s splits, such as "train"'),
    "knobs": ((Mapping, NoneType), 'a mapping of knobs such as {"decode_threads": 2}, or None'),
    "isolation": ((str,), "'process' or 'thread'"),
    "controller": ((bool,), "True or False"),
    "rank": ((int, NoneType), "a whole number from 0, or None"),
    "world_size": ((int, NoneType), "a whole number from 1, or None"),
    "device_mesh": ((object,), "a DeviceMesh of the data-parallel dimensions, or None"),
    "output": ((str,), "'torch' or 'numpy'"),
    "reproducible": ((bool,), "True or False"),
    "replay_one_batch": ((bool,), "True or False"),
    "helpers": ((str, NoneType), '"ray", "ray@HOST:PORT", or None'),
    "batch_size": ((int, NoneType), "a whole number from 1, or None"),
}
_WORDS = {"isolation": ("process", "thread"), "output": ("torch", "numpy")}


def check_arguments(given: Mapping[str, Any]) -> None:
    """Refuse an argument (by name) of the wrong type; a bool is no number.

    Raises:
        UsageError: names the argument, the value found and what is allowed.
        MissingExtraError: torch tensors are asked for where there is no torch.
    """
    for name, value in given.items():
        kinds, allowed = _ALLOWED[name]
        wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        if wrong or value not in _WORDS.get(name, (value,)):
            raise UsageError(f"{name}={shown(value)} is not allowed", remedy=f"{name} is {allowed}")
    if given.get("output") == "torch":
        require("torch", 'output="torch"', instead='or use output="numpy"')
    for name in ("ram_floor", "disk_floor"):
        if given.get(name) is not None:
            parse_floor(given[name], name=name)
    _check_names(given.get("knobs") or {})


def check_retune(values: object) -> None:
    """Refuse values of ``retune`` that are no mapping of knobs by name.

    Raises:
        UsageError: says how it is called.
    """
    if not isinstance(values, Mapping):
        raise UsageError(
            f"retune({shown(values)}): it takes knobs by their names",
            remedy='write retune({"decode_threads": 2}), or retune(decode_threads=2)',
        )
    _check_names(values)


def _check_names(knobs: Mapping[Any, Any]) -> None:
    for key in knobs:
        if not isinstance(key, str):
            raise UsageError(
                f"knobs: {shown(key)} is no name of a knob",
                remedy='write a name, such as {"decode_threads": 2}',
            )
