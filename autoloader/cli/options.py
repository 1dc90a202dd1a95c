"""Options that several commands have: one type each, so that they mean the same everywhere.

A transform is a function that a spec names. It is found on the import path, in the working
directory or in the spec's folder; ``--no-transforms`` refuses it.

Not here: reading a spec (``spec``), finding and calling transforms (``samples.transforms``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from autoloader.errors import UsageError
from autoloader.host.units import parse_floor


def with_transforms(context: typer.Context, spec: Path | None) -> Path | None:
    """Let the transforms of the command's specs be imported, or refuse them, before one is read."""
    from autoloader.samples.transforms import transform

    if context.params.get("_no_transforms"):
        transform.refuse()
    elif spec is not None:
        with contextlib.suppress(OSError):  # the working directory is gone
            transform.permit(str(Path.cwd()), str(spec.absolute().parent))
    return spec


JsonFlag = Annotated[bool, typer.Option("--json", help="Write one JSON document to stdout.")]

SpecFile = Annotated[
    Path, typer.Option("--spec", help="The mixture's spec file.", callback=with_transforms)
]

DemoOrSpecFile = Annotated[
    Path | None,
    typer.Option(
        "--spec",
        help="The mixture's spec file; default: the demo mixture.",
        callback=with_transforms,
    ),
]

NoTransforms = Annotated[
    bool,
    typer.Option(
        "--no-transforms",
        is_eager=True,  # known before --spec is looked at
        help="Run no function that the spec names: a spec with a transform is refused.",
    ),
]
"""Commands name this parameter ``_no_transforms``: only the callback of ``--spec`` reads it."""

ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile", "--host-profile", help="Host profile: a name or a path to a YAML file."
    ),
]

StrictProfile = Annotated[
    bool, typer.Option("--strict", help="Refuse a profile that this host would have to clamp.")
]

KnobValues = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KNOB=VALUE", help="A knob over the profile's; repeatable."),
]


def _checked_floor(parameter: typer.CallbackParam, text: str | None) -> str | None:
    """A floor as it is written, refused before the command does anything."""
    if text is not None:
        parse_floor(text, name=parameter.opts[0])
    return text


RamFloor = Annotated[
    str | None,
    typer.Option(
        "--ram-floor", help='Memory that must stay free, such as "5GB".', callback=_checked_floor
    ),
]

DiskFloor = Annotated[
    str | None,
    typer.Option(
        "--disk-floor",
        help='What must stay free on the disk of the cache of shards, such as "50GB".',
        callback=_checked_floor,
    ),
]

Split = Annotated[str, typer.Option("--split", help="The spec's split to read.")]


def floor_bytes(ram_floor: str | None) -> int | None:
    """``--ram-floor`` in bytes."""
    return None if ram_floor is None else parse_floor(ram_floor, name="--ram-floor")


def refuse_clamps(profile: str | None) -> None:
    """Refuse a profile that this host would have to clamp, for ``--strict``.

    Raises:
        ProfileError: the profile that a loader would take must be clamped here, and how.
    """
    from autoloader.controller.profile import load_profile

    load_profile(profile, strict=True)


def parse_sets(words: Sequence[str] | None) -> dict[str, str]:
    """``{"decode_threads": "4"}`` from "decode_threads=4"; later words win.

    Raises:
        UsageError: a word without "=".
    """
    values = {}
    for word in words or ():
        knob, equals, value = word.partition("=")
        if not equals or not knob.strip() or not value.strip():
            raise UsageError(
                f"--set {word!r} names no knob and value",
                remedy='write knob=value, such as "--set decode_threads=4" or '
                '"--set bridge.cycle_length=2"',
            )
        values[knob.strip()] = value.strip()
    return values


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
