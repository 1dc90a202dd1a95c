"""``autoloader peek``: a contact sheet of a mixture, as it reaches the model.

Not here: what ops and rules do to episodes (``cli.contact_sheet``), drawing the sheet
(``cli.contact_sheet``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoloader.cli.options import JsonFlag, NoTransforms, RamFloor, SpecFile, Split
from autoloader.cli.output import emit, emit_json, file_errors, note, progress_bar
from autoloader.host.extras import require

if TYPE_CHECKING:
    from autoloader.cli.contact_sheet import Panel, Shown
    from autoloader.samples.resolve import ResolvedMixture

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
    episodes: Annotated[
        int, typer.Option(min=1, help="Episodes of each dataset whose ops and rules are shown.")
    ] = 8,
    split: Split = "train",
    ram_floor: RamFloor = None,
    _no_transforms: NoTransforms = False,
    as_json: JsonFlag = False,
) -> None:
    """Draw frames and language, histograms of each column op by op, and the steps rules remove."""
    from autoloader.cli.contact_sheet import draw_sheet
    from autoloader.errors import UsageError
    from autoloader.spec import PipelineSpec

    require("matplotlib", "the contact sheet")
    if out.suffix not in SUFFIXES:
        raise UsageError(
            f"--out {out}: no kind of sheet ends so",
            remedy=f"end it in one of: {', '.join(SUFFIXES)}",
        )
    asked = PipelineSpec.from_yaml(spec)
    mixture, seen = _samples(asked, split, ram_floor, samples, shown_samples)
    panels = _panels(asked, mixture, seen, episodes)
    with file_errors("--out", out):
        draw_sheet(panels, out, title=f"{spec.name}, split {split}")
    odd = [f"{name}: {line}" for name, panel in panels.items() for line in _odd(panel)]
    if as_json:
        emit_json(
            {
                "sheet": out,
                "datasets": {name: _plain(panel) for name, panel in panels.items()},
                "odd": odd,
            }
        )
    else:
        emit(str(out))
    for line in odd:
        note(line)


@dataclass
class _Seen:
    """What a loader gave of one dataset."""

    shown: list[Shown] = field(default_factory=list)
    rows: dict[str, list[Any]] = field(default_factory=lambda: {"action": [], "state": []})
    samples: int = 0
    bright: dict[str, bool] = field(default_factory=dict)
    """Camera → whether any of its frames is not black; a camera that gave none is absent."""
    says: dict[str, bool] = field(default_factory=dict)
    """"language" and text features → whether any of their texts is not blank."""


def _samples(
    asked: Any, split: str, ram_floor: str | None, samples: int, most_shown: int
) -> tuple[ResolvedMixture, dict[str, _Seen]]:
    """The mixture, and ``samples`` samples of each dataset."""
    from autoloader.cli.comparison import evenly
    from autoloader.loader import AutoLoader
    from autoloader.process.device.augmentation import augmenter

    augment = augmenter(asked, split)
    seen: dict[str, _Seen] = {}
    with (
        AutoLoader(
            evenly(asked),
            split=split,
            ram_floor=ram_floor,
            rank=0,
            world_size=1,
            output="torch" if augment.active else "numpy",
        ) as loader,
        progress_bar("reading samples") as advance,
    ):
        names, mixture = loader.dataset_names, loader.plan.mixture
        wanted, done = samples * len(names), 0
        for batch in loader:
            indices = batch["dataset_index"].tolist()
            for k, index in enumerate(indices):
                one = seen.setdefault(names[index], _Seen())
                _take(batch, k, one)
                if len(one.shown) < most_shown:
                    alone: Any = {
                        "images": {name: of[k : k + 1] for name, of in batch["images"].items()},
                        "provenance": batch["provenance"][k : k + 1],
                    }
                    pictures = {name: of[0] for name, of in augment(alone)["images"].items()}
                    goal = mixture.datasets[index].sample.goal != "none"
                    one.shown.append(_shown(batch, pictures, k, goal=goal))
            done += len(indices)
            advance(min(done, wanted), wanted)
            if done >= wanted:
                break
    return mixture, seen


def _take(batch: Mapping[str, Any], k: int, one: _Seen) -> None:
    import numpy as np

    one.samples += 1
    for name, rows in one.rows.items():
        values, mask = (np.asarray(batch[key][k]) for key in (name, f"{name}_mask"))
        width = int(mask.any(axis=tuple(range(mask.ndim - 1))).sum())
        rows.append(values[mask.any(axis=-1)][:, :width].copy())
    for camera, frames in batch["images"].items():
        there = np.asarray(batch["frame_mask"][camera][k])
        if there.any():
            bright = bool(np.asarray(frames[k])[there].any())
            one.bright[camera] = one.bright.get(camera, False) or bright
    for name, texts in {"language": batch["language"], **batch.get("features", {})}.items():
        if isinstance(texts, list):
            one.says[name] = one.says.get(name, False) or bool("".join(texts[k]).strip())


def _shown(batch: Mapping[str, Any], pictures: Mapping[str, Any], k: int, *, goal: bool) -> Shown:
    import numpy as np

    from autoloader.cli.contact_sheet import Shown, coloured

    offsets = np.asarray(batch["frame_offset"][k]).tolist()
    labels = [f"t{offset:+d}" if offset else "t" for offset in offsets]
    if goal:
        labels[-1] = f"goal {labels[-1]}"
    masks = {name: np.asarray(mask[k]) for name, mask in batch["frame_mask"].items()}
    cameras = {name: np.asarray(of).copy() for name, of in pictures.items()}
    depth = {name: coloured(of) for name, of in cameras.items() if of.shape[-1] == 1}
    return Shown(
        cameras={**cameras, **{name: of for name, (of, _) in depth.items()}},
        labels=labels,
        absent=frozenset(name for name, mask in masks.items() if not mask.any()),
        t=int(batch["provenance"][k][4]),
        text=batch["language"][k],
        scales={name: scale for name, (_, scale) in depth.items() if scale is not None},
    )


def _panels(
    asked: Any, mixture: ResolvedMixture, seen: Mapping[str, _Seen], episodes: int
) -> dict[str, Panel]:
    import numpy as np

    from autoloader.cli.contact_sheet import DatasetLook, Panel, columns_of, look_at
    from autoloader.samples.transforms.fields import is_text

    panels = {}
    for dataset in mixture.datasets:
        if dataset.name not in seen:
            continue
        one, declared = seen[dataset.name], asked.dataset(dataset.name)
        look = DatasetLook() if dataset.remote else look_at(dataset, declared, episodes)
        if dataset.remote:
            note(f"{dataset.name}: remote; ops and removed steps are shown of local data alone")
        fields = {}
        for name in ("action", "state"):
            bound = dataset.bound("action" if name == "action" else "state")
            if bound is None:
                continue
            scaling = dataset.scaling.get(name)
            how = asked.normalize_of(dataset.name, name)
            fields[name] = columns_of(
                look.fields.get(name, []),
                np.concatenate(one.rows[name]),
                None if scaling is None else scaling.active.tolist(),
                label=f"to the model: {how.method}" if how else "to the model",
                grippers=name == "action",
            )
        black = [camera for camera, bright in one.bright.items() if not bright]
        named = {name for name, of in dataset.held.items() if is_text(of)}
        named |= {"language"} if dataset.language else set()
        silent = sorted(name for name in named if not one.says.get(name))
        panels[dataset.name] = Panel(one.shown, fields, look, one.samples, black, silent)
    return panels


def _odd(panel: Panel) -> list[str]:
    """What a person should look at, in lines."""
    found = [
        f"camera {camera} is black in every sample: a placeholder? Leave it out of images, or name "
        "the flag that says where it is there (present)"
        for camera in panel.black
    ]
    found += [f"{name} is empty in all {panel.samples} samples" for name in panel.silent]
    for name, columns in panel.fields.items():
        found += [f"{name} {column.name}: {column.flag}" for column in columns if column.flag]
    return found


def _plain(panel: Panel) -> dict[str, Any]:
    return {
        "samples": panel.samples,
        "language": [one.text for one in panel.shown],
        "frames": [{"t": one.t, "labels": list(one.labels), "cameras": list(one.cameras),
                    "absent": sorted(one.absent),
                    "depth": {name: asdict(scale) for name, scale in one.scales.items()}}
                   for one in panel.shown],
        "black": panel.black,
        "silent": panel.silent,
        "fields": {name: [column.plain() for column in columns]
                   for name, columns in panel.fields.items()},
        "removed": panel.look.removed(),
        "episodes": [asdict(one) for one in panel.look.episodes],
    }  # fmt: skip
