"""Fields that Octo, OpenVLA, OpenVLA-OFT and openpi take from each dataset, as a spec has them.

::

    from autoloader import recipes

    recipes.names("octo")                            # the datasets of a project's registry
    recipes.recipe("fractal20220817_data", "octo")   # its fields, ready for a spec
    recipes.mixtures("octo")["oxe_magic_soup"]       # dataset → weight

The recipes are data (``datasets.yaml``, ``mixtures.yaml``). Transforms that no field expression can
say are ``functions``; specs name them as ``autoloader.recipes.functions:NAME``.

Not here: whether files on disk have the features that a recipe names (``samples.resolve``), whole
specs (``autoloader init``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from autoloader.errors import UsageError, nearest
from autoloader.host.frozen import frozen
from autoloader.spec.reading import packaged

__all__ = ["STYLES", "Recipe", "mixtures", "names", "other_names", "own_name", "recipe"]

STYLES = ("octo", "openvla", "oft", "openpi")
"""Projects whose conventions there are: ``oft`` is OpenVLA-OFT."""
_HAVE = ("octo", "openvla", "oft")
_BASE = {"oft": ("openvla", "oft")}
_FIELDS = (
    "images",
    "action",
    "state",
    "language",
    "stride",
    "steps",
    "normalize",
    "keep",
    "transform",
    "sample",
)
_UNLABELLED = ("openvla", "oft")
"""Styles that leave out episodes without any instruction."""


@frozen
class Recipe:
    """One project's fields of one dataset.

    Attributes:
        name: name of the dataset in TFDS, whatever the project calls it.
        style: project whose convention it is.
        dataset: fields of a spec's dataset: ``images``, ``action``, ``state``, ``language``,
            ``steps``, ``keep``, ``stride``, ``transform``, ``sample``, ``normalize``; those that it
            lacks are left out. Plain values, the caller's own.
        notes: remarks for people, one sentence each.
    """

    name: str
    style: str
    dataset: dict[str, Any]
    notes: tuple[str, ...]


def names(style: str) -> tuple[str, ...]:
    """The datasets that a project's registry has a recipe for.

    Raises:
        UsageError: there is no such style.
    """
    _check_style(style)
    return tuple(name for name, entry in _table().items() if style in entry.get("styles", _HAVE))


def recipe(name: str, style: str) -> Recipe:
    """Recipe of ``style`` for dataset ``name``, or for any project's name of it.

    Raises:
        UsageError: there is no such style, or the project has no such dataset.
    """
    known = names(style)
    own = own_name(name)
    if own not in known:
        others = [one for one in STYLES if own in names(one)]
        raise UsageError(
            f"the style {style} has no recipe for a dataset named {name!r}",
            remedy=f"these styles have one: {', '.join(others)}"
            if others
            else _published(name, known, style),
        )
    entry = copy.deepcopy(dict(_table()[own]))
    fields = {key: entry[key] for key in (*_FIELDS, "note") if key in entry}
    fields.setdefault("language", "language_instruction")
    for layer in _BASE.get(style, (style,)):
        fields.update(copy.deepcopy(entry.get(layer, {})))
    notes = [fields.pop("note")] if "note" in fields else []
    dataset = {key: fields[key] for key in _FIELDS if fields.get(key) is not None}
    if style in _UNLABELLED and "language" in dataset:
        dataset["keep"] = {**dataset.get("keep", {}), "language": "anywhere"}
    turned = [name for name, feature in entry["images"].items() if "ops" in feature]
    if turned:
        notes.append(
            f"the public files hold blue before red in {' and '.join(turned)}; the "
            "copies that the projects trained on do not (files: auto tells them apart)"
        )
    if fields.get("language") is None:
        notes.append(f"{style} blanks the instructions of this dataset")
    if entry.get("tree") == "unknown":
        notes.append("untested: no public feature tree is known for this dataset")
    return Recipe(name=own, style=style, dataset=dataset, notes=tuple(notes))


def _published(name: str, known: Sequence[str], style: str) -> str:
    """Remedy: the nearest known name, or how a copy under another name is asked for."""
    close, some = nearest(name, known), ", ".join(known[:3])
    if close.startswith("did you mean"):
        return close
    return (
        f"pass the name under which the dataset was published, such as {some} "
        f"(autoloader.recipes.names({style!r}) lists all); `autoloader init PATH` writes a spec of "
        "other data"
    )


def own_name(name: str) -> str:
    """The one name of a dataset that others are known for; the name itself where none is."""
    return name if name in _table() else _aliases().get(name, name)


def other_names(name: str) -> tuple[str, ...]:
    """The other names of a dataset, its key in ``datasets.yaml`` first; () for an unknown one.

    ``init`` and statistics files look a dataset up under each.
    """
    own = own_name(name)
    known = (own, *_table().get(own, {}).get("also", ()))
    return tuple(one for one in known if one != name) if own in _table() else ()


def mixtures(style: str) -> dict[str, dict[str, float]]:
    """A project's named mixtures: name → dataset → weight, as the project writes it.

    Octo, OpenVLA and OpenVLA-OFT multiply a weight with the number of the dataset's steps
    (``weights: natural_scaled``); openpi takes it as it is (``explicit``).

    Raises:
        UsageError: there is no such style.
    """
    _check_style(style)
    document: Mapping[str, Any] = _document("mixtures.yaml")[style]
    return {
        name: {dataset: weight for dataset, weight in weights.items() if weight is not None}
        for name, weights in document.items()
    }


def _check_style(style: str) -> None:
    if style not in STYLES:
        raise UsageError(f"style: there is no style {style!r}", remedy=nearest(style, STYLES))


@cache
def _document(name: str) -> Mapping[str, Any]:
    """A YAML file beside this module, parsed."""
    return packaged(__package__, name, dict[str, Any])


def _table() -> Mapping[str, Mapping[str, Any]]:
    table: Mapping[str, Mapping[str, Any]] = _document("datasets.yaml")["datasets"]
    return table


@cache
def _aliases() -> Mapping[str, str]:
    return {other: name for name, entry in _table().items() for other in entry.get("also", ())}
