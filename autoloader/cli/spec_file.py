"""The ``--spec`` option: a spec file, beside which its transforms may lie, or may not run.

Not here: reading it (``spec``), finding and calling transforms (``transforms.user_function``).
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer


def _with_transforms(context: typer.Context, spec: Path | None) -> Path | None:
    """``spec``; its transforms lie on the import path, here or in its folder, or are refused."""
    from autoloader.transforms import user_function

    if context.params.get("no_transforms"):
        user_function.refuse()
    elif spec is not None:
        with contextlib.suppress(OSError):  # the working directory is gone
            user_function.permit(str(Path.cwd()), str(spec.absolute().parent))
    return spec


SpecFile = Annotated[
    Path, typer.Option("--spec", help="The mixture's spec file.", callback=_with_transforms)
]
"""The type of a command's ``--spec``."""

DemoOrSpecFile = Annotated[
    Path | None,
    typer.Option(
        "--spec",
        help="The mixture's spec file; default: the demo mixture.",
        callback=_with_transforms,
    ),
]
"""The same, of a command that has a mixture of its own."""

NoTransforms = Annotated[
    bool,
    typer.Option(
        "--no-transforms",
        is_eager=True,  # known before --spec is looked at
        help="Run no function that the spec names: a spec with a transform is refused.",
    ),
]
"""The type of ``--no-transforms``, of every command that takes a spec."""
