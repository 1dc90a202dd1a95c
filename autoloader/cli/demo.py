"""``autoloader demo``: write the demo mixture.

Not here: what it consists of (``cli.demo_mixture.build``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoloader.cli.options import JsonFlag
from autoloader.cli.output import emit, emit_json, note, progress_bar


def demo(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Where to; default: the user's cache directory."),
    ] = None,
    datasets: Annotated[int, typer.Option(help="How many datasets, up to 29.")] = 29,
    scale: Annotated[
        float, typer.Option(help="Factor on the number of episodes; 1 is below 1 GB.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Write the demo mixture (real TFDS/RLDS files) and its mix.yaml, unless it is there."""
    from autoloader.cli.demo_mixture.build import ensure_demo

    built = False
    with progress_bar("writing episodes") as advance:

        def tell(done: int, total: int) -> None:
            nonlocal built
            built = True
            advance(done, total)

        spec_path = ensure_demo(directory, datasets=datasets, scale=scale, seed=seed, progress=tell)
    if as_json:
        given = {"datasets": datasets, "scale": scale, "seed": seed}
        emit_json({"spec": spec_path, "directory": spec_path.parent, **given, "built": built})
        return
    note("demo mixture written" if built else "the demo mixture is there already")
    emit(str(spec_path))
