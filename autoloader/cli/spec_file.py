"""The ``--spec`` option: a spec file, beside which its transforms may lie.

Not here: reading it (``spec``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoloader.supervision.start import extend_import_path


def _with_its_folder(spec: Path | None) -> Path | None:
    """``spec``; functions that it names are also looked for in its folder."""
    if spec is not None:
        extend_import_path([str(spec.absolute().parent)])
    return spec


SpecFile = Annotated[
    Path, typer.Option("--spec", help="The mixture's spec file.", callback=_with_its_folder)
]
"""The type of a command's ``--spec``."""

DemoOrSpecFile = Annotated[
    Path | None,
    typer.Option(
        "--spec",
        help="The mixture's spec file; default: the demo mixture.",
        callback=_with_its_folder,
    ),
]
"""The same, of a command that has a mixture of its own."""
