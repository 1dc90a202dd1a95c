"""Writes the spec file of ``init``: datasets with their comments, then the style's blocks.

Not here: what stands in an entry (``cli.dataset_entries``), what a style says (``cli.styles``).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoloader.catalog.registry import KnownMix, pair_offset
from autoloader.cli.dataset_entries import Entry, unused
from autoloader.cli.styles import Style
from autoloader.cli.yaml_line import flow

_COMMENT_WIDTH = 100


@dataclass(frozen=True, slots=True)
class ChosenMix:
    """A published weighting, and what of it is there.

    Attributes:
        name: what ``--mix`` takes.
        mix: its weights, by the registry's names.
        present: those that were found.
    """

    name: str
    mix: KnownMix
    present: tuple[str, ...]

    @property
    def absent(self) -> tuple[str, ...]:
        """Those that were not."""
        return tuple(name for name in self.mix.weights if name not in self.present)


def spec_text(
    entries: Sequence[Entry], style: Style, *, style_name: str, chosen: ChosenMix | None
) -> str:
    """The spec file."""
    lines = [f"# Written by autoloader init --style {style_name}."]
    lines += [line for about in style.about for line in _comment(about, "")]
    if chosen is not None:
        lines += _comment(f"{chosen.name}: {chosen.mix.about}.", "")
        there, every = len(chosen.present), len(chosen.mix.weights)
        rest = f"; not here: {', '.join(chosen.absent)}" if chosen.absent else ""
        lines += _comment(f"{there} of its {every} datasets{rest}.", "")
    lines += _comment("What is not used stands as a comment; features: passes it on.", "")
    lines += ["schema_version: 1", "datasets:"]
    for one in entries:
        weight = chosen.mix.weights[one.known_as] if chosen else 1.0
        lines += _dataset(one, weight, style)
    lines.append(f"weights: {style.weights[0 if chosen else 1]}")
    cameras = list(dict.fromkeys(camera for one in entries for camera in one.cameras))
    empty = [name for name in style.cameras if style.only_cameras and name not in cameras]
    cameras += empty
    ordered = list(dict.fromkeys([*(c for c in style.cameras if c in cameras), *cameras]))
    lines += [*style.sample.splitlines(), "cameras:"]
    for name in ordered:
        how = style.cameras.get(name, style.cameras["primary"])
        if name in empty:  # the project has it nonetheless
            how = how.replace("}", ", placeholder: true}", 1)
        lines.append(f"  {name}: {how}")
    augmented = [name for name in ordered if name in style.augment and name not in empty]
    if augmented:
        lines.append(f"augment:                          # {style.augmented}")
        for name in augmented:
            lines += [f"  {name}:", *textwrap.indent(style.augment[name], "    ").splitlines()]
    return "\n".join([*lines, *style.rest.splitlines()]) + "\n"


def _dataset(one: Entry, weight: float, style: Style) -> Iterator[str]:
    yield f"  - name: {one.name}"
    yield f"    path: {flow(one.directory.path)}"
    yield f"    weight: {weight}"
    yield f"    split: {flow(dict(one.split))}"
    for note in one.notes:
        yield from _comment(note, "    ")
    for key, value in one.values.items():
        why = one.proposed.get(key)
        yield f"    {key}: {flow(value)}" + (f"  # proposed: {why}" if why else "")
    for key, (value, why) in one.commented.items():
        yield from _comment(f"{key}: {flow(value)}   # {why}", "    ")
    if style.pairs:
        offset = pair_offset(one.hz)
        mark = "" if one.hz else "  # the control frequency is not known"
        own = {"frame_offsets": [0, offset], "action_horizon": offset}
        yield f"    sample: {flow(own)}{mark}"
    for line in unused(one):
        yield from _comment(line, "    ")


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _COMMENT_WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
