"""``autoloader peek``: a contact sheet of a mixture, as it reaches the model.

Not here: drawing it (``cli.contact_sheet``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autoloader.cli.options import JsonFlag, NoTransforms, RamFloor, SpecFile, Split
from autoloader.cli.output import emit, emit_json, file_errors, progress_bar
from autoloader.extras import require

SUFFIXES = (".png", ".html", ".svg", ".pdf")


def peek(
    spec: SpecFile,
    out: Annotated[Path, typer.Option(help="The sheet: a .png, .html, .svg or .pdf file.")] = Path(
        "contact-sheet.png"
    ),
    shown_samples: Annotated[
        int, typer.Option(min=1, max=12, help="Samples of each dataset whose frames are shown.")
    ] = 3,
    samples: Annotated[
        int, typer.Option(min=1, help="Samples of each dataset in the histograms.")
    ] = 64,
    frames: Annotated[int | None, typer.Option(min=1, max=12, hidden=True)] = None,
    split: Split = "train",
    ram_floor: RamFloor = None,
    _no_transforms: NoTransforms = False,
    as_json: JsonFlag = False,
) -> None:
    """Draw each dataset's frames, language, and actions before and after normalisation."""
    import numpy as np

    from autoloader.cli.comparison import evenly
    from autoloader.cli.contact_sheet import Panel, draw_sheet
    from autoloader.device.augmentation import augmenter
    from autoloader.errors import UsageError
    from autoloader.spec import PipelineSpec

    require("matplotlib", "the contact sheet")
    if out.suffix not in SUFFIXES:
        raise UsageError(f"--out {out}", remedy=f"end it in one of: {', '.join(SUFFIXES)}")
    most_shown = frames or shown_samples  # --frames is the old name
    asked = PipelineSpec.from_yaml(spec)
    plain = evenly(asked)
    augment = augmenter(asked, split)
    panels: dict[str, Panel] = {}

    def collect(declared: Any, *, shown: bool) -> None:
        from autoloader.loader import AutoLoader

        with (
            AutoLoader(
                declared,
                split=split,
                ram_floor=ram_floor,
                rank=0,
                world_size=1,
                output="torch" if augment.active else "numpy",
            ) as loader,
            progress_bar("reading samples") as advance,
        ):
            names = loader.dataset_names
            wanted, done = samples * len(names), 0
            for batch in loader:
                pictures = augment(batch)["images"] if shown else {}
                indices = batch["dataset_index"].tolist()
                for k, index in enumerate(indices):
                    panel = panels.setdefault(names[index], Panel())
                    action, mask = (np.asarray(batch[n][k]) for n in ("action", "action_mask"))
                    width = int(mask.any(axis=0).sum())
                    panel.add_actions(action[mask.any(axis=1), :width], normalised=shown)
                    if shown and len(panel.texts) < most_shown:
                        panel.add_sample(
                            {name: np.asarray(of[k]) for name, of in pictures.items()},
                            batch["language"][k],
                        )
                done += len(indices)
                advance(min(done, wanted), wanted)
                if done >= wanted:
                    break

    collect(plain, shown=True)
    normalised = asked.normalize is not None and asked.normalize.action is not None
    if normalised:
        collect(plain.model_copy(update={"normalize": None}), shown=False)
    ordered = {one.name: panels[one.name] for one in asked.datasets if one.name in panels}
    with file_errors("--out", out):
        draw_sheet(ordered, out, title=f"{spec.name}, split {split}", normalised=normalised)
    if as_json:
        emit_json(
            {
                "sheet": out,
                "datasets": {name: {"samples": panel.samples, "language": panel.texts}
                             for name, panel in ordered.items()},
            }
        )  # fmt: skip
    else:
        emit(str(out))
